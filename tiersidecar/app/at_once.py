"""Do the same with many things, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def at_once(act: Callable[[A], Awaitable[B]], things: Iterable[A], most: int) -> list[B]:
    """Run ``act`` on all ``things``, ``most`` at a time, and return the result of each, in their order.

    Raises:
        The first error, which ends the others.
    """
    turn = asyncio.Semaphore(most)

    async def act_in_turn(thing: A) -> B:
        async with turn:
            return await act(thing)

    try:
        async with asyncio.TaskGroup() as acting:
            tasks = [acting.create_task(act_in_turn(thing)) for thing in things]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
