"""Requests that have no answer yet, and what becomes of their answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto

from tiersidecar.services.gateway.exchange import Exchange, Rewrite


class Fate(Enum):
    """What becomes of an answer."""

    PASS = auto()
    """It goes to the client as it arrives."""
    REWRITE = auto()
    """It is collected and rewritten, or looked at while it passes."""
    ASK = auto()
    """It is collected for the rewrite that asked, and the client never sees it."""
    TOKEN = auto()
    """It goes to the client, and has no correlation id: a SASL token without a header."""
    OWN = auto()
    """It is ours, the broker never saw the request."""


@dataclass(slots=True)
class Pending:
    """A request that has no answer yet, sent under ``wire_id``; ``id_bytes`` are the client's id, if that is another.
    ``needs_login``: where a broker demands logins, it is answered after one alone."""

    fate: Fate
    wire_id: int = 0
    id_bytes: bytes = b""
    needs_login: bool = False
    exchange: Exchange | None = None
    rewrite: Rewrite | None = None
    answer: asyncio.Future[memoryview] | None = None
    frame: bytes = b""
    is_alone: bool = False
