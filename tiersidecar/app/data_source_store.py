"""Open the store and the manifests for reads in Spark's Python processes; this module loads no Arrow."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.config.config import Config
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.remote_objects import ManifestCache


@asynccontextmanager
async def open_reading_store(config: Config) -> AsyncIterator[Store]:
    """Open the configured store for reads."""
    clock = SystemClock()
    pace = UploadPace(None, clock)
    async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
        yield store


@asynccontextmanager
async def open_manifests(config: Config, store: Store, blocking: Blocking) -> AsyncIterator[ManifestCache]:
    """Open the cache of manifests; it is closed on leaving."""
    manifests = ManifestCache(
        store=store,
        blocking=blocking,
        key_prefix=config.store.key_prefix,
        key_ring=open_key_ring(config),
        most_chunk_bytes=config.store.chunk_size,
        most_index_bytes=config.read.index_max_bytes,
    )
    try:
        yield manifests
    finally:
        await manifests.aclose()


def log_errors_only() -> None:
    """Log only errors, in a process of Spark's or of a notebook; a process that has configured structlog keeps its logging."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
            cache_logger_on_first_use=False,
        )
