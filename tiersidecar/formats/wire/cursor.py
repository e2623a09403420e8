"""Walking over a message without decoding it, and replacing pieces of it: for messages too large, or too often seen, to open.

Kafka protocol guide, "Protocol primitives"; flexible versions and tagged fields as in KIP-482.

Of a request the gateway looks at its API key, its first twelve bytes, and in few APIs at a little more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any

from kio.index import KioIndexError, load_request_schema

from tiersidecar.formats.wire.messages import MalformedMessageError

Buffer = bytes | bytearray | memoryview
Replacement = tuple[int, int, Buffer]
"""Start, stop (exclusive), and the new bytes.  Several may begin where the one before ends."""

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class Cursor:
    """A place in a message.  All methods raise MalformedMessageError when the message ends too soon.

    ``flexible`` says whether lengths are compact and structs end in tagged fields.
    """

    __slots__ = ("buffer", "flexible", "position")

    def __init__(self, buffer: Buffer, *, flexible: bool, position: int = 0) -> None:
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

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the fields of ``layout``, which are of fixed sizes."""
        at = self.position
        self.skip(layout.size)
        return layout.unpack_from(self.buffer, at)

    def uvarint(self) -> int:
        at = self.position
        if at < len(self.buffer) and (first := self.buffer[at]) < 128:  # as nearly all are
            self.position = at + 1
            return first
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
        """Read a length; -1 for null.  One that the bytes left cannot hold is refused, so that no caller loops for it."""
        length = self.uvarint() - 1 if self.flexible else self.int32()
        if length > len(self.buffer) - self.position:
            raise MalformedMessageError(f"an array of {length} at byte {self.position} of {len(self.buffer)}")
        return length

    def skip_string(self) -> None:
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length > 0:
            self.skip(length)

    def string(self) -> str:
        """Read a string that is not null."""
        length = self.uvarint() - 1 if self.flexible else self.int16()
        if length < 0:
            raise MalformedMessageError(f"null instead of a string before byte {self.position}")
        at = self.position
        self.skip(length)
        try:
            return str(self.buffer[at : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessageError(f"a string at byte {at}: {error}") from error

    def skip_bytes(self) -> int:
        """Skip bytes; return how many, 0 for null."""
        length = self.uvarint() - 1 if self.flexible else self.int32()
        self.skip(max(length, 0))
        return max(length, 0)

    def bytes(self) -> bytes:
        """Return a copy of bytes; empty for null."""
        length = self.skip_bytes()
        return bytes(self.buffer[self.position - length : self.position])

    def skip_tagged_fields(self, *, most: int | None = None) -> None:
        """Skip tagged fields; more than ``most`` are refused, unread."""
        if self.flexible:
            count = self.uvarint()
            if most is not None and count > most:
                raise MalformedMessageError(f"{count} tagged fields before byte {self.position}, {most} are the most")
            for _ in range(count):
                self.uvarint()  # the tag
                self.skip(self.uvarint())

    def tagged_fields(self) -> dict[int, int]:
        """Skip all tagged fields; return where each begins, by its tag."""
        found: dict[int, int] = {}
        if self.flexible:
            for _ in range(self.uvarint()):
                tag, size = self.uvarint(), self.uvarint()
                found[tag] = self.position
                self.skip(size)
        return found

    def skip_structs(self, fixed_bytes: int) -> None:
        """Skip an array of structs that have ``fixed_bytes`` each, and then tagged fields."""
        for _ in range(self.array_length()):
            self.skip(fixed_bytes)
            self.skip_tagged_fields()

    def end(self) -> None:
        """Check that nothing follows."""
        if self.position != len(self.buffer):
            raise MalformedMessageError(f"{len(self.buffer) - self.position} bytes are left over")


def uvarint_bytes(value: int) -> bytes:
    """Return ``value``, which is not negative, as an unsigned varint."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string_bytes(text: str, *, flexible: bool) -> bytes:
    """Return ``text`` with its length in front."""
    encoded = text.encode()
    return (uvarint_bytes(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded


def length_bytes(length: int, *, flexible: bool) -> bytes:
    """Return the length of an array, or of bytes; -1 for null."""
    return uvarint_bytes(length + 1) if flexible else _INT32.pack(length)


def splice(buffer: Buffer, replacements: Sequence[Replacement]) -> list[Buffer] | None:
    """Return ``buffer`` with ``replacements``, which are in order, as pieces without copying the rest; None without any."""
    if not replacements:
        return None
    view, pieces, kept = memoryview(buffer), list[Buffer](), 0
    for start, stop, instead in replacements:
        pieces += (view[kept:start], instead)
        kept = stop
    pieces.append(view[kept:])
    return pieces


class ApiKey(IntEnum):
    """By Kafka's numbers; every other API passes as bytes."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    DELETE_RECORDS = 21
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    WRITE_TXN_MARKERS = 27
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79


BEFORE_LOGIN = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS})
"""The requests that a broker answers to any client (SaslServerAuthenticator); at any other it ends the connection."""


