"""Store objects in an S3 bucket, Amazon's or another server's, and abort abandoned multipart uploads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aioboto3
import structlog
from botocore.exceptions import ClientError
from botocore.handlers import add_expect_header

from tiersidecar.adapters.stores.body_parts import PartBuffers
from tiersidecar.adapters.stores.s3_objects import code_of, listed_object, s3_errors, stored_object
from tiersidecar.adapters.stores.s3_quick_reads import S3QuickReads, open_quick_reads
from tiersidecar.adapters.stores.s3_settings import S3Checksums, S3Settings
from tiersidecar.adapters.stores.s3_upload import S3Upload
from tiersidecar.domain.errors import ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.store import Buffer, ObjectBody, StoredObject, Take, probe_store, require_valid_key

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import DeleteTypeDef
from typing import TYPE_CHECKING

from tiersidecar.formats.aiven.keys import parse_object_key

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


async def abort_stale_uploads(client: S3Client, settings: S3Settings, *, older_than_ms: int) -> int:
    """Abort those that began before ``older_than_ms``, of keys of our layout under ``key_prefix`` only: the bucket may be
    shared.  Return how many.

    Raises:
        StoreError: the uploads cannot be listed or aborted.
    """
    aborted = 0
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=settings.bucket, Prefix=settings.key_prefix)
    with s3_errors("list uploads under", settings.key_prefix):
        async for page in pages:
            for upload in page.get("Uploads", ()):
                is_stale = upload["Initiated"].timestamp() * 1000 < older_than_ms
                if is_stale and parse_object_key(upload["Key"], settings.key_prefix) is not None:
                    aborted += await _abort(client, settings.bucket, upload["Key"], upload["UploadId"])
    return aborted


async def _abort(client: S3Client, bucket: str, key: str, upload_id: str) -> int:
    try:
        with s3_errors("abort the upload of", key):
            await client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
    except StoreError as error:
        if isinstance(error.__cause__, ClientError) and code_of(error.__cause__) == "NoSuchUpload":
            return 0  # another sidecar was faster
        raise
    return 1


_DELETED_AT_ONCE = 1000
"""Most keys that DeleteObjects takes."""
_CHECKSUM_REFUSALS = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest"})

_log = structlog.get_logger(__name__)


class S3Store:
    """One bucket.

    A put is one request when the body fits into a part, else a multipart upload whose parts are read, summed and sent several
    at once; the server compares each part's CRC32C and the whole object's.  Failed or cancelled, the upload is aborted; one
    that is cancelled while the last request runs may have stored.  ``crc32c`` of what a put or a head returns is the
    server's own full-object sum.  A delete in a versioned bucket leaves older versions to the bucket's lifecycle.
    """

    def __init__(
        self,
        *,
        client: S3Client,
        settings: S3Settings,
        blocking: Blocking,
        ids: Ids,
        quick_reads: S3QuickReads | None = None,
    ) -> None:
        self._client, self._settings, self._blocking, self._ids = client, settings, blocking, ids
        self._quick_reads = quick_reads
        self._buffers = PartBuffers(count=settings.part_buffers, size_bytes=settings.part_size_bytes)
        self._sends_checksums = settings.checksums is not S3Checksums.NONE

    @property
    def description(self) -> str:
        at = f" at {self._settings.endpoint_url}" if self._settings.endpoint_url else ""
        return f"s3://{self._settings.bucket}/{self._settings.key_prefix}{at}"

    @property
    def max_name_bytes(self) -> int | None:
        return None

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        require_valid_key("put", key)
        try:
            stored = await self._upload(key, if_absent, self._sends_checksums).put(body)
        except StoreError as error:
            if not self._may_do_without_checksums(error):
                raise
            stored = await self._upload(key, if_absent, with_checksum=False).put(body)
            self._sends_checksums = False
            _log.warning("store.checksums.refused", store=self.description, reason=error.reason)
        if self._settings.checksums is S3Checksums.CRC32C and stored.crc32c is None:
            raise StoreError(verb="put", key=key, reason="the server keeps no full-object CRC32C, which is demanded")
        return stored

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        if len(byte_range) == 0:
            await self.head_object(key)
            return b""
        require_valid_key("fetch", key)
        if (
            self._quick_reads is not None
            and (quick := await self._quick_reads.fetch_range(key, byte_range)) is not None
        ):
            return quick
        data = await self._fetch(key, f"bytes={byte_range.start}-{byte_range.stop - 1}", max_bytes=len(byte_range))
        if len(data) != len(byte_range):
            asked = f"{len(byte_range)} bytes from byte {byte_range.start}"
            raise StoreError(verb="fetch", key=key, reason=f"it holds only {len(data)} of the {asked}")
        return data

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        require_valid_key("fetch", key)
        if (
            self._quick_reads is not None
            and (quick := await self._quick_reads.fetch_object(key, max_bytes=max_bytes)) is not None
        ):
            return quick
        return await self._fetch(key, None, max_bytes=max_bytes)

    @property
    def is_local(self) -> bool:
        return False

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        require_valid_key("head", key)
        with s3_errors("head", key):
            async with asyncio.timeout(self._settings.call_timeout_s):
                answer = await self._client.head_object(Bucket=self._settings.bucket, Key=key, ChecksumMode="ENABLED")
        return stored_object(key, answer["ContentLength"], answer)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        faults: list[StoreError] = []
        valid: list[str] = []
        for key in keys:
            try:
                require_valid_key("delete", key)
                valid.append(key)
            except StoreError as fault:
                faults.append(fault)
        for start in range(0, len(valid), _DELETED_AT_ONCE):
            faults += await self._delete(valid[start : start + _DELETED_AT_ONCE])
        if faults:
            raise faults[0]

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._settings.bucket, Prefix=prefix, StartAfter=start_after
        )
        with s3_errors("list", prefix):
            async for page in pages:
                for entry in page.get("Contents", ()):
                    yield listed_object(entry)

    async def check_writable(self) -> None:
        await probe_store(self, ids=self._ids, prefix=self._settings.key_prefix)

    async def sweep_stale(self, *, older_than_ms: int) -> int:
        """Abort multipart uploads of our layout that began before ``older_than_ms``; return how many."""
        return await abort_stale_uploads(self._client, self._settings, older_than_ms=older_than_ms)

    def _upload(self, key: str, if_absent: bool, with_checksum: bool) -> S3Upload:
        return S3Upload(
            client=self._client,
            settings=self._settings,
            buffers=self._buffers,
            blocking=self._blocking,
            ids=self._ids,
            key=key,
            if_absent=if_absent,
            with_checksum=with_checksum,
        )

    def _may_do_without_checksums(self, error: StoreError) -> bool:
        """Return whether the server refused a request with a checksum by a code that such servers are known to send."""
        cause = error.__cause__
        is_refusal = isinstance(cause, ClientError) and code_of(cause) in _CHECKSUM_REFUSALS
        return is_refusal and self._sends_checksums and self._settings.checksums is S3Checksums.AUTO

    async def _fetch(self, key: str, byte_range: str | None, *, max_bytes: int) -> bytes:
        arguments: dict[str, Any] = {} if byte_range is None else {"Range": byte_range}
        with s3_errors("fetch", key):
            async with asyncio.timeout(self._settings.call_timeout_s):
                answer = await self._client.get_object(Bucket=self._settings.bucket, Key=key, **arguments)
                async with answer["Body"] as stream:
                    # read() would join parts within its own loop, which shows at 4 MiB a time.
                    data = b"".join([part async for part in _at_most(stream.content.iter_any(), key, max_bytes)])
        if self._quick_reads is not None:
            self._quick_reads.other_way_did()
        return data

    async def _delete(self, keys: Sequence[str]) -> list[StoreError]:
        """Remove at most 1000 objects in one request; return errors, one per object that stays."""
        named: DeleteTypeDef = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            with s3_errors("delete", keys[0]):
                async with asyncio.timeout(self._settings.call_timeout_s):
                    answer = await self._client.delete_objects(Bucket=self._settings.bucket, Delete=named)
        except StoreError as fault:
            return [fault]
        return [
            StoreError(verb="delete", key=error.get("Key", ""), reason=f"{error.get('Code')}: {error.get('Message')}")
            for error in answer.get("Errors", ())
            if error.get("Code") != "NoSuchKey"
        ]


async def _at_most(parts: AsyncIterator[bytes], key: str, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield ``parts``, until they are more than ``max_bytes``: some servers send the whole object for a range."""
    count = 0
    async for part in parts:
        count += len(part)
        if count > max_bytes:
            raise ObjectTooLargeError(key=key, max_bytes=max_bytes)
        yield part


