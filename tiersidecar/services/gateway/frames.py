"""One direction of a connection, cut into frames: each passes in the pieces in which it comes, or is taken out whole; and the
requests that have no answer yet.

Not a coroutine, and without a socket: the owner feeds it, and says of each frame's beginning what is to become of it.

Responses that are taken out whole, to be rewritten or filled in, go into a memory that all connections share.  A client that
does not read keeps what its responses take.  So one connection may have a quarter at most, and the connections of one client
together no more than three times what is left free: whatever they do, another client's response has room.

A response that is larger than a connection's part must pass somehow.  It goes beside the memory, one at a time, in a line of
its own: nothing else waits for it, and it waits for nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from tiersidecar.decide.shares import free_bytes, part_bytes
from tiersidecar.domain.taken import Taken
from tiersidecar.ports.shares import Shared, Shares
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
        """Stop: nothing more goes on, of what is being cut either."""
        self._is_closed = True
        self._kept, self._taken = memoryview(b""), bytearray()

    def go_on(self) -> None:
        """Let frames begin again, first those that came meanwhile.  Raises what ``begin`` and the others raise."""
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
        """Cut ``view`` into frames.  ``is_own``: nothing reads into these bytes again."""
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
        """Take ``step`` bytes more, up to ``at``, of what is under way; return from where on bytes are still to be sent."""
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
    """The way that an answer goes."""

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


_ALONE = 1
_TIMES_FREE = 3
"""So much of what is left free the connections of one client may have together: three quarters of all where it is alone."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    part: MemoryPart
    size_bytes: int
    proceed: Callable[[], None]


_Lines = dict[str, deque[_Waiting]]
"""By client, in the order of their turns."""


