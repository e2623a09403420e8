"""Changes of a topic's settings on the broker when tiering is enabled or disabled, and reasons to refuse (U10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.decide.topics import reason_not_to_tier
from tiersidecar.domain.policy import AS_TOTAL, UNLIMITED, RetentionMode
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState

RETENTION_SETTINGS = ("retention.ms", "retention.bytes")
"""Settings that the strict mode takes over from the broker."""
_LATER = (
    ": the broker can say which once it has deleted the files below its log start; try again after its "
    "log.retention.check.interval.ms"
)
_TAKEN_OVER = "-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTiering:
    """Options of the operator; None where one was not given."""

    mode: RetentionMode = RetentionMode.STRICT
    retention_ms: int | None = None
    retention_bytes: int | None = None
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTiering:
    """The state topic's, or else the configuration's, present record of the topic.

    ``is_on``: copied and, in strict mode, trimmed.  ``former_settings`` are the topic's overrides before strict mode took them
    over, None as value where it had none; empty where none were recorded, or they have been put back.
    """

    is_on: bool
    mode: RetentionMode
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    former_settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPlan:
    """``refusal`` says why it may not be done; all other fields count only where it is empty.

    The four retentions and ``former_settings`` are to be durable in the state topic before ``changes`` (None removes an
    override) are made on the broker.
    """

    refusal: str = ""
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    local_retention_ms: int = AS_TOTAL
    local_retention_bytes: int = AS_TOTAL
    former_settings: Mapping[str, str | None]
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """A partition by the broker and the metadata.

    ``copied_stop``, ``high_watermark`` and ``kept_from`` are exclusive ends: of what is remote, of what is committed, and of
    what the restored ``retention.ms`` would delete, or at most would, where ``is_kept_from_bound``.  ``local_bytes`` is None
    where the broker did not say.
    """

    partition: int
    log_start_offset: int
    high_watermark: int
    copied_stop: int
    kept_from: int
    local_bytes: int | None
    remote_bytes_still_local: int
    is_kept_from_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePart:
    """Offsets from ``start_offset`` up to, not including, ``stop_offset`` that a finished segment has of the leader's log, and
    their part of its size."""

    start_offset: int
    stop_offset: int
    size_bytes: int


def decide_enable(
    wanted: WantedTiering,
    known: KnownTiering | None,
    effective: Mapping[str, str | None],
    overrides: Mapping[str, str | None],
    *,
    tiers_compacted: bool = False,
) -> SwitchPlan:
    """Return total retention: as wanted, else as known, else what the broker keeps today.  ``known`` is None for a topic that
    neither the state topic nor the configuration names."""
    refusal = reason_not_to_tier(effective, tiers_compacted=tiers_compacted)
    if not refusal and known is not None and known.is_on and known.mode is not wanted.mode and known.former_settings:
        refusal = f"it is tiered in {known.mode} mode; disable it first, so that the broker's settings are restored"
    former = _former_settings(known, overrides) if wanted.mode is RetentionMode.STRICT else {}
    total = _totals_from_broker(effective) if known is None else (known.retention_ms, known.retention_bytes)
    local = (AS_TOTAL, AS_TOTAL) if known is None else (known.local_retention_ms, known.local_retention_bytes)
    changes = {name: _TAKEN_OVER for name in RETENTION_SETTINGS if effective.get(name) != _TAKEN_OVER}
    plan = SwitchPlan(
        refusal=refusal,
        retention_ms=total[0] if wanted.retention_ms is None else wanted.retention_ms,
        retention_bytes=total[1] if wanted.retention_bytes is None else wanted.retention_bytes,
        local_retention_ms=local[0] if wanted.local_retention_ms is None else wanted.local_retention_ms,
        local_retention_bytes=local[1] if wanted.local_retention_bytes is None else wanted.local_retention_bytes,
        former_settings=former,
        changes=changes if wanted.mode is RetentionMode.STRICT else {},
    )
    return plan if plan.refusal else _refused_if_more_local_than_total(plan)


def decide_disable(
    known: KnownTiering | None,
    overrides: Mapping[str, str | None],
    partitions: Sequence[PartitionFacts],
    *,
    cluster: Mapping[str, str | None],
) -> SwitchPlan:
    """Restore the broker's overrides where they are as enabling left them; later changes by others stay.
    ``cluster`` has the retention that the topic takes from the broker where it has no override; ``partitions`` were asked with
    :func:`restored_retention`."""
    if known is None:
        return SwitchPlan(refusal="it is not tiered", former_settings={}, changes={})
    former = known.former_settings
    has_taken_over = not (known.is_on and known.mode is RetentionMode.RACE)
    changes = {
        name: value
        for name, value in former.items()
        if has_taken_over and overrides.get(name) == _TAKEN_OVER and value != _TAKEN_OVER
    }
    return SwitchPlan(
        refusal=next((reason for facts in partitions if (reason := _loss(facts, changes, cluster))), ""),
        retention_ms=known.retention_ms,
        retention_bytes=known.retention_bytes,
        local_retention_ms=known.local_retention_ms,
        local_retention_bytes=known.local_retention_bytes,
        former_settings=former,
        changes=changes,
    )


def restored_retention(former: Mapping[str, str | None], cluster: Mapping[str, str | None], name: str) -> int:
    """Return the value of ``name`` once ``former`` is restored; -1 without limit."""
    if name not in former:
        return UNLIMITED
    value = former[name]
    return int((cluster.get(name) if value is None else value) or UNLIMITED)


def parts_of_history(
    segments: Iterable[RemoteLogSegmentMetadata], epoch_ends: Mapping[int, int]
) -> tuple[RemotePart, ...]:
    """Return the parts of the log that finished segments have, ascending, of equal starts the longest first.

    ``epoch_ends`` are where the leader says its log ends each of their epochs (exclusive): what lies beyond, and all of an
    epoch that it does not name, is of a history that an unclean election ended.
    """
    parts: list[RemotePart] = []
    for segment in segments:
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            continue
        offsets = segment.next_offset - segment.start_offset
        for start, stop in _spans(segment, epoch_ends):
            size_bytes = segment.segment_size_in_bytes * (stop - start) // offsets
            parts.append(RemotePart(start_offset=start, stop_offset=stop, size_bytes=size_bytes))
    return tuple(sorted(parts, key=lambda part: (part.start_offset, -part.stop_offset)))


def copied_stop(parts: Sequence[RemotePart], log_start_offset: int) -> int:
    """Return how far from ``log_start_offset`` on ``parts`` reach without a hole (exclusive)."""
    stop = log_start_offset
    for part in parts:
        if part.start_offset > stop:
            break
        stop = max(stop, part.stop_offset)
    return stop


def copied_bytes(parts: Sequence[RemotePart], start_offset: int, stop_offset: int) -> int:
    """Return the bytes of ``parts`` that begin in [``start_offset``, ``stop_offset``); offsets that several hold count once:
    leaders roll differently, and a copy begins with the segment that holds the first offset not copied yet."""
    found, covered_stop = 0, start_offset
    for part in parts:
        if not start_offset <= part.start_offset < stop_offset:
            continue
        stop = min(part.stop_offset, stop_offset)
        new_offsets = max(stop - max(part.start_offset, covered_stop), 0)
        covered_stop = max(covered_stop, stop)
        found += part.size_bytes * new_offsets // (part.stop_offset - part.start_offset)
    return found


def cluster_retention(broker_configs: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the settings that topics without overrides take from a broker's, by the topic's names for them."""
    by_unit = (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000))
    found = ((int(text), factor) for name, factor in by_unit if (text := broker_configs.get(name)) not in (None, ""))
    value, factor = next(found, (UNLIMITED, 1))
    retention_ms = UNLIMITED if value < 0 else value * factor
    return {"retention.ms": str(retention_ms), "retention.bytes": broker_configs.get("log.retention.bytes") or "-1"}


