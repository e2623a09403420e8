"""The configured store and keys, opened where Spark's executors run: from the configuration file there, with its secrets.

Only the file's path travels; ``spark-submit --files`` may bring the file.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_key_ring, open_store
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.formats.aiven.key_ring import KeyRing
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry


@dataclass(frozen=True, slots=True)
class ExecutorStore:
    """A :data:`tiersidecar.spark.listing.StoreOpener`."""

    config_file: str

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Store]:
        clock, config = SystemClock(), _config(self.config_file)
        pace = UploadPace(config.store.upload_rate_limit_bytes_per_second, clock)
        async with open_store(config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store:
            yield store


@dataclass(frozen=True, slots=True)
class ExecutorKeyRing:
    """A :data:`tiersidecar.reconcile.deep_check.KeyRingOpener`."""

    config_file: str

    def __call__(self) -> KeyRing | None:
        return _key_ring(self.config_file)


@cache
def _config(config_file: str) -> Config:
    path = Path(config_file)
    if not path.exists():
        from pyspark import SparkFiles

        path = Path(SparkFiles.get(path.name))
    return load_config(path, os.environ)


@cache
def _key_ring(config_file: str) -> KeyRing | None:
    return open_key_ring(_config(config_file))
