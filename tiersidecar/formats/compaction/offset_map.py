"""Map from key to last offset, in a bounded amount of memory (``SkimpyOffsetMap``).

A key is known by its MD5 alone, as in Kafka: 16 bytes of digest and 8 of offset per slot, of which no more than the load
factor's share is filled.  Two keys of one digest would be taken for one key, here as there.
"""

from __future__ import annotations

from array import array
from hashlib import md5

BYTES_PER_SLOT = 24
LOAD_FACTOR = 0.9
"""Kafka's ``log.cleaner.io.buffer.load.factor``."""
NOT_FOUND = -1

_DIGEST_BYTES = 16
_HASHED_PROBES = 13
"""Number of 4-byte windows in the digest; after them the probing is linear."""


class OffsetMap:
    """Takes at most ``size_bytes`` (``log.cleaner.dedupe.buffer.size`` of one cleaner); nothing can be taken out again."""

    def __init__(self, size_bytes: int, *, load_factor: float = LOAD_FACTOR) -> None:
        self._slots = size_bytes // BYTES_PER_SLOT
        self._most_keys = int(self._slots * load_factor)
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

    @property
    def utilization(self) -> float:
        """Return the share of the slots that is filled."""
        return self._size / self._slots

    def put(self, key: bytes, offset: int) -> None:
        """Record ``offset``, 0 or above, as the last one of ``key``: offsets come in their order.

        Raises:
            ValueError: every slot is taken, which cannot happen to a caller that asks ``is_full`` first.
        """
        digest = md5(key, usedforsecurity=False).digest()
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
