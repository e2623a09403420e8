"""What the gateway looks at in a request: its API key, its first twelve bytes, and in few APIs a little more."""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import cache

from kio.index import KioIndexError, load_request_schema

from tiersidecar.formats.wire.cursor import Cursor
from tiersidecar.formats.wire.messages import MalformedMessageError


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
"""What a broker answers to anybody (SaslServerAuthenticator); to anything else it ends the connection."""


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
    """Size, API key, API version and correlation id of the frame at ``position``, which has 12 bytes at least."""
    head: tuple[int, int, int, int] = _HEAD.unpack_from(buffer, position)
    return head


def client_id_and_body(frame: bytes | memoryview) -> tuple[str | None, int]:
    """The client's id, and where the body begins in a whole frame (with its size).

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
    """Whether requests of this version, and their responses but for ApiVersions', have tagged fields in the header.

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
    """Without the frame's size.  Of a client id that was no UTF-8, and is longer than it was by now, as much as there is room
    for."""
    encoded = (client_id or "").encode()[:_MOST_STRING_BYTES]
    length = -1 if client_id is None else len(encoded)
    tagged = b"\0" if has_flexible_header(api_key, api_version) else b""
    return struct.pack(">hhih", api_key, api_version, correlation_id, length) + encoded + tagged


def produce_acks(frame: bytes | memoryview, api_version: int) -> int | None:
    """``acks`` of the Produce request that begins in ``frame``; None while too little of it is there.

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
    """``mechanism`` of a SaslHandshake request's body, which is in the old format in both of its versions.

    Raises:
        MalformedMessageError: it is none.
    """
    cursor = Cursor(request, flexible=False)
    cursor.skip_string()
    return bytes(request[2 : cursor.position]).decode("ascii", "replace")
