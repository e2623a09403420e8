"""What the entry point names: ``store.type: hdfs``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from hdfs_store.settings import faults_of, settings_of
from hdfs_store.store import HdfsStore
from hdfs_store.webhdfs import open_webhdfs
from tiersidecar.ports.store import Options, Store, StoreTools


class HdfsKind:
    def faults(self, options: Options) -> Iterable[tuple[str, str]]:
        return faults_of(options)

    @asynccontextmanager
    async def open_store(self, options: Options, tools: StoreTools) -> AsyncIterator[Store]:
        settings = settings_of(options)
        async with open_webhdfs(settings, blocking=tools.blocking, ids=tools.ids) as hdfs:
            yield HdfsStore(hdfs, settings, tools)


kind = HdfsKind()
