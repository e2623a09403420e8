"""Requests between processes: each takes time both ways, and may fail before or after it took effect, hang, or come twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from tests.simulation.chances import Chances
from tests.simulation.virtual_time import VirtualTimeLoop, current_process

T = TypeVar("T")

Troubled = Callable[[str], Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Shares of requests, each in [0, 1]."""

    fail_before: float = 0.0
    fail_after: float = 0.0
    hang_before: float = 0.0
    hang_after: float = 0.0
    slow: float = 0.0
    twice: float = 0.0
    bad_read: float = 0.0
    lie: float = 0.0


NO_FAULTS = FaultRates()


class _Lots(NamedTuple):
    """Names of the lots that are drawn for what one process asks at one ``place``."""

    place: str
    there: str
    back: str
    slow: str
    slow_s: str
    fails_before: str
    fails_after: str
    hangs_before: str
    hangs_after: str
    comes_twice: str
    again_s: str

    @classmethod
    def of(cls, place: str) -> _Lots:
        return cls(place, *(f"{place} {name.replace('_', ' ')}" for name in cls._fields[1:]))


class Network:
    """Carries requests.  ``late`` is called with each effect that came when nothing waited for it any more, or a second
    time."""

    def __init__(self, loop: VirtualTimeLoop, chances: Chances) -> None:
        self._loop, self._chances = loop, chances
        self._lots: dict[tuple[str, str], _Lots] = {}

    async def ask(
        self,
        place: str,
        effect: Callable[[], T],
        trouble: Troubled,
        rates: FaultRates,
        late: Callable[[], None] = lambda: None,
    ) -> T:
        """Return the answer of ``effect``, which is called once it arrives; ``trouble`` makes the error of a lost
        connection."""
        answer: asyncio.Future[T] = self._loop.create_future()
        chances, asker = self._chances, current_process()
        lots = self._lots_of(asker.name if asker else "world", place)
        there_s, back_s = chances.between(lots.there, 0.0005, 0.02), chances.between(lots.back, 0.0005, 0.02)
        if chances.strikes(lots.slow, rates.slow):
            there_s += chances.between(lots.slow_s, 0.5, 8.0)
        fails_before = chances.strikes(lots.fails_before, rates.fail_before)
        fails_after = chances.strikes(lots.fails_after, rates.fail_after)
        hangs_before = chances.strikes(lots.hangs_before, rates.hang_before)
        hangs_after = chances.strikes(lots.hangs_after, rates.hang_after)
        comes_twice = chances.strikes(lots.comes_twice, rates.twice)

        def arrive() -> None:
            if hangs_before:
                return
            if fails_before:
                self._loop.outside(back_s, _fail, answer, trouble("lost before it arrived"))
                return
            if answer.done() or (asker is not None and asker.state.value != "running"):
                late()
            try:
                result = effect()
            except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
                self._loop.outside(back_s, _fail, answer, error)
                return
            if comes_twice:
                self._loop.outside(chances.between(lots.again_s, 0.01, 20.0), again)
            if fails_after:
                self._loop.outside(back_s, _fail, answer, trouble("lost after it took effect"))
            elif not hangs_after:
                self._loop.outside(back_s, _succeed, answer, result)

        def again() -> None:
            late()
            try:
                effect()
            except Exception as error:  # noqa: BLE001  nothing waits for the second answer
                self._chances.on_fault(f"{lots.place} the second time: {error}")

        self._loop.outside(there_s, arrive)
        return await answer

    def _lots_of(self, asker: str, place: str) -> _Lots:
        lots = self._lots.get((asker, place))
        if lots is None:
            lots = self._lots[asker, place] = _Lots.of(f"{asker} {place}")
        return lots


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _succeed(answer: asyncio.Future[Any], result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def at_once(steps: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that does not wait for anything."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError(f"{steps} waits")
