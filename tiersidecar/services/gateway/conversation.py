"""One client's conversation with its broker: each answer belongs to one request, and says nothing that was not asked.

Kafka answers a connection's requests in order.  Each request that is answered is pending until its answer is whole, and an
answer to another ends the conversation.  That alone proves nothing where a client chooses its correlation ids: a request whose
answer is read here goes to the broker under a random id of the gateway's own, which the client never sees.  The client's is
put back.

No sockets and no tasks: bytes go in by :meth:`Conversation.from_client` and :meth:`Conversation.from_broker`, and come out at
its two ends.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tiersidecar.formats.wire.cursor import (
    BEFORE_LOGIN,
    HEAD_BYTES,
    LEAST_REQUEST_BYTES,
    ApiKey,
    Cursor,
    client_id_and_body,
    has_flexible_header,
    produce_acks,
    read_head,
    write_request_header,
)
from tiersidecar.formats.wire.messages import MalformedMessageError, UnaskedAnswerError
from tiersidecar.services.client_limits import origin_of
from tiersidecar.services.gateway.exchange import (
    NO_API_KEY_FROM,
    Buffer,
    ConnectionState,
    Exchange,
    LoginState,
    Passing,
    Rewrite,
    Rewrites,
    Rewritten,
    UpstreamClosedError,
    is_no_request,
)
from tiersidecar.services.gateway.frames import (
    WAITS,
    Fate,
    Frames,
    Looks,
    Needs,
    Passes,
    Pending,
    ResponseMemory,
    Takes,
    Verdict,
)
from tiersidecar.services.gateway.host import End, Host, LoggedIn, LoginWatch, Refusal
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.rewrites import unsupported_api_versions
from tiersidecar.services.gateway.traffic import Traffic

_SIZE_BYTES = 4
_RESPONSE_HEAD_BYTES = 8
_ID, _HEAD = struct.Struct(">i"), struct.Struct(">ii")
_REQUEST_ID_AT, _ANSWER_ID_AT = 8, 4
_MOST_TOKEN_BYTES = 524_288
"""``sasl.server.max.receive.size``."""
_CONNECTING, _ALONE, _FULL = 1, 2, 4
"""Why no further request goes to the broker for now: bits of a plain number, which are looked at with each frame."""
_FREE_BYTES = 256 * 1024
"""Memory that each connection uses without asking: one read's worth.  Small answers then never wait behind large ones, and
an answer that a rewrite asked for never waits for memory that the rewrite itself holds."""
_LARGE_BYTES = 64 * 1024
"""From here on it matters that no client waits for the end of a response, and that its memory is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ListenerShare:
    """The parts that all conversations of one listener share."""

    traffic: Traffic
    rewrites: Rewrites
    limits: GatewayLimits
    memory: ResponseMemory