@asynccontextmanager
async def open_s3_store(settings: S3Settings, *, blocking: Blocking, clock: Clock, ids: Ids) -> AsyncIterator[S3Store]:
    """Yield the store with its connections; a server that is away does not fail here, but when it is used.

    Multipart uploads that dead processes left ``stale_upload_ms`` ago or longer are aborted in the background: until then
    they cost money, and no listing shows them.
    """
    session = aioboto3.Session()
    async with session.client("s3", **settings.client_arguments()) as client:
        # aiohttp would wait for "100 Continue" without end, and not every server sends it.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        quick_reads = await open_quick_reads(session, client, settings, blocking=blocking)
        store = S3Store(client=client, settings=settings, blocking=blocking, ids=ids, quick_reads=quick_reads)
        sweeping = asyncio.create_task(_sweep(store, clock.now_ms() - settings.stale_upload_ms), name="sweep uploads")
        try:
            yield store
        finally:
            sweeping.cancel()
            await asyncio.wait([sweeping])


async def _sweep(store: S3Store, older_than_ms: int) -> None:
    try:
        swept = await store.sweep_stale(older_than_ms=older_than_ms)
    except StoreError as error:
        _log.warning("store.sweep.failed", store=store.description, reason=error.reason)
    else:
        if swept:
            _log.info("store.sweep.finished", store=store.description, uploads=swept)
