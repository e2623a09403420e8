"""The configured store for a program that only reads: nothing is removed that dead processes left half written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.filesystem import FilesystemStore as Directory
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import HasStore, open_store, s3_settings
from tiersidecar.app.config.store import FilesystemStore, S3Store
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import Telemetry

_THREADS = 16
_NEVER_MS = 1 << 62
"""An age that no upload has."""


@asynccontextmanager
async def open_store_untouched(
    config: HasStore, *, clock: Clock, ids: Ids, telemetry: Telemetry
) -> AsyncIterator[Store]:
    """As :func:`~tiersidecar.app.builders.store.open_store`, but for the sweeps with which a directory and S3 begin."""
    section = config.store
    if not isinstance(section, (FilesystemStore, S3Store)):
        pace = UploadPace(None, clock)
        async with open_store(config, pace=pace, clock=clock, ids=ids, telemetry=telemetry) as store:
            yield store
        return
    limits = StoreLimits(
        stall_s=section.upload_stall_timeout / 1000,
        upload_s=section.upload_timeout / 1000,
        request_s=section.request_timeout / 1000,
    )
    async with (
        ThreadBlocking(max_threads=_THREADS, name="store") as blocking,
        _open_unswept(section, blocking=blocking, clock=clock, ids=ids) as backend,
    ):
        yield BoundedStore(MeteredStore(backend, telemetry), limits=limits, clock=clock)


@asynccontextmanager
async def _open_unswept(
    section: FilesystemStore | S3Store, *, blocking: Blocking, clock: Clock, ids: Ids
) -> AsyncIterator[Store]:
    if isinstance(section, FilesystemStore):
        yield Directory(root=section.root, blocking=blocking, ids=ids, probe_prefix=section.key_prefix)
        return
    # Only where it is used: its libraries take a second to load.
    from tiersidecar.adapters.stores.s3 import open_s3_store

    settings = replace(s3_settings(section), stale_upload_ms=_NEVER_MS)
    async with open_s3_store(settings, blocking=blocking, clock=clock, ids=ids) as store:
        yield store
