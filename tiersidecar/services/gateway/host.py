"""The environment of a conversation: where its bytes come out, what holds for its login, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Protocol

from tiersidecar.services.gateway.exchange import Buffer


class Refusal(Enum):
    """Why a conversation ends before its client or its broker ends it; the values are those of the metric."""

    MALFORMED = "malformed"
    """The client sent what no Kafka client sends."""
    UNBOUND = "broker_malformed"
    """The broker's answer is to another request, or says what this one did not ask for."""
    LOGIN = "login_refused"
    """By the broker."""
    BROKER_GONE = "broker"
    FAULT = "error"
    """An unexpected exception."""


class End(Protocol):
    """Where bytes come out."""

    @property
    def is_full(self) -> bool:
        """Return whether it has not taken all that was written."""
        ...

    @property
    def has_hung_up(self) -> bool:
        """Return whether the peer has ended the connection, though what it sent before may not have been read yet."""
        ...

    def write(self, data: Buffer) -> None:
        """Write bytes that are overwritten once it has returned."""
        ...

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """Write pieces that do not change any more."""
        ...


class LoginWatch(Protocol):
    """Watches a connection that has not logged in (``unauthenticated``)."""

    @property
    def request_bytes(self) -> int | None:
        """Return the largest request that it may send now; None: as all others."""
        ...

    @property
    def demands_login(self) -> bool:
        """Return whether the broker is known to end a connection that asks anything before its login."""
        ...


class LoggedIn:
    """A :class:`LoginWatch` that holds nothing against it."""

    request_bytes: int | None = None
    demands_login: bool = False


class Host(Protocol):
    """The environment of a conversation."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin ``work``, one at a time; its exceptions go to :meth:`Conversation.fail`."""
        ...

    def soon(self, call: Callable[[], None]) -> None:
        """Call, but not now."""
        ...

    def ended(self, refusal: Refusal, error: Exception) -> None:
        """Note that nothing more comes out; what has goes on its way, then both connections end."""
        ...