@dataclass(slots=True)
class ResponseMemory:
    """``held_bytes`` of ``size_bytes`` are taken; ``beside_bytes`` is the response that is larger than a connection's part.

    Those that find no room are called when there is some.  Clients take turns, and the connections of one are served in the
    order in which they asked.  A client that has nothing holds up the others until there is room for it; one that has
    something does not.

    With ``shares``, ``size_bytes`` are of several processes together: each always has a part of it, and more while the others
    leave it free.  What they give back is seen by :meth:`look_again`.
    """

    size_bytes: int
    held_bytes: int = 0
    beside_bytes: int = 0
    shares: Shares | None = None
    part_bytes: int = field(init=False)
    """The most that one connection may have."""

    _of_client: Counter[str] = field(default_factory=Counter)
    _waiting: _Lines = field(default_factory=dict)
    _waiting_beside: _Lines = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.part_bytes = part_bytes(self.size_bytes, _ALONE if self.shares is None else self.shares.workers)

    def part(self, client: Callable[[], str]) -> MemoryPart:
        """Return one connection's; ``client`` names whose it is, as far as that is known now."""
        return MemoryPart(self, client)

    def take(self, part: MemoryPart, size_bytes: int, when_there_is_room: Callable[[], None]) -> bool:
        """Return whether ``size_bytes`` are the caller's now."""
        if size_bytes > self.part_bytes:
            lines = self._waiting_beside
            if not self.beside_bytes and not lines:
                self._give_beside(part, size_bytes)
                return True
        else:
            lines = self._waiting
            if self._room_now(part) >= size_bytes:
                self._give(part, size_bytes)
                return True
        lines.setdefault(part.client, deque()).append(_Waiting(part, size_bytes, when_there_is_room))
        part.waits = True
        return False

    def take_some(self, part: MemoryPart, size_bytes: int) -> int:
        """Take at most ``size_bytes``, now: what there is room for, and nothing before those that wait."""
        taken = min(size_bytes, self._room_now(part))
        self._give(part, taken)
        return taken

    def give_back(self, part: MemoryPart, size_bytes: int) -> None:
        """Return what was taken, and let others in."""
        # What is beside is more than a part can have of the memory: less than that is of the memory.
        of_beside = part.beside_bytes if size_bytes >= part.beside_bytes else 0
        of_memory = size_bytes - of_beside
        if of_memory:
            client = part.client
            part.held_bytes -= of_memory
            self._hold(-of_memory)
            self._of_client[client] -= of_memory
            if not self._of_client[client]:
                del self._of_client[client]
            self._let_in()
        if of_beside:
            part.beside_bytes = self.beside_bytes = 0
            self._let_in_beside()

    def look_again(self) -> None:
        """Let those in for which other processes have made room."""
        self._let_in()

    def forget(self, part: MemoryPart) -> None:
        """Remove ``part`` from the line: it waits for nothing any more."""
        part.waits = False
        for lines in (self._waiting, self._waiting_beside):
            for client, line in tuple(lines.items()):
                left = deque(one for one in line if one.part is not part)
                if left:
                    lines[client] = left
                else:
                    del lines[client]
        self._let_in()  # those that had to wait behind it

    def _give(self, part: MemoryPart, size_bytes: int) -> None:
        if size_bytes:
            self._of_client[part.client] += size_bytes
            part.held_bytes += size_bytes
            self._hold(size_bytes)

    def _hold(self, change_bytes: int) -> None:
        self.held_bytes += change_bytes
        if self.shares is not None:
            self.shares.show(Shared.RESPONSE_BYTES, Taken(self.held_bytes))

    def _free(self) -> int:
        if self.shares is None:
            return self.size_bytes - self.held_bytes
        return free_bytes(
            self.size_bytes, self.held_bytes, self.shares.workers, self.shares.others(Shared.RESPONSE_BYTES)
        )

    def _give_beside(self, part: MemoryPart, size_bytes: int) -> None:
        part.beside_bytes = self.beside_bytes = size_bytes

    def _room_now(self, part: MemoryPart) -> int:
        """Return what ``part`` may take at once: nothing before those that wait."""
        if part.client in self._waiting or any(client not in self._of_client for client in self._waiting):
            return 0
        return self._room(part)

    def _room(self, part: MemoryPart) -> int:
        of_client, free = self._of_client.get(part.client, 0), self._free()
        most = (_TIMES_FREE * free - of_client) // (_TIMES_FREE + 1) if of_client else free
        return max(min(most, self.part_bytes - part.held_bytes), 0)

    def _let_in(self) -> None:
        is_to_look = bool(self._waiting)
        while is_to_look:
            is_to_look = False
            for client, line in tuple(self._waiting.items()):
                first = line[0]
                if self._room(first.part) >= first.size_bytes:
                    self._give(first.part, first.size_bytes)
                    _next_turn(self._waiting, client)
                    is_to_look = True
                elif client not in self._of_client:
                    return  # the next room is for this one

    def _let_in_beside(self) -> None:
        for client, line in tuple(self._waiting_beside.items()):
            self._give_beside(line[0].part, line[0].size_bytes)
            _next_turn(self._waiting_beside, client)
            return


def _next_turn(lines: _Lines, client: str) -> None:
    """Remove the first of ``client``, which has what it waited for; the others' turns come before its next one."""
    line = lines.pop(client)
    first = line.popleft()
    if line:
        lines[client] = line
    first.part.waits = False
    first.proceed()


class MemoryPart:
    """One connection's part of the memory: ``held_bytes`` of it, ``beside_bytes`` beside it."""

    def __init__(self, memory: ResponseMemory, client: Callable[[], str]) -> None:
        self._memory, self._client_now, self._client = memory, client, ""
        self.held_bytes = self.beside_bytes = 0
        self.waits = False

    @property
    def client(self) -> str:
        """Return whose connection it is; the same as long as it has something, or waits."""
        if not self.held_bytes and not self.waits:
            self._client = self._client_now()
        return self._client

    def take(self, size_bytes: int, when_there_is_room: Callable[[], None]) -> bool:
        """Return whether ``size_bytes`` are the caller's now; if not, they are when ``when_there_is_room`` is called."""
        return self._memory.take(self, size_bytes, when_there_is_room)

    def take_some(self, size_bytes: int) -> int:
        """Take at most ``size_bytes``, now: what there is room for, and nothing before those that wait."""
        return self._memory.take_some(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken, and let others in."""
        self._memory.give_back(self, size_bytes)

    def close(self) -> None:
        """Give all back, and wait for nothing."""
        if self.waits:
            self._memory.forget(self)
        self.give_back(self.held_bytes + self.beside_bytes)
