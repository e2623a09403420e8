"""Put one object into S3: in one request when it fits into a part, else as a multipart upload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from botocore.exceptions import ClientError
from crc32c import crc32c

from tiersidecar.adapters.stores.body_parts import PartBuffers, PartFiller, watched_part
from tiersidecar.adapters.stores.s3_objects import attempts_of, code_of, encode_crc32c, s3_errors, stored_object
from tiersidecar.adapters.stores.s3_settings import S3Settings
from tiersidecar.domain.errors import ObjectExistsError, StoreError
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.store import ObjectBody, StoredObject

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef

_IN_MEMORY_BYTES = 1024 * 1024
"""Bodies of at most this size (manifests, index blobs) are sent as they are, without a part buffer."""
_ABORT_TIMEOUT_S = 10.0
_ABORT_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
_SECOND_ANSWERS = frozenset({"NoSuchUpload", "PreconditionFailed", "412"})
_WRITER = "tiersidecar-upload"
"""In an object's metadata: which conditional put wrote it.  Another writer may have put the same bytes."""

_log = structlog.get_logger(__name__)


class S3Upload:
    """One put.  ``with_checksum``: send CRC32Cs, each part's and the whole object's, for the server to compare and keep."""

    def __init__(
        self,
        *,
        client: S3Client,
        settings: S3Settings,
        buffers: PartBuffers,
        blocking: Blocking,
        ids: Ids,
        key: str,
        if_absent: bool,
        with_checksum: bool,
    ) -> None:
        self._client, self._settings, self._buffers, self._blocking = client, settings, buffers, blocking
        self._key, self._with_checksum = key, with_checksum
        self._target: dict[str, Any] = {"Bucket": settings.bucket, "Key": key}
        self._condition: dict[str, Any] = {"IfNoneMatch": "*"} if if_absent else {}
        self._writer = ids.random_bytes(16).hex() if if_absent else None

    async def put(self, body: ObjectBody) -> StoredObject:
        """Store ``body``; return the object as the server describes it.

        Raises:
            ObjectExistsError: conditional, and the key is taken.
            StoreError: the server or the network fails; also when the body has another size than announced.
        """
        filler = PartFiller(body, blocking=self._blocking)
        if body.size_bytes is not None and body.size_bytes <= _IN_MEMORY_BYTES:
            buffer = memoryview(bytearray(body.size_bytes + 1))  # one byte more than announced shows a longer body
            return await self._put_whole(buffer[: await filler.fill(buffer)], body, filler)
        first, size_bytes = await self._fill_next(filler)
        if size_bytes == len(first) and size_bytes != body.size_bytes:
            return await self._put_in_parts(first, body, filler)
        try:
            return await self._put_whole(memoryview(first)[:size_bytes], body, filler)
        finally:
            if size_bytes:
                self._buffers.release(first)

    async def _put_whole(self, view: memoryview, body: ObjectBody, filler: PartFiller) -> StoredObject:
        self._check_size(body, filler)
        with s3_errors("put", self._key):
            try:
                async with self._watched(view, body) as sent:
                    answer = await self._client.put_object(
                        **self._target,
                        **self._new_object(),
                        **self._condition,
                        **self._checksum(filler.crc32c),
                        Body=sent,
                        ContentLength=len(view),
                    )
            except ClientError as error:
                return await self._may_be_ours(error, filler)
        if not _proves(answer, self._with_checksum):
            return await self._look(filler)
        return stored_object(self._key, len(view), answer)

    async def _put_in_parts(self, first: bytearray, body: ObjectBody, filler: PartFiller) -> StoredObject:
        """Upload in parts; ``first`` is the first part, filled; it is released here."""
        try:
            upload_id = await self._create()
        except BaseException:
            self._buffers.release(first)
            raise
        try:
            parts = await self._send_parts(upload_id, first, body, filler)
            self._check_size(body, filler)
            return await self._complete(upload_id, parts, filler)
        except BaseException:
            await self._abort(upload_id)
            raise

    async def _create(self) -> str:
        kind: dict[str, Any] = {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"}
        with s3_errors("put", self._key):
            answer = await self._client.create_multipart_upload(
                **self._target, **self._new_object(), **(kind if self._with_checksum else {})
            )
        return answer["UploadId"]

    async def _send_parts(
        self, upload_id: str, first: bytearray, body: ObjectBody, filler: PartFiller
    ) -> list[CompletedPartTypeDef]:
        """Send all parts, several at once; return when all are there, or raise the first error once none is under way.

        Each part owns its buffer until it is done, however it ends, and so does the place in the window.
        """
        window = asyncio.Semaphore(self._settings.parts_in_flight - 1)  # the first part is under way from the start
        sending: list[asyncio.Task[CompletedPartTypeDef]] = []
        buffer, size_bytes = first, len(first)
        try:
            async with asyncio.TaskGroup() as group:
                while size_bytes:
                    part = self._send_part(upload_id, len(sending) + 1, memoryview(buffer)[:size_bytes], body)
                    task = group.create_task(part, name=f"part {len(sending) + 1} of {self._key}")
                    task.add_done_callback(partial(self._part_done, buffer, window))
                    sending.append(task)
                    await window.acquire()
                    buffer, size_bytes = await self._fill_next(filler)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in sending]

    def _part_done(self, buffer: bytearray, window: asyncio.Semaphore, _: asyncio.Task[CompletedPartTypeDef]) -> None:
        self._buffers.release(buffer)
        window.release()

    async def _fill_next(self, filler: PartFiller) -> tuple[bytearray, int]:
        """Return the next part's buffer and its size; at the end of the body 0, and a buffer that is not the caller's."""
        buffer = await self._buffers.acquire()
        try:
            size_bytes = await filler.fill(memoryview(buffer))
        except BaseException:
            self._buffers.release(buffer)
            raise
        if size_bytes == 0:
            self._buffers.release(buffer)
        return buffer, size_bytes

    async def _send_part(self, upload_id: str, number: int, view: memoryview, body: ObjectBody) -> CompletedPartTypeDef:
        checksum = self._checksum(await self._blocking.run(crc32c, view) if self._with_checksum else 0)
        with s3_errors("put", self._key):
            async with self._watched(view, body) as sent:
                answer = await self._client.upload_part(
                    **self._target,
                    **checksum,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=sent,
                    ContentLength=len(view),
                )
        if not answer.get("ETag"):
            raise StoreError(verb="put", key=self._key, reason=f"the answer to part {number} has no ETag")
        part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
        if checksum:
            part["ChecksumCRC32C"] = checksum["ChecksumCRC32C"]
        return part

    async def _complete(self, upload_id: str, parts: list[CompletedPartTypeDef], filler: PartFiller) -> StoredObject:
        checksum = self._checksum(filler.crc32c)
        if checksum:
            checksum["ChecksumType"] = "FULL_OBJECT"
        with s3_errors("put", self._key):
            try:
                async with asyncio.timeout(self._settings.call_timeout_s):
                    answer = await self._client.complete_multipart_upload(
                        **self._target,
                        **self._condition,
                        **checksum,
                        UploadId=upload_id,
                        MultipartUpload={"Parts": parts},
                    )
            except ClientError as error:
                return await self._may_be_ours(error, filler)
        if not _proves(answer, bool(checksum)):  # the answer to a repeated completion is like this
            return await self._look(filler)
        return stored_object(self._key, filler.size_bytes, answer)

    async def _may_be_ours(self, error: ClientError, filler: PartFiller) -> StoredObject:
        """Return the object if it is ours: after a lost answer botocore sends the request again, which meets what is stored.

        Raises:
            ClientError: ``error``, unless the object is there as we sent it; and of this very put, where that is conditional.
        """
        if attempts_of(error) == 1 or code_of(error) not in _SECOND_ANSWERS or not self._with_checksum:
            raise error
        stored, is_ours = await self._head()
        if not is_ours or (stored.size_bytes, stored.crc32c) != (filler.size_bytes, filler.crc32c):
            raise error
        return stored

    async def _look(self, filler: PartFiller) -> StoredObject:
        """Look up the object, if the response to the upload does not prove that it exists.

        Raises:
            ObjectExistsError: conditional, and another put's is there.
            StoreError: it is not there, or not as we sent it.
        """
        stored, is_ours = await self._head()
        if not is_ours:
            raise ObjectExistsError(verb="put", key=self._key, reason="it exists already")
        if stored.size_bytes != filler.size_bytes or stored.crc32c not in (None, filler.crc32c):
            raise StoreError(verb="put", key=self._key, reason="it was taken, and something else is there")
        return stored

    async def _head(self) -> tuple[StoredObject, bool]:
        """Return what is there, and whether it may be this put's: a conditional one tells by its own name alone."""
        with s3_errors("put", self._key):
            answer = await self._client.head_object(**self._target, ChecksumMode="ENABLED")
        is_ours = self._writer is None or answer.get("Metadata", {}).get(_WRITER) == self._writer
        return stored_object(self._key, answer["ContentLength"], answer), is_ours

    def _new_object(self) -> dict[str, Any]:
        named = {} if self._writer is None else {"Metadata": {_WRITER: self._writer}}
        return {**self._settings.new_object_arguments(), **named}

    async def _abort(self, upload_id: str) -> None:
        """Abort until the upload is gone: a part that the server was still taking in revives it, as Amazon's
        documentation of AbortMultipartUpload warns.  Best effort: what stays is swept by age."""
        upload: dict[str, Any] = {**self._target, "UploadId": upload_id}
        try:
            with s3_errors("abort the upload of", self._key):
                async with asyncio.timeout(_ABORT_TIMEOUT_S):
                    for pause_s in _ABORT_PAUSES_S:
                        await self._client.abort_multipart_upload(**upload)
                        await asyncio.sleep(pause_s)
                        await self._client.list_parts(**upload)
            reason = "it is still there"
        except StoreError as error:
            if isinstance(error.__cause__, ClientError) and code_of(error.__cause__) == "NoSuchUpload":
                return
            reason = error.reason
        _log.warning("store.upload.left_over", key=self._key, upload_id=upload_id, reason=reason)

    @asynccontextmanager
    async def _watched(self, view: memoryview, body: ObjectBody) -> AsyncIterator[Any]:
        """Yield a part to send, watched by :func:`watched_part`.

        Raises:
            TimeoutError: also when the call takes too long.
        """
        stall_s = self._settings.stall_timeout_s
        async with (
            asyncio.timeout(self._settings.call_timeout_s),
            watched_part(view, grant=body.grant, stall_timeout_s=stall_s) as sent,
        ):
            yield sent

    def _checksum(self, crc: int) -> dict[str, Any]:
        return {"ChecksumCRC32C": encode_crc32c(crc)} if self._with_checksum else {}

    def _check_size(self, body: ObjectBody, filler: PartFiller) -> None:
        if body.size_bytes not in (None, filler.size_bytes):
            reason = f"{filler.size_bytes} bytes came instead of {body.size_bytes}"
            raise StoreError(verb="put", key=self._key, reason=reason)


def _proves(answer: Mapping[str, Any], with_checksum: bool) -> bool:
    """Return whether the answer to an upload comes from a server that has the object: a proxy's bare 200 does not."""
    return bool(answer.get("ETag")) and bool(answer.get("ChecksumCRC32C") or not with_checksum)
