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
    """The work of a process (DESIGN.md section 6).

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
    """false stops every delete, local trims and remote expiry alike; copying and reading go on."""

    deletes_max_share_per_round: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Largest share of a partition's remote bytes that retention may delete in one round: above it expiry stops and says so,
    until `tiersidecar delete-records` confirms it. One segment may always go. 1 switches this guard off, and lets a retention
    of 0 delete everything."""

    deletes_max_bytes_per_round: RetentionBytes = UNLIMITED
    """Most bytes of a partition that retention may delete in one round; -1 is without limit."""

    deletes_topic_grace_ms: PositiveDurationMs = 600_000
    """How long a topic's id must be unknown to the cluster, asked again and again, before the sidecar that led it last deletes
    its remote data; the other sidecars wait at least twice as long, and while another one deletes."""

    delete_delay: DurationMs = 86_400_000
    """How long what retention, a deleted topic or `disable --delete-remote` gives up stays in the store, and in the broker's
    log where it is not remote, before it is deleted. Gateway and read service show it no more, `tiersidecar trash ls` lists
    it, `tiersidecar undelete` brings it back. 0 deletes at once."""

    user_delete_delay: DurationMs = 3_600_000
    """The same for what users delete: `tiersidecar delete-records`, and DeleteRecords through the gateway, whose local part the
    broker deletes at once."""

    deletes_brokers_without_sidecar: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(comma_separated), Field(examples=["[]"])
    ] = ()
    """Ids of brokers that have no sidecar on purpose. Nothing remote is deleted while any other live broker of the cluster has
    none of this version."""

    lease_duration_ms: Annotated[PositiveDurationMs, Field(ge=3_000)] = 60_000
    """How long a sidecar that is not heard of any more keeps the tier role of its broker from one with another state.dir. A
    restart with the same state.dir does not wait, and one that is stopped in order gives the role back at once."""

    log_dirs: Annotated[
        tuple[FilePath, ...], BeforeValidator(comma_separated), Field(min_length=1, examples=["[/var/lib/kafka/data]"])
    ]
    """The broker's `log.dirs`, as the broker has them: a list, or separated by commas."""

    state_dir: FilePath = "/var/lib/tiersidecar"
    """Directory of the sidecar's own files: caches and snapshots. All of it can be lost. Not below a log dir."""

    pins_enabled: bool = True
    """Link sealed segments until they are remote, so that the broker may delete its own files before. false makes no new
    links."""

    pins_max_bytes: RetentionBytes = UNLIMITED
    """Most bytes that links alone may keep on the disks once the broker has deleted its own files; above it the oldest go,
    with an error in the log. -1 leaves the limit to disk.reserve."""

    disk_reserve: Percent = 10
    """Part of each log dir's file system that is to stay free: below it links go, the oldest first, with an error in the log,
    and then what disk.pressure.policy says."""

    disk_pressure_policy: DiskPressurePolicy = DiskPressurePolicy.KEEP
    """What else goes below disk.reserve, of partitions in strict mode that this broker leads, the oldest segments first: `keep`
    nothing, `trim-copied` what is remote, before its local retention is over, `drop-oldest` then also what is not remote, which
    is lost, so that the broker lives."""

    disk_full_alarm_ms: PositiveDurationMs = 21_600_000
    """A disk that will be full sooner, at the rate of the last half hour, raises an alarm."""

    kafka_version: Annotated[str | None, Field(pattern=r"^\d+\.\d+(\.\d+)*$", examples=["'4.3.1'"])] = None
    """Kafka version whose formats are written into events and manifests; default: the local broker's own."""

    broker: BrokerSection
    """The local broker, and how to reach it."""

    store: StoreSection
    """The object store. The keys are those of Aiven's plugin, those of its backends without the prefix `storage.`."""

    places: Annotated[dict[str, StoreSection], Field(examples=[{}])] = Field(default_factory=dict)
    """More stores, by a name of at most 32 small letters, digits and hyphens, for topics whose rule names them as `place`. Each
    has the keys of section `store`; those that it leaves out are as in `store`, if it is of the same type, but for
    `upload.rate.limit.bytes.per.second`, which each place has of its own. Chunks, compression, encryption, custom metadata and
    verify.read.back are those of `store` everywhere."""

    topics: Annotated[tuple[TopicRule, ...], Field(examples=["[]"])] = ()
    """Topics to tier: the first rule that matches a topic counts, and a topic that none matches is left alone."""

    log_retention_ms: RetentionMs = UNLIMITED
    """Total retention by time of topics that set none. Unlike a broker's 7 days, nothing expires unasked (-1)."""

    log_retention_bytes: RetentionBytes = UNLIMITED
    """Total retention by size, per partition, of topics that set none; -1 is without limit."""

    log_local_retention_ms: LocalRetentionMs = AS_TOTAL
    """Retention by time on the broker's disk of topics that set none; -2 is the total retention, -1 without limit."""

    log_local_retention_bytes: LocalRetentionBytes = AS_TOTAL
    """Retention by size on the broker's disk, per partition, of topics that set none; -2 and -1 as above."""

    log_remote_copy_lag_ms: RetentionMs = 0
    """Age at which a sealed segment may be copied; -1 is the local retention."""

    log_remote_copy_lag_bytes: RetentionBytes = 0
    """Bytes behind a sealed segment at which it may be copied; -1 is the local retention."""

    trim_consumer_groups: Annotated[tuple[GroupName, ...], Field(examples=["[]"])] = ()
    """Consumer groups past whose committed offsets nothing is trimmed, in strict mode, of topics that say nothing else. One
    that has committed nothing, or cannot be asked, holds every trim."""

    trim_consumer_groups_pattern: Pattern = ""
    """The same for groups whose whole name this regular expression matches and that have committed offsets of the topic; `.*`
    is all of them. Needs Describe on the cluster."""

    trim_share_groups: ShareGroupHold = ShareGroupHold.HOLD
    """`hold` trims nothing past a share group's start offset, and nothing before its first acknowledgement, for nothing but
    the broker's own log serves share groups; needs Describe on the cluster. `ignore` does not look at them, and what they have
    not read is lost to them."""

    remote_log_manager_task_interval_ms: PositiveDurationMs = 30_000
    """Pause between two runs of the copy, expiration and follower tasks when no file event comes first."""

    remote_log_manager_task_retry_backoff_ms: PositiveDurationMs = 500
    """First pause before a failed task is tried again; it doubles each time."""

    remote_log_manager_task_retry_backoff_max_ms: PositiveDurationMs = 30_000
    """Longest such pause."""

    remote_log_manager_task_retry_jitter: Annotated[float, Field(ge=0, le=0.5)] = 0.2
    """Part of the pause that is drawn at random."""

    remote_log_manager_copier_thread_pool_size: PoolSize = 10
    """Segments that are copied at once. Changed by a reload (SIGHUP)."""

    remote_log_manager_expiration_thread_pool_size: PoolSize = 10
    """Partitions that are trimmed or expired at once."""

    remote_log_manager_follower_thread_pool_size: PoolSize = 2
    """Partitions that are followed at once."""

    copy_backfill_segments: Annotated[int, Field(ge=1)] = 5
    """A partition with more sealed segments than this that are not remote is in backfill: others go before it, and the rate
    below holds for it."""

    copy_backfill_max_bytes_per_second: BytesPerSecond = LONG_MAX
    """Quota of partitions in backfill, within the copy quota. Changed by a reload (SIGHUP)."""

    copy_backfill_order: BackfillOrder = BackfillOrder.OLDEST
    """Topics in backfill by the age of what they have to copy: `oldest` or `newest` first."""

    copy_io_priority: IoPriority = IoPriority.NORMAL
    """`idle` reads segments only while nobody else wants the disk (ioprio_set; needs the I/O scheduler bfq)."""

    remote_log_manager_copy_max_bytes_per_second: BytesPerSecond = LONG_MAX
    """Copy quota: whole segments wait while the average of the windows is above it, and within them bytes go no faster (from
    1 MiB/s on). Changed by a reload (SIGHUP)."""

    remote_log_manager_copy_quota_window_num: Annotated[int, Field(ge=1)] = 11
    """Sample windows kept for the copy quota."""

    remote_log_manager_copy_quota_window_size_seconds: DurationS = 1
    """Width of such a window; a plain number is seconds."""

    remote_log_manager_fetch_max_bytes_per_second: BytesPerSecond = LONG_MAX
    """Fetch quota: remote reads are turned away for now while the average is above it. Changed by a reload (SIGHUP)."""

    remote_log_manager_fetch_quota_window_num: Annotated[int, Field(ge=1)] = 11
    """Sample windows kept for the fetch quota."""

    remote_log_manager_fetch_quota_window_size_seconds: DurationS = 1
    """Width of such a window; a plain number is seconds."""

    remote_fetch_quota: Annotated[tuple[ReaderQuota, ...], Field(examples=["[]"])] = ()
    """Budgets of what single users and client ids may read of what is remote, by Kafka's order of precedence (user and client
    id, user, client id), averaged over the windows of the fetch quota, by each process of its own. Over it the gateway
    answers with nothing and a throttle time, and HTTP with 429."""

    remote_log_reader_threads: PoolSize = 10
    """Remote reads that run at once."""

    remote_log_reader_max_pending_tasks: PoolSize = 100
    """Remote reads that may wait for their turn; more are turned away."""

    remote_fetch_max_wait_ms: PositiveDurationMs = 500
    """Longest wait for remote data in one fetch."""

    remote_list_offsets_request_timeout_ms: PositiveDurationMs = 30_000
    """Longest search for an offset by time in remote segments."""

    remote_log_index_file_cache_total_size_bytes: Size = 1_073_741_824
    """Bytes of remote indexes kept on disk in state.dir. Changed by a reload (SIGHUP)."""

    remote_log_index_file_cache_ttl_ms: RetentionMs = 900_000
    """An index unused for so long leaves the cache; -1 is never."""

    remote_log_metadata_custom_metadata_max_bytes: Annotated[int, Field(ge=0, le=2**31 - 1)] = 128
    """Custom metadata larger than this stops the copying of the partition."""

    remote_log_metadata_topic_name: TopicName = "__remote_log_metadata"
    """The metadata topic. Another name keeps native tiering from finding the segments until a hand-over."""

    remote_log_metadata_topic_num_partitions: PartitionCount = 50
    """Its partition count, fixed when it is created: a topic with another count ends the process."""

    remote_log_metadata_topic_replication_factor: ReplicaCount = 3
    """Its replication factor when the sidecar creates it; too few brokers are waited for."""

    remote_log_metadata_topic_min_isr: ReplicaCount = 2
    """Its min.insync.replicas when the sidecar creates it; a weaker setting stops trims and deletes."""

    remote_log_metadata_topic_retention_ms: RetentionMs = UNLIMITED
    """Its retention; anything but -1 must be longer than the longest total retention."""

    remote_log_metadata_consume_wait_ms: PositiveDurationMs = 120_000
    """Longest wait until a published event is read back."""

    remote_log_metadata_initialization_retry_interval_ms: PositiveDurationMs = 100
    """First pause between attempts to reach the metadata topic at start; it doubles up to the task back-off's maximum."""

    remote_log_metadata_initialization_retry_max_timeout_ms: DurationMs | None = None
    """End the process when the metadata topic is not reached within this time. Kafka's default is 2 min; the sidecar's is
    to try without end, for it may start before its broker."""

    state_topic_name: TopicName = "__tiersidecar_state"
    """The compacted topic of what the metadata topic has no record for. It takes replication factor and min.insync.replicas
    from the metadata topic's keys."""

    proposals_topic_name: TopicName = "__tiersidecar_proposals"
    """The topic by which gateways ask the leaders' sidecars to carry out users' deletes; kept for a day. The sidecar makes it,
    with replication factor and min.insync.replicas from the metadata topic's keys."""

    shutdown_grace_ms: PositiveDurationMs = 20_000
    """Longest wait for the step in hand after SIGTERM."""

    compaction_enabled: bool = False
    """Tier topics with cleanup.policy compact or compact,delete too: segments are copied from links that were made at one
    moment, and the remote log is cleaned as the broker cleans its own. Nothing of them is trimmed. Needs pins.enabled on every
    broker. Experimental: see docs/operations/topics.md."""

    compaction_interval_ms: PositiveDurationMs = 15_000
    """How often at most the remote log of a led compacted partition is looked at (`log.cleaner.backoff.ms`)."""

    compaction_dedupe_buffer_size: Size = 134_217_728
    """Most memory of the map from key to last offset, of the one partition that is cleaned at a time
    (`log.cleaner.dedupe.buffer.size`)."""

    snapshots_interval_ms: DurationMs = 300_000
    """How often at most what both topics say of a partition is put into the store, by its leader's sidecar and when it has
    changed: one small object, by which `tiersidecar recover` makes the topics anew. A change of the trash or of users' deletes
    is put there within seconds. 0: never."""

    snapshots_cluster_interval_ms: DurationMs = 60_000
    """How often the settings of the tiered topics, and what consumer groups have committed on them, are put into the store, by
    one sidecar of the cluster and when something has changed: by them `tiersidecar mount` sets topics and groups up in a new
    cluster. 0: never."""

    reconcile_interval_ms: PositiveDurationMs | None = None
    """Run `tiersidecar reconcile --put-report` so long after the last run ended, at idle priority, beside the leader of the
    metadata topic's partition 0; needs the spark extra and Java there, on every broker that may lead it. Default: never."""

    reconcile_arguments: Annotated[tuple[str, ...], Field(examples=["[--deep, --deep-share, '0.01']"])] = ()
    """Further arguments of these runs."""

    source: Annotated[
        SourceSection | None, Field(examples=["{bootstrap.servers: ['source:9092'], mount.plan: /etc/mount.json}"])
    ] = None
    """The cluster of which topics are mounted read-only in that of `broker`: how to reach it, with the keys of section
    `broker`, and `mount.plan`, the file of `tiersidecar mount plan --read-only` by which the nodes were seeded, which names
    these topics. The metadata and state topics are read there, under the names that are set here, and nothing is written.
    For `--roles gateway` alone."""

    read: ReadSection = ReadSection()
    """The HTTP read service."""

    gateway: GatewaySection = GatewaySection()
    """The Kafka gateway."""

    status: StatusSection = StatusSection()
    """Metrics, health and the status page."""

    logging: LoggingSection = LoggingSection()
    """The log."""
