from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.static.protocol import RequestPayload

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.apis import Api
from tiersidecar.formats.wire.messages import read_message, write_message

MAKERS: dict[str, tuple[Api[Any], Callable[[int], RequestPayload]]] = {
    "ApiVersions": (apis.API_VERSIONS, lambda version: apis.api_versions(version, software_version="1")),
    "SaslHandshake": (apis.SASL_HANDSHAKE, lambda version: apis.sasl_handshake(version, "PLAIN")),
    "SaslAuthenticate": (apis.SASL_AUTHENTICATE, lambda version: apis.sasl_authenticate(version, b"x")),
    "Metadata": (apis.METADATA, lambda version: apis.metadata(version, ["t"], authorized_operations=True)),
    "ListOffsets": (
        apis.LIST_OFFSETS,
        lambda version: apis.list_offsets(version, {"t": {0: 3}}, -1, read_committed=True, timeout_s=1.5),
    ),
    "OffsetForLeaderEpoch": (
        apis.OFFSET_FOR_LEADER_EPOCH,
        lambda version: apis.offset_for_leader_epoch(version, {"t": {0: (5, 3)}}),
    ),
    "Fetch": (
        apis.FETCH,
        lambda version: apis.fetch(version, b"t" * 16, 3, 42, max_bytes=1000, read_committed=True),
    ),
    "DeleteRecords": (apis.DELETE_RECORDS, lambda version: apis.delete_records(version, {"t": {0: 9}}, timeout_s=1.5)),
    "DescribeConfigs": (
        apis.DESCRIBE_CONFIGS,
        lambda version: apis.describe_configs(version, apis.TOPIC_RESOURCE, ["t", "u"]),
    ),
    "IncrementalAlterConfigs": (
        apis.INCREMENTAL_ALTER_CONFIGS,
        lambda version: apis.incremental_alter_configs(version, "t", {"retention.ms": "-1", "retention.bytes": None}),
    ),
    "ListGroups": (apis.LIST_GROUPS, apis.list_groups),
    "FindCoordinator": (apis.FIND_COORDINATOR, lambda version: apis.find_coordinator(version, ["g", "h"])),
    "OffsetFetch": (apis.OFFSET_FETCH, lambda version: apis.offset_fetch(version, ["g"], {"t": [0, 1]})),
    "DescribeShareGroupOffsets": (
        apis.DESCRIBE_SHARE_GROUP_OFFSETS,
        lambda version: apis.describe_share_group_offsets(version, ["g"]),
    ),
    "DescribeCluster": (apis.DESCRIBE_CLUSTER, apis.describe_cluster),
    "CreateTopics": (
        apis.CREATE_TOPICS,
        lambda version: apis.create_topic(
            version, "t", partitions=5, replication_factor=3, configs={"a": "b"}, timeout_s=1.5
        ),
    ),
}


NEWER = {
    "SaslAuthenticate": {"session_lifetime"},  # guarded where it is read
    "Metadata": {"error_code"},  # likewise
    "CreateTopics": {"topics.topic_id"},
    "DescribeCluster": {"endpoint_type", "brokers.is_fenced"},
    "DescribeShareGroupOffsets": {"groups.topics.partitions.lag"},
    "DescribeConfigs": {"results.configs.config_type", "results.configs.documentation"},
}
"""Fields that came later; the rest of these we do not read."""


@pytest.mark.parametrize("name", MAKERS)
def test_a_request_can_be_made_in_each_version_of_its_range(name: str) -> None:
    api, make = MAKERS[name]
    assert api.name == name
    assert api.oldest <= api.newest
    for version in range(api.oldest, api.newest + 1):
        request = make(version)
        assert (request.__api_key__, request.__version__) == (api.key, version)
        assert read_message(type(request), write_message(request))[0] == request


@pytest.mark.parametrize("name", MAKERS)
def test_what_we_read_is_in_every_version_of_the_answer(name: str) -> None:
    """Answers are typed as the newest."""
    api, _ = MAKERS[name]
    for version in range(api.oldest, api.newest + 1):
        missing = _paths(api.response_type) - _paths(load_response_schema(api.key, version))
        assert missing <= NEWER.get(name, set())


def _paths(entity_type: Any, prefix: str = "") -> set[str]:
    found = set()
    for name, field in entity_type.__dataclass_fields__.items():
        found.add(prefix + name)
        for nested in getattr(field.type, "__args__", ()):
            if hasattr(nested, "__dataclass_fields__"):
                found |= _paths(nested, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize(("names", "keys"), [(["retention.ms"], ("retention.ms",)), (None, None)])
def test_settings_are_asked_for_by_name_or_all(names: list[str] | None, keys: tuple[str, ...] | None) -> None:
    request: Any = apis.describe_configs(1, apis.TOPIC_RESOURCE, ["t", "u"], names)
    assert [(one.resource_name, one.configuration_keys) for one in request.resources] == [("t", keys), ("u", keys)]


def test_settings_are_set_and_removed_one_by_one() -> None:
    """AlterConfigOp: 0 sets, 1 deletes."""
    request: Any = MAKERS["IncrementalAlterConfigs"][1](1)

    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name, request.validate_only) == (2, "t", False)
    assert [(row.name, row.config_operation, row.value) for row in resource.configs] == [
        ("retention.ms", 0, "-1"),
        ("retention.bytes", 1, None),
    ]


@pytest.mark.parametrize(("topics", "expected"), [(None, None), ((), ())], ids=["all", "none"])
def test_all_topics_and_no_topics_are_different_questions(
    topics: tuple[str, ...] | None, expected: tuple[str, ...] | None
) -> None:
    request: Any = apis.metadata(12, topics)
    assert request.topics == expected
    assert not request.allow_auto_topic_creation


def test_read_committed_asks_for_the_last_stable_offset() -> None:
    committed: Any = apis.list_offsets(11, {"t": {0: 3}}, -1, read_committed=True, timeout_s=1.5)
    uncommitted: Any = apis.list_offsets(9, {"t": {0: 3}}, -1, read_committed=False, timeout_s=1.5)

    assert (committed.isolation_level, uncommitted.isolation_level) == (1, 0)
    assert (committed.replica_id, committed.timeout.total_seconds()) == (-1, 1.5)
    assert committed.topics[0].partitions[0].current_leader_epoch == 3
