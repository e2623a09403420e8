"""A filesystem store that Spark's executors open by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.adapters.stores.placed import Place, PlacedStore
from tiersidecar.domain.errors import StoreError
from tiersidecar.ports.store import Store, StoredObject


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """A ``StoreOpener`` for the directory ``root``, and for ``cold``, which is that of the place of this name;
    ``cold_breaks_off``: that one stops answering in each listing."""

    root: str
    cold: str | None = None
    cold_breaks_off: bool = False

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Store]:
        async with ThreadBlocking(max_threads=4) as blocking, AsyncExitStack() as stack:

            async def opened(root: str) -> Store:
                opening = open_filesystem_store(root=root, blocking=blocking, clock=SystemClock(), ids=SystemIds())
                return await stack.enter_async_context(opening)

            store = await opened(self.root)
            if self.cold is None:
                yield store
            else:
                cold = await opened(self.cold)
                place: Store = BreaksOff(cold) if self.cold_breaks_off else cold
                yield PlacedStore(store, {"cold": Place(store=place, key_prefix="")})


class BreaksOff:
    """A store whose listings end in an error after their first object; ``is_away`` as errors have it."""

    def __init__(self, store: Store, *, is_away: bool = True) -> None:
        self._store, self._is_away = store, is_away

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        async for stored in self._store.list_objects(prefix, start_after=start_after):
            yield stored
            break
        raise StoreError(verb="list", key=prefix, reason="no answer any more", is_away=self._is_away)
