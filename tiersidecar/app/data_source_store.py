"""The store of the data source, and its logs, in Spark's Python processes; apart from what loads Arrow."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.config.config import Config
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry


@asynccontextmanager
async def open_reading_store(config: Config) -> AsyncIterator[Store]:
    """The configured store, for reads."""
    clock = SystemClock()
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
        yield store


def say_errors_only() -> None:
    """In processes that are not ours, Spark's or a notebook's: where nobody has configured structlog.  Their logging is left
    as it is."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
            cache_logger_on_first_use=False,
        )
