"""Least recently used values, bounded by their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteLru(Generic[K, V]):
    """A map that drops what was not asked for longest once the sizes add up to more than ``max_bytes``.

    A value larger than the whole bound is not kept: it would drive out everything and then itself.  A dropped value that
    a reader still holds stays alive for that reader alone, so nothing in use is torn away (S-131, U22).
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of what is kept."""
        return self._size_bytes

    def get(self, key: K) -> V | None:
        """The value, which becomes the most recently used one; None when it is not kept."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> list[tuple[K, V]]:
        """Keep ``value``, in place of an earlier one; returns what had to go for it, oldest first."""
        self.discard(key)
        if size_bytes > self._max_bytes:
            return [(key, value)]
        self._entries[key] = (value, size_bytes)
        self._size_bytes += size_bytes
        return self._shrink()

    def discard(self, key: K) -> V | None:
        """Drop one value, if it is kept; returns it."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._size_bytes -= entry[1]
        return entry[0]

    def oldest(self) -> tuple[K, V] | None:
        """The least recently used one; None when nothing is kept."""
        for key, (value, _) in self._entries.items():
            return key, value
        return None

    def keys(self) -> list[K]:
        """Keys from the least to the most recently used."""
        return list(self._entries)

    def _shrink(self) -> list[tuple[K, V]]:
        dropped = []
        while self._size_bytes > self._max_bytes:
            key, (value, size_bytes) = self._entries.popitem(last=False)
            self._size_bytes -= size_bytes
            dropped.append((key, value))
        return dropped
