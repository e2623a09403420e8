"""Put one blob into Azure: in one request when it fits into a block, else as blocks that are committed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

import obstore
import structlog
from obstore.store import AzureStore as RustAzureStore

from tiersidecar.adapters.stores.azure_errors import azure_errors
from tiersidecar.adapters.stores.azure_settings import AzureSettings
from tiersidecar.adapters.stores.body_parts import PartFiller
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.store import ObjectBody

if TYPE_CHECKING:
    from obstore import ObjectMeta

_HANDED_ON_BYTES = 1024 * 1024
"""Bytes passed to obstore at once, as ``grant`` allows: each pass is a task of ours."""
_CONDITIONAL_BYTES = 160 * 1024 * 1024
"""The service takes 5,000 MiB in one request.  The largest object that is put conditionally is a snapshot, of 128 MiB."""
_ABORT_TIMEOUT_S = _LOOK_TIMEOUT_S = 10.0
_UPLOAD_ID = "tiersidecarupload"
"""The blob's metadata that names the upload, as letters alone, of which all metadata names may be."""
_DROP_PAUSES_S = (0.0, 0.1, 0.4, 1.0)
"""A block that the service was still taking in creates the blob again, and no response shows when."""

_log = structlog.get_logger(__name__)


class AzureUpload:
    """One put.  ``slots`` bounds how many blobs go up in blocks at once, and so the memory of all of them.

    The blob names its upload by a random ``upload_id``: after a lost answer object_store sends the request again, and the
    service refuses that one, because the blocks are committed, or the blob is there.  Then a look at the blob shows that it is
    ours.  After a put that was answered it shows that the answer was the service's: what was there before may be as large."""

    def __init__(
        self,
        *,
        store: RustAzureStore,
        settings: AzureSettings,
        blocking: Blocking,
        slots: asyncio.Semaphore,
        delete: Callable[[str], Awaitable[None]],
        key: str,
        upload_id: str,
    ) -> None:
        self._store, self._settings, self._blocking, self._slots = store, settings, blocking, slots
        self._delete, self._key, self._upload_id = delete, key, upload_id
        self._has_blocks = False
        self._attributes = {_UPLOAD_ID: upload_id}
        if settings.access_tier is not None:
            self._attributes["Storage-Class"] = settings.access_tier

    async def put(self, body: ObjectBody, *, if_absent: bool) -> int:
        """Store ``body``; return its size in bytes.

        Raises:
            ObjectExistsError: ``if_absent``, and the key is taken.
            StoreError: the service or the network fails; also when the body has not the size announced, or is conditional and
                of more than ``_CONDITIONAL_BYTES``, or does not say how large it is and may be larger than a block.
        """
        filler = PartFiller(body, blocking=self._blocking, sums=False)
        block_bytes, size_bytes = self._settings.block_size_bytes, body.size_bytes
        if size_bytes is not None and size_bytes < block_bytes:
            await self._put_announced(size_bytes, body, filler, if_absent)
            return filler.size_bytes
        async with self._slots:
            if if_absent and size_bytes is not None and size_bytes <= _CONDITIONAL_BYTES:
                await self._put_announced(size_bytes, body, filler, if_absent)
                return filler.size_bytes
            first = memoryview(bytearray(block_bytes))
            count = await filler.fill(first)
            if count < len(first):
                await self._put_whole(first[:count], body, filler, if_absent)
            elif if_absent:
                reason = f"a conditional put is one request, of at most {_CONDITIONAL_BYTES} bytes that are announced"
                raise StoreError(verb="put", key=self._key, reason=reason)
            else:
                await self._put_in_blocks(first, body, filler)
        return filler.size_bytes

    async def _put_announced(self, size_bytes: int, body: ObjectBody, filler: PartFiller, if_absent: bool) -> None:
        buffer = memoryview(bytearray(size_bytes + 1))  # one byte more than announced shows a longer body
        await self._put_whole(buffer[: await filler.fill(buffer)], body, filler, if_absent)

    async def _put_whole(self, view: memoryview, body: ObjectBody, filler: PartFiller, if_absent: bool) -> None:
        self._check_size(body, filler)
        left = len(view)
        while left:
            left -= await body.grant(min(left, _HANDED_ON_BYTES))
        try:
            with azure_errors("put", self._key):
                await obstore.put_async(
                    self._store,
                    self._key,
                    view,
                    attributes=self._attributes,
                    mode="create" if if_absent else "overwrite",
                    use_multipart=False,
                )
        except ObjectExistsError:
            if not await self._is_ours(len(view)):
                raise

    async def _put_in_blocks(self, first: memoryview, body: ObjectBody, filler: PartFiller) -> None:
        slices = _Slices(self._slices_of(first, body, filler))
        self._has_blocks = True
        try:
            with azure_errors("put", self._key):
                await obstore.put_async(
                    self._store,
                    self._key,
                    slices,
                    attributes=self._attributes,
                    use_multipart=True,
                    chunk_size=self._settings.block_size_bytes,
                    max_concurrency=self._settings.blocks_in_flight,
                )
        except BaseException as error:
            await slices.close()
            if isinstance(error, StoreError) and slices.are_all_drawn and await self._is_ours(filler.size_bytes):
                return
            await self.drop_blocks()
            if slices.fault is not None:
                raise slices.fault from None
            raise

    async def _slices_of(
        self, first: memoryview, body: ObjectBody, filler: PartFiller
    ) -> AsyncGenerator[memoryview, None]:
        """Yield all of ``body``.  Each block has memory of its own: obstore keeps what it is given until it has been sent."""
        block = first
        while block:
            while block:
                granted = await body.grant(min(len(block), _HANDED_ON_BYTES))
                yield block[:granted]
                block = block[granted:]
            fresh = memoryview(bytearray(self._settings.block_size_bytes))
            block = fresh[: await filler.fill(fresh)]
        self._check_size(body, filler)

    async def drop_blocks(self) -> None:
        """Drop the blocks, if any, of an upload that failed: a blob that is stored empty has none, and is deleted at once.

        Where a blob is there already, it stays as it is, and the service drops the blocks after a week or with the next put.
        The key belongs to this upload alone, so that no other blob is in the way between the two.  Best effort.
        """
        if not self._has_blocks:
            return
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                for pause_s in _DROP_PAUSES_S:
                    await asyncio.sleep(pause_s)
                    if await self._is_there():
                        return
                    with azure_errors("abort the upload of", self._key):
                        await obstore.put_async(self._store, self._key, b"", use_multipart=False)
                    await self._delete(self._key)
        except (StoreError, TimeoutError) as error:
            reason = error.reason if isinstance(error, StoreError) else "no answer in time"
            _log.warning("store.upload.left_over", key=self._key, reason=reason)

    async def look(self, size_bytes: int) -> ObjectMeta | None:
        """Return what is known of the blob; None if it is another upload's, or not whole.

        Raises:
            ObjectNotFoundError: there is none.
            StoreError: the service or the network fails.
        """
        with azure_errors("put", self._key):
            seen = await obstore.get_async(self._store, self._key, options={"head": True})
        is_ours = seen.attributes.get(_UPLOAD_ID) == self._upload_id
        return seen.meta if is_ours and seen.meta["size"] == size_bytes else None

    async def _is_ours(self, size_bytes: int) -> bool:
        """Return whether the blob is this upload's, and whole; False also where there is no answer."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                return await self.look(size_bytes) is not None
        except (StoreError, TimeoutError):
            return False

    async def _is_there(self) -> bool:
        try:
            with azure_errors("abort the upload of", self._key):
                await obstore.head_async(self._store, self._key)
        except ObjectNotFoundError:
            return False
        return True

    def _check_size(self, body: ObjectBody, filler: PartFiller) -> None:
        if body.size_bytes not in (None, filler.size_bytes):
            reason = f"{filler.size_bytes} bytes came instead of {body.size_bytes}"
            raise StoreError(verb="put", key=self._key, reason=reason)


class _Slices:
    """``slices`` as obstore draws them, from a task of ours that ends with the upload.

    obstore does not cancel what it waits for, and reports only that there was an error: ``fault`` has it.  ``are_all_drawn``:
    nothing but the commit was left to do.
    """

    def __init__(self, slices: AsyncGenerator[memoryview, None]) -> None:
        self._slices = slices
        self._drawing: asyncio.Future[memoryview] | None = None
        self._is_closed = False
        self.are_all_drawn = False
        self.fault: Exception | None = None

    def __aiter__(self) -> _Slices:
        return self

    async def __anext__(self) -> memoryview:
        if self._is_closed:
            raise ConnectionAbortedError("the upload was given up")
        self._drawing = asyncio.ensure_future(_next_of(self._slices))
        try:
            return await self._drawing
        except StopAsyncIteration:
            self.are_all_drawn = True
            raise
        except Exception as error:
            self.fault = error
            raise

    async def close(self) -> None:
        """Let no further slice be drawn, and end the one that is: the upload fails if it still runs."""
        self._is_closed = True
        if self._drawing is not None:
            self._drawing.cancel()
            await asyncio.wait([self._drawing])
        await self._slices.aclose()


async def _next_of(slices: AsyncGenerator[memoryview, None]) -> memoryview:
    return await anext(slices)
