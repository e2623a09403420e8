"""Build the requests that the sidecar sends to brokers, each in a range of versions.

The range begins at the first version with the fields that are needed (all are in Kafka 3.9) and ends at the newest that kio
knows.  A builder takes the negotiated version.  Responses are typed as the newest version; the fields that are read are in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.api_versions.v4 import ApiVersionsResponse
from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeResponse
from kio.schema.create_topics.v7 import CreateTopicsResponse
from kio.schema.delete_records.v2 import DeleteRecordsResponse
from kio.schema.describe_cluster.v2 import DescribeClusterResponse
from kio.schema.describe_configs.v4 import DescribeConfigsResponse
from kio.schema.describe_groups.v5 import DescribeGroupsResponse
from kio.schema.describe_log_dirs.v4 import DescribeLogDirsResponse
from kio.schema.describe_share_group_offsets.v1 import DescribeShareGroupOffsetsResponse
from kio.schema.elect_leaders.v2 import ElectLeadersResponse
from kio.schema.fetch.v15 import FetchResponse
from kio.schema.find_coordinator.v6 import FindCoordinatorResponse
from kio.schema.incremental_alter_configs.v1 import IncrementalAlterConfigsResponse
from kio.schema.list_groups.v5 import ListGroupsResponse
from kio.schema.list_offsets.v11 import ListOffsetsResponse
from kio.schema.metadata.v13 import MetadataResponse
from kio.schema.offset_commit.v9 import OffsetCommitResponse
from kio.schema.offset_fetch.v9 import OffsetFetchResponse
from kio.schema.offset_for_leader_epoch.v4 import OffsetForLeaderEpochResponse
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeResponse
from kio.schema.write_txn_markers.v1 import WriteTxnMarkersResponse
from kio.static.constants import EntityType
from kio.static.protocol import RequestPayload, ResponsePayload

R = TypeVar("R", bound=ResponsePayload)

CONSUMER, DEBUGGER = -1, -2
"""``replica_id`` of a client.  A debugger is answered by followers too (``ListOffsetsRequest``)."""
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
"""``ConfigResource.Type``."""
DYNAMIC_TOPIC_CONFIG = 1
"""``ConfigEntry.ConfigSource``: set on the topic itself."""
_SET, _DELETE = 0, 1
"""``AlterConfigOp.OpType``."""
_UNCLEAN = 1
"""``ElectionType``: the first live replica, if none is in sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[R]):
    """An API, its range of versions (both inclusive) and its newest response."""

    name: str
    oldest: int
    response_type: type[R]

    @property
    def key(self) -> int:
        return self.response_type.__api_key__

    @property
    def newest(self) -> int:
        return self.response_type.__version__


# Software name and version (KIP-511).
API_VERSIONS = Api(name="ApiVersions", oldest=3, response_type=ApiVersionsResponse)
# Exchanges inside SaslAuthenticate instead of bare frames (KIP-152).
SASL_HANDSHAKE = Api(name="SaslHandshake", oldest=1, response_type=SaslHandshakeResponse)
# The session's lifetime (KIP-368).
SASL_AUTHENTICATE = Api(name="SaslAuthenticate", oldest=1, response_type=SaslAuthenticateResponse)
# Topic ids, by name and by id (KIP-516).
METADATA = Api(name="Metadata", oldest=12, response_type=MetadataResponse)
# LATEST_TIERED (KIP-1005); fencing by leader epoch is older.
LIST_OFFSETS = Api(name="ListOffsets", oldest=9, response_type=ListOffsetsResponse)
OFFSET_FOR_LEADER_EPOCH = Api(name="OffsetForLeaderEpoch", oldest=4, response_type=OffsetForLeaderEpochResponse)
DELETE_RECORDS = Api(name="DeleteRecords", oldest=1, response_type=DeleteRecordsResponse)
DESCRIBE_CONFIGS = Api(name="DescribeConfigs", oldest=1, response_type=DescribeConfigsResponse)
INCREMENTAL_ALTER_CONFIGS = Api(name="IncrementalAlterConfigs", oldest=0, response_type=IncrementalAlterConfigsResponse)
# Flexible, and in both versions of Kafka.
DESCRIBE_LOG_DIRS = Api(name="DescribeLogDirs", oldest=2, response_type=DescribeLogDirsResponse)
# Topics by id (KIP-516); any replica answers consumers (KIP-392).  Later versions name other brokers, which are not asked.
FETCH = Api(name="Fetch", oldest=13, response_type=FetchResponse)
CREATE_TOPICS = Api(name="CreateTopics", oldest=5, response_type=CreateTopicsResponse)
# Groups by type (KIP-848), many at once (KIP-699, KIP-709).  Version 10 of OffsetFetch is by topic id, which buys us nothing.
LIST_GROUPS = Api(name="ListGroups", oldest=5, response_type=ListGroupsResponse)
FIND_COORDINATOR = Api(name="FindCoordinator", oldest=4, response_type=FindCoordinatorResponse)
OFFSET_FETCH = Api(name="OffsetFetch", oldest=8, response_type=OffsetFetchResponse)
# By name; only `mount` sends it, no daemon.
OFFSET_COMMIT = Api(name="OffsetCommit", oldest=8, response_type=OffsetCommitResponse)
ELECT_LEADERS = Api(name="ElectLeaders", oldest=2, response_type=ElectLeadersResponse)
WRITE_TXN_MARKERS = Api(name="WriteTxnMarkers", oldest=1, response_type=WriteTxnMarkersResponse)
# Members of groups by the protocol before KIP-848, and by that one.
DESCRIBE_GROUPS = Api(name="DescribeGroups", oldest=5, response_type=DescribeGroupsResponse)
CONSUMER_GROUP_DESCRIBE = Api(name="ConsumerGroupDescribe", oldest=0, response_type=ConsumerGroupDescribeResponse)
# From 4.1 on (KIP-932).
DESCRIBE_SHARE_GROUP_OFFSETS = Api(
    name="DescribeShareGroupOffsets", oldest=0, response_type=DescribeShareGroupOffsetsResponse
)
DESCRIBE_CLUSTER = Api(name="DescribeCluster", oldest=0, response_type=DescribeClusterResponse)

