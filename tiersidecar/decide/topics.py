"""Partitions that are tiered here, their roles and directories, and what a topic's broker settings allow.

**Directory.**  The directory of a led partition must be proven to be the one that its broker writes, not one of the same name
and topic id.  Another may be left of a disk that was replaced, or show under another mount than the broker's.  The proof: a
broker that becomes leader writes its leader epoch as the last entry of the leader-epoch-checkpoint, of an empty log too, and
flushes it (``UnifiedLog.assignEpochStartOffset``); and it changes to another log dir by a restart, which ends the epoch, or by
a move.

A move takes over only the epochs in which records were written: a log that was moved before the first record of its leader
epoch does not know that epoch until there is one.  Then the broker's answer decides (:class:`UnwrittenEpoch`): it does not
know the epoch either, and ends the last one of our file at the high watermark, not before our active segment.  Records of one
epoch are the same wherever they are, for one leader wrote them: our sealed segments are the broker's, whatever the directory.

**Compacted topics.**  Their cleanup policy limits retention:

| cleanup.policy | local segment goes | remote segment goes |
| --- | --- | --- |
| delete | copied, past local retention | past total retention |
| compact,delete | copied, past local retention, and cleaned (``decide/compacted_trim``) | past total retention |
| compact | never: brokers refuse DeleteRecords | never for its age or size |

The KIP says both that local deletion of a compacted topic ignores whether it was cleaned and that it waits for cleaning.  Here
it waits: until then readers may need the tombstones on this disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from tiersidecar.decide.compaction import CompactionSettings
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import LeaderView, LocalPartition

_TOPIC_ID_CHARACTERS = 22
_CLEANERS_SHARE = 0.5
"""Of ``delete.retention.ms``."""
INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",
        "__tiersidecar_state",
        "__tiersidecar_proposals",
    }
)


class PartitionRole(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredPartition:
    """A partition that this sidecar serves, as its leader's or a follower's."""

    view: LeaderView
    role: PartitionRole
    policy: TopicPolicy


def decide_assignment(
    leader_views: Iterable[LeaderView],
    local: Iterable[TopicIdPartition],
    broker_id: BrokerId,
    policy_for: Callable[[str], TopicPolicy | None],
) -> dict[TopicIdPartition, TieredPartition]:
    """Return tiered partitions that the broker replicates and whose directory, of this very topic id, is on a healthy log dir.

    A directory of an earlier incarnation of the topic has another id, so its TopicIdPartition is not in ``local``.
    """
    present = frozenset(local)
    of_topic = cache(policy_for)  # each answer is made anew, and a topic may have thousands of partitions
    chosen: dict[TopicIdPartition, TieredPartition] = {}
    for view in leader_views:
        topic_id_partition = view.topic_id_partition
        if (
            topic_id_partition.topic in INTERNAL_TOPICS
            or broker_id not in view.replicas
            or topic_id_partition not in present
        ):
            continue
        policy = of_topic(topic_id_partition.topic)
        if policy is not None:
            role = PartitionRole.LEADER if view.leader_id == broker_id else PartitionRole.FOLLOWER
            chosen[topic_id_partition] = TieredPartition(view=view, role=role, policy=policy)
    return chosen


def decide_unseen(
    leader_views: Iterable[LeaderView],
    local: Iterable[TopicIdPartition],
    broker_id: BrokerId,
    policy_for: Callable[[str], TopicPolicy | None],
) -> dict[TopicIdPartition, TieredPartition]:
    """Return partitions to be tiered that the broker leads, and of which no healthy log dir here has the directory, in the form
    of :func:`decide_assignment`."""
    present = frozenset(local)
    led = [view for view in leader_views if view.leader_id == broker_id and view.topic_id_partition not in present]
    return decide_assignment(led, [view.topic_id_partition for view in led], broker_id, policy_for)


def reason_not_to_tier(configs: Mapping[str, str | None], *, tiers_compacted: bool = False) -> str:
    """Return why a topic with these broker settings cannot be tiered at all; empty when it can.  ``tiers_compacted``:
    ``compaction.enabled`` is true."""
    if _is_true(configs.get("remote.storage.enable")):
        return (
            "remote.storage.enable is true, so the broker tiers it itself; two writers would each delete what the other "
            "counts on. Take the topic out of this configuration, or hand it over first"
        )
    if "compact" in _policies(configs) and not tiers_compacted:
        return "cleanup.policy has compact, and compacted topics are tiered with compaction.enabled alone"
    return ""


def reason_not_to_store(topic: str, max_name_bytes: int | None) -> str:
    """Return why the store can hold no object of the topic; empty when it can.

    ``max_name_bytes`` is the longest part of a key between slashes that the store takes, None without a limit.  The
    longest part is ``<topic>-<topic id>``.
    """
    longest = len(topic) + 1 + _TOPIC_ID_CHARACTERS
    if max_name_bytes is None or longest <= max_name_bytes:
        return ""
    return (
        f"its objects would lie in a directory with a name of {longest} bytes, and the store takes {max_name_bytes}: use an "
        "S3 store for it, or take it out of this configuration"
    )


def reason_not_to_trim(policy: TopicPolicy, configs: Mapping[str, str | None]) -> str:
    """Return why nothing of a topic may be trimmed; empty when its broker settings fit the strict mode.

    In strict mode only the sidecar deletes, so the broker's own retention must be without limit: otherwise it would
    delete segments that are not copied yet.
    """
    if policy.mode is not RetentionMode.STRICT or _policies(configs) == {"compact"}:
        return ""  # of a topic that is compacted alone the broker deletes nothing by retention
    wrong = [
        f"{name} is {configs.get(name)}, must be -1"
        for name in ("retention.ms", "retention.bytes")
        if configs.get(name) not in (None, "-1") or (configs.get(name) is None and name == "retention.ms")
    ]
    # An empty cleanup.policy (4.x) switches the broker's time and size retention off as well.
    return "" if not wrong or _policies(configs) == frozenset() else "; ".join(wrong)


def _policies(configs: Mapping[str, str | None]) -> frozenset[str]:
    text = configs.get("cleanup.policy")
    return frozenset(part.strip() for part in ("delete" if text is None else text).split(",") if part.strip())


def _is_true(value: str | None) -> bool:
    return (value or "").strip().lower() == "true"


REPORT_AFTER_S = 60.0
"""A new partition, an election, or a move between log dirs has settled by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwrittenEpoch:
    """Answer of the broker that its log does not know ``leader_epoch``, in which it leads, and ends ``last_epoch``, and itself,
    at ``end_offset`` (exclusive)."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    end_offset: Offset


def may_be_unwritten(view: LeaderView, local: LocalPartition) -> LeaderEpoch | None:
    """Return the last epoch of ``local`` if it may be last only because nothing was written in the epoch of ``view``."""
    if not local.leader_epochs or local.leader_epochs[-1].epoch >= view.leader_epoch:
        return None
    return local.leader_epochs[-1].epoch


def reason_to_doubt_directory(view: LeaderView, local: LocalPartition, unwritten: UnwrittenEpoch | None = None) -> str:
    """Return why ``local`` is not taken for the log of the leader that ``view`` names; empty where it is proven.

    Right after an election the file may not have the epoch yet, and an answer of the broker be older than the file.
    """
    last_epoch = local.leader_epochs[-1].epoch if local.leader_epochs else None
    if last_epoch == view.leader_epoch:
        return ""
    if (
        unwritten is not None
        and (unwritten.leader_epoch, unwritten.last_epoch) == (view.leader_epoch, last_epoch)
        and local.segments
        and local.segments[-1].base_offset <= unwritten.end_offset
    ):
        return ""
    ends = "has no leader epoch" if last_epoch is None else f"ends with leader epoch {last_epoch}"
    return (
        f"{local.directory} {ends}, and the broker leads in {view.leader_epoch}: it is not the directory that the broker "
        "writes. Nothing of the partition is copied, trimmed or expired. Compare log.dirs and mounts of broker and sidecar"
    )


_FAULTS_NAMED = 3
"""Each of thousands of partitions may have this reason, and each of their directories be faulty."""


def reason_unseen(faults: Mapping[str, str]) -> str:
    """Return why a led partition is not tiered at all; ``faults`` are those of the log dirs."""
    named = sorted(faults)[:_FAULTS_NAMED]
    more = f" and {len(faults) - len(named)} others" if len(faults) > len(named) else ""
    faulty = f", unless in what cannot be read: {', '.join(named)}{more}" if faults else ""
    return (
        f"the broker leads it, and no log dir of this configuration has its directory{faulty}: it is not tiered. Compare "
        "log.dirs and mounts of broker and sidecar"
    )


class CleanupPolicy(StrEnum):
    """Kafka's ``cleanup.policy``."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_AND_DELETE = "compact,delete"


