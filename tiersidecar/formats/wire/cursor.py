"""Walking over a message without decoding it, and replacing pieces of it: for messages too large, or too often seen, to open.

Kafka protocol guide, "Protocol primitives"; flexible versions and tagged fields as in KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tiersidecar.formats.wire.messages import MalformedMessageError

Replacement = tuple[int, int, bytes]
"""From, up to (exclusive), and what stands there instead."""

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class Cursor:
    """A place in a message.  All methods raise MalformedMessageError when the message ends too soon.

    ``flexible`` tells whether lengths are compact and structs end in tagged fields.
    """

    __slots__ = ("buffer", "flexible", "position")

    def __init__(self, buffer: bytes | bytearray | memoryview, *, flexible: bool, position: int = 0) -> None:
        self.buffer = buffer
        self.flexible = flexible
        self.position = position

    def skip(self, size: int) -> None:
        if size > len(self.buffer) - self.position:
            raise MalformedMessageError(f"{size} bytes at byte {self.position} of {len(self.buffer)}")
        self.position += size

    def int8(self) -> int:
        at = self.position
        self.skip(1)
        return self.buffer[at]

    def int16(self) -> int:
        at = self.position
        self.skip(2)
        value: int = _INT16.unpack_from(self.buffer, at)[0]
        return value

    def int32(self) -> int:
        at = self.position
        self.skip(4)
        value: int = _INT32.unpack_from(self.buffer, at)[0]
        return value

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.int8()
            value |= (byte & 0x7F) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 28:
                raise MalformedMessageError(f"a varint of more than five bytes before byte {self.position}")

    def array_length(self) -> int:
        """-1 for null.  A length that the bytes left cannot hold is refused, so that nobody loops for it."""
        length = self.uvarint() - 1 if self.flexible else self.int32()
        if length > len(self.buffer) - self.position:
            raise MalformedMessageError(f"an array of {length} at byte {self.position} of {len(self.buffer)}")
        return length

    def skip_string(self) -> None:
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length > 0:
            self.skip(length)

    def skip_bytes(self) -> None:
        length = self.uvarint() - 1 if self.flexible else self.int32()
        if length > 0:
            self.skip(length)

    def skip_tagged_fields(self) -> None:
        if self.flexible:
            for _ in range(self.uvarint()):
                self.uvarint()
                self.skip(self.uvarint())

    def skip_structs(self, fixed_bytes: int) -> None:
        """An array of structs that have ``fixed_bytes`` each, and then tagged fields."""
        for _ in range(self.array_length()):
            self.skip(fixed_bytes)
            self.skip_tagged_fields()


def uvarint_bytes(value: int) -> bytes:
    """``value``, which is not negative, as an unsigned varint."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string_bytes(text: str, *, flexible: bool) -> bytes:
    """``text`` with its length in front."""
    encoded = text.encode()
    return (uvarint_bytes(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded


def splice(
    buffer: bytes | bytearray | memoryview, replacements: Sequence[Replacement]
) -> list[bytes | memoryview] | None:
    """``buffer`` with ``replacements``, which are in order, as pieces without a copy of the rest; None without any."""
    if not replacements:
        return None
    view, pieces, kept = memoryview(buffer), list[bytes | memoryview](), 0
    for start, stop, instead in replacements:
        pieces += (view[kept:start], instead)
        kept = stop
    pieces.append(view[kept:])
    return pieces
