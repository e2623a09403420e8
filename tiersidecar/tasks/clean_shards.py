"""One segment's share of a round, for an engine that gives segments to other processes (``tasks/clean_engine``).

The rules are those of a round that goes through one segment after the other, and so is the code.  What such a round carries
from one segment to the next is handed over instead: the map's entries of the segment's own keys, and the transactions.

First pass: the last offset of each key that the segment has, and its batches and markers of transactions.  Second pass: the
segment as the round leaves it, to be measured; and once more, byte for byte the same, to be put up under the id that was
published meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.cleaning import Cleaner, CleaningTerms
from tiersidecar.formats.compaction.offset_map import OffsetMap, OffsetMapBuilder, bytes_for
from tiersidecar.formats.compaction.segments import SegmentTally
from tiersidecar.formats.compaction.transactions import CarriedTransactions, CleanedTransactions
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, read_batch_header
from tiersidecar.tasks.clean_passes import CleanedSegment, CleanPasses
from tiersidecar.tasks.segment_put import NewFacts, SwapStore, put_segment, require

_HEADER_BYTES = 61
_FIRST_MAP_KEYS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanShare:
    """A segment of the chain for the first pass; ``aborted`` are those that reach into it."""

    segment: RemoteLogSegmentMetadata
    first_dirty: Offset
    aborted: tuple[AbortedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSegment:
    """``maps`` have the last offset of each key of the segment, without aborted records; a key may be in several of them, and
    the last of its offsets counts, if that is ``first_dirty`` or above.  ``events`` are its transactional batches, each by its
    first bytes, and its markers, in order."""

    maps: tuple[OffsetMap, ...]
    first_dirty: Offset
    events: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanShare:
    """A segment for the second pass.  ``latest_offset`` is where the round's map ends (inclusive), ``carried`` the state where
    the segment before it ends, ``aborted`` those that begin in this one.  ``measured`` and ``started`` are None while it is
    only to be measured; ``begun_ms`` is the time at which it was begun.  The round's terms come beside it: they name each
    producer of the partition, and are the same for all."""

    segment: RemoteLogSegmentMetadata
    latest_offset: int
    carried: CarriedTransactions
    aborted: tuple[AbortedTransaction, ...]
    measured: NewFacts | None = None
    started: RemoteLogSegmentMetadata | None = None
    begun_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedShare:
    """The segment as the round leaves it; ``facts`` None: as it was.  ``custom_metadata`` is that of what was put up."""

    tally: SegmentTally
    facts: NewFacts | None
    custom_metadata: bytes | None = None


Aborted = Sequence[AbortedTransaction]


def scan_shares(
    segments: Sequence[RemoteLogSegmentMetadata], first_dirty: Offset, aborted: Aborted
) -> Iterator[ScanShare]:
    """Yield the share of each of ``segments``, which lie end to end; ``aborted`` are the whole chain's.  An abort below a
    segment ends nothing in it."""
    for segment, near in zip(segments, _sorted_out(segments, aborted, _reach), strict=True):
        yield ScanShare(segment=segment, first_dirty=first_dirty, aborted=tuple(near))


def clean_shares(
    segments: Sequence[RemoteLogSegmentMetadata],
    latest_offset: int,
    carried: Sequence[CarriedTransactions],
    aborted: Aborted,
) -> Iterator[CleanShare]:
    """Yield the share of each of ``segments`` in the second pass, as of :func:`scan_shares`; ``carried`` is where each
    begins."""
    begun = _sorted_out(segments, aborted, _begin)
    for segment, state, those in zip(segments, carried, begun, strict=True):
        yield CleanShare(segment=segment, latest_offset=latest_offset, carried=state, aborted=tuple(those))


def _reach(one: AbortedTransaction) -> tuple[int, int]:
    return one.first_offset, one.last_offset


def _begin(one: AbortedTransaction) -> tuple[int, int]:
    return one.first_offset, one.first_offset


def _sorted_out(
    segments: Sequence[RemoteLogSegmentMetadata],
    aborted: Aborted,
    span_of: Callable[[AbortedTransaction], tuple[int, int]],
) -> list[list[AbortedTransaction]]:
    """Return for each segment those whose spans, both ends inclusive, have offsets in it."""
    found: list[list[AbortedTransaction]] = [[] for _ in segments]
    starts, ends = [one.start_offset for one in segments], [one.end_offset for one in segments]
    for one in aborted:
        first, last = span_of(one)
        for number in range(bisect_left(ends, first), bisect_right(starts, last)):
            found[number].append(one)
    return found


async def scan_segment(share: ScanShare, store: SwapStore) -> ScannedSegment:
    """Do the first pass over one segment.

    Raises:
        StoreError, CorruptDataError: it could not be read.
    """
    segment, where = share.segment, str(share.segment.remote_log_segment_id)
    maps = _Maps(segment.next_offset - segment.start_offset)
    builder = OffsetMapBuilder(
        maps.another(), first_dirty_offset=segment.start_offset, aborted=share.aborted, another_map=maps.another
    )
    of_builder, events = WholeBatches(), _Events(share.aborted)

    def look(part: memoryview) -> None:
        builder.feed(of_builder, part, where=where)
        events.look(part, where=where)

    async with aclosing(store.stream.feed_log(segment, look, store.pace)) as parts:
        async for _ in parts:
            pass
    of_builder.end(where=where)
    return ScannedSegment(maps=tuple(maps.made), first_dirty=share.first_dirty, events=tuple(events.found))


class _Maps:
    """Maps for a segment of ``span`` offsets, each twice as large as the one before it: neither its size nor its span tells how
    many keys a segment has, and all slots of a map take memory."""

    def __init__(self, span: int) -> None:
        self._span, self._keys = span, _FIRST_MAP_KEYS
        self.made: list[OffsetMap] = []

    def another(self) -> OffsetMap:
        self.made.append(OffsetMap(bytes_for(min(self._keys, self._span))))
        self._keys *= 2
        return self.made[-1]


class Carrying:
    """Follows the transactions of a round through its segments, by their events alone."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._transactions = CleanedTransactions(aborted)
        self.carried = CarriedTransactions()
        """The state where the next segment begins."""

    def go_past(self, segment: RemoteLogSegmentMetadata, events: Iterable[bytes]) -> None:
        """Go past the next segment, whose events these are.

        Raises:
            CorruptDataError: a marker cannot be read.
        """
        where = str(segment.remote_log_segment_id)
        for event in events:
            header = read_batch_header(event, where=where, position=0)
            if header.is_control:
                self._transactions.may_drop_marker(memoryview(event), header, where=where, position=0)
            else:
                self._transactions.is_aborted(header)
        self._transactions.take_retained()
        self.carried = self._transactions.carried(segment.end_offset)


