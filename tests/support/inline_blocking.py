"""Blocking work without threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class InlineBlocking:
    """``ports.clock.Blocking`` that runs the function where it stands."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return function(*args)
