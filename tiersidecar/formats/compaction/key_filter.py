"""What a round must know of a clean segment to leave it as it is without reading it: a Bloom filter of its keys, and when the
first of its tombstones may go.

A round asks for every key of its map at once.  So a filter is sized for the largest map that there may be: of all rounds in
which a segment has none of the keys, at most ``MOST_FALSE`` read it in vain, however many keys they ask for.

The places of a key's bits follow from its MD5, by triple hashing: the first half is a place, the second a step, and a mix of
both is added to the step each time.  Double hashing would not do: with so few false answers per key, the pairs of keys that
share all places would be most of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from math import ceil, log
from struct import Struct

from crc32c import crc32c

from tiersidecar.formats import native
from tiersidecar.formats.compaction.offset_map import OffsetMap
from tiersidecar.formats.compaction.raw_records import iter_raw_records, native_frame, open_records
from tiersidecar.formats.compaction.rewriting import delete_horizon_ms
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader, read_whole_batch_header
from tiersidecar.formats.native import HIGHEST

MOST_FALSE = 0.008
"""Share of segments and rounds: enough below 1 % that chance does not pass that."""
MOST_DIGESTS = 2_000_000
"""Of a segment with more keys they are not held, 16 bytes each, but counted: its filter is made when it is looked at again."""
MOST_KEYS = 6_000_000
"""A segment with more gets no filter, which would have more than 30 MiB and be in memory beside the map."""

_DIGEST_BYTES = 16
_HALVES = Struct(">2Q")
_WORD = 2**64 - 1
_SPARE_BYTES = 512
"""Of few keys there would be too few places for all keys to differ."""
_MAGIC = b"TSKF\x02"
_HEAD = Struct(">5s16sBqq")
"""Magic and version, id of the segment, probes, time from which the segment must be read, and number of keys asked at once."""
_CRC = Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """Filter of one segment.  ``probes`` are set bits per key; ``most_asked`` is how many keys a round may ask for;
    from ``due_ms`` on something may go whatever the keys are."""

    bits: Buffer
    probes: int
    most_asked: int
    due_ms: int

    def rules_out(self, offset_map: OffsetMap, *, now_ms: int) -> bool:
        """Return whether a round with this map would take nothing out of the segment."""
        if now_ms >= self.due_ms or len(offset_map) > self.most_asked:
            return False
        if native.core.walks is not None:
            return not native.core.walks.filter_has_any(self.bits, self.probes, offset_map.slots)
        return not any(map(self._may_have, offset_map.digests()))

    def _may_have(self, digest: bytes) -> bool:
        bits = self.bits
        return all(bits[place >> 3] & 1 << (place & 7) for place in _places(digest, self.probes, len(bits) * 8))


class SegmentKeys:
    """Is shown the batches of a cleaned .log, and makes its filter.

    There is none of a segment with markers or batches of transactions, which a round must see in their order; with more than
    ``MOST_KEYS``; or with what no cleaned segment has: old formats, records without a key, tombstones without a horizon.
    """

    def __init__(self) -> None:
        self._native = native.core.walks
        self._digests, self._due_ms, self._count = bytearray(), HIGHEST, 0
        self._bits: _Bits | None = None
        self._has_filter = True

    @property
    def are_too_many_to_hold(self) -> bool:
        """Return whether a filter needs a second look, since only the number of keys is known by now."""
        return self._has_filter and self._bits is None and self._count > MOST_DIGESTS

    def for_second_look(self, most_asked: int) -> SegmentKeys:
        """Return what is to be shown the same batches again: it holds a filter of the right size and no digests."""
        again = SegmentKeys()
        again._bits = _Bits.for_keys(self._count, most_asked)
        return again

    def look(self, batches: Buffer, *, where: str) -> int:
        """See the next ones, with right checksums; return where the last whole one ends.

        Raises:
            CorruptDataError: they cannot be read.
        """
        view, place = memoryview(batches), 0
        while self._has_filter:
            place = self._take_run(view, place)
            header = read_whole_batch_header(view, place, where=where, position=place)
            if header is not None:
                self._take(view[place : place + header.size_bytes], header, where)
                place += header.size_bytes
            if self._count > MOST_KEYS:
                self._give_up()
            if header is None:
                break
        return place if self._has_filter else len(view)

    def key_filter(self, most_asked: int) -> KeyFilter | None:
        """Return the filter for rounds that ask for at most this many keys at once, after all batches."""
        if not self._has_filter or self.are_too_many_to_hold:
            return None
        bits = self._bits
        if bits is None:
            bits = _Bits.for_keys(self._count, most_asked)
            bits.add(self._digests)
        return KeyFilter(bits=bits.bits, probes=bits.probes, most_asked=bits.most_asked, due_ms=self._due_ms)

    def _take_run(self, view: memoryview, place: int) -> int:
        if self._native is None:
            return place
        place, digests, due_ms = self._native.collect_keys(view, place)
        self._add(digests)
        self._due_ms = min(self._due_ms, due_ms)
        return place

    def _take(self, batch: memoryview, header: RecordBatchHeader, where: str) -> None:
        if header.magic < 2 or header.is_control or header.is_transactional:
            self._give_up()
        elif header.record_count and not self._take_natively(batch, header, where):
            horizon_ms = delete_horizon_ms(header)
            for record in iter_raw_records(batch, header, where=where, position=0):
                if record.key is None or (record.is_tombstone and horizon_ms is None):
                    self._give_up()
                    return
                if record.is_tombstone and horizon_ms is not None:
                    self._due_ms = min(self._due_ms, horizon_ms)
                self._add(md5(record.key, usedforsecurity=False).digest())

    def _take_natively(self, batch: memoryview, header: RecordBatchHeader, where: str) -> bool:
        frame = native_frame(header)
        if self._native is None or frame is None:
            return False
        records = open_records(batch, header, where=where, position=0)
        done = self._native.collect_keys_from_records(records, frame)
        if done is None:
            return False
        self._add(done[0])
        self._due_ms = min(self._due_ms, done[1])
        return True

    def _add(self, digests: bytes) -> None:
        self._count += len(digests) // _DIGEST_BYTES
        if self._bits is not None:
            self._bits.add(digests)
        elif self._count <= MOST_DIGESTS:
            self._digests += digests
        else:
            self._digests = bytearray()

    def _give_up(self) -> None:
        self._has_filter, self._digests, self._bits = False, bytearray(), None


@dataclass(frozen=True, slots=True)
class _Bits:
    """A filter that is being made."""

    bits: bytearray
    probes: int
    most_asked: int

    @classmethod
    def for_keys(cls, keys: int, most_asked: int) -> _Bits:
        """Return an empty one for that many keys."""
        rate = MOST_FALSE / most_asked
        size_bits = keys * -log(rate) / log(2) ** 2
        return cls(bytearray(ceil(size_bits / 8) + _SPARE_BYTES), ceil(-log(rate, 2)), most_asked)

    def add(self, digests: bytes | bytearray) -> None:
        """Set the bits of all of them."""
        bits, probes = self.bits, self.probes
        if native.core.walks is not None:
            native.core.walks.fill_filter(bits, probes, digests)
            return
        for begin in range(0, len(digests), _DIGEST_BYTES):
            for place in _places(digests[begin : begin + _DIGEST_BYTES], probes, len(bits) * 8):
                bits[place >> 3] |= 1 << (place & 7)


def write_key_filter(key_filter: KeyFilter, segment_id: bytes) -> tuple[Buffer, ...]:
    """Return the filter of the segment with this id (16 bytes) as the parts of a file."""
    head = _HEAD.pack(_MAGIC, segment_id, key_filter.probes, key_filter.due_ms, key_filter.most_asked)
    return head, key_filter.bits, _CRC.pack(crc32c(key_filter.bits, crc32c(head)))


def read_key_filter(data: bytes, segment_id: bytes) -> KeyFilter | None:
    """Return the filter; None where the file is not whole, or of another segment or version."""
    if len(data) <= _HEAD.size + _CRC.size:
        return None
    magic, of, probes, due_ms, most_asked = _HEAD.unpack_from(data)
    covered = memoryview(data)[: -_CRC.size]
    if (magic, of) != (_MAGIC, segment_id) or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(covered):
        return None
    return KeyFilter(bits=covered[_HEAD.size :], probes=probes, most_asked=most_asked, due_ms=due_ms)


def _places(digest: Buffer, probes: int, size_bits: int) -> Iterator[int]:
    place, step = _HALVES.unpack(digest)
    change = _mixed(place ^ (step << 32 & _WORD | step >> 32))
    for _ in range(probes):
        yield place * size_bits >> 64
        place = place + step & _WORD
        step = step + change & _WORD


def _mixed(word: int) -> int:
    """Return the last step of SplitMix64 for ``word``."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
