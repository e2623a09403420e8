"""Listings in the order of UTF-8 bytes, from servers that compare UTF-16."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from tiersidecar.ports.store import StoredObject

_UNTIL_IT_MATTERS = re.compile("[^\ue000-\uffff\U00010000-\U0010ffff]*")


async def in_byte_order(listing: AsyncIterator[StoredObject]) -> AsyncIterator[StoredObject]:
    """Pass on ``listing``, which is ascending by the UTF-16 or the UTF-8 of its keys, ascending by their UTF-8.

    The two differ only from a character at or above U+E000 on.  Keys that are alike up to there come one after the other in
    both orders, so that only those are held back and sorted.  No other key is.
    """
    held: list[StoredObject] = []
    alike = ""
    async for stored in listing:
        start = _start_of(stored.key)
        if held and start != alike:
            for one in sorted(held, key=_bytes_of):
                yield one
            held.clear()
        if start == stored.key:
            yield stored
        else:
            alike = start
            held.append(stored)
    for one in sorted(held, key=_bytes_of):
        yield one


def _start_of(key: str) -> str:
    found = _UNTIL_IT_MATTERS.match(key)
    return found.group() if found else ""


def _bytes_of(stored: StoredObject) -> bytes:
    return stored.key.encode()
