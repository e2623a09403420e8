"""Map from key to last offset, in a bounded amount of memory, and the first pass, which fills it (``Cleaner.buildOffsetMap``).

A key is known by its MD5 alone, as in Kafka's ``SkimpyOffsetMap``: 16 bytes of digest and 8 of offset per slot, of which no
more than the load factor's share is filled.  Two keys of one digest would be taken for one key, here as there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from hashlib import md5

from tiersidecar.domain.errors import OffsetMapTooSmallError
from tiersidecar.formats import native
from tiersidecar.formats.compaction.raw_records import iter_raw_records, native_frame, open_records
from tiersidecar.formats.compaction.transactions import CleanedTransactions
from tiersidecar.formats.compaction.whole_batches import WholeBatches
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader
from tiersidecar.formats.native import MapParts, clamped

BYTES_PER_SLOT = 24
LOAD_FACTOR = 0.9
"""Kafka's ``log.cleaner.io.buffer.load.factor``."""
NOT_FOUND = -1

_DIGEST_BYTES = 16
_HASHED_PROBES = 13
"""Number of 4-byte windows in the digest; after them the probing is linear."""


def most_keys(size_bytes: int, load_factor: float = LOAD_FACTOR) -> int:
    """Return how many keys a map of this size holds."""
    return int(size_bytes // BYTES_PER_SLOT * load_factor)


def bytes_for(keys: int) -> int:
    """Return the size of a map that holds this many keys."""
    return (int(keys / LOAD_FACTOR) + 2) * BYTES_PER_SLOT


class OffsetMap:
    """Takes at most ``size_bytes`` (``log.cleaner.dedupe.buffer.size`` of one cleaner); nothing can be taken out again."""

    def __init__(self, size_bytes: int, *, load_factor: float = LOAD_FACTOR) -> None:
        self._slots = size_bytes // BYTES_PER_SLOT
        self._most_keys = most_keys(size_bytes, load_factor)
        if self._most_keys < 1:
            raise ValueError(f"an offset map of {size_bytes} bytes holds no key: {BYTES_PER_SLOT} bytes a slot")
        self._digests = bytearray(self._slots * _DIGEST_BYTES)
        self._offsets = array("q", [0]) * self._slots
        self._size = 0
        self.latest_offset: int = NOT_FOUND
        """Highest offset of the records that the map was built of; the builder moves it."""

    def __len__(self) -> int:
        return self._size

    @property
    def size_bytes(self) -> int:
        """Return the size of the slots."""
        return self._slots * BYTES_PER_SLOT

    @property
    def is_full(self) -> bool:
        """Return whether no further key may be put in."""
        return self._size >= self._most_keys

    def digests(self) -> Iterator[bytes]:
        """Yield those of all keys."""
        for slot, offset in enumerate(self._offsets):
            if offset:
                yield bytes(self._digests[slot * _DIGEST_BYTES : (slot + 1) * _DIGEST_BYTES])

    @property
    def slots(self) -> MapParts:
        """Return the digests, and the offsets plus 1, for native code to read and to fill."""
        return self._digests, self._offsets

    @property
    def room(self) -> tuple[int, int]:
        """Return how many keys are in the map, and how many may be."""
        return self._size, self._most_keys

    def filled(self, size: int) -> None:
        """Note that native code has put keys into the slots, which are ``size`` now."""
        self._size = size

    def put(self, key: bytes, offset: int) -> None:
        """Record ``offset``, 0 or above, as the last one of ``key``: offsets come in their order.

        Raises:
            ValueError: every slot is taken, which cannot happen to a caller that asks ``is_full`` first.
        """
        self.put_digest(md5(key, usedforsecurity=False).digest(), offset)

    def put_digest(self, digest: bytes, offset: int) -> None:
        """Do what :meth:`put` does, of a key that is known by its MD5 alone."""
        slot = self._find(digest)
        if slot is None:
            raise ValueError("the offset map has no slot left")
        if not self._offsets[slot]:
            self._digests[slot * _DIGEST_BYTES : (slot + 1) * _DIGEST_BYTES] = digest
            self._size += 1
        self._offsets[slot] = offset + 1  # 0 is an empty slot

    def get(self, key: bytes) -> int:
        """Return the last offset of ``key``, or -1."""
        slot = self._find(md5(key, usedforsecurity=False).digest())
        return NOT_FOUND if slot is None else self._offsets[slot] - 1

    def _find(self, digest: bytes) -> int | None:
        """Return the slot of ``digest``, or the empty one where it belongs; None where it is in none and all are taken."""
        offsets, digests, slots = self._offsets, self._digests, self._slots
        slot = 0
        for attempt in range(_HASHED_PROBES):
            slot = int.from_bytes(digest[attempt : attempt + 4], "big") % slots
            begin = slot * _DIGEST_BYTES
            if not offsets[slot] or digests[begin : begin + _DIGEST_BYTES] == digest:
                return slot
        for _ in range(slots):
            slot = (slot + 1) % slots
            begin = slot * _DIGEST_BYTES
            if not offsets[slot] or digests[begin : begin + _DIGEST_BYTES] == digest:
                return slot
        return None


class OffsetMapBuilder:
    """Reads dirty segments in their order until all were read or the map is full.

    Records below ``first_dirty_offset``, of aborted transactions, in control batches and without a key are not put in.  Of the
    transactions in ``aborted`` those count that end in the dirty part (``UnifiedLog.collectAbortedTransactions``): what an
    earlier marker ended stays open for a pass that does not come by it, and would hide what the producer commits next.  The
    map's ``latest_offset`` moves only with whole batches: of the batch in which the map got full every record stays.

    With ``another_map`` none gets too full: the builder goes on in the map that it gives, with the batch at hand.  A key may be
    in several then, of which the last one has its last offset.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        *,
        first_dirty_offset: int,
        aborted: Iterable[AbortedTransaction] = (),
        another_map: Callable[[], OffsetMap] | None = None,
    ) -> None:
        self._map, self._first_dirty_offset, self._another_map = offset_map, first_dirty_offset, another_map
        self._native = native.core.walks
        self._transactions = CleanedTransactions(one for one in aborted if one.last_offset >= first_dirty_offset)

    def add(self, log: Buffer, *, next_base_offset: int, where: str) -> bool:
        """Put in the whole .log of the next segment; return False where the map got full, and no further segment may come.

        Raises:
            CorruptDataError: a batch is damaged or cannot be read.
            OffsetMapTooSmallError: not one batch of the dirty part fits.
        """
        if not self.feed(WholeBatches(), log, where=where):
            return False
        self.end_segment(next_base_offset)
        return True

    def feed(self, batches: WholeBatches, data: Buffer, *, where: str) -> bool:
        """Put in the batches that end in the next slice; return False where the map got full, and nothing further may come.

        Raises:
            CorruptDataError: a batch is damaged or cannot be read.
            OffsetMapTooSmallError: not one batch of the dirty part fits.
        """
        batches.begin_slice(data)
        while True:
            batches.skip_to(self._take_run(batches.view, batches.place))
            found = batches.next_batch(where=where)
            if found is None:
                break
            batch, header, position = found
            if not self._take(batch, header, where=where, position=position):
                return False
        batches.end_slice()
        return True

    def _take_run(self, view: memoryview, start: int) -> int:
        """Put in the batches from ``start`` on that native code takes; return where it stopped."""
        if self._native is None:
            return start
        offset_map, first = self._map, self._first_dirty_offset
        stop, last_offset, size = self._native.fill_map(view, start, clamped(first), offset_map.slots, offset_map.room)
        offset_map.filled(size)
        if stop > start:
            self._transactions.pass_over(last_offset)
            if last_offset >= first:
                offset_map.latest_offset = last_offset
        return stop

    def _take(self, batch: memoryview, header: RecordBatchHeader, *, where: str, position: int) -> bool:
        """Put in the next batch, whose checksum was checked; return False where the map got full."""
        if header.is_control:
            self._transactions.may_drop_marker(batch, header, where=where, position=position)
        elif not self._transactions.is_aborted(header) and not self._put_natively(batch, header, where, position):
            for record in iter_raw_records(batch, header, where=where, position=position):
                if record.key is None or record.offset < self._first_dirty_offset:
                    continue
                if self._map.is_full and not self._go_on_in_another():
                    self._check_progress(where)
                    return False
                self._map.put(record.key, record.offset)
        if header.last_offset >= self._first_dirty_offset:
            self._map.latest_offset = header.last_offset
        return True

    def _put_natively(self, batch: memoryview, header: RecordBatchHeader, where: str, position: int) -> bool:
        """Return whether native code has put in all records of the batch.  It begins with some of them where the map got full:
        to put them in again changes nothing."""
        frame = native_frame(header)
        if self._native is None or frame is None:
            return False
        records = open_records(batch, header, where=where, position=position)
        slots, first = self._map.slots, clamped(self._first_dirty_offset)
        is_done, size = self._native.fill_map_from_records(records, frame, first, slots, self._map.room)
        self._map.filled(size)
        return is_done

    def _go_on_in_another(self) -> bool:
        if self._another_map is None:
            return False
        latest_offset, self._map = self._map.latest_offset, self._another_map()
        self._map.latest_offset = latest_offset
        return True

    def end_segment(self, next_base_offset: int) -> None:
        """End a segment, all put in: the map reaches up to ``next_base_offset``, where the next one begins."""
        self._map.latest_offset = next_base_offset - 1

    def _check_progress(self, where: str) -> None:
        if self._map.latest_offset < self._first_dirty_offset:
            raise OffsetMapTooSmallError(where=where, size_bytes=self._map.size_bytes, keys=len(self._map))
