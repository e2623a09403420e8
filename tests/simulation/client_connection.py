"""A Kafka client's connection through a gateway to its broker: what a conversation does for rewrites that are alone."""

from __future__ import annotations

from collections.abc import Coroutine

from tests.simulation.broker_port import SimulatedBroker
from tests.simulation.chances import Chances
from tiersidecar.domain.errors import RetriableError
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.fetch import is_flexible
from tiersidecar.services.gateway.exchange import (
    ConnectionState,
    Exchange,
    Passing,
    Rewrites,
    UpstreamClosedError,
)
from tiersidecar.services.gateway.frames import ResponseMemory

_ASK_S = 30.0
_FRAME_HEAD_BYTES = 8
"""Size and correlation id."""


class ClientConnection:
    """A client's connection, which is the ``services.gateway.exchange.Upstream`` of its requests as well.  ``name`` is its
    client's, for the lots of what it asks; without one they are the broker's own, and no Fetch response counts as large."""

    def __init__(
        self,
        broker: SimulatedBroker,
        rewrites: Rewrites,
        memory: ResponseMemory,
        chances: Chances,
        name: str = "",
    ) -> None:
        self._broker, self._rewrites, self._chances = broker, rewrites, chances
        self._memory = memory.part(lambda: name)
        self._name = name
        self._places = {
            ApiKey.FETCH: f"fetch of the {name}" if name else "fetch",
            ApiKey.LIST_OFFSETS: f"offsets of the {name}" if name else "offsets",
            ApiKey.OFFSET_FOR_LEADER_EPOCH: f"epochs of the {name}",
        }
        self._state = ConnectionState()

    async def exchange(self, api_key: ApiKey, version: int, body: bytes) -> memoryview:
        """Return what the client gets.

        Raises:
            UpstreamClosedError: the broker cannot be reached, and the client's connection ends.
        """
        try:
            return await self._exchange(api_key, version, body)
        finally:
            self._memory.close()  # the client has its response, or is gone

    async def _exchange(self, api_key: ApiKey, version: int, body: bytes) -> memoryview:
        rewrite = self._rewrites[api_key]
        exchange = Exchange(
            api_key=api_key,
            api_version=version,
            client_id="consumer",
            request=memoryview(body),
            upstream=self,
            connection=self._state,
            listener="simulated",
        )
        prepared = rewrite.prepare(exchange)
        sent = body if prepared is None else b"".join(prepared)
        rewrite.forwarded(exchange)
        response = await self.ask(api_key, version, sent, _ASK_S)
        if self._name and self._passes(api_key) and self._counts_as_large():
            head_bytes = _FRAME_HEAD_BYTES + is_flexible(version)  # a flexible header ends in tagged fields
            passing = rewrite.passing(exchange, head_bytes + len(response))
            if passing is not None:
                return self._passed(passing, bytes(head_bytes) + bytes(response))[head_bytes:]
        rewritten = rewrite.rewrite(exchange, response)
        pieces = await rewritten if isinstance(rewritten, Coroutine) else rewritten
        return response if pieces is None else memoryview(b"".join(pieces))

    def _passes(self, api_key: ApiKey) -> bool:
        return api_key is ApiKey.FETCH

    def _counts_as_large(self) -> bool:
        return self._chances.draw(f"response to the {self._name} is large") < 0.1

    def _passed(self, passing: Passing, frame: bytes) -> memoryview:
        """Pass a frame in two pieces."""
        cut = int(self._chances.between(f"response to the {self._name} is cut", 1, len(frame)))
        pieces = [*passing.feed(memoryview(frame[:cut]))]
        passed = b"".join(pieces) + b"".join(passing.feed(memoryview(frame[cut:])))
        assert len(passed) == len(frame)
        return memoryview(passed)

    # -- as Upstream

    is_client_gone = False

    def take_memory(self, size_bytes: int) -> int:
        return self._memory.take_some(size_bytes)

    def give_memory_back(self, size_bytes: int) -> None:
        self._memory.give_back(size_bytes)

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        known = ApiKey(api_key)
        try:
            return memoryview(await self._broker.answer(self._places[known], known, api_version, body))
        except RetriableError as error:
            raise UpstreamClosedError(str(error)) from error
