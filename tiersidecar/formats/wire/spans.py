"""A walk over a Kafka message that copies nothing: fields come as values, long ones as their place in the buffer.

It tells in both encodings where things lie (the older one, and the flexible one of KIP-482 with its tagged fields), so that
a message can be spliced: what must change is cut out by its bytes, the rest stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class in all but its name
from typing import Any

from tiersidecar.formats.wire.messages import MalformedMessageError

_INT16, _INT32 = Struct(">h"), Struct(">i")
_UVARINT_BITS = 35


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``start`` up to, not including, ``stop`` of a message."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class SpanReader:
    """Reads ``buffer`` from ``position`` on.  Every method raises MalformedMessageError where the bytes end too soon or a
    length is impossible, whatever they claim."""

    __slots__ = ("_buffer", "_flexible", "position")

    def __init__(self, buffer: memoryview, *, flexible: bool, position: int = 0) -> None:
        self._buffer, self._flexible = buffer, flexible
        self.position = position

    def fixed(self, layout: Struct) -> tuple[Any, ...]:
        """The fields of ``layout``."""
        try:
            values = layout.unpack_from(self._buffer, self.position)
        except StructError:
            raise self._short(layout.size) from None
        self.position += layout.size
        return values

    def uuid(self) -> bytes:
        """16 bytes."""
        return bytes(self._skip(16))

    def string(self) -> str:
        """A string that is not null."""
        span = self._sized(self._length(_INT16))
        if span is None:
            raise self.malformed("null instead of a string")
        try:
            return str(self._buffer[span.start : span.stop], "utf-8")
        except UnicodeDecodeError as error:
            raise self.malformed(f"not UTF-8: {error}") from error

    def skip_string(self) -> None:
        """Pass a string, null or not."""
        self._sized(self._length(_INT16))

    def data(self) -> Span | None:
        """Where the content of a bytes field lies; None for null."""
        return self._sized(self._length(_INT32))

    def array(self, item_size: int) -> int:
        """How many items follow, each of at least ``item_size`` bytes; -1 for null."""
        count = self._length(_INT32)
        if count * item_size > len(self._buffer) - self.position:
            raise self.malformed(f"an array of {count} items where {len(self._buffer) - self.position} bytes are left")
        return max(count, -1)

    def tags(self) -> dict[int, Span]:
        """The tagged fields that end a struct, by their tag; none in the older encoding."""
        if not self._flexible:
            return {}
        found = {}
        for _ in range(self._uvarint()):
            tag, size = self._uvarint(), self._uvarint()
            found[tag] = self._span(size)
        return found

    def end(self) -> None:
        """Nothing may follow."""
        if self.position != len(self._buffer):
            raise self.malformed(f"{len(self._buffer) - self.position} bytes are left over")

    def malformed(self, reason: str) -> MalformedMessageError:
        """An error at the position reached."""
        return MalformedMessageError(f"{reason}, at byte {self.position} of {len(self._buffer)}")

    def _length(self, older: Struct) -> int:
        """Of a string, an array or bytes; negative for null."""
        if self._flexible:
            return self._uvarint() - 1
        length: int = self.fixed(older)[0]
        return length

    def _sized(self, length: int) -> Span | None:
        return None if length < 0 else self._span(length)

    def _span(self, size: int) -> Span:
        start = self.position
        self._skip(size)
        return Span(start, self.position)

    def _skip(self, size: int) -> memoryview:
        stop = self.position + size
        if stop > len(self._buffer):
            raise self._short(size)
        skipped = self._buffer[self.position : stop]
        self.position = stop
        return skipped

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            if self.position >= len(self._buffer):
                raise self._short(1)
            byte = self._buffer[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift >= _UVARINT_BITS:
                raise self.malformed("a varint of more than five bytes")

    def _short(self, size: int) -> MalformedMessageError:
        return self.malformed(f"{size} bytes expected, {len(self._buffer) - self.position} left")


def write_uvarint(value: int) -> bytes:
    """Unsigned LEB128."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_length(length: int, *, flexible: bool) -> bytes:
    """The length before bytes or an array; -1 for null."""
    return write_uvarint(length + 1) if flexible else _INT32.pack(length)


def write_string(text: str, *, flexible: bool) -> bytes:
    """A string that is not null."""
    data = text.encode()
    return (write_uvarint(len(data) + 1) if flexible else _INT16.pack(len(data))) + data
