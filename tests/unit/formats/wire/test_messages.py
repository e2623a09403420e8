from __future__ import annotations

import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.api_versions.v4 import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12 import MetadataResponse
from kio.schema.produce.v3 import ProduceResponse
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateResponse
from kio.serial import entity_reader

from tests.unit.formats.wire.entities import ANY_TYPE, entities
from tiersidecar.formats.wire.messages import MalformedMessageError, read_message, write_message


@st.composite
def any_message(draw: st.DrawFn) -> Any:
    return draw(entities(draw(ANY_TYPE)))


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(any_message())
def test_every_message_that_kio_writes_is_read_as_kio_reads_it(message: Any) -> None:
    written = write_message(message)

    read, end = read_message(type(message), written)

    assert read == message
    assert end == len(written)
    assert entity_reader(type(message))(written, 0) == (read, end)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(ANY_TYPE, st.binary(max_size=300))
def test_any_bytes_are_a_message_or_malformed(entity_type: Any, garbage: bytes) -> None:
    """kio's own reader would abort the process on some of these."""
    try:
        _, end = read_message(entity_type, garbage)
    except MalformedMessageError:
        return
    assert 0 <= end <= len(garbage)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(any_message(), st.data())
def test_a_message_cut_short_is_malformed(message: Any, data: st.DataObject) -> None:
    written = write_message(message)
    if not written:
        return
    cut = data.draw(st.integers(0, len(written) - 1))

    with pytest.raises(MalformedMessageError):
        read_message(type(message), written[:cut])


MALFORMED = {
    "an array that claims more items than there are bytes": (ApiVersionsResponse, "0000 ffffffff07"),
    "a varint of six bytes": (ApiVersionsResponse, "0000 ffffffffff7f"),
    "a varint without an end": (ApiVersionsResponse, "0000 ff"),
    "nothing at all": (ApiVersionsResponse, ""),
    "a null where an array must be": (ApiVersionsResponse, "0000 00 00000000 00"),
    "a text that is not UTF-8": (SaslAuthenticateResponse, "0000 02ff 01 0000000000000000 00"),
    "a tagged field longer than its value": (ApiVersionsResponse, "0000 01 00000000 01 01 09 000000000000000000"),
    "a tagged field shorter than its value": (ApiVersionsResponse, "0000 01 00000000 01 01 07 00000000000000"),
    "a tagged field past the end": (ApiVersionsResponse, "0000 01 00000000 01 63 05 00"),
}


@pytest.mark.parametrize(("entity_type", "octets"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed(entity_type: Any, octets: str) -> None:
    with pytest.raises(MalformedMessageError):
        read_message(entity_type, bytes.fromhex(octets))


def test_tagged_fields_of_a_later_kafka_are_skipped() -> None:
    """KIP-482: a tagged field comes without a new version."""
    octets = bytes.fromhex("0000 00 03 6162") + struct.pack(">q", 5000) + bytes.fromhex("01 09 02 6364")

    answer, end = read_message(SaslAuthenticateResponse, octets)

    assert (answer.auth_bytes, answer.session_lifetime) == (b"ab", timedelta(seconds=5))
    assert end == len(octets)


def test_an_unknown_error_code_is_an_unknown_server_error() -> None:
    answer, _ = read_message(ApiVersionsResponse, bytes.fromhex("7fff 01 00000000 00"))

    assert answer.error_code is ErrorCode.unknown_server_error


def test_a_lifetime_beyond_python_is_the_longest_there_is() -> None:
    """connections.max.reauth.ms may be Long.MAX_VALUE."""
    octets = bytes.fromhex("0000 00 01") + struct.pack(">q", 2**63 - 1) + b"\0"

    answer, _ = read_message(SaslAuthenticateResponse, octets)

    assert answer.session_lifetime == timedelta.max


def test_minus_one_is_no_time_where_there_may_be_none() -> None:
    """LogAppendTime of a Produce response, for topics with CreateTime."""
    octets = bytes.fromhex("00000001 0000 00000001 00000000 0000 0000000000000007 ffffffffffffffff 00000000")

    answer, end = read_message(ProduceResponse, octets)

    ((partition,),) = (topic.partition_responses for topic in answer.responses)
    assert (partition.log_append_time, partition.base_offset, end) == (None, 7, len(octets))


def test_the_client_id_of_a_flexible_header_is_an_old_string() -> None:
    """RequestHeader.json: so that any broker can read the header of ApiVersions."""
    octets = bytes.fromhex("0012 0004 00000007 0002 6869 00")

    header, end = read_message(RequestHeader, octets)

    assert (header.client_id, header.correlation_id, end) == ("hi", 7, len(octets))


def test_metadata_as_a_broker_sends_it() -> None:
    """Bytes of a 4.3.1 broker, version 12."""
    octets = bytes.fromhex(METADATA_OF_4_3_1)

    answer, end = read_message(MetadataResponse, octets)

    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert end == len(octets)
    assert answer.cluster_id == "ZK4EGRBrR0K4QUMF0Q41vQ"
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [(1, "127.0.0.1", 20519)]
    assert (topic.name, partition.leader_id, partition.leader_epoch, partition.isr_nodes) == ("golden", 1, 0, (1,))


def test_writing_is_kios() -> None:
    header = RequestHeader(request_api_key=18, request_api_version=4, correlation_id=7, client_id="hi")  # type: ignore[arg-type]

    assert io.BytesIO(write_message(header)).read() == bytes.fromhex("0012 0004 00000007 0002 6869 00")


METADATA_OF_4_3_1 = (
    "00000000 02 00000001 0a 3132372e302e302e31 00005027 00 00 17 5a4b34454752427252304b3451554d463051343176 51 00000001"
    "02 0000 07 676f6c64656e 5a45c87720b74e4b9825e466ac7e9df7 00 02 0000 00000000 00000001 00000000 02 00000001"
    "02 00000001 01 00 80000000 00 00"
)
