"""One metadata partition, as far as it has been read: what is fed from it, and from where on.

No I/O here: the consumers ask where to read, and hand over what they read.  Two read positions exist.  ``position`` is the
main consumer's, which feeds the live user partitions.  ``side_position`` is that of the side consumer, which replays the
partition for newly assigned ones while the others go on (S-094, T-70); once it is up with the main one, they are live too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from operator import add
from typing import NamedTuple, Protocol

import structlog

from tiersidecar.adapters.metadata_topic.held import IS_READY, READY_AT, HeldPartition, partition_key, read_corrupt
from tiersidecar.adapters.read_back import ReadBack
from tiersidecar.domain.errors import CorruptDataError, IllegalTransitionError, UnknownSegmentError
from tiersidecar.formats import native
from tiersidecar.formats.metadata import hot
from tiersidecar.formats.native import MetadataBatch
from tiersidecar.ports.metrics.process import METADATA_EVENTS
from tiersidecar.ports.telemetry import Telemetry

_log = structlog.get_logger(__name__)


class Record(Protocol):
    """The part of aiokafka's ConsumerRecord that is used here."""

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def value(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record that was applied: if another one lies at its offset later, the topic was truncated and written on."""

    offset: int
    digest: int

    @classmethod
    def of(cls, record: Record) -> LastRecord:
        return cls(record.offset, zlib.crc32(record.value or b"", record.timestamp & 0xFFFF_FFFF))


class _Counts(NamedTuple):
    """What became of records, by outcome."""

    applied: int = 0
    skipped: int = 0
    dropped: int = 0
    corrupt: int = 0

    def plus(self, other: _Counts) -> _Counts:
        return _Counts(*map(add, self, other))


class PartitionReplica:
    """One metadata partition with the user partitions that it feeds; the module says how it is read."""

    def __init__(self, *, topic: str, number: int, telemetry: Telemetry) -> None:
        self.topic, self.number = topic, number
        self.position: int | None = None
        self.side_position: int | None = None
        self.last: LastRecord | None = None
        self.continues_at: int | None = None
        """Where a snapshot ended, while what is read continues from there: only then is the last record of that compared."""
        self.is_bounded = False
        self.lost: str | None = None
        self.gap: str | None = None
        self.read_back = ReadBack()
        self.changes = 0
        """Number of records that were applied, or refused, so far."""
        self.live: dict[bytes, HeldPartition] = {}
        self.joining: dict[bytes, HeldPartition] = {}
        self._has_ends = False
        """True where each user partition has the end offset that it has to reach: asked five times a second, of thousands."""
        self._are_ready = False
        """True where each live one is ready: asked once a second."""
        self._expected: LastRecord | None = None
        self._is_rewritten = False
        self._doubt: str | None = None
        self._telemetry = telemetry

    # -- partitions that are fed

    def add(self, key: bytes, held: HeldPartition) -> None:
        """Add a newly assigned user partition."""
        self._has_ends = self._are_ready = False
        if self.lost is not None and held.complete_to > 0:
            self.live[key] = held
            held.become_ready()
            return
        self.joining[key] = held
        if self.side_position is not None:
            self.side_position = min(self.side_position, held.complete_to)

    def remove(self, key: bytes) -> None:
        """Remove a user partition that is no longer ours."""
        held = self.live.pop(key, None) or self.joining.pop(key, None)
        if held is not None:
            held.wake()  # a waiting caller looks again, and finds it gone
        if not self.live:
            if self.position is not None:  # once, not for each of thousands that leave
                self._begin_joining_again()
            # Who comes next needs the past too; what the others had skipped must be read again (KAFKA-16105).
            self.position = self.last = self._expected = self.side_position = self.continues_at = None
        if not self.joining:
            self.side_position = None

    def _begin_joining_again(self) -> None:
        """Nothing would show whether what they have been fed so far is still in the topic."""
        self._has_ends = False
        for held in self.joining.values():
            held.begin_again()

    def feeds(self, held: HeldPartition) -> bool:
        """Return whether ``held`` is live, and so complete up to :attr:`position`."""
        return self.live.get(partition_key(held.topic_id_partition)) is held

    def settle(self) -> None:
        """Let those join that need no replay of their own, and say where to replay for the rest."""
        if not self.joining or self.lost is not None:
            return
        self._are_ready = False
        if not self.live:
            # Those that a snapshot brought far go on from there; the rest replays beside them.
            start = max(held.complete_to for held in self.joining.values())
            self.live = {key: held for key, held in self.joining.items() if held.complete_to == start}
            self.joining = {key: held for key, held in self.joining.items() if held.complete_to < start}
            if self.last is not None and start != self.last.offset + 1:
                self.last = None
            if start != self.continues_at:
                self.continues_at = None
            self.position, self.side_position, self.is_bounded = start, None, False
            self._verify_last()
        for key in [key for key, held in self.joining.items() if held.complete_to >= self.reached]:
            self.live[key] = self.joining.pop(key)
        if self.joining and self.side_position is None:
            self.side_position = min(held.complete_to for held in self.joining.values())

    @property
    def needs_bounds(self) -> bool:
        """Return whether its begin and end must be learnt: before it is read at all, and for newcomers, which have to reach an
        end."""
        if self.lost is not None:
            return False
        if not self.is_bounded:
            return bool(self.live or self.joining)
        if not self._has_ends:
            self._has_ends = None not in map(READY_AT, (*self.live.values(), *self.joining.values()))
        return not self._has_ends

    # -- where the topic begins and ends

    @property
    def reached(self) -> int:
        """Return the offset that the main consumer has come to, exclusive."""
        return self._expected.offset + 1 if self._expected is not None else self.position or 0

    @property
    def trouble(self) -> str | None:
        """Return why nothing may be written or deleted on the strength of it: it lost data, or had when it was last seen."""
        return self.lost or (self._doubt if self.live or self.joining else None)

    def begin_session(self, doubt: str | None = None) -> None:
        """Begin after contact was lost: the bounds must be learnt again, and the last record be seen again.  An operator may
        have brought back what was lost at the end, which the bounds will show.  ``doubt`` is what was wrong with the whole
        topic."""
        self.is_bounded = False
        if not self._is_rewritten:
            has_unseen = self.lost is not None and self.last is None and bool(self.live)
            self._doubt, self.lost = self.trouble or doubt, None
            # Of those that were assigned while it was lost nothing was read yet, or what a snapshot has cannot be compared.
            (self._replay if has_unseen else self.settle)()
        self._verify_last()

    def _verify_last(self) -> None:
        if self.last is not None and self.position == self.last.offset + 1:
            self.position, self._expected = self.last.offset, self.last

    def learn_bounds(self, begin: int, end: int) -> None:
        """Note that the partition holds the offsets from ``begin`` up to, not including, ``end``."""
        self._doubt = None
        if self.reached > end:
            self.lose(f"ends at offset {end}, but was read up to {self.reached} before")
            return
        self.is_bounded = True
        if self.position is not None and self.position < begin:
            if 0 < self.reached < begin:
                self.gap = (
                    f"{self.topic}-{self.number} lost offsets {self.reached} to {begin - 1} before they were read"
                )
            self.position, self._expected = begin, None
        if self.side_position is not None:
            self.side_position = max(self.side_position, begin)
        held_here = (*self.live.values(), *self.joining.values())
        wanted = max((held.ready_at for held in held_here if held.ready_at is not None), default=end)
        if wanted > end:  # an unclean election: nothing else would make them ready
            self.gap = f"{self.topic}-{self.number} lost offsets {end} to {wanted - 1} before they were read"
        for held in held_here:
            held.ready_at = end if held.ready_at is None else min(held.ready_at, end)
        self.mark_ready()

    def lose(self, reason: str) -> None:
        """Note that the topic no longer has what was read from it: keep what we have, answer reads from it, read no further."""
        self.lost = f"{self.topic}-{self.number} {reason}"
        self.position, self._expected = self.reached, None
        for held in self.live.values():
            if not held.is_ready and held.complete_to > 0:
                held.become_ready()

    # -- what was read

    def apply_live(self, records: list[Record], *, read_from: int, position: int) -> None:
        """Apply what the main consumer read: ``records`` from ``read_from`` on; it is at ``position`` now."""
        if self.lost is not None or self.position != read_from or not self.is_bounded:
            return  # it was sent elsewhere while it read
        if records:
            if not self._is_as_expected(records[0]):
                self._replay()
                return
            self._fold(self.live, records, logs=True)
            self.last = LastRecord.of(records[-1])
        elif self._expected is not None:
            return
        self.position = position
        self.read_back.advance(position)
        self.mark_ready()

    def apply_side(self, records: list[Record], *, read_from: int, position: int) -> None:
        """Apply what the side consumer read: ``records`` from ``read_from`` on; it is at ``position`` now.

        What lies beyond the main consumer is left to that: it would be missed if it were cut off and written anew before the
        main one has come there, for only what the main one has read is seen again."""
        if self.lost is not None or self.side_position != read_from:
            return
        if self.position is not None and position > self.reached:
            position = self.reached
            records = [record for record in records if record.offset < position]
        self._fold(self.joining, records, logs=False)
        self.side_position = position
        for held in self.joining.values():
            held.complete_to = max(held.complete_to, position)
        if self.position is not None and position >= self.reached:
            self.live.update(self.joining)
            self.joining, self.side_position, self._are_ready = {}, None, False
            self.mark_ready()

    def mark_ready(self) -> None:
        """Mark as ready all that have come to the end offset seen at their assignment (S-095)."""
        if self.lost is not None or not self.is_bounded or self._are_ready:
            return
        self._are_ready = all(map(IS_READY, self.live.values()))
        if self._are_ready:
            return
        lost = 0
        for held in self.live.values():
            if not held.is_ready and held.ready_at is not None and (self.position or 0) >= held.ready_at:
                lost += held.lost_segments()
                held.become_ready()
        if lost:
            self._is_rewritten = True
            self.lose(f"was truncated and written on: {lost} finished segments are no longer in it")

    def _is_as_expected(self, first: Record) -> bool:
        expected, self._expected = self._expected, None
        if expected is None or first.offset != expected.offset or LastRecord.of(first) == expected:
            return True
        _log.warning("metadata.partition.truncated", partition=self.number, offset=first.offset, action="full replay")
        return False

    def _replay(self) -> None:
        self._has_ends = self._are_ready = False
        for held in (*self.live.values(), *self.joining.values()):
            held.begin_again()
        self.live, self.joining = {}, self.live | self.joining
        self.position = self.last = self.side_position = None
        self.settle()

    def _fold(self, holders: dict[bytes, HeldPartition], records: list[Record], *, logs: bool) -> None:
        core = native.core.walks
        counts = (
            self._fold_each(holders, records, logs=logs)
            if core is None
            else self._fold_natively(core.read_metadata(records), holders, records, logs=logs)
        )
        self.changes += counts.applied + counts.dropped + counts.corrupt
        for outcome, count in zip(counts._fields, counts, strict=True):
            if count:
                self._telemetry.count(METADATA_EVENTS, count, outcome=outcome)

    def _fold_natively(
        self, batch: MetadataBatch, holders: dict[bytes, HeldPartition], records: list[Record], *, logs: bool
    ) -> _Counts:
        """Let the native core take what it may, and Python each record before which that stops."""
        counts, at = _Counts(), 0
        while at < len(records):
            stop, applied, skipped = batch.fold(holders, at)
            counts = counts.plus(_Counts(applied=applied, skipped=skipped))
            if stop < len(records):
                counts = counts.plus(self._fold_each(holders, records[stop : stop + 1], logs=logs))
            at = stop + 1
        return counts

    def _fold_each(self, holders: dict[bytes, HeldPartition], records: Iterable[Record], *, logs: bool) -> _Counts:
        applied = skipped = dropped = corrupt = 0
        topic, partition = self.topic, self.number
        for record in records:
            value, offset = record.value or b"", record.offset
            try:
                kind, position, key = hot.peek(value)
                if kind is None:
                    raise IndexError  # noqa: TRY301 - as of a record that ends too early
                held = holders.get(key)
                if held is None or offset <= held.applied_to:
                    skipped += 1
                    continue
                held.fold(offset, kind, value, position, topic=topic, partition=partition)
                applied += 1
            except (IllegalTransitionError, UnknownSegmentError) as error:
                dropped += 1
                if logs:
                    self.read_back.dropped(offset, error)
                    _log.warning("metadata.event.dropped", partition=partition, offset=offset, reason=str(error))
            except (CorruptDataError, IndexError):
                corrupt += 1
                if logs:
                    reason = str(read_corrupt(value, topic=topic, partition=partition, offset=offset))
                    _log.error("metadata.event.corrupt", partition=partition, offset=offset, reason=reason)
        return _Counts(applied, skipped, dropped, corrupt)
