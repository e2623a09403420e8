"""The brokers' log cleaner: rounds over the closed segments of a replica, at any moment, which merge small segments.

What is taken for true of Kafka's (``LogCleanerManager``, ``Cleaner``), and compared with it by tests/integration:

* a round goes up to the first segment that is active, reaches the last stable offset, or has a record within
  ``min.compaction.lag.ms``;
* what is left of each batch is :mod:`tests.simulation.cleaner_model`'s;
* successive segments are merged while their sizes before the round fit ``segment.bytes``; the new one has the base offset and
  the snapshot of the first, and the time of change of the last;
* the files of a group change at one moment, in ascending order, and ``cleaner-offset-checkpoint`` follows the whole round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.simulation.cleaner_model import CleanerModel, Round, batches_of
from tests.simulation.replica_log import ReplicaLog


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The topic's settings, under Kafka's names."""

    segment_bytes: int
    delete_retention_ms: int
    min_compaction_lag_ms: int

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> CleanerConfig:
        """Read them."""
        return cls(
            segment_bytes=int(configs["segment.bytes"]),
            delete_retention_ms=int(configs["delete.retention.ms"]),
            min_compaction_lag_ms=int(configs["min.compaction.lag.ms"]),
        )


def clean_replica(log: ReplicaLog, config: CleanerConfig, now_ms: int) -> int | None:
    """Clean all that may be; return the new cleaner offset, None where nothing was dirty."""
    first_dirty = log.cleaner_offset
    if first_dirty is None or not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    end = _first_uncleanable(log, first_dirty, config, now_ms)
    if end <= first_dirty:
        return None
    bases = [base for base in log.segments if base < end]
    ends = dict(zip(log.segments, [*log.segments[1:], log.log_end_offset], strict=True))
    held = {base: batches_of(b"".join(map(log.data_of, log.held(base, ends[base])))) for base in bases}
    terms = Round(
        first_dirty=first_dirty,
        end=end,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        last_data=log.last_data_offsets,
    )
    aborted = [one for base in log.segments for one in log.aborted_of(base)]
    model = CleanerModel([batch for base in bases for batch in held[base]], aborted, terms)
    sizes = {base: sum(header.size_bytes for header, _ in held[base]) for base in bases}
    for group in _groups(bases, sizes, config.segment_bytes):
        left = {int(header.base_offset): model.clean(header, data) for base in group for header, data in held[base]}
        log.replace_segments(group, left, model.take_retained())
    log.cleaned_up_to(end)
    return end


def _first_uncleanable(log: ReplicaLog, first_dirty: int, config: CleanerConfig, now_ms: int) -> int:
    """Return where the cleaning ends (``LogCleanerManager.cleanableOffsets``)."""
    stable, lag_ms = log.last_stable_offset(), config.min_compaction_lag_ms
    for base, end in zip(log.segments, log.segments[1:], strict=False):
        if end <= first_dirty:
            continue
        newest_ms = max((one.timestamp_ms for one in log.held(base, end)), default=-1)
        if end > stable or (lag_ms > 0 and newest_ms > now_ms - lag_ms):
            return base
    return log.segments[-1]


def _groups(bases: Sequence[int], sizes: Mapping[int, int], most_bytes: int) -> list[list[int]]:
    """Return the segments of which one is made (``Cleaner.groupSegmentsBySize``)."""
    groups: list[list[int]] = []
    for base in bases:
        if groups and sum(map(sizes.__getitem__, groups[-1])) + sizes[base] <= most_bytes:
            groups[-1].append(base)
        else:
            groups.append([base])
    return groups