NOT_SAID = -(2**31)
"""Value of authorized operations that were not requested, or that the broker does not return."""

NEEDED: tuple[Api[Any], ...] = (
    METADATA, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, DELETE_RECORDS, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS, FETCH, CREATE_TOPICS,
    LIST_GROUPS, FIND_COORDINATOR, OFFSET_FETCH, DESCRIBE_CLUSTER,
)  # fmt: skip
"""APIs that every sidecar needs."""


def _schema(api: Api[Any], version: int) -> Any:
    return load_payload_module(api.key, version, EntityType.request)


def api_versions(version: int, *, software_version: str) -> RequestPayload:
    """Ask for versions; ``software_version`` shows in the broker's metrics of its clients."""
    request: RequestPayload = _schema(API_VERSIONS, version).ApiVersionsRequest(
        client_software_name="tiersidecar", client_software_version=software_version
    )
    return request


def sasl_handshake(version: int, mechanism: str) -> RequestPayload:
    request: RequestPayload = _schema(SASL_HANDSHAKE, version).SaslHandshakeRequest(mechanism=mechanism)
    return request


def sasl_authenticate(version: int, auth_bytes: bytes) -> RequestPayload:
    request: RequestPayload = _schema(SASL_AUTHENTICATE, version).SaslAuthenticateRequest(auth_bytes=auth_bytes)
    return request


def metadata(version: int, topics: Sequence[str] | None, *, authorized_operations: bool = False) -> RequestPayload:
    """Ask for ``topics``: None for all, an empty sequence for none; never create one."""
    schema = _schema(METADATA, version)
    named = None if topics is None else tuple(schema.MetadataRequestTopic(topic_id=None, name=name) for name in topics)
    request: RequestPayload = schema.MetadataRequest(
        topics=named,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=authorized_operations,
    )
    return request