def _spans(segment: RemoteLogSegmentMetadata, epoch_ends: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the segment's offsets, [from, to), that are of the log; adjoining ones are one span."""
    epochs = segment.segment_leader_epochs
    stops = [*(entry.start_offset for entry in epochs[1:]), segment.next_offset]
    spans: list[tuple[int, int]] = []
    for entry, following in zip(epochs, stops, strict=True):
        start, stop = int(entry.start_offset), min(following, epoch_ends.get(entry.epoch, 0))
        if start >= stop:
            continue
        if spans and spans[-1][1] == start:
            start = spans.pop()[0]
        spans.append((start, stop))
    return spans


def _former_settings(known: KnownTiering | None, overrides: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the settings to restore, recorded once: where our own -1 stands already, they are those recorded before."""
    now = {name: overrides.get(name) for name in RETENTION_SETTINGS}
    if known is not None and known.former_settings and all(value == _TAKEN_OVER for value in now.values()):
        return dict(known.former_settings)
    if known is not None and known.is_on and known.former_settings:
        return dict(known.former_settings)
    return now


def _totals_from_broker(effective: Mapping[str, str | None]) -> tuple[int, int]:
    retention_ms, retention_bytes = (int(effective.get(name) or UNLIMITED) for name in RETENTION_SETTINGS)
    return retention_ms, retention_bytes


def _refused_if_more_local_than_total(plan: SwitchPlan) -> SwitchPlan:
    for unit, local, total in (
        ("ms", plan.local_retention_ms, plan.retention_ms),
        ("bytes", plan.local_retention_bytes, plan.retention_bytes),
    ):
        if total != UNLIMITED and local != AS_TOTAL and (local == UNLIMITED or local > total):
            reason = f"local.retention.{unit} of {local} is more than retention.{unit} of {total}"
            return SwitchPlan(refusal=reason, former_settings={}, changes={})
    return plan


def _loss(facts: PartitionFacts, former: Mapping[str, str | None], cluster: Mapping[str, str | None]) -> str:
    """Return what the restored retention would delete although it is not remote; empty when nothing."""
    if facts.copied_stop >= facts.high_watermark:
        return ""
    first_local_only = max(facts.copied_stop, facts.log_start_offset)
    retention_ms = restored_retention(former, cluster, "retention.ms")
    if retention_ms != UNLIMITED and facts.kept_from > first_local_only:
        would = "may delete some of" if facts.is_kept_from_bound else "would delete"
        return (
            f"offsets [{first_local_only}, {facts.kept_from}) of partition {facts.partition} are not remote, and the restored "
            f"retention.ms of {retention_ms} {would} them{_LATER if facts.is_kept_from_bound else ''}"
        )
    retention_bytes = restored_retention(former, cluster, "retention.bytes")
    if retention_bytes == UNLIMITED:
        return ""
    if facts.local_bytes is None:
        return f"the size of partition {facts.partition} is not known, so the restored retention.bytes cannot be judged"
    if facts.local_bytes - retention_bytes > facts.remote_bytes_still_local:
        return (
            f"partition {facts.partition} has {facts.local_bytes} bytes, of which {facts.remote_bytes_still_local} are remote: "
            f"the restored retention.bytes of {retention_bytes} would delete more than these"
        )
    return ""
