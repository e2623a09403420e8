"""A reader of Kafka's flexible structs, field after field, that skips tags of later versions as Kafka does."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - a class in all but its name

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import Uuid

_INT8, _INT32, _INT64 = Struct(">b"), Struct(">i"), Struct(">q")
_UVARINT_LIMIT = 2**31


class RecordCursor:
    """Reads ``data`` from ``position`` on.  ``where`` names it in errors.

    Every method raises CorruptDataError, with the position, when the bytes do not hold what is asked for.
    """

    __slots__ = ("_data", "_position", "_where")

    def __init__(self, data: bytes, position: int, *, where: str) -> None:
        self._data, self._position, self._where = data, position, where

    def int8(self) -> int:
        return self._fixed(_INT8)

    def int32(self) -> int:
        return self._fixed(_INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def uuid(self) -> Uuid:
        return Uuid(self._take(16))

    def uvarint(self) -> int:
        """Unsigned LEB128 of at most 31 bits."""
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if value >= _UVARINT_LIMIT or shift > 35:
                raise self.corrupt("a variable-length integer of more than 31 bits")
            if byte < 0x80:
                return value

    def string(self) -> str:
        """A compact string."""
        data = self.nullable_bytes()
        if data is None:
            raise self.corrupt("null instead of a string")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"not UTF-8: {error}") from error

    def nullable_bytes(self) -> bytes | None:
        """Compact nullable bytes."""
        length = self.uvarint()
        return None if length == 0 else self._take(length - 1)

    def array_length(self) -> int:
        """How many elements of a compact array follow."""
        length = self.uvarint()
        if length == 0:
            raise self.corrupt("null instead of an array")
        return length - 1

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a struct, known or not."""
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def skip_tags(self) -> None:
        self.tags()

    def end(self) -> None:
        """Nothing may follow."""
        if self._position != len(self._data):
            raise self.corrupt("garbage after the record")

    def corrupt(self, reason: str) -> CorruptDataError:
        """An error at the position reached."""
        return CorruptDataError(where=self._where, position=self._position, reason=reason)

    def _fixed(self, layout: Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._data, self._position)
        except StructError:
            raise self.corrupt(f"{layout.size} bytes expected") from None
        self._position += layout.size
        return int(value)

    def _take(self, count: int) -> bytes:
        stop = self._position + count
        if stop > len(self._data):
            raise self.corrupt(f"{count} bytes expected, {len(self._data) - self._position} left")
        data = self._data[self._position : stop]
        self._position = stop
        return data
