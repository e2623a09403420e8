"""The model broker of the fuzzer answers as a real one: the same frames to both, in every SASL state (issue 17)."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_attacker import Attacker, fetch_frame
from tests.support.gateway_conversations import frame, handshake, produce, token_frame, with_size
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import Listener, SaslMechanism
from tests.support.model_broker import (
    API_VERSIONS,
    AUTHENTICATE,
    DELETE_RECORDS,
    HANDSHAKE,
    HEARTBEAT,
    METADATA,
    SECRET,
    SYNC_GROUP,
    ModelBroker,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

MECHANISMS: tuple[SaslMechanism, ...] = ("PLAIN", "SCRAM-SHA-256")
RIGHT, FIRST = b"\0mallory\0mallory-secret", b"n,,n=mallory,r=fyko"
A_SECOND = None
LOGIN = (handshake("PLAIN", 1), token_frame(RIGHT, 1))
STATES: dict[str, tuple[bytes | None, ...]] = {
    "before anything": (),
    "after ApiVersions": (frame(API_VERSIONS),),
    "after a handshake": (handshake("PLAIN", 1),),
    "after a handshake of version 0": (handshake("PLAIN", 0),),
    "in the midst of SCRAM": (handshake("SCRAM-SHA-256", 1), token_frame(FIRST, 1)),
    "in the midst of SCRAM without headers": (handshake("SCRAM-SHA-256", 0), with_size(FIRST)),
    "logged in": LOGIN,
    "logged in without headers": (handshake("PLAIN", 0), with_size(RIGHT)),
    "logging in again": (*LOGIN, A_SECOND, handshake("PLAIN", 1)),
    "logging in again without headers": (*LOGIN, A_SECOND, handshake("PLAIN", 0)),
    "logging in again by another mechanism": (*LOGIN, A_SECOND, handshake("SCRAM-SHA-256", 1)),
    "logged in again": (*LOGIN, A_SECOND, *LOGIN),
}
PROBES = {
    "ApiVersions": frame(API_VERSIONS),
    "Metadata": frame(METADATA),
    "Heartbeat": frame(HEARTBEAT),
    "SyncGroup": frame(SYNC_GROUP),
    "DeleteRecords": frame(DELETE_RECORDS),
    "Fetch": fetch_frame(SECRET),
    "Produce": produce(1),
    "Produce without acks": produce(0),
    "SaslHandshake 1": handshake("PLAIN", 1),
    "SaslHandshake 0": handshake("PLAIN", 0),
    "SaslHandshake of an unknown mechanism": handshake("UNKNOWN", 1),
    "a right token": token_frame(RIGHT, 1),
    "a wrong token": token_frame(b"\0mallory\0wrong", 1),
    "a right token without a header": with_size(RIGHT),
    "a wrong token without a header": with_size(b"\0mallory\0wrong"),
    "an empty frame": with_size(b""),
    "bytes that are no request": with_size(b"\x60\x82" + bytes(20)),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Of a listener whose logins end, and of one whose do not."""
    directory: Path = tmp_path_factory.mktemp("model")
    listeners = tuple(
        Listener(name=name, security_protocol="SASL_PLAINTEXT", sasl_mechanisms=MECHANISMS)
        for name in ("LASTING", "BRIEF")
    )
    brief = {f"listener.name.brief.{mechanism.lower()}.connections.max.reauth.ms": "60000" for mechanism in MECHANISMS}
    with KafkaCluster(
        directory, listeners=listeners, users={"mallory": "mallory-secret"}, authorizer=True, properties=brief
    ) as cluster:
        yield {name: cluster[1].ports[name] for name in ("LASTING", "BRIEF")}


@pytest.mark.parametrize("listener", ["LASTING", "BRIEF"])
@pytest.mark.parametrize("state", STATES)
def test_the_model_answers_as_a_broker_does(ports: dict[str, int], state: str, listener: str) -> None:
    wrong = []
    for name, probe in PROBES.items():
        model = ModelBroker(mechanisms=MECHANISMS, renews=listener == "BRIEF")
        with Attacker(ports[listener]) as client:
            steps = (*STATES[state], probe, None, frame(HEARTBEAT))
            for number, step in enumerate(steps):
                if step is None:
                    model.tick()
                    if listener == "BRIEF" and A_SECOND in STATES[state] and number < len(steps) - 2:
                        time.sleep(1.1)  # the broker's own clock
                    continue
                if model.is_closed:
                    break
                first, was = len(model.answers), len(model.raw_frames)
                model.feed(step)
                client.send(step)
                is_raw = len(model.raw_frames) > was
                for _, due in model.answers[first:]:
                    got = client.frame()
                    if got is None or not _is_alike(got, due[4:], step, is_raw=is_raw):
                        wrong.append(f"{name}, step {number}: {got!r}, and not {due[4:]!r}")
            if model.is_closed and (more := client.frame()) is not None:
                wrong.append(f"{name}: {more!r}, and not the end")
    assert wrong == []


def _is_alike(got: bytes, due: bytes, step: bytes, *, is_raw: bool) -> bool:
    """Tokens are alike if both are; answers if they have the same id, and for logins the same error."""
    if is_raw:
        return bool(got) == bool(due)
    (key,) = struct.unpack_from(">h", step, 4)
    checked = 6 if key in (HANDSHAKE, AUTHENTICATE) else 4
    return got[:checked] == due[:checked]
