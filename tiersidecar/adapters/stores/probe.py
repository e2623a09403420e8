"""Find a bad store at start: write, read back, list and remove one small object."""

from __future__ import annotations

from contextlib import suppress

from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.ports.clock import Ids
from tiersidecar.ports.store import BytesBody, Store

PROBE_NAME = "tiersidecar-probe-"


async def probe_store(store: Store, *, ids: Ids, prefix: str) -> None:
    """Do each verb once on ``<prefix>tiersidecar-probe-<id>``; nothing stays behind.

    ``prefix`` is where our objects go (``key.prefix``): credentials may not be good for any other place.

    Raises:
        StoreError: of the verb that failed; also when the store returns other bytes than were written.
    """
    key = f"{prefix}{PROBE_NAME}{format_uuid(ids.random_uuid())}"
    try:
        await _write_and_find(store, key, ids.random_bytes(32))
    except BaseException:
        with suppress(StoreError):
            await store.delete_objects([key])
        raise
    await store.delete_objects([key])


async def _write_and_find(store: Store, key: str, data: bytes) -> None:
    await store.put_object(key, BytesBody(data))
    if await store.fetch_object(key, max_bytes=len(data)) != data:
        raise StoreError(verb="read back", key=key, reason="the store gave other bytes than were written")
    if [found.key async for found in store.list_objects(key)] != [key]:
        raise StoreError(verb="list", key=key, reason="an object just written is not listed")
