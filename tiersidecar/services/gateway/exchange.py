"""The interfaces between a conversation and the rewrites of single APIs, and the state of a connection.

It remembers where its login stands, its Fetch sessions, the request that the broker has, and the last answer that was filled.

A conversation (``conversation``) keeps the order of one connection's frames and binds each answer to its request; a
:class:`Rewrite` changes the messages of one API.  A conversation knows APIs through the table of rewrites that it is given.

Where a connection's SASL login stands is known by what the broker has answered (``SaslServerAuthenticator``; KIP-43, 152, 368).
The client says what it wants; only an answer of the broker's changes the state.  While one of these requests has no answer,
nothing else of the connection goes to the broker (they are ``alone``): whenever a frame is looked at, both are in the same
state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from tiersidecar.formats.wire.cursor import Replacement
from tiersidecar.formats.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, PartitionKey
from tiersidecar.services.gateway.out_of_range import Classified
from tiersidecar.services.gateway.tiered_partitions import Asker

ANONYMOUS = "User:ANONYMOUS"
NOT_KNOWN = "User:?"
"""Logged in, by a mechanism whose tokens the gateway does not read."""
NO_API_KEY_FROM = 1024


class LoginState(Enum):
    """In ``READY`` the broker answers ordinary requests: a listener without SASL, too, is in it from the first of them on."""

    BEFORE = auto()
    EXCHANGING = auto()
    """Tokens of one mechanism, for the first time."""
    READY = auto()
    RENEWING = auto()
    """Tokens on a connection that was ready before (KIP-368)."""


_IS_LAST_ANSWER: Mapping[str, Callable[[bytes], bool]] = {
    "PLAIN": lambda answer: True,
    "SCRAM-SHA-256": lambda answer: answer.startswith(b"v="),
    "SCRAM-SHA-512": lambda answer: answer.startswith(b"v="),
    "OAUTHBEARER": lambda answer: not answer,  # else it says what is wrong with the token
}
_EXCHANGES = frozenset({LoginState.EXCHANGING, LoginState.RENEWING})


@dataclass(slots=True)
class Login:
    """``principal`` is the one that the broker has let in, where PLAIN's or SCRAM's tokens name it.  ``refusal`` is why the
    connection has to end, once the broker's answer is on its way."""

    state: LoginState = LoginState.BEFORE
    mechanism: str = ""
    principal: str = ANONYMOUS
    refusal: str = ""
    is_raw: bool = False
    """True where tokens go without headers, after a handshake of version 0."""
    raw_tokens: int = 0
    """The number of such tokens in this exchange, so far."""
    _claimed: str = ""

    @property
    def awaits_token(self) -> bool:
        """Return whether the broker takes nothing but SaslAuthenticate next, in a first login or a later one.  True only for
        mechanisms whose tokens show their end."""
        return self.state in _EXCHANGES and not self.is_raw and self.mechanism in _IS_LAST_ANSWER

    @property
    def named_principal(self) -> str:
        """Return the principal, where its name is known."""
        return "" if self.principal in (ANONYMOUS, NOT_KNOWN) else self.principal

    # The broker has answered

    def shaken(self, mechanism: str, error_code: int, *, is_raw: bool) -> None:
        """Note the answer to a SaslHandshake."""
        if error_code:
            self.refusal = f"SaslHandshake of {mechanism or 'no mechanism'}: error {error_code}"
            return
        is_first = self.state in (LoginState.BEFORE, LoginState.EXCHANGING)
        self.begin(mechanism, LoginState.EXCHANGING if is_first else LoginState.RENEWING, is_raw=is_raw)

    def begin(self, mechanism: str, state: LoginState, *, is_raw: bool) -> None:
        """Begin the exchange of ``mechanism``: the broker now waits for tokens."""
        self.state, self.mechanism, self.is_raw, self.raw_tokens, self._claimed = state, mechanism, is_raw, 0, ""

    def authenticated(self, token: bytes, error_code: int, answer: bytes) -> None:
        """Note a SaslAuthenticate, with the client's ``token`` and the broker's in ``answer``."""
        if error_code:
            self.refusal = f"SaslAuthenticate by {self.mechanism or 'no mechanism'}: error {error_code}"
            return
        if self.state not in _EXCHANGES:
            self.refusal = "SaslAuthenticate without a handshake was answered"
            return
        self._claimed = self._claimed or claimed_user(self.mechanism, token)
        if is_last(self.mechanism, answer):
            self._let_in(f"User:{self._claimed}" if self._claimed else NOT_KNOWN)

    def answered(self, *, needs_login: bool) -> None:
        """Note the answer to a request with a header: raw tokens are over then, and so is the login if it ``needs_login``."""
        if self.state in _EXCHANGES:
            if self.is_raw or (needs_login and self.mechanism not in _IS_LAST_ANSWER):
                self._let_in(NOT_KNOWN)
        elif needs_login:
            self.state = LoginState.READY

    def _let_in(self, principal: str) -> None:
        self.state, self.principal, self.is_raw = LoginState.READY, principal, False


