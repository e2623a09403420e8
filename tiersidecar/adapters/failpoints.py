"""Arm failpoints by environment: crash tests kill, stall, freeze or fail a real daemon at a named place."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tiersidecar.domain.errors import ConfigError, RetriableError
from tiersidecar.ports.failpoints import NO_FAILPOINTS, AllFailpoints

VARIABLE = "TIERSIDECAR_FAILPOINTS"


class FailpointAction(StrEnum):
    """``KILL``: SIGKILL to this process.  ``STALL``: wait for ever.  ``FREEZE``: SIGSTOP, so that the whole process stands
    still until SIGCONT arrives.  ``RAISE``: :class:`FailpointError`."""

    KILL = "kill"
    STALL = "stall"
    FREEZE = "freeze"
    RAISE = "raise"


class FailpointError(RetriableError, message="failpoint {name} is set to fail"):
    """Raised by a failpoint that is set to ``raise``."""

    name: str


@dataclass(slots=True)
class _Armed:
    """``countdown`` hits are left until the action is due; None: at every hit."""

    action: FailpointAction
    countdown: int | None

    def is_due(self) -> bool:
        if self.countdown is None:
            return True
        self.countdown -= 1
        return self.countdown == 0


class EnvironmentFailpoints:
    """Failpoints of the form ``<name>=<kill|stall|freeze|raise>[@<n>]``, joined by semicolons.

    With ``@n`` only the n-th hit acts, otherwise every hit.
    """

    def __init__(self, armed: Mapping[str, _Armed]) -> None:
        self._armed = armed

    @classmethod
    def from_environment(cls, variable: str = VARIABLE) -> AllFailpoints:
        """Return the failpoints of ``variable``; the no-op if it is unset or empty.

        Raises:
            ConfigError: it cannot be understood.
        """
        text = os.environ.get(variable, "")
        if not text:
            return NO_FAILPOINTS
        return cls(parse_failpoints(text, source=variable))

    async def reach(self, name: str) -> None:
        if self._must_stall(name):
            await asyncio.Event().wait()

    def reach_blocking(self, name: str) -> None:
        if self._must_stall(name):
            threading.Event().wait()

    def _must_stall(self, name: str) -> bool:
        """Do whatever else is due at ``name``."""
        armed = self._armed.get(name)
        if armed is None or not armed.is_due():
            return False
        match armed.action:
            case FailpointAction.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FailpointAction.STALL:
                return True
            case FailpointAction.FREEZE:
                os.kill(os.getpid(), signal.SIGSTOP)
            case FailpointAction.RAISE:
                raise FailpointError(name=name)
            case _ as never:
                assert_never(never)
        return False


def parse_failpoints(text: str, *, source: str = VARIABLE) -> dict[str, _Armed]:
    """Return the failpoints of ``text`` by name.

    Raises:
        ConfigError: all faults of ``text`` at once.
    """
    armed: dict[str, _Armed] = {}
    faults: list[str] = []
    for clause in filter(None, (part.strip() for part in text.split(";"))):
        name, _, rest = clause.partition("=")
        action, at, count = rest.partition("@")
        if not name or action not in list(FailpointAction) or (at and not (count.isdecimal() and int(count) > 0)):
            faults.append(f"{clause!r} is not <name>=<kill|stall|freeze|raise>[@<hit>]")
            continue
        armed[name] = _Armed(FailpointAction(action), int(count) if at else None)
    if faults:
        raise ConfigError(source=source, faults=tuple(faults))
    return armed
