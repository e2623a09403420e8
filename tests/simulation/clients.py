"""Clients' waiting for their answers: as long as their patience lasts, or until the process that serves them is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from tests.simulation.environment import Environment
from tests.simulation.serving import Serving

T = TypeVar("T")

PATIENCE_S = 40.0
FINISH_S = 400.0
"""Once nothing fails any more, by then each client has what it wants."""


class Server(Protocol):
    """A process that clients connect to."""

    @property
    def serving(self) -> Serving | None:
        """Return what serves clients; None while it is not up."""
        ...


Servers = Mapping[int, Server]
"""By broker."""


class Client:
    """One that goes by ``name``."""

    def __init__(self, world: Environment, name: str) -> None:
        self._world, self.name = world, name

    async def answer(self, serving: Serving, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what comes of it within a client's patience."""
        task = serving.process.start(work)
        task.add_done_callback(self._look_at)
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        if not done:
            task.cancel()
            return None
        return None if task.cancelled() or task.exception() is not None else task.result()

    def _look_at(self, done: asyncio.Task[Any]) -> None:
        """Note an error: one that no client gets as such is a fault of ours."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not self._world.is_over:
            self._world.complain(f"the {self.name} was not answered: {error!r}")
