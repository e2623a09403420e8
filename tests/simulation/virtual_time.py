"""An event loop whose time jumps to the next timer, and processes in it that can be killed or stopped at any await.

Nothing here reads a clock, waits, or uses a thread: a run takes as long as its computing does, and with the same seed it does
the same things in the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated process", default=None)


BEGAN_S = 1000.0
"""Time of every loop's clock at first."""
MOST_TURNS = 2_000_000
"""Most turns of the loop in one run: some twenty times what a long one takes."""


class NoEndError(Exception):
    """The run does not come to its end."""


class NothingLeftToDoError(NoEndError):
    """Every task waits, and no timer is set: the simulated world is deadlocked."""


class TooManyTurnsError(NoEndError):
    """Something goes on without end, and maybe without time passing."""


class _JumpingSelector(selectors.BaseSelector):
    """Instead of waiting for files it moves the time; asked once in each turn of the loop, it gives ``turns_left``."""

    def __init__(self, most_turns: int) -> None:
        self.now_s = BEGAN_S
        self.turns_left = most_turns
        self._files: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._files[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeftToDoError("every task waits, and no timer is set")
        self.turns_left -= 1
        if self.turns_left < 0:
            raise TooManyTurnsError(f"it goes on and on, {self.now_s:.0f} s by its clock")
        self.now_s += max(timeout, 0.0)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files


class _Turn(asyncio.Handle):
    """One callback of a process, which it takes only while it runs; late, it has the context that it would have had."""

    __slots__ = ("_process",)

    def __init__(
        self,
        process: Process,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: VirtualTimeLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(callback, args, loop, context)
        self._process = process

    def _run(self) -> None:
        if self._process.state is ProcessState.RUNNING:
            super()._run()
        else:
            self._process.held.append(self)

    def late(self) -> None:
        """Run what was held, if it was not cancelled meanwhile."""
        if not self._cancelled:
            self._run()


class _TimedTurn(asyncio.TimerHandle):
    """A :class:`_Turn` at a time; without a process where there is none."""

    __slots__ = ("_process",)
    _when: float
    _scheduled: bool

    def __init__(
        self,
        process: Process | None,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: VirtualTimeLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._process = process
        self._scheduled = True

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        assert isinstance(other, _TimedTurn)
        return self._when < other._when

    def _run(self) -> None:
        if self._process is None or self._process.state is ProcessState.RUNNING:
            super()._run()
        else:
            self._process.held.append(self)

    def late(self) -> None:
        """Run what was held, if it was not cancelled meanwhile."""
        if not self._cancelled:
            self._run()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``time()`` is virtual; callbacks belong to the process in whose context they were made.

    A run is tens of thousands of turns: so each is one handle, put straight into asyncio's own queues.  After ``most_turns``
    it raises :class:`TooManyTurnsError`, whatever it runs.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[_TimedTurn]

    def __init__(self, most_turns: int = MOST_TURNS) -> None:
        self._jumping = _JumpingSelector(most_turns)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def allow(self, turns: int) -> None:
        """Allow so many turns from now on."""
        self._jumping.turns_left = turns

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        handle = (
            asyncio.Handle(callback, args, self, context)
            if process is None
            else _Turn(process, callback, args, self, context)
        )
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        timer = _TimedTurn(process, when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._jumping.now_s + delay, callback, *args, context=context)

    def outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call back after ``delay_s`` in no process's name: what the network, a store or a broker does goes on whatever becomes
        of the process that asked for it."""
        self.call_at(self._jumping.now_s + delay_s, callback, *args, context=contextvars.Context())


class ProcessState(Enum):
    """``STOPPED`` as by SIGSTOP, ``DEAD`` as by SIGKILL."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Process:
    """A set of tasks that live and die together.  Killed, none of them takes another step, not even to clean up."""

    def __init__(self, name: str, loop: VirtualTimeLoop) -> None:
        self.name, self._loop = name, loop
        self.state = ProcessState.RUNNING
        self.is_asked_to_end = False
        self.held: list[_Turn | _TimedTurn] = []

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``main`` as a task of this process; so are all that it makes."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return self._loop.create_task(main, name=self.name, context=context)

    def kill(self) -> None:
        """Kill it at whatever await each of its tasks stands."""
        self.state = ProcessState.DEAD

    def stop(self) -> None:
        """Take no step until :meth:`go_on`; time passes meanwhile."""
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.STOPPED

    def go_on(self) -> None:
        """Take the steps that came due meanwhile, in their order."""
        if self.state is not ProcessState.STOPPED:
            return
        self._run_again()

    def bury(self) -> None:
        """Bury it once the run is over: let the tasks be cancelled and end like any others."""
        self._run_again()

    def _run_again(self) -> None:
        self.state = ProcessState.RUNNING
        held, self.held = self.held, []
        for turn in held:
            self._loop.outside(0, turn.late)


def current_process() -> Process | None:
    """Return the process whose code runs now; None outside of all processes."""
    return _PROCESS.get()
