"""Gateways' addresses in responses: whatever a response holds, only addresses change, and nothing else does."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.static.constants import EntityType

from tests.support.gateway_exchange import exchange_of, rewritten_at_once
from tests.unit.formats.wire.entities import entities
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.messages import MalformedMessageError, write_message
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.rewrites import address_rewrites

ADVERTISED = AdvertisedAddresses(pattern="gateway-{node.id}.example.com:{19092+node.id}", nodes={7: ("seven", 9)})
REWRITES = address_rewrites(ADVERTISED)
NAMES = pytest.mark.parametrize("api_key", REWRITES, ids=lambda key: ApiKey(key).name)
SLOW_TO_DRAW = settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
_NODE_IDS = ("node_id", "broker_id")


def versions_of(api_key: int) -> st.SearchStrategy[int]:
    """Those that kio knows too."""
    oldest = 3 if api_key == ApiKey.PRODUCE else 0
    return st.sampled_from([version for version in REWRITES[api_key].versions() if version >= oldest])


def response_type(api_key: int, version: int) -> Any:
    module = load_payload_module(api_key, version, EntityType.response)
    return next(
        value
        for value in vars(module).values()
        if getattr(value, "__type__", None) is EntityType.response and value.__module__ == module.__name__
    )


def with_gateways(value: Any, node_id: int | None = None) -> Any:
    """The same response with every address changed, by its decoded form: what the bytes must say."""
    if isinstance(value, tuple):
        return tuple(with_gateways(item, node_id) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    names = {field.name for field in fields(value)}
    node_id = next((getattr(value, name) for name in _NODE_IDS if name in names), node_id)
    changed = {field.name: with_gateways(getattr(value, field.name), node_id) for field in fields(value)}
    if {"host", "port"} <= names and node_id is not None and node_id >= 0:
        changed["host"], changed["port"] = ADVERTISED.address_of(node_id)
    return replace(value, **changed)


def known_nodes(value: Any) -> bool:
    """Whether all of a random response's node ids have a port."""
    if isinstance(value, tuple):
        return all(map(known_nodes, value))
    if not is_dataclass(value) or isinstance(value, type):
        return True
    return all(
        known_nodes(getattr(value, field.name)) and (field.name not in _NODE_IDS or getattr(value, field.name) < 40_000)
        for field in fields(value)
    )


@pytest.mark.slow
@NAMES
@SLOW_TO_DRAW
@given(data=st.data())
def test_every_address_changes_and_nothing_else(api_key: int, data: st.DataObject) -> None:
    version = data.draw(versions_of(api_key))
    response = data.draw(entities(response_type(api_key, version)).filter(known_nodes))
    body = write_message(response)
    exchange = exchange_of(api_key, version)
    pieces = rewritten_at_once(REWRITES[api_key].rewrite(exchange, memoryview(body)))
    rewritten = body if pieces is None else b"".join(pieces)
    assert rewritten == write_message(with_gateways(response))


@NAMES
@SLOW_TO_DRAW
@given(data=st.data())
def test_any_bytes_are_rewritten_or_refused(api_key: int, data: st.DataObject) -> None:
    version, body = data.draw(versions_of(api_key)), data.draw(st.binary(max_size=200))
    try:
        rewritten_at_once(REWRITES[api_key].rewrite(exchange_of(api_key, version), memoryview(body)))
    except MalformedMessageError:
        return
