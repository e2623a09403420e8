"""The configured store for a program that only reads: nothing is removed that dead processes left half written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.stores.bounded import BoundedStore
from tiersidecar.adapters.stores.filesystem import FilesystemStore as Directory
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.adapters.stores.placed import Place, PlacedStore, PlaceStore
from tiersidecar.adapters.stores.resting import RestingStore
from tiersidecar.app.builders.store import HasStore, limits_of, open_store, places_of, s3_settings
from tiersidecar.app.config.store import FilesystemStore, S3Store, StoreSection
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
    """Open as :func:`~tiersidecar.app.builders.store.open_store`, without the sweeps with which a directory and S3 begin."""
    async with AsyncExitStack() as stack:

        async def opened(section: StoreSection) -> Store:
            return await stack.enter_async_context(_open_one(section, clock=clock, ids=ids, telemetry=telemetry))

        places = {
            name: Place(store=PlaceStore(await opened(section), clock), key_prefix=section.key_prefix)
            for name, section in places_of(config).items()
        }
        default = await opened(config.store)
        yield PlacedStore(PlaceStore(default, clock) if places else default, places, key_prefix=config.store.key_prefix)


@asynccontextmanager
async def open_resting_store(config: HasStore, *, clock: Clock, ids: Ids, telemetry: Telemetry) -> AsyncIterator[Store]:
    """Open as :func:`open_store_untouched`; the store rests while it is away, of several places each by itself."""
    async with open_store_untouched(config, clock=clock, ids=ids, telemetry=telemetry) as store:
        yield store if places_of(config) else RestingStore(store, clock)


@dataclass(frozen=True, slots=True)
class _OneStore:
    store: StoreSection


@asynccontextmanager
async def _open_one(section: StoreSection, *, clock: Clock, ids: Ids, telemetry: Telemetry) -> AsyncIterator[Store]:
    if not isinstance(section, (FilesystemStore, S3Store)):
        pace = UploadPace(None, clock)
        async with open_store(_OneStore(section), pace=pace, clock=clock, ids=ids, telemetry=telemetry) as store:
            yield store.default
        return
    async with (
        ThreadBlocking(max_threads=_THREADS, name="store") as blocking,
        _open_unswept(section, blocking=blocking, clock=clock, ids=ids) as backend,
    ):
        yield BoundedStore(MeteredStore(backend, telemetry), limits=limits_of(section), clock=clock)


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
