"""Read and write the frames of requests and responses (Kafka protocol guide, "Protocol primitives" and "The messages").

A frame is an int32 size, which does not count itself, then a header, then a message.  A request's header has the API key,
its version, a correlation id and the client's id; a response's has the correlation id alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from kio.index import KioIndexError, load_request_schema
from kio.static.protocol import RequestPayload, ResponsePayload

from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message

R = TypeVar("R", bound=ResponsePayload)

SIZE_PREFIX_BYTES = 4
DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024
"""Kafka's ``socket.request.max.bytes``: no honest peer comes near it, and HTTP or TLS taken for a size exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """Header of a request.  ``body_offset`` is where the message begins in the frame's payload."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


class FrameSplitter:
    """Cuts a byte stream into the payloads of its frames, however it is split into pieces."""

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._wanted = SIZE_PREFIX_BYTES

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads that ``data`` completes, without their size prefix.

        Raises:
            MalformedMessageError: a size that is negative or above the limit; the stream is lost then.
        """
        self._buffer += data
        while len(self._buffer) >= self._wanted:
            self._wanted = SIZE_PREFIX_BYTES + self._next_size()
            if len(self._buffer) < self._wanted:
                return
            payload = bytes(memoryview(self._buffer)[SIZE_PREFIX_BYTES : self._wanted])
            del self._buffer[: self._wanted]
            self._wanted = SIZE_PREFIX_BYTES
            yield payload

    def _next_size(self) -> int:
        size: int = struct.unpack_from(">i", self._buffer)[0]
        if not 0 <= size <= self._max_frame_bytes:
            raise MalformedMessageError(
                f"a frame of {size} bytes, the limit is {self._max_frame_bytes}: is this Kafka?"
            )
        return size


def write_frame(payload: bytes) -> bytes:
    """Return ``payload`` with its size in front."""
    return struct.pack(">i", len(payload)) + payload


def write_request(request: RequestPayload, *, correlation_id: int, client_id: str | None) -> bytes:
    """Return the whole frame of ``request``, with the header version that its message asks for."""
    header_type: Any = request.__header_schema__
    header = header_type(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return write_frame(write_message(header) + write_message(request))


def write_response(response: ResponsePayload, *, correlation_id: int) -> bytes:
    """Return the whole frame of ``response``."""
    header_type: Any = response.__header_schema__
    return write_frame(write_message(header_type(correlation_id=correlation_id)) + write_message(response))


def read_correlation_id(payload: bytes) -> int:
    """Read the correlation id of a response's payload.

    Raises:
        MalformedMessageError: fewer than four bytes.
    """
    if len(payload) < 4:
        raise MalformedMessageError(f"a response of {len(payload)} bytes has no correlation id")
    correlation_id: int = struct.unpack_from(">i", payload)[0]
    return correlation_id


def read_response(response_type: type[R], payload: bytes) -> R:
    """Read the message of a response's payload.

    Raises:
        MalformedMessageError: it is no such response, or bytes are left over.
    """
    _, offset = read_message(response_type.__header_schema__, payload)
    response, end = read_message(response_type, payload, offset)
    if end != len(payload):
        raise MalformedMessageError(f"{response_type.__name__}: {len(payload) - end} bytes are left over")
    return response


def read_request_header(payload: bytes) -> RequestHeader:
    """Read the header of a request's payload.

    Raises:
        MalformedMessageError: too short, or an API or a version that kio does not know.
    """
    if len(payload) < 8:
        raise MalformedMessageError(f"a request of {len(payload)} bytes has no header")
    api_key, api_version = struct.unpack_from(">hh", payload)
    try:
        header_type: Any = load_request_schema(api_key, api_version).__header_schema__
    except KioIndexError as error:
        raise MalformedMessageError(f"API {api_key} version {api_version} is not known") from error
    header, offset = read_message(header_type, payload)
    return RequestHeader(
        api_key=api_key,
        api_version=api_version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
        body_offset=offset,
    )
