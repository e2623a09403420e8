"""Notice work that has stopped, and report the daemon's state to systemd: ready, alive, stopping (sd_notify(3)).

Ready means that ``/healthz`` answers.  Whether it can tier is for ``/readyz`` to say: a broker may start after
its sidecar, and recover for an hour, and no boot may wait for that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Self

import structlog

from tiersidecar.ports.clock import Clock

log = structlog.get_logger(__name__)

_STATUS_EVERY_S = 10.0
_STATUS_CHARACTERS = 300


@dataclass(slots=True, kw_only=True, eq=False)
class _Counted:
    what: str
    turns: Callable[[], int]
    busy: Callable[[], bool]
    limit_s: float
    seen: int
    since_s: float


class Progress:
    """Compares counters between two looks: what is busy and has not counted for its limit has stopped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted: list[_Counted] = []

    @contextmanager
    def counting(
        self, what: str, turns: Callable[[], int], *, limit_s: float, busy: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Require, while the body runs, that ``turns`` grows within each ``limit_s`` seconds for which ``busy`` says true."""
        one = _Counted(
            what=what, turns=turns, busy=busy, limit_s=limit_s, seen=turns(), since_s=self._clock.monotonic_s()
        )
        self._counted.append(one)
        try:
            yield
        finally:
            self._counted.remove(one)

    def stopped(self) -> str:
        """Return what has stopped and for how long, or an empty text."""
        return "; ".join(reason for counted in self._counted if (reason := self._look(counted)))

    def _look(self, one: _Counted) -> str:
        now_s, turns = self._clock.monotonic_s(), one.turns()
        if turns != one.seen or not one.busy():
            one.seen, one.since_s = turns, now_s
        still_s = now_s - one.since_s
        return f"{one.what}: nothing has moved for {still_s:.0f} s" if still_s >= one.limit_s else ""


class ServiceManager:
    """``address`` is systemd's socket, empty without one; ``watchdog_s`` how often at least it must hear of us."""

    def __init__(self, *, address: str = "", watchdog_s: float | None = None) -> None:
        self._address, self.watchdog_s = address, watchdog_s

    @classmethod
    def take_from(cls, environment: MutableMapping[str, str], pid: int) -> Self:
        """Read NOTIFY_SOCKET and WATCHDOG_USEC, and remove them: programs that we start must not speak for us."""
        address = environment.pop("NOTIFY_SOCKET", "")
        usec, meant = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        watched = usec.isdecimal() and int(usec) > 0 and meant in {"", str(pid)}
        return cls(address=address, watchdog_s=int(usec) / 1e6 if watched else None)

    @property
    def listens(self) -> bool:
        return bool(self._address)

    def say(self, *lines: str) -> None:
        """Send ``lines`` as one datagram.  A service manager that cannot be reached never stops the daemon."""
        if not self._address:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(0)
                sender.sendto("\n".join(lines).encode(), name)
        except OSError as error:
            log.warning("service_manager.unreachable", error=str(error))


@asynccontextmanager
async def reporting(
    manager: ServiceManager, *, progress: Progress, waits_for: Callable[[], str], clock: Clock
) -> AsyncIterator[None]:
    """Say READY at once, STOPPING at the end, and WATCHDOG between them while ``progress`` has not stopped."""
    if not manager.listens:
        yield
        return
    manager.say("READY=1", _status(waits_for()))
    speaking = asyncio.create_task(_keep_speaking(manager, progress, waits_for, clock), name="service manager")
    try:
        yield
    finally:
        speaking.cancel()
        await asyncio.wait((speaking,))
        manager.say("STOPPING=1", "STATUS=stopping")


async def _keep_speaking(
    manager: ServiceManager, progress: Progress, waits_for: Callable[[], str], clock: Clock
) -> None:
    # Half of the time that systemd gives, as sd_watchdog_enabled(3) asks: one late turn of the loop is not the end.
    every_s = min(_STATUS_EVERY_S, manager.watchdog_s / 2 if manager.watchdog_s is not None else _STATUS_EVERY_S)
    logged = ""
    while True:
        if stopped := progress.stopped():
            if stopped != logged:
                log.error("watchdog.withheld", reason=stopped)
            manager.say(_status(stopped))
        else:
            manager.say("WATCHDOG=1", _status(waits_for()))
        logged = stopped
        await clock.sleep(every_s)


def _status(text: str) -> str:
    """Return one line, as the protocol demands."""
    return f"STATUS={' '.join(text.split())[:_STATUS_CHARACTERS] or 'ready'}"