HEAD_BYTES = 12
"""Size, API key, API version, correlation id."""
LEAST_REQUEST_BYTES = 10
"""Those without the size, and the length of the client's id."""
MOST_LOOKED_AT_BYTES = 2 * 32_767 + 64
"""Where the acks of a Produce request are at the latest: behind two strings."""

MOST_HEADER_TAGS = 32
"""Kafka has none yet.  They are walked over before the broker knows of the request, and millions fit into one."""

_OLDEST_PRODUCE = 3
"""Brokers of 4.x offer older ones, for the sake of librdkafka, and kio does not know them."""
_HEAD = struct.Struct(">ihhi")


def read_head(buffer: bytes | memoryview, position: int) -> tuple[int, int, int, int]:
    """Read size, API key, API version and correlation id of the frame at ``position``, which has 12 bytes at least."""
    head: tuple[int, int, int, int] = _HEAD.unpack_from(buffer, position)
    return head


def client_id_and_body(frame: bytes | memoryview) -> tuple[str | None, int]:
    """Return the client's id, and where the body begins in a whole frame (with its size).

    Raises:
        MalformedMessageError: the header is none, or of an API or version that kio does not know.
    """
    _, api_key, api_version, _ = _HEAD.unpack_from(frame)
    cursor = Cursor(frame, flexible=False, position=HEAD_BYTES)
    length = cursor.int16()
    start = cursor.position
    cursor.skip(max(length, 0))
    client_id = None if length < 0 else bytes(frame[start : cursor.position]).decode("utf-8", "replace")
    cursor.flexible = has_flexible_header(api_key, api_version)
    cursor.skip_tagged_fields(most=MOST_HEADER_TAGS)
    return client_id, cursor.position


@cache
def has_flexible_header(api_key: int, api_version: int) -> bool:
    """Return whether requests of this version, and their responses but for ApiVersions', have tagged fields in the header.

    Raises:
        MalformedMessageError: kio does not know it.
    """
    if api_key == ApiKey.PRODUCE and 0 <= api_version < _OLDEST_PRODUCE:
        return False
    try:
        return load_request_schema(api_key, api_version).__flexible__
    except KioIndexError as error:
        raise MalformedMessageError(f"API {api_key} version {api_version} is not known") from error


_MOST_STRING_BYTES = 2**15 - 1


def write_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Write it without the frame's size.  A client id that was no UTF-8, and is longer by now, is cut to the room that there
    is."""
    encoded = (client_id or "").encode()[:_MOST_STRING_BYTES]
    length = -1 if client_id is None else len(encoded)
    tagged = b"\0" if has_flexible_header(api_key, api_version) else b""
    return struct.pack(">hhih", api_key, api_version, correlation_id, length) + encoded + tagged


def produce_acks(frame: bytes | memoryview, api_version: int) -> int | None:
    """Return ``acks`` of the Produce request that begins in ``frame``; None while too little of it is there.

    Raises:
        MalformedMessageError: it cannot come any more.
    """
    try:
        cursor = Cursor(frame, flexible=False, position=HEAD_BYTES)
        cursor.skip_string()  # client_id
        cursor.flexible = api_version >= 9
        cursor.skip_tagged_fields(most=MOST_HEADER_TAGS)
        if api_version >= 3:
            cursor.skip_string()  # transactional_id
        return cursor.int16()
    except MalformedMessageError:
        if len(frame) >= MOST_LOOKED_AT_BYTES:
            raise
        return None


def mechanism_in(request: memoryview) -> str:
    """Return ``mechanism`` of a SaslHandshake request's body, which is in the old format in both of its versions.

    Raises:
        MalformedMessageError: it is none.
    """
    cursor = Cursor(request, flexible=False)
    cursor.skip_string()
    return bytes(request[2 : cursor.position]).decode("ascii", "replace")
