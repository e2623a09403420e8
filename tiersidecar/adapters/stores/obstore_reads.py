"""Bounded reads through object_store (Rust), which by itself holds in memory whatever a server sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore
import structlog

from tiersidecar.adapters.stores.watched_bodies import WatchedBodies, anonymous_bytes
from tiersidecar.domain.errors import ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import AzureStore, S3Store

_log = structlog.get_logger(__name__)


class RangeReads:
    """Ranged reads of one store.

    Rust collects a body without Python's lock, but without a bound; what bounds it (``stream``) copies it under the lock, which
    takes a tenth of the rate.  So Rust collects bodies while memory is watched.  A body that was stopped is read again with the
    bound; if that shows that more comes than was asked for, all reads of this store are bounded from then on.
    """

    def __init__(self, store: AzureStore | S3Store, *, watch: WatchedBodies | None = None) -> None:
        self._store, self._watch = store, watch or WatchedBodies()
        self._is_bounded = anonymous_bytes() is None

    async def get(self, key: str, byte_range: ByteRange) -> memoryview:
        """Return the bytes of a range that is not empty; fewer only where the object ends.

        Raises:
            ObjectTooLargeError: more came than were asked for.
            Exception: of obstore's.
        """
        if not self._is_bounded:
            body = obstore.get_range_async(self._store, key, start=byte_range.start, end=byte_range.stop)
            data = await self._watch.collect(body, len(byte_range))
            if data is not None and len(data) <= len(byte_range):
                return memoryview(data)
        try:
            options: GetOptions = {"range": (byte_range.start, byte_range.stop)}
            return memoryview(
                await _at_most(len(byte_range), await obstore.get_async(self._store, key, options=options), key)
            )
        except ObjectTooLargeError:
            if not self._is_bounded:
                self._is_bounded = True
                _log.warning("store.sends_more_than_asked", key=key, asked_bytes=len(byte_range))
            raise


async def get_object(store: AzureStore | S3Store, key: str, max_bytes: int) -> bytes:
    """Return a whole object.

    Raises:
        ObjectTooLargeError: it has more than ``max_bytes``, by the size that the server announces, or by its bytes.
        StoreError: another number of bytes came than announced.
        Exception: of obstore's.
    """
    answer = await obstore.get_async(store, key)
    if answer.meta["size"] > max_bytes:
        raise ObjectTooLargeError(key=key, max_bytes=max_bytes)
    data = await _at_most(max_bytes, answer, key)
    if len(data) != answer.meta["size"]:
        raise StoreError(verb="fetch", key=key, reason=f"{len(data)} bytes came of {answer.meta['size']}")
    return data


async def _at_most(most: int, answer: GetResult, key: str) -> bytes:
    # A piece has at least as many bytes as are asked for, unless the answer ends with it.  So this one shows whether more came,
    # and the end need not be awaited: that would be a change of thread and back for each range.
    piece = await anext(answer.stream(most + 1), b"")
    if len(piece) > most:
        raise ObjectTooLargeError(key=key, max_bytes=most)
    return piece
