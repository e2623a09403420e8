"""Cut the chunks of a segment at batch boundaries, by header only, each batch checked before it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Lineage, Offset
from tiersidecar.formats import native
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    CRC_START_V2,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    Buffer,
    check_batch,
    read_batch_header,
)
from tiersidecar.formats.native import Walks, clamped

_CUT = Struct(">qiibIhi")
"""The fields of a format 2 header that decide where a batch ends, whether it is wanted, and whether it is sound."""
_BASE_OFFSET = Struct(">q")
_LEGACY_HEADER_SIZES = {0: 18, 1: 26}
_NOT_YET = -2
"""Leader epoch before the first batch."""
_NO_LIMIT = 1 << 63
_LEAST_LENGTH_V2 = BATCH_HEADER_SIZE - LOG_OVERHEAD


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Whole record batches in offset order, none of them opened.

    ``base_offset`` is the first one's; it may lie below what was asked for, since batches are not cut.  ``next_offset``
    follows the last one.
    """

    buffer: memoryview
    base_offset: Offset
    next_offset: Offset

    def __len__(self) -> int:
        return len(self.buffer)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPlan:
    """The wanted part of a segment, and what is known of it.

    Wanted: batches from the first whose last offset is ``start_offset`` or above, below ``stop_offset`` (exclusive).
    Known: reading begins at byte ``position`` with a batch whose base offset is at most ``first_offset_at_most``; base offsets
    are ``least_offset`` or above, last offsets at most ``greatest_offset``; batches were written in ``leader_epochs``; the
    .log has ``file_size_bytes``.
    """

    where: str
    position: int
    start_offset: int
    stop_offset: int
    first_offset_at_most: int
    least_offset: int
    greatest_offset: int
    leader_epochs: Lineage
    file_size_bytes: int


class _LastTaken(NamedTuple):
    """The last batch that was taken: its size, and the least offset that was due where it begins."""

    size_bytes: int
    due_offset: int