def is_no_request(first_bytes: bytes | memoryview) -> bool:
    """Return whether a frame whose payload begins so cannot be a request, which begins with an API key.

    GSSAPI's tokens start with 0x60 (RFC 2743 section 3.1) or 0x04, 0x05 (RFC 4121 section 4.2), SCRAM's second with ``c=``.
    """
    return not 0 <= int.from_bytes(first_bytes[:2], "big", signed=True) < NO_API_KEY_FROM


def is_last(mechanism: str, answer: bytes) -> bool:
    """Return whether an ``answer`` without an error lets the client in.  For other mechanisms the next request shows it."""
    is_last_answer = _IS_LAST_ANSWER.get(mechanism)
    return is_last_answer is not None and is_last_answer(answer)


def claimed_user(mechanism: str, token: bytes) -> str:
    """Return the user's name in a client's first token; "" where there is none to read.

    PLAIN is RFC 4616, SCRAM RFC 5802; a SCRAM login by a delegation token names the token, and not its owner.
    """
    if mechanism == "PLAIN":
        parts = token.split(b"\0")
        return parts[1].decode("utf-8", "replace") if len(parts) == 3 else ""
    if not mechanism.startswith("SCRAM-"):
        return ""
    fields = token.decode("utf-8", "replace").split(",")
    if any(field.lower() == "tokenauth=true" for field in fields):  # as Java's parseBoolean
        return ""
    named = next((field for field in fields[2:] if field.startswith("n=")), "n=")
    return named[2:].replace("=2C", ",").replace("=3D", "=")


