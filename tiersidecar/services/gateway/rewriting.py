"""One connection's requests and responses that do not just pass: what its rewrites make of them, and what they ask."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from tiersidecar.formats.wire.cursor import Cursor
from tiersidecar.services.gateway.api_keys import BEFORE_LOGIN, ApiKey
from tiersidecar.services.gateway.exchange import (
    Buffer,
    ConnectionState,
    Exchange,
    Rewrites,
    Rewritten,
    UpstreamClosedError,
    WorksMeanwhile,
    at_once,
)
from tiersidecar.services.gateway.limits import ResponseMemory
from tiersidecar.services.gateway.pending import Fate, Pending, PendingQueue
from tiersidecar.services.gateway.request_heads import (
    client_id_and_body,
    has_flexible_header,
    read_head,
    write_request_header,
)
from tiersidecar.services.gateway.side import Side
from tiersidecar.services.gateway.traffic import Traffic

_SIZE_BYTES = 4
_RESPONSE_HEAD_BYTES = 8


class Rewriting:
    """Implements :class:`Upstream`.

    ``run`` takes the work of a rewrite that has to wait for something, one at a time; ``when_sent`` is called once a rewritten
    response is on its way.
    """

    def __init__(
        self,
        *,
        traffic: Traffic,
        rewrites: Rewrites,
        memory: ResponseMemory,
        pending: PendingQueue,
        client: Side,
        broker: Side,
        run: Callable[[Coroutine[Any, Any, None]], None],
        when_sent: Callable[[Pending], None],
    ) -> None:
        self._traffic, self._rewrites, self._memory = traffic, rewrites, memory
        self._pending, self._client, self._broker = pending, client, broker
        self._run, self._when_sent = run, when_sent
        self._state = ConnectionState()
        self._asked = 0
        self._memory_bytes = 0  # of responses that are written, but not yet taken by the client
        self._is_closed = False

    def close(self) -> None:
        """Nobody gets an answer any more, and all memory is free."""
        self._is_closed = True
        for pending in self._pending:
            if pending.answer is not None and not pending.answer.done():
                pending.answer.set_exception(UpstreamClosedError("the broker connection is gone"))
        self.give_memory_back(self._memory_bytes)

    def taken(self) -> None:
        """The client has all that was written."""
        self.give_memory_back(self._memory_bytes)

    # Requests

    def unread(self, api_key: int, api_version: int, correlation_id: int) -> Pending:
        """A request that passes as it arrives; its response is rewritten."""
        exchange = self._exchange(api_key, api_version, correlation_id, None, memoryview(b""))
        needs_login = api_key not in BEFORE_LOGIN
        return Pending(Fate.REWRITE, correlation_id, exchange, self._rewrites[api_key], needs_login=needs_login)

    def read(self, frame: memoryview) -> tuple[Pending, Sequence[Buffer]]:
        """A whole request, as its rewrite reads it; and what is to be sent.

        Raises:
            MalformedMessageError: no Kafka client sends this.
        """
        frame = memoryview(bytes(frame))  # it is kept until it is answered
        _, api_key, api_version, correlation_id = read_head(frame, 0)
        client_id, body_at = client_id_and_body(frame)
        exchange = self._exchange(api_key, api_version, correlation_id, client_id, frame[body_at:])
        rewrite = self._rewrites[api_key]
        body = at_once(rewrite.prepare(exchange))
        pending = Pending(Fate.REWRITE, correlation_id, exchange, rewrite, needs_login=api_key not in BEFORE_LOGIN)
        return pending, (frame,) if body is None else _framed(frame[_SIZE_BYTES:body_at], body)

    def forwarded(self, pending: Pending) -> None:
        """What :meth:`read` gave has been sent.

        Raises:
            MalformedMessageError: no Kafka client sends this.
        """
        # Not isinstance: to look through a Protocol takes longer than most of what is done for a request.
        if pending.exchange is not None and hasattr(pending.rewrite, "forwarded"):
            cast(WorksMeanwhile, pending.rewrite).forwarded(pending.exchange)

    def _exchange(
        self, api_key: int, api_version: int, correlation_id: int, client_id: str | None, request: memoryview
    ) -> Exchange:
        return Exchange(
            api_key=api_key,
            api_version=api_version,
            correlation_id=correlation_id,
            client_id=client_id,
            request=request,
            upstream=self,
            connection=self._state,
            listener=self._traffic.listener,
        )

    # Responses

    def collected(self, pending: Pending, frame: memoryview, memory_bytes: int) -> None:
        """A whole response, with its size; ``memory_bytes`` of the response memory are ours now."""
        self._memory_bytes += memory_bytes
        if pending.answer is not None:
            if not pending.answer.done():
                pending.answer.set_result(frame)
            return
        if pending.rewrite is None or pending.exchange is None:
            raise AssertionError(f"{pending.fate} is not collected")
        header_bytes = _body_offset(frame, pending.exchange.api_key, pending.exchange.api_version)
        rewritten = pending.rewrite.rewrite(pending.exchange, frame[header_bytes:])
        if isinstance(rewritten, Coroutine) and pending.rewrite.alone:
            self._run(self._send_later(pending, rewritten, frame, header_bytes))
            return
        self._send(at_once(rewritten) if isinstance(rewritten, Coroutine) else rewritten, frame, header_bytes)
        self._when_sent(pending)

    async def _send_later(
        self, pending: Pending, rewriting: Coroutine[Any, Any, Rewritten], frame: memoryview, header_bytes: int
    ) -> None:
        self._send(await rewriting, frame, header_bytes)
        self._when_sent(pending)

    def _send(self, body: Rewritten, frame: memoryview, header_bytes: int) -> None:
        if body is None:
            self._traffic.bytes_out += len(frame)
            self._client.write(frame)
            return
        self._traffic.rewritten += 1
        pieces = _framed(frame[_SIZE_BYTES:header_bytes], body)
        self._traffic.bytes_out += sum(map(len, pieces))
        self._client.write_all(pieces)

    # For the rewrites

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        """As :meth:`Upstream.ask` promises."""
        if self._is_closed:
            raise UpstreamClosedError("the broker connection is gone")
        self._asked = (self._asked + 1) % 2**31
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._pending.append(Pending(Fate.ASK, self._asked, answer=answer))
        header = write_request_header(api_key, api_version, self._asked, "tiersidecar-gateway")
        self._broker.write_all(_framed(header, (body,)))
        async with asyncio.timeout(timeout_s):
            frame = await answer
        return frame[_body_offset(frame, api_key, api_version) :]

    def take_memory(self, size_bytes: int) -> int:
        """As :meth:`Upstream.take_memory` promises."""
        taken = 0 if self._is_closed else self._memory.take_some(size_bytes)
        self._memory_bytes += taken
        return taken

    def give_memory_back(self, size_bytes: int) -> None:
        """As :meth:`Upstream.give_memory_back` promises; a connection that has ended has given all back."""
        size_bytes = min(size_bytes, self._memory_bytes)
        self._memory_bytes -= size_bytes
        self._memory.give_back(size_bytes)


def _framed(header: Buffer, body: Sequence[Buffer]) -> list[Buffer]:
    size = len(header) + sum(map(len, body))
    return [struct.pack(">i", size), header, *body]


def _body_offset(frame: memoryview, api_key: int, api_version: int) -> int:
    """Where the body begins in a whole response: behind size, correlation id and, in flexible versions, tagged fields."""
    flexible = api_key != ApiKey.API_VERSIONS and has_flexible_header(api_key, api_version)
    cursor = Cursor(frame, flexible=flexible, position=_RESPONSE_HEAD_BYTES)
    cursor.skip_tagged_fields()
    return cursor.position
