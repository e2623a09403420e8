"""Requests that a broker has not answered yet, in the order in which it will."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from tiersidecar.services.gateway.exchange import Exchange, Rewrite


class Fate(Enum):
    """What becomes of an answer."""

    PASS = auto()
    """It goes to the client as it arrives."""
    REWRITE = auto()
    """It is collected and rewritten."""
    ASK = auto()
    """It is collected for whoever asked, and the client never sees it."""
    OPAQUE = auto()
    """It goes to the client, and has no correlation id: a SASL token without a header."""
    OWN = auto()
    """It is ours, the broker never saw the request."""


@dataclass(slots=True)
class Pending:
    """One of them; ``answer`` is what waits for an ASK, ``frame`` what an OWN one is.  ``needs_login``: where a broker demands
    logins, it is answered after one alone."""

    fate: Fate
    correlation_id: int
    exchange: Exchange | None = None
    rewrite: Rewrite | None = None
    answer: asyncio.Future[memoryview] | None = None
    frame: bytes = b""
    needs_login: bool = False


PendingQueue = deque[Pending]
