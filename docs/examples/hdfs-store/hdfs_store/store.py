"""Store objects as files of HDFS, over WebHDFS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from hdfs_store.files import HdfsFiles
from hdfs_store.listing import walk
from hdfs_store.paths import MAX_NAME_BYTES, UPLOADS, path_of, stored_object
from hdfs_store.settings import HdfsSettings
from hdfs_store.upload import HdfsUpload
from hdfs_store.webhdfs import WebHdfs
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import ObjectBody, StoredObject, StoreTools, Take, probe_store

_DELETED_AT_ONCE = 16
_DEAD_AFTER_MS = 24 * 3600 * 1000


class HdfsStore:
    """One directory.  A directory that its last object leaves is removed."""

    def __init__(self, hdfs: WebHdfs, settings: HdfsSettings, tools: StoreTools) -> None:
        self._hdfs, self._settings, self._tools = hdfs, settings, tools
        self._files = HdfsFiles(hdfs, settings)
        self._uploads = f"{settings.directory}/{UPLOADS}"
        self._is_prepared = False

    @property
    def description(self) -> str:
        return f"hdfs {self._settings.directory} at {', '.join(self._settings.namenodes)}"

    @property
    def max_name_bytes(self) -> int | None:
        return MAX_NAME_BYTES

    @property
    def is_local(self) -> bool:
        return False

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        tools = self._tools
        upload = HdfsUpload(self._hdfs, self._files, self._settings, blocking=tools.blocking, ids=tools.ids, key=key)
        await self._prepare(key)
        try:
            return await upload.put(body, if_absent=if_absent)
        except StoreError:
            self._is_prepared = False
            raise

    async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
        if len(byte_range) == 0:
            await self.head_object(key)
            return b""
        path, length = path_of("fetch", self._settings.directory, key), len(byte_range)
        span = {"offset": str(byte_range.start), "length": str(length)}
        data = await self._files.read("fetch", key, path, max_bytes=length, **span)
        if len(data) != length:
            asked = f"{length} bytes from byte {byte_range.start}"
            raise StoreError(verb="fetch", key=key, reason=f"it holds only {len(data)} of the {asked}")
        return data

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        path = path_of("fetch", self._settings.directory, key)
        return await self._files.read("fetch", key, path, max_bytes=max_bytes)

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        path = path_of("head", self._settings.directory, key)
        status = await self._files.status("head", key, path)
        return stored_object(key, status, verb="head")

    async def delete_objects(self, keys: Sequence[str]) -> None:
        window = asyncio.Semaphore(_DELETED_AT_ONCE)

        async def delete_in_turn(key: str) -> None:
            async with window:
                await self._files.delete("delete", key, path_of("delete", self._settings.directory, key))

        outcomes = await asyncio.gather(*map(delete_in_turn, keys), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        deleted = {key for key, outcome in zip(keys, outcomes, strict=True) if outcome is None}
        # Deepest first, each once; what fails here leaves an empty directory, which no listing shows.
        with suppress(StoreError):
            await self._remove_empty({key.rpartition("/")[0] for key in deleted})
        if failures:
            raise failures[0]

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        await self._files.require_directory("list", prefix)
        async for stored in walk(self._files, self._settings.directory, prefix, start_after):
            yield stored

    async def check_writable(self) -> None:
        await probe_store(self, ids=self._tools.ids, prefix=self._tools.key_prefix)

    async def _remove_empty(self, directories: set[str]) -> None:
        waiting = directories - {""}
        while waiting:
            deepest = max(waiting, key=lambda one: one.count("/"))
            waiting.remove(deepest)
            if await self._files.delete("delete", deepest, f"{self._settings.directory}/{deepest}"):
                waiting |= {deepest.rpartition("/")[0]} - {""}

    async def _prepare(self, key: str) -> None:
        """Make the directory of uploads, in the store's that must be there, and remove what dead processes left in it."""
        if self._is_prepared:
            return
        await self._files.require_directory("put", key)
        await self._files.make_directory("put", key, self._uploads)
        oldest_ms = self._tools.clock.now_ms() - _DEAD_AFTER_MS
        left = [entry async for entry in self._files.children("put", key, self._uploads)]
        for entry in left:
            if int(entry.get("modificationTime", oldest_ms)) < oldest_ms:
                await self._files.delete("put", key, f"{self._uploads}/{entry['pathSuffix']}")
        self._is_prepared = True
