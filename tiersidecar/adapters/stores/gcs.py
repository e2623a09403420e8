"""Store objects in a bucket of Google Cloud Storage, or of a server with its JSON API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from crc32c import crc32c

from tiersidecar.adapters.stores.body_parts import PartBuffers
from tiersidecar.adapters.stores.gcs_credentials import GcsTokens, credentials_loader
from tiersidecar.adapters.stores.gcs_objects import FIELDS, GcsUrls, crc32c_in, read_document, stored_object
from tiersidecar.adapters.stores.gcs_requests import GcsAnswer, GcsRequests, new_session
from tiersidecar.adapters.stores.gcs_settings import GOOGLE, GcsSettings
from tiersidecar.adapters.stores.gcs_upload import GcsUpload
from tiersidecar.adapters.stores.tls import tls_context
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.store import Buffer, ObjectBody, StoredObject, Take, probe_store, require_valid_key

_DELETED_AT_ONCE = 16
_LISTED_AT_ONCE = "1000"
_PARTIAL_CONTENT = 206


class GcsStore:
    """One bucket.

    A put is one request when the body fits into a chunk, else a resumable upload, cancelled when it fails; the service
    compares the whole object's CRC32C before the object is seen.  ``crc32c`` is the one that the service keeps.  A delete in
    a bucket with object versioning or soft delete leaves older versions to the bucket's own rules.
    """

    def __init__(self, requests: GcsRequests, settings: GcsSettings, *, blocking: Blocking, ids: Ids) -> None:
        self._requests, self._settings, self._blocking, self._ids = requests, settings, blocking, ids
        self._urls = GcsUrls(settings.endpoint_url, settings.bucket)
        self._buffers = PartBuffers(count=settings.uploads_in_chunks, size_bytes=2 * settings.chunk_size_bytes)

    @property
    def description(self) -> str:
        settings = self._settings
        at = "" if settings.endpoint_url == GOOGLE else f" at {settings.endpoint_url}"
        return f"gs://{settings.bucket}/{settings.key_prefix}{at}"

    @property
    def max_name_bytes(self) -> int | None:
        return None

    @property
    def is_local(self) -> bool:
        return False

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        require_valid_key("put", key)
        upload = GcsUpload(
            requests=self._requests,
            urls=self._urls,
            settings=self._settings,
            buffers=self._buffers,
            blocking=self._blocking,
            ids=self._ids,
            key=key,
            if_absent=if_absent,
        )
        return await upload.put(body)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        if len(byte_range) == 0:
            await self.head_object(key)
            return b""
        headers = {"Range": f"bytes={byte_range.start}-{byte_range.stop - 1}"}
        answer = await self._fetch(key, headers, max_bytes=len(byte_range))
        if len(answer.body) != len(byte_range):
            asked = f"{len(byte_range)} bytes from byte {byte_range.start}"
            raise StoreError(verb="fetch", key=key, reason=f"it holds only {len(answer.body)} of the {asked}")
        if not _begins_at(answer, byte_range.start):
            raise StoreError(verb="fetch", key=key, reason="another range came than was asked for")
        return answer.body

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        answer = await self._fetch(key, {}, max_bytes=max_bytes)
        expected = _crc32c_of(key, answer)
        if expected is not None and await self._blocking.run(crc32c, answer.body) != expected:
            raise StoreError(verb="fetch", key=key, reason="what came has another CRC32C than the service keeps")
        return answer.body

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        require_valid_key("head", key)
        answer = await self._requests.ask("head", key, "GET", self._urls.object(key, fields=FIELDS))
        return stored_object("head", key, read_document("head", key, answer.body))

    async def delete_objects(self, keys: Sequence[str]) -> None:
        window = asyncio.Semaphore(_DELETED_AT_ONCE)

        async def delete_in_turn(key: str) -> None:
            async with window:
                await self._delete(key)

        outcomes = await asyncio.gather(*map(delete_in_turn, keys), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        """List objects; the service begins at ``start_after`` itself, and a server that does not know it at the beginning."""
        asked = {"prefix": prefix, "startOffset": start_after, "maxResults": _LISTED_AT_ONCE}
        asked["fields"] = "kind,nextPageToken,items(name,size,updated,crc32c)"
        bound, page_token = start_after.encode(), ""
        while True:
            url = self._urls.listing(**asked, **({"pageToken": page_token} if page_token else {}))
            answer = await self._requests.ask("list", prefix, "GET", url)
            page = read_document("list", prefix, answer.body, kind="storage#objects")
            for document in page.get("items") or ():
                stored = stored_object("list", prefix, document)
                if stored.key.encode() > bound:
                    yield stored
            page_token = page.get("nextPageToken") or ""
            if not page_token:
                return

    async def check_writable(self) -> None:
        await probe_store(self, ids=self._ids, prefix=self._settings.key_prefix)

    async def _fetch(self, key: str, headers: dict[str, str], *, max_bytes: int) -> GcsAnswer:
        require_valid_key("fetch", key)
        url = self._urls.object(key, alt="media")
        return await self._requests.ask("fetch", key, "GET", url, headers=headers, max_bytes=max_bytes)

    async def _delete(self, key: str) -> None:
        require_valid_key("delete", key)
        with suppress(ObjectNotFoundError):
            await self._requests.ask("delete", key, "DELETE", self._urls.object(key))


def _crc32c_of(key: str, answer: GcsAnswer) -> int | None:
    try:
        return crc32c_in(",".join(answer.headers.getall("x-goog-hash", ())))
    except ValueError as error:
        raise StoreError(
            verb="fetch", key=key, reason="its header x-goog-hash has a CRC32C that is not base64"
        ) from error


def _begins_at(answer: GcsAnswer, position: int) -> bool:
    """Return whether the body begins at byte ``position`` of the object: a server may send all of it instead of a range."""
    if answer.status != _PARTIAL_CONTENT:
        return position == 0
    return answer.headers.get("Content-Range", "").startswith(f"bytes {position}-")


@asynccontextmanager
async def open_gcs_store(settings: GcsSettings, *, blocking: Blocking, ids: Ids) -> AsyncIterator[GcsStore]:
    """Yield the store with its connections; a service that is away, or wrong credentials, do not fail here, but when it is
    used."""
    tls = await blocking.run(partial(tls_context, ca_pem=settings.ca_pem, verify=settings.verify_tls))
    tokens = None
    if settings.login != "anonymous":
        tokens = GcsTokens(credentials_loader(settings), blocking=blocking)
    try:
        async with new_session(tls) as session:
            requests = GcsRequests(session, settings, tokens=tokens, ids=ids)
            yield GcsStore(requests, settings, blocking=blocking, ids=ids)
    finally:
        if tokens is not None:
            await tokens.aclose()