class FetchSession:
    """The partitions of one session, as they were last asked for."""

    __slots__ = ("__weakref__", "partitions")

    def __init__(self, partitions: dict[PartitionKey, FetchPartition]) -> None:
        self.partitions = partitions

    def update(self, request: FetchRequest) -> None:
        """Take in an incremental request."""
        self.partitions.update(request.partitions)
        for key in request.forgotten:
            self.partitions.pop(key, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The broker's answer to a Fetch, to be changed: ``rows`` are the partitions to change, in its order, all of them out of
    range where nothing is withheld; ``addresses`` the gateways' in place of the brokers'."""

    version: int
    response: bytes | memoryview
    fetched: FetchResponse
    rows: Sequence[FetchedPartition]
    addresses: Sequence[Replacement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The rows to fill if the broker's answer is ``answered``: ``classified`` at ``since_s``, for what was ``asked``."""

    answered: Answered
    asked: Mapping[PartitionKey, FetchPartition]
    classified: Mapping[PartitionKey, Classified]
    since_s: float


@dataclass(frozen=True, slots=True)
class InHand:
    """A Fetch that was read before the broker answered it; ``body`` is that of its exchange, by which it is known again."""

    body: memoryview
    request: FetchRequest
    expected: Expected | None = None


Buffer = bytes | bytearray | memoryview
"""Bytes on their way; a caller that passes them on no longer changes them."""
Rewritten = Sequence[Buffer] | None
"""Another message body, as pieces; None passes the one that came."""


class Upstream(Protocol):
    """The broker, as this client sees it."""

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        """Return the body of the answer to one more request on this client's own, authenticated broker connection.

        So the broker authorises it as it would the client's own, and takes it for one, quotas included: it is sent under the
        client's own client id.  Only for rewrites that are ``alone``.

        Raises:
            TimeoutError: not answered within ``timeout_s``; the answer is dropped when it comes.
            UpstreamClosedError: the broker connection is gone, and the client's with it.
        """
        ...

    @property
    def is_client_gone(self) -> bool:
        """Return whether the client has ended its connection, as far as can be seen: what it has asked for and is not done yet
        is of no use to it, and may be of harm."""
        ...

    def take_memory(self, size_bytes: int) -> int:
        """Take as many bytes of the response memory as this client may have now, at most ``size_bytes``; 0 while others wait
        for some.

        They are the response's: given back once the client has taken it, or the connection has ended.  Only for rewrites
        that are ``alone``.
        """
        ...

    def give_memory_back(self, size_bytes: int) -> None:
        """Give back bytes that the response turned out not to need."""
        ...


_MOST_BROKER_WAIT_S, _LATE_S = 60.0, 10.0
"""How long a client may let the broker wait, and how much later its answer may be read."""


class UpstreamClosedError(ConnectionError):
    """The broker connection of a client is gone; its client's connection ends too."""


@dataclass(slots=True)
class ConnectionState:
    """The state of one client connection, from its first request to its end.

    ``client`` is its address.  ``asker`` is what Metadata answers on this connection said last of topics by name, and what was
    known when the request under way was sent, at ``asked_s`` by the monotonic clock (of requests that are alone).

    Of Fetch: ``fetch_sessions`` is by session id (KIP-227); ``fetches_to_collect`` is how many responses are collected, however
    large, because the client has lately read what may have to be filled in; ``fetch_in_hand`` is the request that the broker is
    answering, ``fetch_answered`` the last answer that was filled.

    Of DeleteRecords: ``deletes_under_way`` are offsets by partition that the broker may be carrying out, and that have no audit
    event yet.
    """

    client: str = ""
    login: Login = field(default_factory=Login)
    asker: Asker = field(default_factory=Asker)
    asked_s: float = 0.0
    fetch_sessions: dict[int, FetchSession] = field(default_factory=dict)
    fetches_to_collect: int = 0
    fetch_in_hand: InHand | None = None
    fetch_answered: Answered | None = None
    deletes_under_way: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def is_late(self, now_s: float, allowed_s: float) -> bool:
        """Return whether an answer that is read now comes later than its request allows.  The client's rights, and the topic
        of that name, may have changed by now, so such an answer is not acted upon."""
        return now_s - self.asked_s > min(allowed_s, _MOST_BROKER_WAIT_S) + _LATE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request of a client, on its way or answered.

    ``request`` is the body after the request header, without its tagged fields; empty for rewrites that do not read requests.
    ``listener`` is the name of the gateway's listener that the client came by.
    """

    api_key: int
    api_version: int
    client_id: str | None
    request: memoryview
    upstream: Upstream
    connection: ConnectionState
    listener: str


class Passing(Protocol):
    """A message that is looked at, and changed, while it passes."""

    def feed(self, data: memoryview) -> Sequence[Buffer]:
        """Return the bytes that may go on: the same number in all as came, in order, whatever the pieces.  The first are the
        frame's size.  They are overwritten once the caller has passed them on.

        An exception closes the client's connection, as those of a :class:`Rewrite` do.
        """
        ...


class Rewrite(ABC):
    """The changes that one API needs.

    An exception from any method closes the client's connection, which every client takes for a reason to try again; what
    must reach the client as an error code has to be written into the response.
    """

    reads_request: bool = False
    """True: requests are read whole, and ``prepare`` is called.  False: they pass as they arrive."""
    most_request_bytes: int | None = None
    """The size of the largest request that is taken, with its header; None: the limit of all that are read whole.  Of what is
    decoded with an object for each field it bounds time and memory, which a user without any right could take otherwise."""
    alone: bool = False
    """True: nothing else of this connection goes to the broker until the response is on its way to the client.

    A rewrite that uses ``Upstream.ask``, or awaits anything in ``rewrite``, must be alone.  It costs little: the broker
    itself takes a connection's requests one at a time.
    """

    @abstractmethod
    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Return another request body to send instead, as pieces; None passes the client's own."""
        return None

    def passing_request(self, api_version: int, size_bytes: int) -> Passing | None:
        """Return how a request that is not read, a frame of ``size_bytes`` with its size, passes; None: as it came."""
        return None

    def forwarded(self, exchange: Exchange) -> None:  # noqa: B027 - most have nothing to do
        """The request, which was read, is on its way: what can be made ready for the answer, is made so."""

    def abandoned(self, exchange: Exchange) -> None:  # noqa: B027 - most have nothing to do
        """Note that the connection has ended: the request may have been carried out, and its answer goes nowhere."""

    def passing(self, exchange: Exchange, size_bytes: int) -> Passing | None:
        """Return how a large response, a frame of ``size_bytes`` with its size, passes while it arrives; None has it collected,
        and given to :meth:`rewrite`."""
        return None

    @abstractmethod
    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten | Coroutine[Any, Any, Rewritten]:
        """Return what the client gets instead of ``response``, a body that begins after the response header.

        At once, where nothing has to be waited for; a coroutine is run as a task, some turns of the loop later.
        """


Rewrites = Mapping[int, Rewrite]
"""By API key; what is not in it passes as bytes."""
