"""A topic of the sidecar's own that is fed by hand."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any


class NoClients:
    """Nobody writes, and nobody reads by himself."""

    def producer(self) -> Any:
        return None

    def open_consumer(self) -> AbstractAsyncContextManager[Any]:
        raise AssertionError("nobody reads here")
