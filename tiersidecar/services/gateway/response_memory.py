"""The memory for responses that are collected to be rewritten, or filled in, shared by all connections.

A client that does not read keeps what its responses take.  So one connection may have a quarter at most, and the connections
of one client together no more than three times what is left free: whatever they do, another client's response has room.

A response that is larger than a connection's part must pass somehow.  It goes beside the memory, one at a time, in a line of
its own: nothing else waits for it, and it waits for nothing else.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

_PARTS = 4
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
    """

    size_bytes: int
    held_bytes: int = 0
    beside_bytes: int = 0
    _of_client: Counter[str] = field(default_factory=Counter)
    _waiting: _Lines = field(default_factory=dict)
    _waiting_beside: _Lines = field(default_factory=dict)

    @property
    def part_bytes(self) -> int:
        """Most that one connection may have."""
        return max(self.size_bytes // _PARTS, 1)

    def part(self, client: Callable[[], str]) -> MemoryPart:
        """One connection's; ``client`` names whose it is, as far as that is known now."""
        return MemoryPart(self, client)

    def take(self, part: MemoryPart, size_bytes: int, when_there_is_room: Callable[[], None]) -> bool:
        """See :class:`MemoryPart`."""
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
        """See :class:`MemoryPart`."""
        taken = min(size_bytes, self._room_now(part))
        self._give(part, taken)
        return taken

    def give_back(self, part: MemoryPart, size_bytes: int) -> None:
        """See :class:`MemoryPart`."""
        # What is beside is more than a part can have of the memory: less than that is of the memory.
        of_beside = part.beside_bytes if size_bytes >= part.beside_bytes else 0
        of_memory = size_bytes - of_beside
        if of_memory:
            client = part.client
            part.held_bytes -= of_memory
            self.held_bytes -= of_memory
            self._of_client[client] -= of_memory
            if not self._of_client[client]:
                del self._of_client[client]
            self._let_in()
        if of_beside:
            part.beside_bytes = self.beside_bytes = 0
            self._let_in_beside()

    def forget(self, part: MemoryPart) -> None:
        """It waits for nothing any more."""
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
            self.held_bytes += size_bytes

    def _give_beside(self, part: MemoryPart, size_bytes: int) -> None:
        part.beside_bytes = self.beside_bytes = size_bytes

    def _room_now(self, part: MemoryPart) -> int:
        """Return what ``part`` may take at once: nothing before those that wait."""
        if part.client in self._waiting or any(client not in self._of_client for client in self._waiting):
            return 0
        return self._room(part)

    def _room(self, part: MemoryPart) -> int:
        of_client, free = self._of_client.get(part.client, 0), self.size_bytes - self.held_bytes
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
    """The first of ``client`` has what it waited for; the others' turns come before the next of them."""
    line = lines.pop(client)
    first = line.popleft()
    if line:
        lines[client] = line
    first.part.waits = False
    first.proceed()


class MemoryPart:
    """What one connection has of the memory: ``held_bytes`` of it, ``beside_bytes`` beside it."""

    def __init__(self, memory: ResponseMemory, client: Callable[[], str]) -> None:
        self._memory, self._client_now, self._client = memory, client, ""
        self.held_bytes = self.beside_bytes = 0
        self.waits = False

    @property
    def client(self) -> str:
        """Whose connection it is; the same as long as it has something, or waits."""
        if not self.held_bytes and not self.waits:
            self._client = self._client_now()
        return self._client

    def take(self, size_bytes: int, when_there_is_room: Callable[[], None]) -> bool:
        """Return whether ``size_bytes`` are the caller's now; if not, they are when ``when_there_is_room`` is called."""
        return self._memory.take(self, size_bytes, when_there_is_room)

    def take_some(self, size_bytes: int) -> int:
        """At most ``size_bytes``, now: what there is room for, and nothing before those that wait."""
        return self._memory.take_some(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """What was taken; lets others in."""
        self._memory.give_back(self, size_bytes)

    def close(self) -> None:
        """Give all back, and wait for nothing."""
        if self.waits:
            self._memory.forget(self)
        self.give_back(self.held_bytes + self.beside_bytes)