class BatchCutter:
    """Fed with the bytes from ``plan.position`` on, gives slices of what is wanted until ``is_done``.

    ``is_full`` says that this is because a batch did not fit any more; ``skipped_bytes`` counts batches below what is
    wanted (S-144).

    The first 21 bytes of a batch have no checksum.  A damaged length or format shows in the checksum all the same; a
    damaged base offset shows because offsets rise from batch to batch within the segment's own, so that no batch leaves before
    the offset of the one behind it is there; a damaged leader epoch because the segment's metadata say which epoch wrote which
    offsets.
    """

    def __init__(self, plan: CutPlan, *, max_bytes: int | None = None, min_one_message: bool = True) -> None:
        self._plan = plan
        self._left_bytes = max_bytes
        self._takes_any_size = min_one_message
        self._tail = bytearray()
        self._held: BatchSlice | None = None
        self._position = plan.position
        self._least_offset = plan.least_offset
        self._epoch: int = _NOT_YET
        self._first_expected: LeaderEpoch | None = None
        self._epoch_stop = 0
        self._walks = native.core.walks
        self._last_taken = _LastTaken(0, 0)
        self.is_done = False
        self.is_full = False
        self.skipped_bytes = 0

    @property
    def position(self) -> int:
        """Return the position in the .log of the first batch that has not been taken."""
        return self._position

    @property
    def next_offset(self) -> int:
        """Return the end (exclusive) of the offsets whose batches have been taken or passed over."""
        return self._least_offset

    def cut(self, chunk: Buffer) -> list[BatchSlice]:
        """Return the wanted batches that end in ``chunk``, which follows what was fed before.

        Raises:
            CorruptDataError: a batch fails its checks.  Nothing of it has left before.
        """
        view = memoryview(chunk)
        slices: list[BatchSlice] = []
        offset = 0
        if self._tail:
            offset = self._complete_tail(view, slices)
        if not self.is_done and offset < len(view):
            self._cut_view(view[offset:], slices)
        return self._shown(slices)

    def _shown(self, slices: list[BatchSlice]) -> list[BatchSlice]:
        """Return what was held back, and ``slices``; a last batch is held back while the base offset behind it is not known."""
        if self._held is not None:
            slices, self._held = [self._held, *slices], None
        if self.is_done or not slices:
            return slices
        if len(self._tail) >= _BASE_OFFSET.size:
            (base,) = _BASE_OFFSET.unpack_from(self._tail)
            self._check_base(base)
        elif self._position < self._plan.file_size_bytes:
            *slices, last = slices
            before, self._held = _without_last(last, self._last_taken)
            slices += before
        return slices

    def _check_base(self, base: int) -> None:
        if base < self._least_offset:
            raise self._out_of_order(self._position, base, base)

    def drop_tail(self, *, at_most_bytes: int) -> int:
        """Forget what the last chunk ended in, the part of a batch, or a whole one that is held back, and return its size: the
        next chunk begins so many bytes earlier, and no copy puts the batch together.  0, and nothing forgotten, where it is
        larger.  Only for a read without a bound in bytes: what a batch took of that is not given back."""
        held = self._held
        size_bytes = len(self._tail) + (0 if held is None else len(held))
        if size_bytes > at_most_bytes:
            return 0
        if held is not None:
            self._position, self._least_offset = self._position - len(held), self._last_taken.due_offset
            self._held = None
        self._tail = bytearray()
        return size_bytes

    def finish(self) -> None:
        """Check the end, after the last chunk.

        Raises:
            TruncatedDataError: the .log ends within a batch.
        """
        if (self._tail or self._held) and not self.is_done:
            reason = f"the segment ends {len(self._tail)} bytes into a batch"
            raise TruncatedDataError(where=self._plan.where, position=self._position, reason=reason)

    def _complete_tail(self, view: memoryview, slices: list[BatchSlice]) -> int:
        """Put a batch that straddles chunks together; returns how many bytes of ``view`` that took."""
        taken = 0
        while taken < len(view) and (missing := self._missing_bytes()) > 0:
            part = view[taken : taken + missing]
            self._tail += part
            taken += len(part)
        if self._missing_bytes() == 0:
            batch, self._tail = memoryview(bytes(self._tail)), bytearray()
            self._cut_view(batch, slices)
        return taken

    def _missing_bytes(self) -> int:
        """Return how many bytes of the batch in the tail are missing, as far as its part of the header says."""
        try:
            size = read_batch_header(self._tail, where=self._plan.where, position=self._position).size_bytes
        except TruncatedDataError:
            return _header_size(self._tail) - len(self._tail)
        self._check_size(size)
        return size - len(self._tail)

    def _cut_view(self, view: memoryview, slices: list[BatchSlice]) -> None:
        """Walk the batches of ``view``; what is left of one at its end becomes the tail."""
        offset = 0
        while offset < len(view) and not self.is_done:
            offset = self._take_run(view, offset, slices)
            if offset < len(view) and not self.is_done:
                offset = self._take_odd(view, offset, slices)

    def _take_run(self, view: memoryview, offset: int, slices: list[BatchSlice]) -> int:
        """Take sound batches of format 2 by the short loops; returns the offset of the first one that they do not take."""
        first = -1
        while True:
            begun = before = -1
            if self._walks is not None:
                offset, begun = self._walk(self._walks, view, offset)
                before = offset
            first = begun if first < 0 else first
            offset, begun = self._loop(view, offset, is_once=self._walks is not None)
            first = begun if first < 0 else first
            if self._walks is None or offset == before or self.is_done:
                break
        if first >= 0:
            (base,) = _BASE_OFFSET.unpack_from(view, first)
            slices.append(BatchSlice(view[first:offset], Offset(base), Offset(self._least_offset)))
        return offset

    def _walk(self, walks: Walks, view: memoryview, offset: int) -> tuple[int, int]:
        """Run :meth:`_loop` in native code, up to the first batch that is in another epoch, the last one or faulty."""
        plan, left_bytes = self._plan, self._left_bytes
        stop, first, _, due, last, due_at_last, skipped = walks.cut(
            view,
            offset,
            clamped(plan.start_offset),
            clamped(plan.stop_offset),
            clamped(self._least_offset),
            clamped(plan.greatest_offset),
            self._epoch,
            clamped(self._epoch_stop),
            clamped(_NO_LIMIT if left_bytes is None else max(left_bytes, 0)),
            self._takes_any_size,
        )
        if stop > offset:
            self._least_offset, self._position = due, self._position + stop - offset
            self.skipped_bytes += skipped
        if first >= 0:
            if left_bytes is not None:
                self._left_bytes = left_bytes - (stop - first)
            self._takes_any_size = False
            self._last_taken = _LastTaken(stop - last, due_at_last)
        return stop, first

    def _loop(self, view: memoryview, offset: int, *, is_once: bool) -> tuple[int, int]:
        """Walk the batches in Python, only one if ``is_once``; return where the walk stopped, and where the first wanted batch
        begins (-1: none is wanted)."""
        # Locals throughout: this loop runs a million times per GiB of small batches.
        unpack, checksum, size = _CUT.unpack_from, crc32c, len(view)
        start_offset, stop_offset = self._plan.start_offset, self._plan.stop_offset
        least, greatest = self._least_offset, self._plan.greatest_offset
        epoch, epoch_stop = self._epoch, self._epoch_stop
        first, last_taken, due, begin = -1, -1, least, offset
        while size - offset >= BATCH_HEADER_SIZE:
            base, length, batch_epoch, magic, crc, _, delta = unpack(view, offset)
            stop = offset + LOG_OVERHEAD + length
            if magic != 2 or length < _LEAST_LENGTH_V2 or delta < 0:
                break
            last = base + delta
            if base < least or last > greatest:
                raise self._out_of_order(self._position + offset - begin, base, last)
            if stop > size or checksum(view[offset + CRC_START_V2 : stop]) != crc:
                break
            if batch_epoch != epoch or base >= epoch_stop:
                self._enter_epoch(self._position + offset - begin, base, batch_epoch)
                epoch, epoch_stop = self._epoch, self._epoch_stop
            if last >= start_offset:
                if base >= stop_offset or not self._takes(stop - offset):
                    self.is_done = True
                    break
                if first < 0:
                    first = offset
                last_taken, due = offset, least
            else:
                self.skipped_bytes += stop - offset
            self._least_offset = least = last + 1
            offset = stop
            if is_once:
                break
        self._position += offset - begin
        if first >= 0:
            self._last_taken = _LastTaken(offset - last_taken, due)
        return offset, first

    def _take_odd(self, view: memoryview, offset: int, slices: list[BatchSlice]) -> int:
        """Return what the short loop does not take: the part of a batch at the end, an old format, or something to complain
        about."""
        rest = view[offset:]
        try:
            header = read_batch_header(rest, where=self._plan.where, position=self._position)
        except TruncatedDataError:
            self._tail = bytearray(rest)
            return len(view)
        self._check_size(header.size_bytes)
        if header.size_bytes > len(rest):
            if header.last_offset >= self._plan.start_offset and not self._fits(header.size_bytes):
                self._check_base(header.base_offset)
                # The rest of it need not even be fetched.
                self.is_done = self.is_full = True
                return offset
            self._tail = bytearray(rest)
            return len(view)
        check_batch(rest, header, where=self._plan.where, position=self._position)
        # Of a sound but compressed batch of an old format only the last offset is known.
        if not self._least_offset <= header.last_offset <= self._plan.greatest_offset:
            raise self._out_of_order(self._position, header.base_offset, header.last_offset)
        if header.last_offset >= self._plan.start_offset:
            if header.base_offset >= self._plan.stop_offset or not self._takes(header.size_bytes):
                self.is_done = True
                return offset
            slices.append(BatchSlice(rest[: header.size_bytes], header.base_offset, header.next_offset))
            self._last_taken = _LastTaken(header.size_bytes, self._least_offset)
        else:
            self.skipped_bytes += header.size_bytes
        self._least_offset = header.next_offset
        self._position += header.size_bytes
        return offset + header.size_bytes

    def _enter_epoch(self, position: int, base: int, epoch: int) -> None:
        """Accept the epoch of a batch that is another than the one before, and find out how far it reaches."""
        if self._epoch == _NOT_YET and base > self._plan.first_offset_at_most:
            # The index led past the offset asked for: batches would be left out silently.
            reason = f"offset {base} where the index has {self._plan.first_offset_at_most}"
            raise CorruptDataError(where=self._plan.where, position=position, reason=reason)
        expected = self._plan.leader_epochs.epoch_for_offset(base)
        # Where the log's start was moved, nothing is known of what lies below.  Batches may have no epoch at all, but none
        # beside one that has, in the same epoch.
        without = epoch == NO_EPOCH and self._epoch in (_NOT_YET, NO_EPOCH)
        if expected is not None and epoch != expected and not without:
            reason = f"leader epoch {epoch} at offset {base}, which epoch {expected} wrote"
            raise CorruptDataError(where=self._plan.where, position=position, reason=reason)
        if self._epoch == _NOT_YET:
            self._first_expected = expected
        elif self._epoch == NO_EPOCH and epoch == self._first_expected:
            reason = f"no leader epoch before offset {base}, in what epoch {epoch} wrote"
            raise CorruptDataError(where=self._plan.where, position=position, reason=reason)
        later = (entry.start_offset for entry in self._plan.leader_epochs.entries if entry.start_offset > base)
        self._epoch, self._epoch_stop = epoch, next(later, _NO_LIMIT)

    def _takes(self, size_bytes: int) -> bool:
        """Return whether a batch of this size still fits; if so its bytes are taken off what is left."""
        if not self._fits(size_bytes):
            self.is_full = True
            return False
        if self._left_bytes is not None:
            self._left_bytes -= size_bytes
        self._takes_any_size = False
        return True

    def _fits(self, size_bytes: int) -> bool:
        return self._left_bytes is None or size_bytes <= self._left_bytes or self._takes_any_size

    def _check_size(self, size_bytes: int) -> None:
        if self._position + size_bytes > self._plan.file_size_bytes:
            reason = f"a batch of {size_bytes} bytes would end past the segment's {self._plan.file_size_bytes}"
            raise CorruptDataError(where=self._plan.where, position=self._position, reason=reason)

    def _out_of_order(self, position: int, base: int, last: int) -> CorruptDataError:
        due = f"{self._least_offset} to {self._plan.greatest_offset}"
        return CorruptDataError(
            where=self._plan.where, position=position, reason=f"offsets {base} to {last}, not {due}"
        )


