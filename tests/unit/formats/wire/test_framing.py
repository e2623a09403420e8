from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v4 import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse

from tiersidecar.formats.wire.framing import (
    SIZE_PREFIX_BYTES,
    FrameSplitter,
    read_correlation_id,
    read_request_header,
    read_response,
    write_frame,
    write_request,
    write_response,
)
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 50), max_size=20))
def test_frames_come_out_whole_however_the_stream_is_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(write_frame, payloads))
    found: list[bytes] = []
    splitter, position = FrameSplitter(), 0
    for cut in cuts:
        found += splitter.feed(stream[position : position + cut])
        position += cut
    found += splitter.feed(stream[position:])

    assert found == payloads


REFUSED = {
    "one byte above the limit": struct.pack(">i", 101),
    "a negative size": struct.pack(">i", -1),
    "HTTP taken for a size": b"HTTP/1.1 400 Bad Request\r\n",
    "a TLS alert taken for a size": b"\x15\x03\x03\x00\x02\x02\x50",
}


@pytest.mark.parametrize("stream", REFUSED.values(), ids=REFUSED.keys())
def test_a_size_that_cannot_be_is_refused_before_its_bytes_are_awaited(stream: bytes) -> None:
    with pytest.raises(MalformedMessageError, match="is this Kafka"):
        list(FrameSplitter(max_frame_bytes=100).feed(stream))


def test_a_frame_of_exactly_the_limit_passes() -> None:
    assert list(FrameSplitter(max_frame_bytes=3).feed(write_frame(b"abc"))) == [b"abc"]


def test_a_flexible_request_has_a_header_of_version_2() -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")

    frame = write_request(request, correlation_id=7, client_id="me")

    assert frame == bytes.fromhex("00000012 0012 0004 00000007 0002 6d65 00 0278 0231 00")


def test_an_old_request_has_a_header_of_version_1() -> None:
    frame = write_request(SaslHandshakeRequest(mechanism="PLAIN"), correlation_id=1, client_id=None)

    assert frame == bytes.fromhex("00000011 0011 0001 00000001 ffff 0005 504c41494e")


def test_a_request_header_leads_to_its_message() -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    payload = write_request(request, correlation_id=7, client_id="me")[SIZE_PREFIX_BYTES:]

    header = read_request_header(payload)

    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (18, 4, 7, "me")
    assert read_message(ApiVersionsRequest, payload, header.body_offset) == (request, len(payload))


@pytest.mark.parametrize("octets", ["0012", "7fff 0000 00000000 ffff", "0012 7fff 00000000 ffff 00"])
def test_a_request_header_that_nobody_knows_is_malformed(octets: str) -> None:
    with pytest.raises(MalformedMessageError):
        read_request_header(bytes.fromhex(octets))


def test_a_response_comes_back_as_it_was_written() -> None:
    response = SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("PLAIN",))
    payload = write_response(response, correlation_id=9)[SIZE_PREFIX_BYTES:]

    assert read_correlation_id(payload) == 9
    assert read_response(SaslHandshakeResponse, payload) == response
    with pytest.raises(MalformedMessageError, match="1 bytes are left over"):
        read_response(SaslHandshakeResponse, payload + b"\0")
    with pytest.raises(MalformedMessageError, match="no correlation id"):
        read_correlation_id(payload[:3])