def metadata_by_id(version: int, topic_ids: Iterable[bytes]) -> RequestPayload:
    """Ask for the topics with these ids, whatever their names."""
    schema = _schema(METADATA, version)
    wanted = tuple(schema.MetadataRequestTopic(topic_id=UUID(bytes=topic_id), name=None) for topic_id in topic_ids)
    request: RequestPayload = schema.MetadataRequest(
        topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return request


def describe_log_dirs(version: int, topic: str, partitions: Sequence[int]) -> RequestPayload:
    schema = _schema(DESCRIBE_LOG_DIRS, version)
    wanted = schema.DescribableLogDirTopic(topic=topic, partitions=tuple(partitions))
    request: RequestPayload = schema.DescribeLogDirsRequest(topics=(wanted,))
    return request


def list_offsets(
    version: int,
    epochs: Mapping[str, Mapping[int, int]],
    timestamp: int,
    *,
    read_committed: bool,
    timeout_s: float,
    replica_id: int = CONSUMER,
) -> RequestPayload:
    """Ask for offsets; ``epochs`` has the current leader epoch (-1: unfenced) by topic and partition.  A follower answers
    only :data:`DEBUGGER`."""
    schema = _schema(LIST_OFFSETS, version)
    topics = tuple(
        schema.ListOffsetsTopic(
            name=topic,
            partitions=tuple(
                schema.ListOffsetsPartition(
                    partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
                )
                for partition, leader_epoch in partitions.items()
            ),
        )
        for topic, partitions in epochs.items()
    )
    later_fields = {"timeout": timedelta(seconds=timeout_s)} if version >= 10 else {}
    request: RequestPayload = schema.ListOffsetsRequest(
        replica_id=replica_id, isolation_level=int(read_committed), topics=topics, **later_fields
    )
    return request


def offset_for_leader_epoch(version: int, asked: Mapping[str, Mapping[int, tuple[int, int]]]) -> RequestPayload:
    """Ask for ends; ``asked`` has the current leader epoch, and the epoch whose end is wanted, by topic and partition."""
    schema = _schema(OFFSET_FOR_LEADER_EPOCH, version)
    topics = tuple(
        schema.OffsetForLeaderTopic(
            topic=topic,
            partitions=tuple(
                schema.OffsetForLeaderPartition(
                    partition=partition, current_leader_epoch=current_epoch, leader_epoch=leader_epoch
                )
                for partition, (current_epoch, leader_epoch) in partitions.items()
            ),
        )
        for topic, partitions in asked.items()
    )
    request: RequestPayload = schema.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
    return request


def fetch(
    version: int,
    topic_id: bytes,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    read_committed: bool,
    last_fetched_epoch: int = -1,
) -> RequestPayload:
    """Fetch one partition, without a session; answered at once.  With ``last_fetched_epoch`` a broker whose log is another one
    below ``offset`` says so (``Partition.readRecords``, for consumers as well)."""
    schema = _schema(FETCH, version)
    wanted = schema.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        last_fetched_epoch=last_fetched_epoch,
        partition_max_bytes=max_bytes,
    )
    request: RequestPayload = schema.FetchRequest(
        max_wait=timedelta(0),
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        topics=(schema.FetchTopic(topic_id=UUID(bytes=topic_id), partitions=(wanted,)),),
        forgotten_topics_data=(),
    )
    return request


def delete_records(version: int, offsets: Mapping[str, Mapping[int, int]], *, timeout_s: float) -> RequestPayload:
    """Delete records; ``offsets`` has the new log start by topic and partition."""
    schema = _schema(DELETE_RECORDS, version)
    topics = tuple(
        schema.DeleteRecordsTopic(
            name=topic,
            partitions=tuple(
                schema.DeleteRecordsPartition(partition_index=partition, offset=offset)
                for partition, offset in partitions.items()
            ),
        )
        for topic, partitions in offsets.items()
    )
    request: RequestPayload = schema.DeleteRecordsRequest(topics=topics, timeout=timedelta(seconds=timeout_s))
    return request


def describe_configs(
    version: int, resource_type: int, resources: Iterable[str], names: Iterable[str] | None = None
) -> RequestPayload:
    """Ask for the settings ``names`` of each resource, all of them unless given, without synonyms and documentation."""
    schema, keys = _schema(DESCRIBE_CONFIGS, version), None if names is None else tuple(names)
    asked = tuple(
        schema.DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=keys)
        for name in resources
    )
    request: RequestPayload = schema.DescribeConfigsRequest(resources=asked)
    return request


def incremental_alter_configs(version: int, topic: str, changes: Mapping[str, str | None]) -> RequestPayload:
    """Change a topic's overrides; None removes one."""
    schema = _schema(INCREMENTAL_ALTER_CONFIGS, version)
    configs = tuple(
        schema.AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
        for name, value in changes.items()
    )
    resource = schema.AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=configs)
    request: RequestPayload = schema.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    return request


def create_topic(
    version: int, topic: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str], timeout_s: float
) -> RequestPayload:
    schema = _schema(CREATE_TOPICS, version)
    wanted = schema.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=(),
        configs=tuple(schema.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()),
    )
    request: RequestPayload = schema.CreateTopicsRequest(topics=(wanted,), timeout=timedelta(seconds=timeout_s))
    return request


def describe_cluster(version: int) -> RequestPayload:
    """Ask for our rights on the cluster; the answer has the brokers too."""
    later_fields = {"include_fenced_brokers": False} if version >= 2 else {}
    request: RequestPayload = _schema(DESCRIBE_CLUSTER, version).DescribeClusterRequest(
        include_cluster_authorized_operations=True, **later_fields
    )
    return request


