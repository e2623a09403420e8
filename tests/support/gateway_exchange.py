"""Exchanges for tests of rewrites."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tiersidecar.services.gateway.exchange import ConnectionState, Exchange, Rewritten


class NobodyToAsk:
    """An upstream for rewrites that ask nothing."""

    is_client_gone = False

    def take_memory(self, size_bytes: int) -> int:
        return size_bytes

    def give_memory_back(self, size_bytes: int) -> None:
        return None

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        raise AssertionError(f"API {api_key} was asked")


def exchange_of(api_key: int, api_version: int, *, request: bytes = b"") -> Exchange:
    return Exchange(
        api_key=api_key,
        api_version=api_version,
        client_id="a client",
        request=memoryview(request),
        upstream=NobodyToAsk(),
        connection=ConnectionState(),
        listener="GATEWAY",
    )


def rewritten_at_once(answer: Rewritten | Coroutine[Any, Any, Rewritten]) -> Rewritten:
    """Return what a rewrite gives that awaits nothing."""
    assert not isinstance(answer, Coroutine)
    return answer


async def rewritten(answer: Rewritten | Coroutine[Any, Any, Rewritten]) -> Rewritten:
    """Return what a rewrite gives, at once or later."""
    return await answer if isinstance(answer, Coroutine) else answer
