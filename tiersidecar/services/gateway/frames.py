"""One direction of a connection, cut into frames: each passes in the pieces in which it comes, or is taken out whole; and the
requests that have no answer yet.

Not a coroutine, and without a socket: the owner feeds it, and says of each frame's beginning what is to become of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from tiersidecar.services.gateway.exchange import Buffer, Exchange, Rewrite


@dataclass(slots=True)
class Needs:
    """The frame cannot be classified before this many bytes of it are there."""

    total_bytes: int


@dataclass(slots=True)
class Waits:
    """No frame may begin now: the owner calls :meth:`Frames.go_on` when one may."""


@dataclass(slots=True)
class Passes:
    """It goes on as it arrives; ``passed`` is called when all of it has."""

    total_bytes: int
    passed: Callable[[], None] | None = None


@dataclass(slots=True)
class Looks:
    """It is given to ``look`` as it arrives, in place of going on; ``passed`` is called when all of it has been."""

    total_bytes: int
    look: Callable[[memoryview], None]
    passed: Callable[[], None] | None = None


@dataclass(slots=True)
class Takes:
    """It is given to ``take`` when all of it is there, in a buffer of its own."""

    total_bytes: int
    take: Callable[[memoryview], None]


Verdict = Needs | Waits | Passes | Looks | Takes
"""One is made for each frame, so these are not frozen, which would take a microsecond more."""
WAITS = Waits()


class Frames:
    """``begin`` classifies the frame that begins in its argument, which has a byte at least and which it may change;
    ``forward`` has what passes.  Both are done with the bytes when they return.

    ``kept_bytes`` wait for more of their frame, or for the owner; ``unfinished_bytes`` is how long the frame under way is at
    least, 0 between frames; ``ended`` counts frames.
    """

    def __init__(self, begin: Callable[[memoryview], Verdict], forward: Callable[[memoryview], None]) -> None:
        self._begin, self._forward = begin, forward
        self._kept = memoryview(
            b""
        )  # the beginning of a frame that is not classified yet, or all that came while waiting
        self._wanted = 0  # of the kept bytes
        self._under_way: Passes | Looks | Takes | None = None
        self._left = 0  # of what is under way
        self._taken = bytearray()
        self._waits = self._is_closed = False
        self.ended = 0

    @property
    def is_under_way(self) -> bool:
        """Return whether a frame has begun, and is not whole."""
        return self._under_way is not None

    @property
    def waits(self) -> bool:
        """Return whether a frame was not to begin when it came."""
        return self._waits

    @property
    def kept_bytes(self) -> int:
        return len(self._kept) + len(self._taken)

    @property
    def unfinished_bytes(self) -> int:
        if self._under_way is not None:
            return self._under_way.total_bytes
        return 0 if self._waits or not self._kept else max(self._wanted, len(self._kept))

    def close(self) -> None:
        """Nothing more goes on, of what is being cut either."""
        self._is_closed = True
        self._kept, self._taken = memoryview(b""), bytearray()

    def go_on(self) -> None:
        """Frames may begin again, first those that came meanwhile.  Raises what ``begin`` and the others raise."""
        self._waits, self._wanted = False, 0
        self._cut_kept()

    def feed(self, data: Buffer) -> None:
        """Take what has come.  Raises what ``begin`` and the others raise."""
        if not self._kept:
            view = memoryview(data)
            self._cut(memoryview(bytearray(view)) if view.readonly else view)
            return
        self._kept = memoryview(bytearray(self._kept) + data)
        if len(self._kept) >= self._wanted and not self._waits:
            self._cut_kept()

    def _cut_kept(self) -> None:
        if self._kept:
            view, self._kept = self._kept, memoryview(b"")
            self._cut(view, is_own=True)

    def _cut(self, view: memoryview, *, is_own: bool = False) -> None:
        """``is_own``: nobody reads into these bytes again."""
        size, at, run = len(view), 0, 0  # from ``run`` on it passes
        while at < size and not self._is_closed:
            if self._under_way is None:
                verdict = WAITS if self._waits else self._begin(view[at:])
                if isinstance(verdict, (Needs, Waits)):
                    self._send(view[run:at])
                    self._waits = isinstance(verdict, Waits)
                    self._wanted = 0 if isinstance(verdict, Waits) else verdict.total_bytes
                    self._kept = view[at:] if is_own else memoryview(bytearray(view[at:]))
                    return
                if not isinstance(verdict, Passes):
                    self._send(view[run:at])
                    run = at
                self._under_way, self._left = verdict, verdict.total_bytes
            step = min(self._left, size - at)
            at += step
            run = self._step(view, run, at, step)
        if not self._is_closed:
            self._send(view[run:at])

    def _step(self, view: memoryview, run: int, at: int, step: int) -> int:
        """``step`` bytes more, up to ``at``, of what is under way; gives from where on bytes are still to be sent."""
        under_way = self._under_way
        self._left -= step
        is_whole = self._left == 0
        if is_whole:
            self._under_way, self.ended = None, self.ended + 1
        if isinstance(under_way, Passes):
            if under_way.passed is None or not is_whole:
                return run
            self._send(view[run:at])
            under_way.passed()
        elif isinstance(under_way, Looks):
            under_way.look(view[at - step : at])
            if is_whole and under_way.passed is not None:
                under_way.passed()
        elif isinstance(under_way, Takes):
            self._taken += view[at - step : at]
            if is_whole:
                whole, self._taken = memoryview(self._taken), bytearray()
                under_way.take(whole)
        return at

    def _send(self, data: memoryview) -> None:
        if data:
            self._forward(data)


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
