"""The keys at the top level of the configuration: names, types, defaults, and what each is for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from tiersidecar.app.config.broker import BrokerSection, SourceSection
from tiersidecar.app.config.gateway import GatewaySection
from tiersidecar.app.config.section import Section
from tiersidecar.app.config.services import LoggingSection, ReaderQuota, ReadSection, StatusSection
from tiersidecar.app.config.store import StoreSection
from tiersidecar.app.config.topics import GroupName, Pattern, TopicRule
from tiersidecar.app.config.values import (
    LONG_MAX,
    BytesPerSecond,
    DurationMs,
    DurationS,
    FilePath,
    LocalRetentionBytes,
    LocalRetentionMs,
    Percent,
    PositiveDurationMs,
    RetentionBytes,
    RetentionMs,
    Size,
    comma_separated,
)
from tiersidecar.decide.backfill import BackfillOrder
from tiersidecar.decide.pressure_trim import DiskPressurePolicy
from tiersidecar.domain.policy import AS_TOTAL, UNLIMITED, ShareGroupHold

PoolSize = Annotated[int, Field(ge=1, le=10_000)]
PartitionCount = Annotated[int, Field(ge=1, le=100_000)]
ReplicaCount = Annotated[int, Field(ge=1, le=32_767)]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]


class Role(StrEnum):
    """The work of a process.

    ``tier`` copies, trims, expires and follows; ``read`` serves HTTP; ``gateway`` serves Kafka's protocol.
    """

    TIER = "tier"
    READ = "read"
    GATEWAY = "gateway"


class Mode(StrEnum):
    """``ENFORCE`` acts; ``OBSERVE`` decides and logs, and writes nothing anywhere."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class IoPriority(StrEnum):
    """The I/O priority of the threads that read segments from the broker's disks."""

    NORMAL = "normal"
    IDLE = "idle"


