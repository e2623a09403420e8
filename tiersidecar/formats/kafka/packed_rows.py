"""Rows of a file of fixed layout, kept as its bytes and made when they are looked at.

As objects they take six times the memory: a transaction index or a producer snapshot of 10 MiB, which any client with write
access to the bucket can make, would be 60 MiB and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import eq
from struct import Struct
from typing import Any, TypeVar, overload

T = TypeVar("T")


class PackedRows(Sequence[T]):
    """``make`` takes the fields of one row of ``layout``."""

    __slots__ = ("_data", "_layout", "_make")

    def __init__(self, data: bytes, layout: Struct, make: Callable[[tuple[Any, ...]], T]) -> None:
        self._data, self._layout, self._make = data, layout, make

    def __len__(self) -> int:
        return len(self._data) // self._layout.size

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._layout.iter_unpack(self._data))

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...
    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        if isinstance(place, slice):
            return tuple(self[at] for at in range(*place.indices(len(self))))
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(place)
        return self._make(self._layout.unpack_from(self._data, at * self._layout.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(self._data)

    def __repr__(self) -> str:
        return f"PackedRows({len(self)} rows)"
