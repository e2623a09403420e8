"""Bounded reads through object_store (Rust), which by itself holds in memory whatever a server sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import obstore

from tiersidecar.domain.errors import ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import AzureStore, S3Store


async def get_range(store: AzureStore | S3Store, key: str, byte_range: ByteRange) -> memoryview:
    """Return the bytes of a range that is not empty; fewer only where the object ends.

    Raises:
        ObjectTooLargeError: more came than were asked for.
        Exception: of obstore's.
    """
    answer = await obstore.get_async(store, key, options={"range": (byte_range.start, byte_range.stop)})
    return memoryview(await _at_most(len(byte_range), answer, key))


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
