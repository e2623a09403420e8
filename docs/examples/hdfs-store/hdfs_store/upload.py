"""A put: into a file of its own first, which gets the object's name when all of it is there and right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from hdfs_store.answers import Answer, hdfs_error
from hdfs_store.file_sum import FileSum
from hdfs_store.files import HdfsFiles
from hdfs_store.paths import UPLOADS, path_of, stored_object
from hdfs_store.settings import HdfsSettings
from hdfs_store.webhdfs import ConnectionFailedError, WebHdfs
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.store import ObjectBody, SourceFile, StoredObject

_SLICE_BYTES = 1024 * 1024
_FILE_PERMISSION = "640"
_CREATE_FLAGS = "CREATE,SYNC_BLOCK"
"""SYNC_BLOCK: data nodes write each block through to the disk when it ends, so that a put that returns is durable."""
_NAMING_ATTEMPTS = 64
_DISCARDING_ATTEMPTS = 5


@dataclass(slots=True)
class _Sent:
    """What of the body is on its way.  ``failure``: the body's own, which the HTTP client would wrap."""

    sum: FileSum | None = None
    size_bytes: int = 0
    failure: BaseException | None = None


class HdfsUpload:
    """Puts one object."""

    def __init__(
        self, hdfs: WebHdfs, files: HdfsFiles, settings: HdfsSettings, *, blocking: Blocking, ids: Ids, key: str
    ) -> None:
        self._hdfs, self._files, self._settings = hdfs, files, settings
        self._blocking, self._ids, self._key = blocking, ids, key
        self._target = path_of("put", settings.directory, key)

    async def put(self, body: ObjectBody, *, if_absent: bool) -> StoredObject:
        """Return the object.  An attempt has a file of its own, removed unless it becomes the object.

        Raises:
            ObjectExistsError: ``if_absent`` and the key is taken.
            StoreError: it cannot be done; the errors of ``body`` are passed on.
        """
        failed: StoreError | None = None
        for attempt in range(self._settings.max_attempts):
            if failed is not None:
                await self._hdfs.pause(attempt)
            try:
                return await self._attempt(body, if_absent=if_absent)
            except ConnectionFailedError as error:
                failed = error.as_store_error("put", self._key)
        assert failed is not None
        raise failed

    async def _attempt(self, body: ObjectBody, *, if_absent: bool) -> StoredObject:
        path = f"{self._settings.directory}/{UPLOADS}/{format_uuid(self._ids.random_uuid())}"
        sent = _Sent()
        try:
            sent.sum = await self._files.new_sum(self._key)
            await self._write(path, body, sent)
            status = await self._files.status("put", self._key, path)
            await self._compare(path, stored_object(self._key, status, verb="put"), sent, body)
            await self._publish(path, status.get("fileId"), if_absent=if_absent)
        except BaseException:
            await self._discard(path, may_come=bool(sent.size_bytes))
            raise
        return stored_object(self._key, status, verb="put")

    async def _compare(self, path: str, written: StoredObject, sent: _Sent, body: ObjectBody) -> None:
        """Raises StoreError: the file is not what the body was to be."""
        wanted = sent.size_bytes if body.size_bytes is None else body.size_bytes
        for size_bytes in (sent.size_bytes, written.size_bytes):
            if size_bytes != wanted:
                reason = f"{size_bytes} bytes came instead of {wanted}"
                raise StoreError(verb="put", key=self._key, reason=reason)
        if sent.sum is not None and sent.size_bytes:
            await self._files.compare(self._key, path, sent.sum)

    async def _write(self, path: str, body: ObjectBody, sent: _Sent) -> None:
        asked = {"overwrite": "false", "createparent": "false", "createflag": _CREATE_FLAGS}
        asked |= {"permission": _FILE_PERMISSION}
        if self._settings.replication is not None:
            asked["replication"] = str(self._settings.replication)
        place = await self._hdfs.place_for("put", self._key, path, **asked)
        answer = await self._send(place, body, sent)
        if answer.may_pass:
            raise ConnectionFailedError(f"the data node answers {answer.status} {answer.exception}".strip())
        if not answer.is_good:
            raise hdfs_error("put", self._key, answer)

    async def _send(self, place: str, body: ObjectBody, sent: _Sent) -> Answer:
        """A body may take its time; the data node may not."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s) as timeout:
                return await self._hdfs.send(self._key, place, self._slices(body, sent, timeout))
        except (TimeoutError, ConnectionFailedError) as error:
            if sent.failure is not None:
                raise sent.failure from None
            raise ConnectionFailedError(str(error) or "an upload has not moved in time") from None

    async def _slices(
        self, body: ObjectBody, sent: _Sent, timeout: asyncio.Timeout
    ) -> AsyncIterator[bytes | bytearray]:
        try:
            async for data in self._parts(body, timeout):
                if sent.sum is not None:
                    await self._blocking.run(sent.sum.add, data)
                sent.size_bytes += len(data)
                timeout.reschedule(asyncio.get_running_loop().time() + self._settings.request_timeout_s)
                yield data
            timeout.reschedule(asyncio.get_running_loop().time() + self._settings.request_timeout_s)
        except Exception as error:
            sent.failure = error
            raise

    async def _parts(self, body: ObjectBody, timeout: asyncio.Timeout) -> AsyncIterator[bytes | bytearray]:
        """Yield the body in slices that nobody else holds; ``timeout`` rests while one is waited for."""
        timeout.reschedule(None)
        source = body.source_file
        if source is not None:
            at, stop = source.byte_range.start, source.byte_range.stop
            while at < stop:
                count = await body.grant(min(stop - at, _SLICE_BYTES))
                yield await self._blocking.run(_read, source, at, count)
                at += count
                timeout.reschedule(None)
            return
        for index in range(body.piece_count):
            piece = memoryview(await body.piece(index)).cast("B")
            while piece:
                count = await body.grant(min(len(piece), _SLICE_BYTES))
                # A copy: the connection may hold on to it when the next piece takes the buffer.
                data, piece = bytes(piece[:count]), piece[count:]
                yield data
                timeout.reschedule(None)

    async def _publish(self, path: str, file_id: object, *, if_absent: bool) -> None:
        """Give the file its name.  The answer to an earlier try may be lost: the file's id tells whether it has the name."""
        for _ in range(_NAMING_ATTEMPTS):
            await self._files.make_directory("put", self._key, self._target.rpartition("/")[0])
            try:
                await self._files.rename(self._key, path, self._target, overwrites=not if_absent)
            except ObjectExistsError:
                if await self._is_named(file_id):
                    return
                raise
            except ObjectNotFoundError:
                if await self._is_named(file_id):
                    return
                # A delete may have taken the directory with the last object in it; else the file itself is gone.
                await self._require(path)
            else:
                return
        raise StoreError(verb="put", key=self._key, reason="its directory is deleted again and again")

    async def _is_named(self, file_id: object) -> bool:
        try:
            found = await self._files.status("put", self._key, self._target)
        except ObjectNotFoundError:
            return False
        return file_id is not None and found.get("fileId") == file_id

    async def _require(self, path: str) -> None:
        try:
            await self._files.status("put", self._key, path)
        except ObjectNotFoundError as error:
            raise StoreError(verb="put", key=self._key, reason="its upload was deleted by someone else") from error

    async def _discard(self, path: str, *, may_come: bool) -> None:
        """Delete the file.  What a server that is away keeps is swept by age.

        ``may_come``: a data node has been sent something.  It may be so slow that the name node hears of the file only after it
        was to be deleted.
        """
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self._settings.request_timeout_s):
                for attempt in range(_DISCARDING_ATTEMPTS if may_come else 1):
                    if attempt:
                        await self._hdfs.pause(attempt)
                    if await self._files.remove_file("put", self._key, path):
                        return


def _read(source: SourceFile, position: int, size_bytes: int) -> bytearray:
    """Return these bytes of the file, fewer where it has become shorter: then the sum of all is not what it was to be."""
    data = bytearray(size_bytes)
    del data[source.read_into(position, memoryview(data)) :]
    return data