def read_cleanup_policy(value: str) -> CleanupPolicy | None:
    """Read the topic config, in which the order is free; return None where it names anything else, or nothing."""
    match frozenset(part.strip() for part in value.split(",")):
        case parts if parts == {"delete"}:
            return CleanupPolicy.DELETE
        case parts if parts == {"compact"}:
            return CleanupPolicy.COMPACT
        case parts if parts == {"compact", "delete"}:
            return CleanupPolicy.COMPACT_AND_DELETE
        case _:
            return None


def is_compacted(configs: Mapping[str, str | None]) -> bool:
    """Return whether the broker's cleaner rewrites segments of a topic with these settings."""
    return "compact" in (part.strip() for part in (configs.get("cleanup.policy") or "").split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """The settings of the cleaner of one compacted topic."""

    policy: CleanupPolicy
    compaction: CompactionSettings
    delete_retention_ms: int

    @property
    def remote_compaction(self) -> CompactionSettings:
        """Return when to clean the remote log.

        Where the beginning of a log may go that the broker cleans as well, by its retention or by trims, readers pass from the
        remote log into the broker's, which may have a tombstone no more ``delete.retention.ms`` after its cleaner was there.
        So the values before it leave the remote log in half of that time, whatever the dirty ratio; the other half is the
        reader's.
        """
        if self.policy is not CleanupPolicy.COMPACT_AND_DELETE:
            return self.compaction
        most_ms = min(self.compaction.max_compaction_lag_ms, self.cleaners_share_ms)
        return replace(self.compaction, max_compaction_lag_ms=most_ms)

    @property
    def cleaners_share_ms(self) -> int:
        """Return how much of ``delete.retention.ms`` is the cleaner's, where readers pass into the broker's log."""
        return int(self.delete_retention_ms * _CLEANERS_SHARE)


def read_cleaner_settings(configs: Mapping[str, str | None]) -> CleanerSettings | None:
    """Read the effective settings that a broker reports; None where the topic is not compacted, or one is missing or no
    number: nothing is cleaned by a guess."""
    policy = read_cleanup_policy(configs.get("cleanup.policy") or "")
    if policy in {None, CleanupPolicy.DELETE}:
        return None
    assert policy is not None
    try:
        return CleanerSettings(
            policy=policy,
            compaction=CompactionSettings(
                min_cleanable_dirty_ratio=float(_required(configs, "min.cleanable.dirty.ratio")),
                min_compaction_lag_ms=int(_required(configs, "min.compaction.lag.ms")),
                max_compaction_lag_ms=int(_required(configs, "max.compaction.lag.ms")),
                segment_bytes=int(_required(configs, "segment.bytes")),
                segment_index_bytes=int(_required(configs, "segment.index.bytes")),
            ),
            delete_retention_ms=int(_required(configs, "delete.retention.ms")),
        )
    except ValueError:
        return None


def _required(configs: Mapping[str, str | None], name: str) -> str:
    value = configs.get(name)
    if value is None:
        raise ValueError(name)
    return value