class Conversation:
    """Implements :class:`Upstream` for its rewrites.  SASL tokens may go without headers where the rewrite of SaslHandshake has
    version 0, which begins them."""

    def __init__(
        self,
        *,
        state: ConnectionState,
        share: ListenerShare,
        client: End,
        broker: End,
        host: Host,
        login: LoginWatch | None = None,
        new_id: Callable[[], int] | None = None,
    ) -> None:
        self._state, self._traffic, self._limits = state, share.traffic, share.limits
        self._origin = origin_of(state.client.rpartition(":")[0])  # read once: it is asked for several times a Fetch
        self._memory = share.memory.part(lambda: self.asker)
        self._rewrites = {key: (rewrite, rewrite.versions()) for key, rewrite in share.rewrites.items()}
        self._client, self._broker, self._host, self._login = client, broker, host, login or LoggedIn()
        handshake = share.rewrites.get(ApiKey.SASL_HANDSHAKE)
        self._raw_tokens = handshake is not None and 0 in handshake.versions()
        self._new_id = new_id or _random_ids().__next__
        self._pending: deque[Pending] = deque()
        self._rewriting: Pending | None = None  # whose answer was read, and is not on its way yet
        self._requests = Frames(self._begin_request, self._broker.write)
        self._answers = Frames(self._begin_answer, self._to_client)
        self._holds = _CONNECTING
        self._has_asked = self._is_closed = False
        self._memory_bytes = 0  # of responses that are written, but not yet taken by the client
        self._granted_bytes = self._waits_for_bytes = 0  # of the response memory, for the answer that comes next

    # What its owner says, and asks

    def connected(self) -> None:
        """Begin: both sides are connected."""
        self._release(_CONNECTING)

    def from_client(self, data: Buffer) -> None:
        """Take what the client has sent."""
        self._traffic.bytes_in += len(data)
        self._guard(Refusal.MALFORMED, self._requests.feed, data)

    def from_broker(self, data: Buffer) -> None:
        """Take what the broker has sent."""
        self._guard(Refusal.UNBOUND, self._answers.feed, data)

    @property
    def wants_request_bytes(self) -> bool:
        """Return whether to read more from the client: while held, only the rest of a request that has begun."""
        return self._requests.is_under_way or not (self._holds or self._requests.waits)

    @property
    def wants_answer_bytes(self) -> bool:
        return not self._waits_for_bytes

    @property
    def unfinished_request(self) -> tuple[int, int]:
        """Return its number, and how many bytes it has at least; 0 bytes between requests, and while they are held."""
        return self._requests.ended, self._requests.unfinished_bytes

    @property
    def asker(self) -> str:
        """Return what is counted as one caller: the principal where its name is known, else the address."""
        return self._state.login.named_principal or self._origin

    @property
    def is_let_in(self) -> bool:
        """Return whether the broker has answered what it answers only after a login, or has begun to."""
        is_answered = self._answers.is_under_way and bool(self._pending) and self._pending[0].needs_login
        return is_answered or self._state.login.state is LoginState.READY

    @property
    def kept_bytes(self) -> int:
        """Return what waits in here, of both directions."""
        return self._requests.kept_bytes + self._answers.kept_bytes

    def taken(self) -> None:
        """Note that the client has all that was written: it may ask again."""
        if self._memory_bytes:
            self.give_memory_back(self._memory_bytes)
        self._release(0)

    def close(self) -> None:
        """End it: no request gets an answer any more, and all memory is free."""
        self._is_closed = True
        self._requests.close()
        self._answers.close()
        for pending in self._pending:
            if pending.answer is not None and not pending.answer.done():
                pending.answer.set_exception(UpstreamClosedError("the broker connection is gone"))
        if self._rewriting is not None:
            self._pending.appendleft(self._rewriting)
        for pending in self._pending:
            if pending.rewrite is not None and pending.exchange is not None:
                pending.rewrite.abandoned(pending.exchange)
        self._rewriting = None
        self._pending.clear()
        self._memory.close()
        self._granted_bytes = self._waits_for_bytes = self._memory_bytes = 0

    def fail(self, error: Exception, malformed: Refusal = Refusal.MALFORMED) -> None:
        """End it, for ``error``; ``malformed`` says whose fault bytes are that are no message."""
        if self._is_closed:
            return
        if isinstance(error, UnaskedAnswerError):
            refusal = Refusal.UNBOUND
        elif isinstance(error, MalformedMessageError):
            refusal = malformed
        else:
            refusal = Refusal.BROKER_GONE if isinstance(error, UpstreamClosedError) else Refusal.FAULT
        self.close()
        self._host.ended(refusal, error)

    def _guard(self, malformed: Refusal, work: Callable[..., None], *arguments: object) -> None:
        if self._is_closed:
            return
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is ends this conversation and no other
            self.fail(error, malformed)

    # Requests

    def _begin_request(self, frame: memoryview) -> Verdict:
        if self._holds or self._client.is_full:
            return WAITS  # as with a broker, which reads nothing of a client that has not taken its last answer
        if len(frame) < _SIZE_BYTES:
            return Needs(_SIZE_BYTES)
        (size,) = _ID.unpack_from(frame)
        if self._state.login.is_raw or (self._raw_tokens and not self._has_asked):
            token = self._classify_token(frame, size)
            if token is not None:
                return token
        if not LEAST_REQUEST_BYTES <= size <= self._limits.socket_request_max_bytes:
            limit = self._limits.socket_request_max_bytes
            raise MalformedMessageError(f"a request of {size} bytes, the limit is {limit}")
        if len(frame) < HEAD_BYTES:
            return Needs(HEAD_BYTES)
        return self._classify_request(frame)

    def _classify_request(self, frame: memoryview) -> Verdict:
        size, api_key, api_version, correlation_id = read_head(frame, 0)
        total = _SIZE_BYTES + size
        if not 0 <= api_key < NO_API_KEY_FROM:
            raise MalformedMessageError("a frame that is no request: SASL tokens go in SaslAuthenticate")
        self._check_may_ask(api_key, total)
        rewrite, versions = self._rewrites.get(api_key, (None, None))
        if versions is not None and api_version not in versions:
            if api_key != ApiKey.API_VERSIONS:
                raise MalformedMessageError(f"API {api_key} version {api_version}, which was not offered")
            return self._whole(frame, total, self._unknown_api_versions)
        if rewrite is not None and rewrite.alone and self._pending and not self._is_fence:
            return WAITS  # behind other answers its own would lie unread for as long as the client takes none of them
        if rewrite is not None and rewrite.reads_request:
            return self._whole(frame, total, self._read_request, rewrite.most_request_bytes)
        acks: int | None = 1
        if api_key == ApiKey.PRODUCE:
            acks = produce_acks(frame[:total], api_version)
            if acks is None:
                if len(frame) >= total:
                    raise MalformedMessageError("a Produce request that ends before its acks")
                return Needs(len(frame) + 1)
        if acks != 0:
            exchange = None
            if rewrite is not None:
                exchange = self._exchange(api_key, api_version, None, memoryview(b""))
            self._expect_answer(frame, api_key, correlation_id, exchange, rewrite)
        elif self._is_fence:
            raise MalformedMessageError("a request without an answer right after SASL tokens")
        passing = None if rewrite is None else rewrite.passing_request(api_version, total)
        return Passes(total) if passing is None else Looks(total, _looking(passing, self._broker.write))

    def _check_may_ask(self, api_key: int, total: int) -> None:
        """Check the request before more of it is read: before the login the broker would not answer it.

        Raises:
            MalformedMessageError: it must log in first, or the request is too large for that.
        """
        limit, demands_login, login = self._login.request_bytes, self._login.demands_login, self._state.login
        if login.awaits_token and api_key != ApiKey.SASL_AUTHENTICATE:
            # As the broker (SaslServerAuthenticator): nothing is read for a client that has only begun to log in.
            raise MalformedMessageError(f"API {api_key} amid a SASL exchange")
        if limit is None:
            return
        if total > limit and (demands_login or api_key in BEFORE_LOGIN):
            raise MalformedMessageError(f"a request of {total} bytes where {limit} are the most, before the login")
        is_early = login.state is LoginState.BEFORE and api_key not in BEFORE_LOGIN
        if is_early and demands_login:
            raise MalformedMessageError(f"API {api_key} before the login")

    def _whole(
        self, frame: memoryview, total: int, take: Callable[[memoryview], None], most_bytes: int | None = None
    ) -> Verdict:
        if most_bytes is not None and total > most_bytes:
            api = ApiKey(read_head(frame, 0)[1])
            raise MalformedMessageError(
                f"a request of API {api} ({api.name}) of {total} bytes where {most_bytes} are the most: "
                "ask for fewer partitions in each request"
            )
        limit = min(self._limits.max_collected_request_bytes, self._login.request_bytes or total)
        if total > limit:
            raise MalformedMessageError(f"a request of {total} bytes where {limit} are the most")
        return Takes(total, take)

    def _read_request(self, frame: memoryview) -> None:
        _, api_key, api_version, correlation_id = read_head(frame, 0)
        client_id, body_at = client_id_and_body(frame)
        exchange = self._exchange(api_key, api_version, client_id, frame[body_at:])
        rewrite, _ = self._rewrites[api_key]
        body = rewrite.prepare(exchange)
        self._expect_answer(frame, api_key, correlation_id, exchange, rewrite)
        self._broker.write_all((frame,) if body is None else _framed(frame[_SIZE_BYTES:body_at], body))
        rewrite.forwarded(exchange)

    def _unknown_api_versions(self, frame: memoryview) -> None:
        """Answer an ApiVersions that is too new for us, in its turn."""
        correlation_id = read_head(frame, 0)[3]
        self._expect(Pending(Fate.OWN, frame=unsupported_api_versions(correlation_id)))
        self._send_own()

    def _exchange(self, api_key: int, api_version: int, client_id: str | None, request: memoryview) -> Exchange:
        return Exchange(
            api_key=api_key,
            api_version=api_version,
            client_id=client_id,
            request=request,
            upstream=self,
            connection=self._state,
            listener=self._traffic.listener,
        )

    def _expect_answer(
        self, frame: memoryview, api_key: int, correlation_id: int, exchange: Exchange | None, rewrite: Rewrite | None
    ) -> None:
        """Note that the request that begins in ``frame`` is about to go.  A request whose answer is read goes under an id of
        ours, and so does the one whose answer shows that SASL tokens are over."""
        fate = Fate.PASS if rewrite is None else Fate.REWRITE
        pending = Pending(fate, correlation_id, exchange=exchange, rewrite=rewrite)
        pending.needs_login = api_key not in BEFORE_LOGIN
        pending.is_alone = self._is_fence or (rewrite is not None and rewrite.alone)
        if rewrite is not None or self._is_fence:
            pending.wire_id = self._new_id()
            pending.id_bytes = bytes(frame[_REQUEST_ID_AT:HEAD_BYTES])
            _ID.pack_into(frame, _REQUEST_ID_AT, pending.wire_id)
        self._expect(pending)

    def _expect(self, pending: Pending) -> None:
        self._has_asked = True
        self._traffic.requests += 1
        self._pending.append(pending)
        if pending.is_alone:
            self._holds |= _ALONE
        if len(self._pending) >= self._limits.max_in_flight_requests:
            self._holds |= _FULL

    # SASL tokens without headers (KIP-43), where they are allowed

    @property
    def _is_fence(self) -> bool:
        """Return whether a request that is sent now comes right after SASL tokens without headers: its answer shows whether
        the last token had an answer."""
        return self._state.login.is_raw

    def _classify_token(self, frame: memoryview, size: int) -> Verdict | None:
        """Classify a token; None: it is to be classified as a request.

        The first frame after the handshake is a token whatever it begins with.  A later one that begins as a request is taken
        for one: no token of a mechanism that we know does.  One may end without a last token of the broker's (GSSAPI).
        """
        login = self._state.login
        if size >= LEAST_REQUEST_BYTES and (login.raw_tokens or not login.is_raw):
            if len(frame) < _SIZE_BYTES + 2:
                return Needs(_SIZE_BYTES + 2)
            if not is_no_request(frame[_SIZE_BYTES:]):
                return None
        if not login.is_raw:  # GSSAPI without a handshake, as clients did before KIP-43
            login.begin("GSSAPI", LoginState.EXCHANGING, is_raw=True)
        return self._token(size)

    def _token(self, size: int) -> Verdict:
        if self._pending:
            return WAITS  # one at a time: the answer may show that the next is no token
        limit = min(_MOST_TOKEN_BYTES, self._login.request_bytes or _MOST_TOKEN_BYTES)
        if not 0 <= size <= limit:
            raise MalformedMessageError(f"a SASL token of {size} bytes, the limit is {limit}")
        self._state.login.raw_tokens += 1
        self._expect(Pending(Fate.TOKEN))
        return Passes(_SIZE_BYTES + size)

    # Answers

    def _begin_answer(self, frame: memoryview) -> Verdict:
        if not self._pending:
            raise UnaskedAnswerError("an answer to no request")
        if len(frame) < _SIZE_BYTES:
            return Needs(_SIZE_BYTES)
        (size,) = _ID.unpack_from(frame)
        first = self._pending[0]
        if first.fate is Fate.TOKEN:
            verdict = self._classify_token_answer(frame, size)
            if verdict is not None:
                return verdict
            first = self._pending[0]
        if size < _ID.size:
            raise UnaskedAnswerError(f"an answer of {size} bytes")
        if len(frame) < _RESPONSE_HEAD_BYTES:
            return Needs(_RESPONSE_HEAD_BYTES)
        _, wire_id = _HEAD.unpack_from(frame)
        if wire_id != first.wire_id:
            raise UnaskedAnswerError(f"an answer to request {wire_id}, {first.wire_id} is next")
        if first.fate is Fate.PASS:
            if first.id_bytes:
                frame[_ANSWER_ID_AT:_RESPONSE_HEAD_BYTES] = first.id_bytes
            return Passes(_SIZE_BYTES + size, self._answer_passed)
        return self._classify_read_answer(first, frame, _SIZE_BYTES + size)

    def _classify_token_answer(self, frame: memoryview, size: int) -> Verdict | None:
        """Classify a token's answer; None: the token had none, as the answer to the request behind it proves."""
        if not 0 <= size <= _MOST_TOKEN_BYTES:
            raise UnaskedAnswerError(f"a SASL token of {size} bytes")
        if len(self._pending) > 1 and size >= _ID.size:
            if len(frame) < _RESPONSE_HEAD_BYTES:
                return Needs(_RESPONSE_HEAD_BYTES)
            if _HEAD.unpack_from(frame)[1] == self._pending[1].wire_id:
                self._pending.popleft()
                return None
        return Passes(_SIZE_BYTES + size, self._answer_passed)

    def _classify_read_answer(self, first: Pending, frame: memoryview, total: int) -> Verdict:
        if total > _LARGE_BYTES and first.exchange and first.rewrite and not self._granted_bytes:
            passing = first.rewrite.passing(first.exchange, total)
            if passing is not None:
                frame[_ANSWER_ID_AT:_RESPONSE_HEAD_BYTES] = first.id_bytes
                return Looks(total, _looking(passing, self._to_client), self._answer_passed)
        if len(frame) < total and total > _FREE_BYTES and not self._granted_bytes:
            if not self._memory.take(total, self._room):
                self._waits_for_bytes = total
                return WAITS
            self._granted_bytes = total
        return Takes(total, self._answer_collected)

    def _room(self) -> None:
        self._granted_bytes, self._waits_for_bytes = self._waits_for_bytes, 0
        # Not now: the connection that has given memory back is in the middle of something.
        self._host.soon(lambda: self._guard(Refusal.UNBOUND, self._answers.go_on))

    def _answer_collected(self, frame: memoryview) -> None:
        self._memory_bytes, self._granted_bytes = self._memory_bytes + self._granted_bytes, 0
        pending = self._pending.popleft()
        if pending.answer is not None:
            if not pending.answer.done():
                pending.answer.set_result(frame)
            self._answered(pending)
            return
        assert pending.exchange is not None
        assert pending.rewrite is not None
        self._state.login.answered(needs_login=pending.needs_login)
        frame[_ANSWER_ID_AT:_RESPONSE_HEAD_BYTES] = pending.id_bytes
        header_bytes = _body_offset(frame, pending.exchange.api_key, pending.exchange.api_version)
        self._rewriting = pending
        rewritten = pending.rewrite.rewrite(pending.exchange, frame[header_bytes:])
        if isinstance(rewritten, Coroutine):
            if not pending.rewrite.alone:
                rewritten.close()
                raise TypeError("only the rewrite of an API that is alone may await something")
            self._host.run(self._send_later(pending, rewritten, frame, header_bytes))
        else:
            self._send(pending, rewritten, frame, header_bytes)

    async def _send_later(
        self, pending: Pending, rewriting: Coroutine[Any, Any, Rewritten], frame: memoryview, header_bytes: int
    ) -> None:
        self._send(pending, await rewriting, frame, header_bytes)

    def _send(self, pending: Pending, body: Rewritten, frame: memoryview, header_bytes: int) -> None:
        if self._is_closed:
            return
        self._rewriting = None
        pieces: Sequence[Buffer] = (frame,)
        if body is not None:
            self._traffic.rewritten += 1
            pieces = _framed(frame[_SIZE_BYTES:header_bytes], body)
        self._traffic.bytes_out += sum(map(len, pieces))
        self._client.write_all(pieces)
        self._answered(pending)

    def _answer_passed(self) -> None:
        pending = self._pending.popleft()
        if pending.fate is not Fate.TOKEN:
            self._state.login.answered(needs_login=pending.needs_login)
        self._answered(pending)

    def _answered(self, pending: Pending) -> None:
        """Note that the answer is on its way, and others may follow."""
        if self._state.login.refusal:
            self.close()
            self._host.ended(Refusal.LOGIN, PermissionError(self._state.login.refusal))
            return
        if not self._pending:
            self._state.asker.asked_at = (
                None  # the table of that look at the cluster, of which an idle client needs nothing
            )
        self._send_own()
        if len(self._pending) <= self._limits.max_in_flight_requests // 2:
            self._holds &= ~_FULL
        self._release(_ALONE if pending.is_alone else 0)

    def _send_own(self) -> None:
        """Send the answers of ours that are next."""
        while self._pending and self._pending[0].fate is Fate.OWN:
            self._to_client(memoryview(self._pending.popleft().frame))

    def _release(self, why: int) -> None:
        self._holds &= ~why
        if self._requests.waits and not self._holds:
            self._guard(Refusal.MALFORMED, self._requests.go_on)

    def _to_client(self, data: Buffer) -> None:
        self._traffic.bytes_out += len(data)
        self._client.write(data)

    # For the rewrites

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        """Ask the broker (:meth:`Upstream.ask`)."""
        if self._is_closed:
            raise UpstreamClosedError("the broker connection is gone")
        wire_id = self._new_id()
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._pending.append(Pending(Fate.ASK, wire_id, answer=answer))
        exchange = None if self._rewriting is None else self._rewriting.exchange
        header = write_request_header(api_key, api_version, wire_id, None if exchange is None else exchange.client_id)
        self._broker.write_all(_framed(header, (body,)))
        async with asyncio.timeout(timeout_s):
            frame = await answer
        return frame[_body_offset(frame, api_key, api_version) :]

    @property
    def is_client_gone(self) -> bool:
        """Return whether the client has gone (:attr:`Upstream.is_client_gone`)."""
        return self._is_closed or self._client.has_hung_up

    def take_memory(self, size_bytes: int) -> int:
        """Take memory for a response (:meth:`Upstream.take_memory`)."""
        taken = 0 if self._is_closed else self._memory.take_some(size_bytes)
        self._memory_bytes += taken
        return taken

    def give_memory_back(self, size_bytes: int) -> None:
        """Return memory (:meth:`Upstream.give_memory_back`); a connection that has ended has returned all of it."""
        size_bytes = min(size_bytes, self._memory_bytes)
        self._memory_bytes -= size_bytes
        self._memory.give_back(size_bytes)


def _looking(passing: Passing, write: Callable[[Buffer], None]) -> Callable[[memoryview], None]:
    def look(data: memoryview) -> None:
        for piece in passing.feed(data):
            write(piece)

    return look


def _random_ids() -> Iterator[int]:
    while True:
        for (one,) in struct.iter_unpack(">i", os.urandom(256)):
            yield one


def _framed(header: Buffer, body: Sequence[Buffer]) -> list[Buffer]:
    size = len(header) + sum(map(len, body))
    return [_ID.pack(size), header, *body]


def _body_offset(frame: memoryview, api_key: int, api_version: int) -> int:
    """Return where the body of a whole response begins: after size, correlation id and, if flexible, tagged fields."""
    flexible = api_key != ApiKey.API_VERSIONS and has_flexible_header(api_key, api_version)
    cursor = Cursor(frame, flexible=flexible, position=_RESPONSE_HEAD_BYTES)
    cursor.skip_tagged_fields()
    return cursor.position
