"""What a conversation and the rewriting of single APIs have in common.

A conversation (``conversation``) keeps the order of one connection's frames and binds each answer to its request; a
:class:`Rewrite` changes the messages of one API.  A conversation knows APIs through the table of rewrites that it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiersidecar.services.gateway.fetch_state import Answered, FetchSession, InHand
from tiersidecar.services.gateway.login import Login
from tiersidecar.services.gateway.tiered_partitions import Asker

Buffer = bytes | bytearray | memoryview
"""Bytes on their way; a caller that passes them on no longer changes them."""
Rewritten = Sequence[Buffer] | None
"""Another message body, as pieces; None passes the one that came."""


class Upstream(Protocol):
    """The broker, as this client sees it."""

    async def ask(self, api_key: int, api_version: int, body: bytes, timeout_s: float) -> memoryview:
        """The body of the answer to one more request on this client's own, authenticated broker connection.

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
        """As many bytes of the response memory as this client may have now, at most ``size_bytes``; 0 while others wait for
        some.

        They are the response's: given back once the client has taken it, or the connection has ended.  Only for rewrites
        that are ``alone``.
        """
        ...

    def give_memory_back(self, size_bytes: int) -> None:
        """Bytes of those that the response turned out not to need."""
        ...


_MOST_BROKER_WAIT_S, _LATE_S = 60.0, 10.0
"""How long a client may let the broker wait, and how much later its answer may be read."""


class UpstreamClosedError(ConnectionError):
    """The broker connection of a client is gone; its client's connection ends too."""


@dataclass(slots=True)
class ConnectionState:
    """What is remembered for one client connection, from its first request to its end.

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
        """Whether an answer that is read now comes later than its request allows: the rights of the client, and the topic of
        that name, may be others by now, so it is not acted upon."""
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
        """What may go on, of what came: the same number of bytes in all, in order, whatever the pieces.  The first are the
        frame's size.  They are read over once the caller has passed them on.

        An exception closes the client's connection, as those of a :class:`Rewrite` do.
        """
        ...


class Rewrite(ABC):
    """The changes that one API needs.

    An exception from any method closes the client's connection, which every client takes for a reason to try again; what
    must reach the client as an error code has to be written into the response.
    """

    reads_request: bool = False
    """Whether requests are read whole, and ``prepare`` is called; if not, they pass as they arrive."""
    most_request_bytes: int | None = None
    """The size of the largest request that is taken, with its header; None: the limit of all that are read whole.  Of what is
    decoded with an object for each field it bounds time and memory, which a user without any right could take otherwise."""
    alone: bool = False
    """Whether nothing else of this connection goes to the broker until the response is on its way to the client.

    A rewrite that uses ``Upstream.ask``, or awaits anything in ``rewrite``, must be alone.  It costs little: the broker
    itself takes a connection's requests one at a time.
    """

    @abstractmethod
    def versions(self) -> range:
        """The API versions that it can rewrite; ApiVersions offers clients no others."""

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Another request body to send instead, as pieces; None passes the client's own."""
        return None

    def passing_request(self, api_version: int, size_bytes: int) -> Passing | None:
        """How a request that is not read, a frame of ``size_bytes`` with its size, passes; None: as it came."""
        return None

    def forwarded(self, exchange: Exchange) -> None:  # noqa: B027 - most have nothing to do
        """The request, which was read, is on its way: what can be made ready for the answer, is made so."""

    def abandoned(self, exchange: Exchange) -> None:  # noqa: B027 - most have nothing to do
        """The connection has ended: the request may have been carried out, and nobody has an answer any more."""

    def passing(self, exchange: Exchange, size_bytes: int) -> Passing | None:
        """How a large response, a frame of ``size_bytes`` with its size, passes while it arrives; None has it collected, and
        given to :meth:`rewrite`."""
        return None

    @abstractmethod
    def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten | Coroutine[Any, Any, Rewritten]:
        """Return what the client gets instead of ``response``, a body that begins after the response header.

        At once, where nothing has to be waited for; a coroutine is run as a task, some turns of the loop later.
        """


Rewrites = Mapping[int, Rewrite]
"""By API key; what is not in it passes as bytes."""
