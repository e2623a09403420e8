"""A listing in UTF-16 order becomes one in the order of bytes, and only what must be is held back."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.adapters.stores.azure import in_byte_order
from tiersidecar.ports.store import StoredObject

KEYS = st.lists(st.text("a/é\ud7ff\ue000\uffee\U00010000\U0001f600", min_size=1, max_size=6), unique=True)


async def listing(keys: list[str], seen: list[str]) -> AsyncIterator[StoredObject]:
    for key in keys:
        seen.append(key)
        yield StoredObject(key=key, size_bytes=0, modified_ms=0)


def as_utf_16(key: str) -> bytes:
    return key.encode("utf-16-be")


@given(KEYS)
async def test_both_orders_become_that_of_bytes(keys: list[str]) -> None:
    for order in (as_utf_16, str.encode):
        passed = [stored.key async for stored in in_byte_order(listing(sorted(keys, key=order), []))]
        assert passed == sorted(keys, key=str.encode)


async def test_keys_that_no_order_moves_pass_at_once() -> None:
    seen: list[str] = []
    async for stored in in_byte_order(listing(["a/0", "a/é", "b"], seen)):
        assert seen[-1] == stored.key
