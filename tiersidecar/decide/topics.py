"""Partitions that are tiered here, their roles, and whether a topic's broker settings allow it (DESIGN.md section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import LeaderView

_TOPIC_ID_CHARACTERS = 22
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