class TopLevelKeys(Section):
    """Each with its default.  Milliseconds and bytes, as in Kafka, unless a name says otherwise."""

    mode: Mode = Mode.ENFORCE
    """`enforce` acts; `observe` decides and logs, and writes nothing anywhere."""

    deletes_enabled: bool = True
    """false stops all deletes, both local trims and remote expiry; copying and reading continue."""

    deletes_max_share_per_round: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Largest share of a partition's remote bytes that retention may delete in one round. If more is due, expiry stops and
    reports it, until `tiersidecar delete-records` confirms the delete. A single segment may always be deleted. 1 switches
    this guard off, and lets a retention of 0 delete everything."""

    deletes_max_bytes_per_round: RetentionBytes = UNLIMITED
    """Maximum bytes of a partition that retention may delete in one round; -1 is without limit."""

    deletes_topic_grace_ms: PositiveDurationMs = 600_000
    """How long a topic's id must be missing from the cluster, in repeated checks, before its remote data is deleted. The
    sidecar that last led its partitions deletes it; the others wait at least twice as long, and also while another sidecar
    is deleting."""

    delete_delay: DurationMs = 86_400_000
    """How long data that retention, a deleted topic or `disable --delete-remote` gives up stays in the store (and in the
    broker's log, if it is not remote) before it is deleted. Gateway and read service no longer return it, `tiersidecar
    trash ls` lists it, and `tiersidecar undelete` restores it. 0 deletes at once."""

    user_delete_delay: DurationMs = 3_600_000
    """The same for users' deletes: `tiersidecar delete-records`, and DeleteRecords through the gateway. Of the latter the
    broker deletes the local part at once."""

    deletes_brokers_without_sidecar: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(comma_separated), Field(examples=["[]"])
    ] = ()
    """Ids of brokers that intentionally have no sidecar. Nothing remote is deleted while any other live broker of the
    cluster has no sidecar of this version."""

    lease_duration_ms: Annotated[PositiveDurationMs, Field(ge=3_000)] = 60_000
    """How long a sidecar that has stopped responding keeps the tier role of its broker. Only then can a sidecar with
    another state.dir take the role. A restart with the same state.dir does not wait, and a clean shutdown returns the role
    at once."""

    log_dirs: Annotated[
        tuple[FilePath, ...], BeforeValidator(comma_separated), Field(min_length=1, examples=["[/var/lib/kafka/data]"])
    ]
    """The broker's `log.dirs`, as in its own configuration: a list, or separated by commas."""

    state_dir: FilePath = "/var/lib/tiersidecar"
    """Directory of the sidecar's own files: caches and snapshots. All of it can be lost. It must not be below a log dir."""

    pins_enabled: bool = True
    """Hard-link sealed segments until they are remote, so that the broker may delete its own files first. false creates no
    new links."""

    pins_max_bytes: RetentionBytes = UNLIMITED
    """Maximum bytes that only links keep on the disks, after the broker has deleted its own files. Above it the oldest
    links are removed, with an error in the log. -1 leaves the limit to disk.reserve."""

    disk_reserve: Percent = 10
    """Share of each log dir's file system that must stay free. Below it links are removed, the oldest first, with an error
    in the log; then disk.pressure.policy applies."""

    disk_pressure_policy: DiskPressurePolicy = DiskPressurePolicy.KEEP
    """Further deletes below disk.reserve, from partitions in strict mode that this broker leads, the oldest segments first.
    `keep`: nothing. `trim-copied`: what is remote, before its local retention is over. `drop-oldest`: then also what is
    not remote, which is lost, so that the broker keeps running."""

    disk_full_alarm_ms: PositiveDurationMs = 21_600_000
    """A disk that will be full within this time, at the rate of the last half hour, raises an alert."""

    kafka_version: Annotated[str | None, Field(pattern=r"^\d+\.\d+(\.\d+)*$", examples=["'4.3.1'"])] = None
    """Kafka version whose formats are written into events and manifests; default: the local broker's own."""

    broker: BrokerSection
    """The local broker, and how to reach it."""

    store: StoreSection
    """The object store. The keys are those of Aiven's plugin, those of its backends without the prefix `storage.`."""

    places: Annotated[dict[str, StoreSection], Field(examples=[{}])] = Field(default_factory=dict)
    """Further stores, for topics whose rule names one as `place`. A name has at most 32 lowercase letters, digits and
    hyphens. Each has the keys of section `store`, and inherits those that it leaves out if it is of the same type, except
    `upload.rate.limit.bytes.per.second`, which each place has for itself, and which a reload does not change there.
    Chunks, compression, encryption, custom metadata and verify.read.back are those of `store` everywhere."""

    topics: Annotated[tuple[TopicRule, ...], Field(examples=["[]"])] = ()
    """Topics to tier. The first rule that matches a topic applies; a topic that no rule matches is not tiered."""

    log_retention_ms: RetentionMs = UNLIMITED
    """Total retention by time, for topics that set none. Unlike a broker's default of 7 days, nothing expires by default
    (-1)."""

    log_retention_bytes: RetentionBytes = UNLIMITED
    """Total retention by size, per partition, for topics that set none; -1 is without limit."""

    log_local_retention_ms: LocalRetentionMs = AS_TOTAL
    """Retention by time on the broker's disk, for topics that set none; -2 is the total retention, -1 without limit."""

    log_local_retention_bytes: LocalRetentionBytes = AS_TOTAL
    """Retention by size on the broker's disk, per partition, for topics that set none; -2 and -1 as above."""

    log_remote_copy_lag_ms: RetentionMs = 0
    """Minimum age at which a sealed segment may be copied; -1 is the local retention."""

    log_remote_copy_lag_bytes: RetentionBytes = 0
    """Bytes that must follow a sealed segment before it may be copied; -1 is the local retention."""

    trim_consumer_groups: Annotated[tuple[GroupName, ...], Field(examples=["[]"])] = ()
    """Consumer groups whose committed offsets trims do not pass, in strict mode, for topics that do not set this
    themselves. A group that has committed nothing, or whose offsets cannot be read, holds every trim."""

    trim_consumer_groups_pattern: Pattern = ""
    """The same for groups whose whole name matches this regular expression and that have committed offsets of the topic;
    `.*` is all of them. Needs Describe on the cluster."""

    trim_share_groups: ShareGroupHold = ShareGroupHold.HOLD
    """`hold`: nothing is trimmed past a share group's start offset, or before its first acknowledgement, since only the
    broker's own log can serve share groups; needs Describe on the cluster. `ignore`: share groups are not checked, and lose
    what they have not read."""

    remote_log_manager_task_interval_ms: PositiveDurationMs = 30_000
    """Pause between two runs of the copy, expiration and follower tasks, unless a file event comes first."""

    remote_log_manager_task_retry_backoff_ms: PositiveDurationMs = 500
    """First pause before a failed task is retried; it doubles each time."""

    remote_log_manager_task_retry_backoff_max_ms: PositiveDurationMs = 30_000
    """Longest such pause."""

    remote_log_manager_task_retry_jitter: Annotated[float, Field(ge=0, le=0.5)] = 0.2
    """Share of the pause that is random."""

    remote_log_manager_copier_thread_pool_size: PoolSize = 10
    """Segments that are copied at once. Changed by a reload (SIGHUP)."""

    remote_log_manager_expiration_thread_pool_size: PoolSize = 10
    """Partitions that are trimmed or expired at once."""

    remote_log_manager_follower_thread_pool_size: PoolSize = 2
    """Partitions that are followed at once."""

    copy_backfill_segments: Annotated[int, Field(ge=1)] = 5
    """A partition with more sealed segments than this that are not remote is in backfill: other partitions are copied
    first, and the rate below applies to it."""

    copy_backfill_max_bytes_per_second: BytesPerSecond = LONG_MAX
    """Quota of partitions in backfill, within the copy quota. Changed by a reload (SIGHUP)."""

    copy_backfill_order: BackfillOrder = BackfillOrder.OLDEST
    """Order of topics in backfill by the age of what they have to copy: `oldest` or `newest` first."""

    copy_io_priority: IoPriority = IoPriority.NORMAL
    """`idle` reads segments only while no other process uses the disk (ioprio_set; needs the I/O scheduler bfq)."""

    remote_log_manager_copy_max_bytes_per_second: BytesPerSecond = LONG_MAX
    """Copy quota: new segments wait while the average over the windows is above it, and the bytes of a segment are sent no
    faster (from 1 MiB/s on). Changed by a reload (SIGHUP)."""

    remote_log_manager_copy_quota_window_num: Annotated[int, Field(ge=1)] = 11
    """Sample windows kept for the copy quota."""

    remote_log_manager_copy_quota_window_size_seconds: DurationS = 1
    """Length of one of these windows; a plain number is seconds."""

    remote_log_manager_fetch_max_bytes_per_second: BytesPerSecond = LONG_MAX
    """Fetch quota: remote reads are rejected while the average is above it. Changed by a reload (SIGHUP)."""

    remote_log_manager_fetch_quota_window_num: Annotated[int, Field(ge=1)] = 11
    """Sample windows kept for the fetch quota."""

    remote_log_manager_fetch_quota_window_size_seconds: DurationS = 1
    """Length of one of these windows; a plain number is seconds."""

    remote_fetch_quota: Annotated[tuple[ReaderQuota, ...], Field(examples=["[]"])] = ()
    """Quotas of remote bytes for single users and client ids, in Kafka's order of precedence (user and client id, user,
    client id), averaged over the windows of the fetch quota. Each process counts separately. Above it the gateway returns
    an empty response with a throttle time, and HTTP 429."""

    remote_log_reader_threads: PoolSize = 10
    """Remote reads that run at once."""

    remote_log_reader_max_pending_tasks: PoolSize = 100
    """Remote reads that may wait for a free thread; further ones are rejected."""

    remote_fetch_max_wait_ms: PositiveDurationMs = 500
    """Longest wait for remote data in one fetch."""

    remote_list_offsets_request_timeout_ms: PositiveDurationMs = 30_000
    """Longest search for an offset by time in remote segments."""

    remote_log_index_file_cache_total_size_bytes: Size = 1_073_741_824
    """Bytes of remote indexes kept on disk in state.dir. Changed by a reload (SIGHUP)."""

    remote_log_index_file_cache_ttl_ms: RetentionMs = 900_000
    """Time after which an unused index is removed from the cache; -1 is never."""

    remote_log_metadata_custom_metadata_max_bytes: Annotated[int, Field(ge=0, le=2**31 - 1)] = 128
    """Custom metadata larger than this stops the copying of the partition."""

    remote_log_metadata_topic_name: TopicName = "__remote_log_metadata"
    """The metadata topic. With another name, native tiering does not find the segments until a hand-over."""

    remote_log_metadata_topic_num_partitions: PartitionCount = 50
    """Its partition count, fixed when it is created. The process exits if the topic has another count."""

    remote_log_metadata_topic_replication_factor: ReplicaCount = 3
    """Its replication factor when the sidecar creates it. The sidecar waits while there are too few brokers."""

    remote_log_metadata_topic_min_isr: ReplicaCount = 2
    """Its min.insync.replicas when the sidecar creates it; a weaker setting stops trims and deletes."""

    remote_log_metadata_topic_retention_ms: RetentionMs = UNLIMITED
    """Its retention; anything but -1 must be longer than the longest total retention."""

    remote_log_metadata_consume_wait_ms: PositiveDurationMs = 120_000
    """Longest wait until a published event is read back."""

    remote_log_metadata_initialization_retry_interval_ms: PositiveDurationMs = 100
    """First pause between attempts to reach the metadata topic at start; it doubles up to the task back-off's maximum."""

    remote_log_metadata_initialization_retry_max_timeout_ms: DurationMs | None = None
    """The process exits if it cannot reach the metadata topic within this time. Kafka's default is 2 min; the sidecar
    retries without limit by default, since it may start before its broker."""

    state_topic_name: TopicName = "__tiersidecar_state"
    """The compacted topic for state that has no record in the metadata topic. It takes replication factor and
    min.insync.replicas from the metadata topic's keys."""

    proposals_topic_name: TopicName = "__tiersidecar_proposals"
    """The topic in which gateways ask the leaders' sidecars to carry out users' deletes; kept for a day. The sidecar
    creates it, with replication factor and min.insync.replicas from the metadata topic's keys."""

    shutdown_grace_ms: PositiveDurationMs = 20_000
    """Longest wait for the current step after SIGTERM."""

    compaction_enabled: bool = False
    """Tier topics with cleanup.policy compact or compact,delete, too. Segments are copied from hard links that were created
    together, and the remote log is cleaned as the broker cleans its own. Their local logs stay whole, unless
    compaction.trim.enabled is set. Needs pins.enabled beside every broker. Experimental: see docs/operations/topics.md."""

    compaction_trim_enabled: bool = False
    """Trim the local logs of topics with cleanup.policy compact,delete in strict mode, by local.retention.ms and
    local.retention.bytes. Consumers of the broker then see only part of the table, as of any trimmed topic: the whole of it is
    read through the gateway. Brokers refuse it for topics with compact alone. Experimental: see
    docs/operations/topics.md."""

    compaction_interval_ms: PositiveDurationMs = 15_000
    """Minimum interval between two checks of a led compacted partition's remote log (`log.cleaner.backoff.ms`)."""

    compaction_dedupe_buffer_size: Size = 134_217_728
    """Maximum memory for the map from key to last offset. One partition is cleaned at a time
    (`log.cleaner.dedupe.buffer.size`)."""

    snapshots_interval_ms: DurationMs = 300_000
    """Minimum interval between two snapshots of a partition. The leader's sidecar writes what both topics have about the
    partition to the store, as one small object, if it has changed. `tiersidecar recover` rebuilds the topics from these
    snapshots. Changes of the trash and users' deletes are written within seconds. 0: never."""

    snapshots_cluster_interval_ms: DurationMs = 60_000
    """Minimum interval between two snapshots of the tiered topics' settings and of the offsets that consumer groups have
    committed on them. One sidecar of the cluster writes them to the store if something has changed. `tiersidecar mount`
    uses them to set up topics and groups in a new cluster. 0: never."""

    reconcile_interval_ms: PositiveDurationMs | None = None
    """Run `tiersidecar reconcile --put-report` this long after the last run ended, at idle priority, beside the leader of
    the metadata topic's partition 0. Every broker that may lead it needs the spark extra and Java. Default: never."""

    reconcile_arguments: Annotated[tuple[str, ...], Field(examples=["[--deep, --deep-share, '0.01']"])] = ()
    """Additional arguments of these runs."""

    source: Annotated[
        SourceSection | None, Field(examples=["{bootstrap.servers: ['source:9092'], mount.plan: /etc/mount.json}"])
    ] = None
    """The source cluster, whose topics are mounted read-only in the cluster of `broker`. It has the keys of section
    `broker`, and `mount.plan`: the file from `tiersidecar mount plan --read-only` with which the nodes were seeded, which
    names these topics. The source's metadata and state topics, under the names set here, are only read. Only for `--roles
    gateway`."""

    read: ReadSection = ReadSection()
    """The HTTP read service."""

    gateway: GatewaySection = GatewaySection()
    """The Kafka gateway."""

    status: StatusSection = StatusSection()
    """Metrics, health and the status page."""

    logging: LoggingSection = LoggingSection()
    """The log."""
