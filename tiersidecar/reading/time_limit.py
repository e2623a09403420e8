"""A time limit around requests to the store: every wait has one (DESIGN.md section 4, rule 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tiersidecar.domain.errors import StoreError

FETCH_TIMEOUT_S = 60.0

T = TypeVar("T")


async def fetch_within(timeout_s: float, key: str, fetch: Awaitable[T]) -> T:
    """What ``fetch``, of the object ``key``, gives.

    Raises:
        StoreError: not within ``timeout_s``; and as ``fetch`` does.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await fetch
    except TimeoutError as error:
        raise StoreError(verb="fetch", key=key, reason=f"it did not come within {timeout_s} s") from error
