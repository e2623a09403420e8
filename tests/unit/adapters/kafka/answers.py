"""Responses as a broker might give them, for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeResponse
from kio.static.constants import EntityType
from kio.static.protocol import ResponsePayload

from tests.unit.adapters.kafka.scripted_peer import NO_WAIT
from tiersidecar.formats.wire.framing import RequestHeader

TOPIC_ID = UUID(int=7)
READ, DESCRIBE = 1 << 3, 1 << 8


def schema(header: RequestHeader) -> Any:
    """The response module of the version that was asked in."""
    return load_payload_module(header.api_key, header.api_version, EntityType.response)


def metadata(
    header: RequestHeader,
    *,
    address: str = "127.0.0.1:1",
    leaders: Mapping[str, Sequence[int]] | None = None,
    errors: Mapping[str, ErrorCode] | None = None,
    operations: int = -(2**31),
    cluster_id: str = "c",
    error_code: ErrorCode = ErrorCode.none,
) -> ResponsePayload:
    """Topics with the leader of each partition, or with an error; broker 1 is at ``address``."""
    made = schema(header)
    host, port = address.rsplit(":", 1)
    topics = [
        made.MetadataResponseTopic(
            error_code=(errors or {}).get(name, ErrorCode.none),
            name=name,
            topic_id=TOPIC_ID,
            partitions=tuple(
                made.MetadataResponsePartition(
                    error_code=ErrorCode.none, partition_index=index, leader_id=leader, leader_epoch=3
                )
                for index, leader in enumerate(rows)
            ),
            topic_authorized_operations=operations,
        )
        for name, rows in {**dict.fromkeys(errors or {}, ()), **(leaders or {})}.items()
    ]
    brokers = (made.MetadataResponseBroker(node_id=1, host=host, port=int(port)),)
    whole = {"error_code": error_code} if header.api_version >= 13 else {}
    response: ResponsePayload = made.MetadataResponse(
        throttle_time=NO_WAIT, brokers=brokers, cluster_id=cluster_id, topics=tuple(topics), **whole
    )
    return response


def handshake(error_code: ErrorCode = ErrorCode.none, *mechanisms: str) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error_code, mechanisms=mechanisms)


def authenticated(
    auth_bytes: bytes = b"",
    *,
    error_code: ErrorCode = ErrorCode.none,
    message: str | None = None,
    lifetime_s: float = 0,
) -> SaslAuthenticateResponse:
    lifetime: Any = timedelta(seconds=lifetime_s)
    return SaslAuthenticateResponse(
        error_code=error_code, error_message=message, auth_bytes=auth_bytes, session_lifetime=lifetime
    )
