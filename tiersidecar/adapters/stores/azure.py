"""Store objects as blobs of Azure Blob Storage, or of a server with its protocol, through object_store (Rust)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
import obstore
from obstore.store import AzureStore as RustAzureStore
from yarl import URL

from tiersidecar.adapters.stores.azure_errors import azure_errors, refused, says_away
from tiersidecar.adapters.stores.azure_settings import AzureSettings
from tiersidecar.adapters.stores.azure_upload import AzureUpload
from tiersidecar.adapters.stores.obstore_reads import RangeReads, get_object
from tiersidecar.adapters.stores.tls import tls_context
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.store import Buffer, ObjectBody, StoredObject, Take, probe_store, require_valid_key

if TYPE_CHECKING:
    from obstore import ObjectMeta

_DELETED_AT_ONCE = 16
_LISTED_AT_ONCE = 1000
_SAME_IN_BOTH_ORDERS = re.compile("[^\ue000-\uffff\U00010000-\U0010ffff]*")


class AzureStore:
    """One container.

    A put is one request when the body fits into a block, or is conditional, else blocks that are committed together; failed or
    cancelled, its blocks are dropped.  Each put is followed by a look at the blob, since the answer may not be the service's
    own.  The service keeps no CRC32C, so that ``crc32c`` is None and what was copied is read back.
    """

    def __init__(
        self,
        *,
        store: RustAzureStore,
        settings: AzureSettings,
        blocking: Blocking,
        ids: Ids,
        token_deletes: TokenDeletes | None = None,
    ) -> None:
        self._store, self._settings, self._blocking, self._ids = store, settings, blocking, ids
        self._ranges = RangeReads(store)
        self._token_deletes = token_deletes
        self._upload_slots = asyncio.Semaphore(settings.uploads_in_blocks)

    @property
    def description(self) -> str:
        settings = self._settings
        at = f" at {settings.endpoint_url}" if settings.endpoint_url else ""
        return f"azure://{settings.account_name}/{settings.container}/{settings.key_prefix}{at}"

    @property
    def max_name_bytes(self) -> int | None:
        return None

    @property
    def is_local(self) -> bool:
        return False

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        require_valid_key("put", key)
        upload = AzureUpload(
            store=self._store,
            settings=self._settings,
            blocking=self._blocking,
            slots=self._upload_slots,
            delete=self._delete,
            key=key,
            upload_id=self._ids.random_uuid().hex(),
        )
        size_bytes = await upload.put(body, if_absent=if_absent)
        try:
            return await _look_at(upload, key, size_bytes)
        except BaseException:
            await upload.drop_blocks()  # an answer that was not the service's own has committed none
            raise

    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        if len(byte_range) == 0:
            await self.head_object(key)
            return b""
        require_valid_key("fetch", key)
        with azure_errors("fetch", key):
            data = await self._ranges.get(key, byte_range)
        if len(data) != len(byte_range):
            asked = f"{len(byte_range)} bytes from byte {byte_range.start}"
            raise StoreError(verb="fetch", key=key, reason=f"it holds only {len(data)} of the {asked}")
        return data

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        require_valid_key("fetch", key)
        with azure_errors("fetch", key):
            return await get_object(self._store, key, max_bytes)

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        require_valid_key("head", key)
        with azure_errors("head", key):
            return _stored_object(await obstore.head_async(self._store, key))

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
        """List objects.  The service begins with the directory that ``prefix`` ends in: what is before ``start_after``, or has
        another name there, is left out here."""
        directory = prefix.rpartition("/")[0]
        pages = obstore.list(self._store, directory or None, offset=start_after or None, chunk_size=_LISTED_AT_ONCE)
        async for stored in in_byte_order(_objects_of(pages, prefix)):
            if stored.key.startswith(prefix) and stored.key > start_after:
                yield stored

    async def check_writable(self) -> None:
        await probe_store(self, ids=self._ids, prefix=self._settings.key_prefix)

    async def _delete(self, key: str) -> None:
        require_valid_key("delete", key)
        if self._token_deletes is not None:
            await self._token_deletes.delete(key)
            return
        with suppress(ObjectNotFoundError), azure_errors("delete", key):
            await obstore.delete_async(self._store, key)


async def _look_at(upload: AzureUpload, key: str, size_bytes: int) -> StoredObject:
    """Return the blob that was just put.

    Raises:
        StoreError: it is not there, or another upload's, or of another size, or nobody says.
    """
    try:
        seen = await upload.look(size_bytes)
    except ObjectNotFoundError as error:
        raise StoreError(verb="put", key=key, reason="it was taken, and is not there") from error
    if seen is None:
        raise StoreError(verb="put", key=key, reason="it was taken, and something else is there")
    return _stored_object(seen)


async def _objects_of(pages: obstore.ListStream[Sequence[ObjectMeta]], prefix: str) -> AsyncIterator[StoredObject]:
    with azure_errors("list", prefix):
        async for page in pages:
            for meta in page:
                yield _stored_object(meta)


def _stored_object(meta: ObjectMeta) -> StoredObject:
    modified_ms = round(meta["last_modified"].timestamp() * 1000)
    return StoredObject(key=meta["path"], size_bytes=meta["size"], modified_ms=modified_ms)


@asynccontextmanager
async def open_azure_store(settings: AzureSettings, *, blocking: Blocking, ids: Ids) -> AsyncIterator[AzureStore]:
    """Yield the store with its connections; a service that is away does not fail here, but when it is used.

    Raises:
        StoreError: the settings do not fit together for object_store, which says why.
    """
    with azure_errors("open", settings.container):
        store = RustAzureStore(
            settings.container,
            config=settings.store_config(),
            client_options=settings.client_options(),
            retry_config=settings.retry_config(),
        )
    if settings.sas_token is None:
        yield AzureStore(store=store, settings=settings, blocking=blocking, ids=ids)
        return
    tls = await blocking.run(partial(tls_context, ca_pem=settings.ca_pem, verify=settings.verify_tls))
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(connector=connector) as session:
        deletes = TokenDeletes(session, settings, settings.sas_token)
        yield AzureStore(store=store, settings=settings, blocking=blocking, ids=ids, token_deletes=deletes)


async def in_byte_order(listing: AsyncIterator[StoredObject]) -> AsyncIterator[StoredObject]:
    """Yield the objects of ``listing`` in ascending order of the keys' UTF-8 bytes.

    ``listing`` ascends by UTF-16 (some servers compare that) or by UTF-8.  The two orders differ only from a character at or
    above U+E000 on.  Keys that are equal up to there are adjacent in both orders, so only those are held back and sorted.
    """
    held: list[StoredObject] = []
    alike = ""
    async for stored in listing:
        start = _start_of(stored.key)
        if held and start != alike:
            for object_ in sorted(held, key=_bytes_of):
                yield object_
            held.clear()
        if start == stored.key:
            yield stored
        else:
            alike = start
            held.append(stored)
    for object_ in sorted(held, key=_bytes_of):
        yield object_


def _start_of(key: str) -> str:
    found = _SAME_IN_BOTH_ORDERS.match(key)
    return found.group() if found else ""


def _bytes_of(stored: StoredObject) -> bytes:
    return stored.key.encode()


_API_VERSION = "2021-08-06"
_FIRST_PAUSE_S = 0.1


class TokenDeletes:
    """``token`` is ``settings.sas_token``; connections are ``session``'s."""

    def __init__(self, session: aiohttp.ClientSession, settings: AzureSettings, token: str) -> None:
        self._session, self._settings, self._token = session, settings, token.lstrip("?")
        account = settings.endpoint_url or f"https://{settings.account_name}.blob.core.windows.net"
        self._container_url = f"{account.rstrip('/')}/{settings.container}"

    async def delete(self, key: str) -> None:
        """Delete the blob; one that is not there is no error.

        Raises:
            StoreError: the service refuses, or does not answer in ``max_attempts``.
        """
        for attempt in range(self._settings.max_attempts):
            is_last = attempt + 1 == self._settings.max_attempts
            try:
                status, code = await self._ask(key)
            except (aiohttp.ClientError, TimeoutError) as error:
                if is_last:
                    reason = f"no answer: {type(error).__name__}"
                    raise StoreError(verb="delete", key=key, reason=reason, is_away=True) from None
            else:
                if status in (202, 404) and code != "ContainerNotFound":
                    return
                if status < 500 or is_last:
                    raise StoreError(verb="delete", key=key, reason=refused(status, code), is_away=says_away(status))
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)

    async def _ask(self, key: str) -> tuple[int, str]:
        url = f"{self._container_url}/{quote(key)}?{self._token}"
        timeout = aiohttp.ClientTimeout(total=self._settings.attempt_timeout_s)
        headers = {"x-ms-version": _API_VERSION}
        # The token is signed as it is written: no part of the address may be quoted anew.
        async with self._session.delete(URL(url, encoded=True), headers=headers, timeout=timeout) as answer:
            return answer.status, answer.headers.get("x-ms-error-code", "")
