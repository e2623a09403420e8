"""A replica's memory of its producers, in memory and in snapshots: Kafka's ``ProducerStateManager``.

It learns from the batches that are appended, and loses what it knew where a broker loses it: a log that begins anew, or whose
last snapshot is gone, knows nothing of a transaction that began before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from tests.simulation.records import Batch, Marker
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import ProducerState

States = dict[int, ProducerState]
_NONE = -1


class Producers:
    """``changed`` is called with each snapshot that is written, and each that is removed (None).  ``map_end`` is the offset up
    to which (exclusive) batches were taken in."""

    def __init__(self, changed: Callable[[int, Sequence[ProducerState] | None], None]) -> None:
        self._changed = changed
        self._states: States = {}
        self._snapshots: dict[int, States] = {}
        self._ended: list[tuple[int, int]] = []
        self.map_end = self._last_snapshot = 0

    # -- batches

    def take(self, batch: Batch) -> AbortedTransaction | None:
        """Take the next batch of the log; return the transaction that it aborts."""
        self.map_end = batch.next_offset
        if batch.producer_id < 0:
            return None
        state = self._states.get(batch.producer_id, ProducerState(producer_id=batch.producer_id, epoch=0))
        first = state.current_transaction_first_offset
        if batch.marker is None:
            self._states[batch.producer_id] = replace(
                state,
                last_sequence=batch.last_offset,
                last_offset=batch.last_offset,
                offset_delta=batch.last_offset - batch.base_offset,
                timestamp_ms=batch.timestamp_ms,
                current_transaction_first_offset=batch.base_offset if first == _NONE else first,
            )
            return None
        self._states[batch.producer_id] = replace(
            state, timestamp_ms=batch.timestamp_ms, coordinator_epoch=0, current_transaction_first_offset=_NONE
        )
        if first == _NONE:
            return None
        self._ended.append((first, batch.base_offset))
        if batch.marker is Marker.COMMIT:
            return None
        stable = min(self._open(), default=batch.next_offset)
        return AbortedTransaction(batch.producer_id, Offset(first), Offset(batch.base_offset), Offset(stable))

    @property
    def last_data_offsets(self) -> dict[int, int]:
        """Return the last offset of data of each producer (``lastRecordsOfActiveProducers``)."""
        return {producer: state.last_offset for producer, state in self._states.items() if state.last_offset != _NONE}

    def first_unstable(self, high_watermark: int) -> int | None:
        """Return the first offset of a transaction that is not ended by a marker below ``high_watermark``."""
        self._ended = [(first, marker) for first, marker in self._ended if marker >= high_watermark]
        return min([*self._open(), *(first for first, _ in self._ended)], default=None)

    def _open(self) -> Iterable[int]:
        firsts = (state.current_transaction_first_offset for state in self._states.values())
        return (first for first in firsts if first != _NONE)

    # -- snapshots

    def move_end(self, offset: int) -> None:
        """Move the end, as ``updateMapEndOffset`` does."""
        self.map_end = offset

    def take_snapshot(self) -> None:
        """Take a snapshot, unless there is one of this state."""
        if self.map_end > self._last_snapshot:
            self._snapshots[self.map_end] = dict(self._states)
            self._last_snapshot = self.map_end
            self._changed(self.map_end, [self._states[producer] for producer in sorted(self._states)])

    def drop_snapshot(self, offset: int) -> None:
        """Drop a snapshot if there is one: its segment goes."""
        if self._snapshots.pop(offset, None) is not None:
            self._changed(offset, None)

    def drop_stray_snapshots(self, bases: Sequence[int]) -> None:
        """Drop snapshots of offsets at which no segment begins: only the last one stays, and only above the last segment's
        base."""
        strays = [offset for offset in sorted(self._snapshots) if offset not in bases]
        if strays and strays[-1] >= max(bases):
            strays.pop()
        for offset in strays:
            self.drop_snapshot(offset)

    # -- logs that begin or end elsewhere

    def begin_anew_at(self, offset: int) -> None:
        """Begin anew, as ``truncateFullyAndStartAt`` does."""
        self._states.clear()
        self._ended.clear()
        for snapshot in list(self._snapshots):
            self.drop_snapshot(snapshot)
        self._last_snapshot, self.map_end = 0, offset

    def log_start_moved(self, offset: int) -> None:
        """Drop what is below, as ``onLogStartOffsetIncremented`` does."""
        self._ended = [(first, marker) for first, marker in self._ended if marker >= offset]
        self.map_end = max(self.map_end, offset)
        self._last_snapshot = max(self._snapshots, default=offset)

    def forget(self) -> None:
        """Forget what is in memory: the broker ended."""
        self._states.clear()
        self._ended.clear()
        self.map_end = self._last_snapshot = 0

    def rebuild(
        self,
        held: Sequence[Batch],
        bases: Sequence[int],
        *,
        log_start: int,
        end: int,
        is_clean_start: bool = False,
    ) -> None:
        """Rebuild as ``UnifiedLog.rebuildProducerState`` does: from the last snapshot, and the batches ``held`` by the segments
        at ``bases`` from there on, up to ``end`` (exclusive)."""
        anchors = {*bases[-2:], end}
        if not self._snapshots and is_clean_start:
            for offset in sorted(anchors):
                self.move_end(offset)
                self.take_snapshot()
            return
        was_up_to_date = not self._states and self.map_end >= end
        self._reload(log_start, end)
        if end > self.map_end and not was_up_to_date:
            self._replay(held, bases, anchors, log_start=log_start, end=end)
        self.move_end(end)
        self.take_snapshot()

    def _replay(
        self, held: Sequence[Batch], bases: Sequence[int], anchors: Collection[int], *, log_start: int, end: int
    ) -> None:
        loaded = self.map_end
        for number, base in enumerate(bases):
            stop = bases[number + 1] if number + 1 < len(bases) else end
            if stop <= loaded or base >= end:
                continue
            self.move_end(max(base, loaded, log_start))
            if base in anchors:
                self.take_snapshot()
            begin = self.map_end
            for batch in held:
                if begin <= batch.last_offset and base <= batch.base_offset < min(stop, end):
                    self.take(batch)

    def _reload(self, log_start: int, end: int) -> None:
        """Reload as ``truncateAndReload`` does."""
        for offset in [snapshot for snapshot in self._snapshots if snapshot > end or snapshot <= log_start]:
            self.drop_snapshot(offset)
        if end == self.map_end:
            self.log_start_moved(log_start)
            return
        self._ended.clear()
        latest = max(self._snapshots, default=None)
        self._states = {} if latest is None else dict(self._snapshots[latest])
        self._last_snapshot = self.map_end = log_start if latest is None else latest