async def measure_segment(
    share: CleanShare, terms: CleaningTerms, offset_map: OffsetMap, passes: CleanPasses
) -> CleanedShare:
    """Do the second pass over one segment, and keep nothing of it; ``offset_map`` has the round's entries of its keys.

    Raises:
        StoreError, CorruptDataError, StateDirError: it could not be read, or not be written to this disk.
    """
    async with _cleaned(share, terms, offset_map, passes) as cleaned:
        return CleanedShare(tally=cleaned.tally, facts=None if cleaned.is_unchanged else cleaned.new.facts)


async def put_share(
    share: CleanShare, terms: CleaningTerms, offset_map: OffsetMap, passes: CleanPasses, store: SwapStore
) -> CleanedShare:
    """Do the second pass once more, put the segment up under the id that was published, and read it back.

    Raises:
        StoreError, CorruptDataError, StateDirError: as :func:`measure_segment`; or it differs from what was measured.
    """
    assert share.started is not None, "a segment is put up after its COPY_SEGMENT_STARTED"
    async with _cleaned(share, terms, offset_map, passes) as cleaned:
        require(share.segment, cleaned.new.facts == share.measured, "it is not cleaned to the same bytes again")
        custom = await put_segment(store, share.started, cleaned.new)
        return CleanedShare(tally=cleaned.tally, facts=cleaned.new.facts, custom_metadata=custom)


@asynccontextmanager
async def _cleaned(
    share: CleanShare, terms: CleaningTerms, offset_map: OffsetMap, passes: CleanPasses
) -> AsyncIterator[CleanedSegment]:
    offset_map.latest_offset = share.latest_offset
    transactions = CleanedTransactions.resumed(share.carried, share.aborted)
    cleaner = Cleaner(offset_map, terms, transactions=transactions)
    # No key filter: those are files of the sidecar that leads, which makes one when it reads the segment first.
    async with passes.cleaned(share.segment, cleaner, is_whole=False) as cleaned:
        yield cleaned


class _Events:
    """Collects the transactional batches and markers of a segment, without those that say nothing after one before them: of the
    same producer, with no marker and no beginning of an aborted transaction between."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._batches = WholeBatches()
        begins = ((one.producer_id, one.first_offset) for one in aborted)
        self._begins = sorted(begins, key=lambda one: one[1], reverse=True)
        self._going_on: set[int] = set()
        self.found: list[bytes] = []

    def look(self, part: memoryview, *, where: str) -> None:
        """See the next bytes of the .log."""
        self._batches.begin_slice(part)
        while (found := self._batches.next_batch(where=where)) is not None:
            self._take(found[0], found[1])
        self._batches.end_slice()

    def _take(self, batch: memoryview, header: RecordBatchHeader) -> None:
        while self._begins and self._begins[-1][1] <= header.last_offset:
            self._going_on.discard(self._begins.pop()[0])
        if header.is_control:
            self._going_on.discard(header.producer_id)
            self.found.append(bytes(batch))
        elif header.is_transactional and header.producer_id not in self._going_on:
            self._going_on.add(header.producer_id)
            self.found.append(bytes(batch[:_HEADER_BYTES]))