def list_groups(version: int) -> RequestPayload:
    """Ask for groups of all types and states, of one coordinator."""
    request: RequestPayload = _schema(LIST_GROUPS, version).ListGroupsRequest()
    return request


def describe_groups(version: int, groups: Sequence[str]) -> RequestPayload:
    """Describe groups of the classic protocol."""
    request: RequestPayload = _schema(DESCRIBE_GROUPS, version).DescribeGroupsRequest(
        groups=tuple(groups), include_authorized_operations=False
    )
    return request


def consumer_group_describe(version: int, groups: Sequence[str]) -> RequestPayload:
    """Describe groups of KIP-848's protocol."""
    request: RequestPayload = _schema(CONSUMER_GROUP_DESCRIBE, version).ConsumerGroupDescribeRequest(
        group_ids=tuple(groups), include_authorized_operations=False
    )
    return request


def find_coordinator(version: int, groups: Sequence[str]) -> RequestPayload:
    """Find the coordinators of groups of any type."""
    request: RequestPayload = _schema(FIND_COORDINATOR, version).FindCoordinatorRequest(coordinator_keys=tuple(groups))
    return request


def offset_fetch(version: int, groups: Sequence[str], partitions: Mapping[str, Sequence[int]]) -> RequestPayload:
    """Ask for committed offsets; a transaction that has not ended changes none."""
    schema = _schema(OFFSET_FETCH, version)
    topics = tuple(
        schema.OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(indexes))
        for topic, indexes in partitions.items()
    )
    wanted = tuple(schema.OffsetFetchRequestGroup(group_id=group, topics=topics) for group in groups)
    request: RequestPayload = schema.OffsetFetchRequest(groups=wanted, require_stable=False)
    return request


def offset_fetch_all(version: int, groups: Sequence[str]) -> RequestPayload:
    """Ask for committed offsets on all partitions that have one and that we may see."""
    schema = _schema(OFFSET_FETCH, version)
    wanted = tuple(schema.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups)
    request: RequestPayload = schema.OffsetFetchRequest(groups=wanted, require_stable=False)
    return request


def offset_commit(
    version: int, group: str, commits: Mapping[str, Mapping[int, tuple[int, int, str]]]
) -> RequestPayload:
    """Commit, by topic and partition, offset, leader epoch and metadata: for no member, which only an empty group accepts."""
    schema = _schema(OFFSET_COMMIT, version)
    topics = tuple(
        schema.OffsetCommitRequestTopic(
            name=topic,
            partitions=tuple(
                schema.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=leader_epoch,
                    committed_metadata=metadata,
                )
                for partition, (offset, leader_epoch, metadata) in partitions.items()
            ),
        )
        for topic, partitions in commits.items()
    )
    request: RequestPayload = schema.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, topics=topics
    )
    return request


def describe_share_group_offsets(version: int, groups: Sequence[str]) -> RequestPayload:
    """Ask for offsets of all partitions that each group has been given.  A partition that is asked for by name is answered with
    -1 whether the group reads it or not."""
    schema = _schema(DESCRIBE_SHARE_GROUP_OFFSETS, version)
    wanted = tuple(schema.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None) for group in groups)
    request: RequestPayload = schema.DescribeShareGroupOffsetsRequest(groups=wanted)
    return request


def write_abort_markers(
    version: int, producer_id: int, producer_epoch: int, places: Mapping[str, Sequence[int]]
) -> RequestPayload:
    """Write an abort marker of one producer, on partitions that the broker leads."""
    schema = _schema(WRITE_TXN_MARKERS, version)
    marker = schema.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=tuple(
            schema.WritableTxnMarkerTopic(name=topic, partition_indexes=tuple(partitions))
            for topic, partitions in places.items()
        ),
        coordinator_epoch=0,
    )
    request: RequestPayload = schema.WriteTxnMarkersRequest(markers=(marker,))
    return request


def elect_leaders(version: int, partitions: Mapping[str, Sequence[int]], *, timeout_s: float) -> RequestPayload:
    """Elect any live replica, where none is in sync."""
    schema = _schema(ELECT_LEADERS, version)
    request: RequestPayload = schema.ElectLeadersRequest(
        election_type=_UNCLEAN,
        topic_partitions=tuple(
            schema.TopicPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in partitions.items()
        ),
        timeout=timedelta(seconds=timeout_s),
    )
    return request