@dataclass(frozen=True, slots=True)
class CutStep:
    """Result of one step of reading, and the state of the cutter after it."""

    slices: list[BatchSlice]
    is_done: bool
    is_full: bool
    position: int
    next_offset: int


def step_of(cutter: BatchCutter, slices: list[BatchSlice]) -> CutStep:
    """Return ``slices`` with the present state of the cutter."""
    return CutStep(slices, cutter.is_done, cutter.is_full, cutter.position, cutter.next_offset)


def _without_last(batches: BatchSlice, taken: _LastTaken) -> tuple[list[BatchSlice], BatchSlice]:
    """Return what comes before the last batch, if anything does, and that batch alone, in memory of its own."""
    at = len(batches) - taken.size_bytes
    (base,) = _BASE_OFFSET.unpack_from(batches.buffer, at)
    last = BatchSlice(memoryview(bytes(batches.buffer[at:])), Offset(base), batches.next_offset)
    before = [BatchSlice(batches.buffer[:at], batches.base_offset, Offset(taken.due_offset))] if at else []
    return before, last


def _header_size(head: bytearray) -> int:
    """Return how many bytes the header has, as far as ``head`` shows: up to the magic byte at first."""
    if len(head) <= MAGIC_POSITION:
        return MAGIC_POSITION + 1
    return _LEGACY_HEADER_SIZES.get(head[MAGIC_POSITION], BATCH_HEADER_SIZE)
