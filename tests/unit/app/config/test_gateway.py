"""The gateway's section: what it takes, what it refuses, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, faults_of, load
from tiersidecar.app.builders.gateway import advertised_addresses, gateway_limits, listener_settings
from tiersidecar.domain.errors import ConfigError
from tiersidecar.services.gateway.advertised import AdvertisedAddresses

LISTENER = LEAST + "gateway:\n  listeners:\n  - listen: 127.0.0.1:9192\n"


def test_without_listeners_nothing_is_listened_on(tmp_path: Path) -> None:
    assert load(tmp_path, LEAST).gateway.listeners == ()


def test_a_listener_stands_in_front_of_the_local_broker_and_for_it(tmp_path: Path) -> None:
    config = load(tmp_path, LISTENER)
    (section,) = config.gateway.listeners
    settings = listener_settings(config, section)
    assert (settings.host, settings.port) == ("127.0.0.1", 9192)
    assert (settings.broker_host, settings.broker_port) == ("127.0.0.1", 9092)
    assert settings.tls is None
    assert settings.broker_tls is None
    assert advertised_addresses(section, 7).address_of(7) == ("127.0.0.1", 9192)
    assert advertised_addresses(section, 7).address_of(8)[0] == "node-8.not-mapped.invalid"


@pytest.mark.parametrize(("tls", "expected"), [("on", True), ("off", False), ("auto", False)])
def test_tls_to_the_broker_is_as_its_listener_has_it(tmp_path: Path, tls: str, expected: bool) -> None:
    config = load(tmp_path, LISTENER + f"    broker.tls: '{tls}'\n")
    assert (listener_settings(config, config.gateway.listeners[0]).broker_tls is not None) == expected


def test_limits_are_in_seconds_there(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST + "gateway:\n  request.timeout.ms: 5s\n  socket.request.max.bytes: 1MiB\n")
    limits = gateway_limits(config.gateway)
    assert (limits.request_timeout_s, limits.socket_request_max_bytes) == (5.0, 2**20)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("    advertised.pattern: gateway:9192\n", "is the same for every broker"),
        ("    advertised.pattern: gateway-{node.id}\n", "expected host:port"),
        ("    advertised.pattern: gateway:{node}\n", "expected host:port"),
        ("    ssl.key.location: /k.pem\n", "ssl.certificate.location"),
        ("    ssl.certificate.location: /c.pem\n    ssl.client.auth: required\n", "ssl.ca.location"),
        ("  - listen: 127.0.0.1:9192\n    name: OTHER\n", "127.0.0.1:9192 is there twice"),
        ("  - listen: 127.0.0.1:9193\n", "GATEWAY is there twice"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, more: str, fault: str) -> None:
    assert any(fault in told for told in faults_of(tmp_path, LISTENER + more))


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = load(tmp_path, LISTENER + "    ssl.certificate.location: /no/such.pem\n")
    with pytest.raises(ConfigError, match=r"GATEWAY.*\n?.*/no/such\.pem cannot be used"):
        listener_settings(config, config.gateway.listeners[0])


@pytest.mark.parametrize(
    ("pattern", "node_id", "expected"),
    [
        ("broker-{node.id}.example.com:9192", 12, ("broker-12.example.com", 9192)),
        ("127.0.0.1:{19092+node.id}", 3, ("127.0.0.1", 19095)),
        ("gateway:919{node.id}", 2, ("gateway", 9192)),
        ("[2001:db8::1]:{9000+node.id}", 1, ("2001:db8::1", 9001)),
    ],
)
def test_patterns(pattern: str, node_id: int, expected: tuple[str, int]) -> None:
    assert AdvertisedAddresses(pattern=pattern).address_of(node_id) == expected


def test_the_map_counts_before_the_pattern() -> None:
    advertised = AdvertisedAddresses(pattern="g-{node.id}:1", nodes={2: ("two", 22)})
    assert [advertised.address_of(node) for node in (1, 2)] == [("g-1", 1), ("two", 22)]
