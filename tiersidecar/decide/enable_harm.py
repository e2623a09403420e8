"""Find readers of a topic that tiering it would hurt, as far as brokers know them (``tiersidecar enable``).

What leaves the brokers' disks can be read only through the gateway and the read service.  A reader that asks the broker for an
offset below the planned local start falls back to ``auto.offset.reset`` and skips records silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.decide.trim import is_matching
from tiersidecar.domain.policy import TrimHolds

_STREAMS_TOPICS = ("-changelog", "-repartition")
_MOST_MEMBERS = 5


class GroupKind(StrEnum):
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class Hurt(StrEnum):
    """``NOW``: what it has not read leaves the disks with the first trims.  ``LATER``: it will, since the group stands still.
    ``NOT``: it has read what is to be trimmed, or trims wait for it.  ``UNKNOWN``: that cannot be determined."""

    NOW = "now"
    LATER = "later"
    NOT = "not"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """``keeps_from`` is the offset from which local retention keeps records on the disks; ``end`` is exclusive."""

    partition: int
    log_start_offset: int
    keeps_from: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A client of a group, as its coordinator knows it."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingGroup:
    """``offsets`` are the next to be read, by partition; ``error`` is why they are not known."""

    name: str
    kind: GroupKind
    offsets: Mapping[int, int]
    members: Sequence[Member] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """Harm to one group.  ``records`` are the offsets that it has not read and that would leave the disks."""

    group: str
    kind: GroupKind
    hurt: Hurt
    records: int
    members: Sequence[Member]
    says: str


def kind_of(group: str, topics: Iterable[str]) -> GroupKind:
    """Return whether a consumer group is a Kafka Streams application's: its internal topics are named by the application's id,
    which is the group's."""
    is_streams = any(topic.startswith(f"{group}-") and topic.endswith(_STREAMS_TOPICS) for topic in topics)
    return GroupKind.STREAMS if is_streams else GroupKind.CONSUMER


def decide_harm(
    groups: Sequence[ReadingGroup], partitions: Sequence[PlannedPartition], *, is_limited: bool, holds: TrimHolds
) -> list[Harm]:
    """Return the harm to each group that reads the topic, the worst first.  ``is_limited``: local retention has a limit, so
    that anything is trimmed at all; ``holds`` are the groups that trims wait for."""
    reading = (one for one in groups if one.offsets or one.error)
    harms = [_harm(one, partitions, is_limited=is_limited, is_waited_for=_is_waited_for(one, holds)) for one in reading]
    return sorted(harms, key=lambda harm: (list(Hurt).index(harm.hurt), -harm.records, harm.group))


def _is_waited_for(group: ReadingGroup, holds: TrimHolds) -> bool:
    if group.kind is GroupKind.SHARE:
        return holds.share
    return group.name in holds.groups or is_matching(holds.groups_pattern, group.name)


def _harm(
    group: ReadingGroup, partitions: Sequence[PlannedPartition], *, is_limited: bool, is_waited_for: bool
) -> Harm:
    if group.error:
        return _said(group, Hurt.UNKNOWN, 0, f"how far it has read is unknown: {group.error}")
    if not is_limited:
        return _said(group, Hurt.NOT, 0, "local retention has no limit: nothing is trimmed")
    read = {one: group.offsets[one.partition] for one in partitions if one.partition in group.offsets}
    behind = {one: offset for one, offset in read.items() if max(offset, one.log_start_offset) < one.keeps_from}
    if behind:
        return _of_one_behind(group, behind, is_waited_for=is_waited_for)
    if any(offset < one.end for one, offset in read.items()) and not group.members:
        return _said(
            group, Hurt.LATER, 0, "it has no member, and has not read to the end: local retention will overtake it"
        )
    return _said(group, Hurt.NOT, 0, "it has read what is to be trimmed")


def _of_one_behind(group: ReadingGroup, behind: Mapping[PlannedPartition, int], *, is_waited_for: bool) -> Harm:
    records = sum(one.keeps_from - max(offset, one.log_start_offset) for one, offset in behind.items())
    says = _behind(records, behind)
    if is_waited_for:
        key = "trim.share.groups" if group.kind is GroupKind.SHARE else "trim.consumer.groups"
        return _said(group, Hurt.NOT, records, f"{says}; trims wait for it ({key})")
    if group.kind is GroupKind.SHARE:
        archived = "brokers alone serve share groups, and archive what they have not got any more"
        return _said(group, Hurt.NOW, records, f"{says}; {archived}")
    streams = ", which Kafka Streams reads from the broker" if group.kind is GroupKind.STREAMS else ""
    return _said(
        group,
        Hurt.NOW,
        records,
        f"{says}{streams}: through the broker they are skipped, through the gateway they are read",
    )


def _behind(records: int, behind: Mapping[PlannedPartition, int]) -> str:
    names = ", ".join(str(one.partition) for one in list(behind)[:_MOST_MEMBERS])
    more = f" and {len(behind) - _MOST_MEMBERS} more" if len(behind) > _MOST_MEMBERS else ""
    return f"{records:,} offsets of partition {names}{more} that it has not read would leave the disks"


def _said(group: ReadingGroup, hurt: Hurt, records: int, says: str) -> Harm:
    return Harm(group=group.name, kind=group.kind, hurt=hurt, records=records, members=tuple(group.members), says=says)


def harm_text(harm: Harm) -> str:
    """Return one line for the operator."""
    shown = [f"{member.client_id} at {member.host}" for member in harm.members[:_MOST_MEMBERS]]
    more = len(harm.members) - len(shown)
    members = f" (members: {', '.join(shown)}{f' and {more} more' if more > 0 else ''})" if shown else ""
    return f"{harm.kind} group {harm.group}: {harm.says}{members}"


def planned_start(log_start: int, end: int, by_time: int | None, local_bytes: int | None, limit_bytes: int) -> int:
    """Return the offset from which local retention keeps records: the higher of the limits by time (None: no limit, or -1: all
    are older) and by size, by the share of the log's bytes that may stay; ``limit_bytes`` of -1 is no limit."""
    start = log_start
    if by_time is not None:
        start = max(start, end if by_time < 0 else by_time)
    if limit_bytes >= 0 and local_bytes is not None and local_bytes > limit_bytes:
        start = max(start, end - (end - log_start) * limit_bytes // local_bytes)
    return min(start, end)
