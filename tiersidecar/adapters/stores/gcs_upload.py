"""Put one object into Google Cloud Storage: in one request when it fits into a chunk, else as a resumable upload."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from yarl import URL

from tiersidecar.adapters.stores.body_parts import PartBuffers, PartFiller, watched_part
from tiersidecar.adapters.stores.gcs_errors import gcs_error
from tiersidecar.adapters.stores.gcs_objects import FIELDS, GcsUrls, encode_crc32c, read_document, stored_object
from tiersidecar.adapters.stores.gcs_requests import (
    AGAIN,
    ConnectionFailedError,
    GcsAnswer,
    GcsRequests,
    OpenBody,
    open_bytes,
)
from tiersidecar.adapters.stores.gcs_settings import GcsSettings
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from tiersidecar.ports.clock import Blocking, Ids
from tiersidecar.ports.store import ObjectBody, StoredObject

_IN_MEMORY_BYTES = 1024 * 1024
"""Bodies of at most this size (manifests, index blobs) are sent as they are, without a place among the larger ones."""
_CANCEL_TIMEOUT_S = 10.0
_WRITER = "tiersidecar-upload"
"""Metadata name under which a conditional put's object keeps the id of its put."""
_RESUME = 308
_SESSION_GONE = frozenset({404, 410})
_NOT_AS_SENT = "what the service has is not what was sent"
_JSON = "application/json; charset=UTF-8"

_log = structlog.get_logger(__name__)


class GcsUpload:
    """One put.  The service compares the CRC32C of the bytes it got with ours before the object is seen, and keeps it.

    ``buffers`` has one for each upload that runs in chunks; half of it is filled while the other half is sent.
    """

    def __init__(
        self,
        *,
        requests: GcsRequests,
        urls: GcsUrls,
        settings: GcsSettings,
        buffers: PartBuffers,
        blocking: Blocking,
        ids: Ids,
        key: str,
        if_absent: bool,
    ) -> None:
        self._requests, self._urls, self._settings = requests, urls, settings
        self._buffers, self._blocking, self._ids, self._key = buffers, blocking, ids, key
        self._condition = {"ifGenerationMatch": "0"} if if_absent else {}
        self._writer = ids.random_bytes(16).hex() if if_absent else None

    async def put(self, body: ObjectBody) -> StoredObject:
        """Store ``body``; return the object as the service describes it.

        Raises:
            ObjectExistsError: conditional, and the key is taken.
            StoreError: the service or the network fails; also when the body has another size than announced.
        """
        filler = PartFiller(body, blocking=self._blocking)
        if body.size_bytes is not None and body.size_bytes <= _IN_MEMORY_BYTES:
            buffer = memoryview(bytearray(body.size_bytes + 1))  # one byte more than announced shows a longer body
            return await self._put_whole(buffer[: await filler.fill(buffer)], body, filler)
        async with self._buffers.borrow() as lent:
            chunk_bytes = self._settings.chunk_size_bytes
            halves = memoryview(lent)[:chunk_bytes], memoryview(lent)[chunk_bytes:]
            first = halves[0][: await filler.fill(halves[0])]
            if len(first) < chunk_bytes:
                return await self._put_whole(first, body, filler)
            return await self._put_in_chunks(halves, body, filler)

    async def _put_whole(self, view: memoryview, body: ObjectBody, filler: PartFiller) -> StoredObject:
        self._check_size(body, filler)
        boundary = self._ids.random_bytes(16).hex()
        described = json.dumps({**self._description(), "crc32c": encode_crc32c(filler.crc32c)})
        head = (
            f"--{boundary}\r\nContent-Type: {_JSON}\r\n\r\n{described}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        headers = {
            "Content-Type": f'multipart/related; boundary="{boundary}"',
            "Content-Length": str(len(head) + len(view) + len(tail)),
        }
        url = self._urls.upload(uploadType="multipart", name=self._key, fields=FIELDS, **self._condition)
        open_body = self._open_part(view, body, head=head, tail=tail)
        try:
            answer = await self._requests.ask(
                "put",
                self._key,
                "POST",
                url,
                headers=headers,
                open_body=open_body,
                is_conditional=self._writer is not None,
            )
        except ObjectExistsError as error:
            return await self._may_be_ours(error)
        return await self._stored(answer, filler)

    async def _put_in_chunks(
        self, halves: tuple[memoryview, memoryview], body: ObjectBody, filler: PartFiller
    ) -> StoredObject:
        """Upload in chunks; the first half is the first chunk, filled."""
        session_url = await self._begin()
        try:
            answer = await self._send_chunks(session_url, halves, body, filler)
        except BaseException:
            await self._cancel(session_url)
            raise
        return await self._stored(answer, filler)

    async def _begin(self) -> str:
        """Return the address of the upload, which is a secret: it needs no token."""
        described = json.dumps(self._description()).encode()
        answer = await self._requests.ask(
            "put",
            self._key,
            "POST",
            self._urls.upload(uploadType="resumable", name=self._key, fields=FIELDS, **self._condition),
            headers={"Content-Type": _JSON, "X-Upload-Content-Type": "application/octet-stream"},
            open_body=open_bytes(described, within_s=self._settings.attempt_timeout_s),
            is_conditional=self._writer is not None,
        )
        location = answer.headers.get("Location", "")
        if not _is_at(self._settings.endpoint_url, location):
            reason = "the answer to a new upload names no address at gcs.endpoint.url to send to"
            raise StoreError(verb="put", key=self._key, reason=reason)
        return location

    async def _send_chunks(
        self, session_url: str, halves: tuple[memoryview, memoryview], body: ObjectBody, filler: PartFiller
    ) -> GcsAnswer:
        """Send all chunks in their order, each filled while the one before it is sent; return the last answer."""
        current, other = halves
        start, count = 0, len(current)
        while True:
            is_last = count < len(current) or filler.size_bytes == body.size_bytes
            if is_last:
                await self._check_end(body, filler)
                return await self._send_last(session_url, current[:count], start, body, filler)
            sending = asyncio.create_task(
                self._send_chunk(session_url, current, start, None, body), name=f"chunk at {start} of {self._key}"
            )
            try:
                count = await filler.fill(other)
                await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            start += len(current)
            current, other = other, current

    async def _check_end(self, body: ObjectBody, filler: PartFiller) -> None:
        """Refuse a body that has another size than announced: nothing of it is visible yet."""
        await filler.fill(memoryview(bytearray(1)))
        self._check_size(body, filler)

    async def _send_last(
        self, session_url: str, view: memoryview, start: int, body: ObjectBody, filler: PartFiller
    ) -> GcsAnswer:
        answer = await self._send_chunk(session_url, view, start, filler, body)
        if answer is None:
            raise StoreError(verb="put", key=self._key, reason="the service has all of it, and makes no object of it")
        return answer

    async def _send_chunk(
        self, session_url: str, view: memoryview, start: int, whole: PartFiller | None, body: ObjectBody
    ) -> GcsAnswer | None:
        """Send ``view``, the bytes from ``start`` on, and again the part that the service reports as missing.

        ``whole`` is given with the last chunk.  Return the answer that ends the upload, None while it goes on.  A failed
        request is tried ``max_attempts`` times, and again as often after each step forward.
        """
        failures, sent_bytes, most_bytes, asks = 0, 0, 0, False
        while True:
            try:
                if asks:
                    answer = await self._ask_how_far(session_url)
                else:
                    answer = await self._send_rest(session_url, view[sent_bytes:], start + sent_bytes, whole, body)
            except ConnectionFailedError as error:
                failed, asks = error.as_store_error("put", self._key), True
            else:
                if answer.status // 100 == 2:
                    return answer
                if answer.status in AGAIN:
                    failed, asks = self._refusal(answer), True
                else:
                    sent_bytes = self._kept_of(answer, start, len(view))
                    if sent_bytes == len(view) and whole is None:
                        return None
                    if sent_bytes > most_bytes:
                        failures, most_bytes, asks = 0, sent_bytes, False
                        continue
                    if asks:
                        asks = False
                        continue
                    reason = "the service does not take the whole of a chunk"
                    failed = StoreError(verb="put", key=self._key, reason=reason)
            failures += 1
            if failures >= self._settings.max_attempts:
                raise failed
            await self._requests.pause(failures)

    def _kept_of(self, answer: GcsAnswer, start: int, chunk_bytes: int) -> int:
        """Return how much the service has of the ``chunk_bytes`` from ``start`` on.

        Raises:
            StoreError: the upload cannot go on.
        """
        if answer.status in _SESSION_GONE:
            raise StoreError(verb="put", key=self._key, reason="the service has forgotten the upload")
        if answer.status != _RESUME:
            raise self._refusal(answer)
        kept_bytes = _kept_bytes(answer) - start
        if not 0 <= kept_bytes <= chunk_bytes:
            reason = f"the service has {kept_bytes + start} bytes of an upload whose bytes from {start} on are sent"
            raise StoreError(verb="put", key=self._key, reason=reason)
        return kept_bytes

    def _refusal(self, answer: GcsAnswer) -> StoreError:
        return gcs_error("put", self._key, answer.status, answer.body, is_conditional=self._writer is not None)

    async def _send_rest(
        self, session_url: str, view: memoryview, start: int, whole: PartFiller | None, body: ObjectBody
    ) -> GcsAnswer:
        total = "*" if whole is None else str(whole.size_bytes)
        of_it = f"{start}-{start + len(view) - 1}" if view else "*"
        headers = {"Content-Range": f"bytes {of_it}/{total}", "Content-Length": str(len(view))}
        if whole is not None:
            headers["X-Goog-Hash"] = f"crc32c={encode_crc32c(whole.crc32c)}"
        open_body = self._open_part(view, body)
        return await self._requests.once("put", self._key, "PUT", session_url, headers=headers, open_body=open_body)

    async def _ask_how_far(self, session_url: str) -> GcsAnswer:
        headers = {"Content-Range": "bytes */*", "Content-Length": "0"}
        return await self._requests.once("put", self._key, "PUT", session_url, headers=headers)

    async def _cancel(self, session_url: str) -> None:
        """End an upload that will not be finished.  Best effort: the service drops it after a week, and no listing shows it."""
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await self._requests.once("cancel the upload of", self._key, "DELETE", session_url)
        except (StoreError, ConnectionFailedError, TimeoutError) as error:
            _log.warning("store.upload.left_over", key=self._key, reason=str(error) or "no answer in time")

    async def _stored(self, answer: GcsAnswer, filler: PartFiller) -> StoredObject:
        """Return the object by the answer, or by the service's description when the answer is not the service's own.

        Raises:
            ObjectExistsError: the answer is not the service's own, and the object there is of another conditional put.
            StoreError: it is not what was sent; the object that the answer itself describes is removed, unless something newer
                is there.
        """
        try:
            document = read_document("put", self._key, answer.body)
            stored = stored_object("put", self._key, document)
        except StoreError:
            return await self._found(filler)
        if (stored.key, stored.size_bytes) == (self._key, filler.size_bytes) and stored.crc32c in (
            None,
            filler.crc32c,
        ):
            return stored
        await self._remove(document)
        raise StoreError(verb="put", key=self._key, reason=_NOT_AS_SENT)

    async def _found(self, filler: PartFiller) -> StoredObject:
        """Return the object, if it is what was sent.  It may be another put's, so nothing is removed."""
        document = await self._look()
        if self._writer is not None and not self._is_ours(document):
            raise ObjectExistsError(verb="put", key=self._key, reason="it exists already")
        stored = stored_object("put", self._key, document)
        if (stored.key, stored.size_bytes, stored.crc32c) != (self._key, filler.size_bytes, filler.crc32c):
            raise StoreError(verb="put", key=self._key, reason=f"the answer is not the service's, and {_NOT_AS_SENT}")
        return stored

    async def _may_be_ours(self, error: ObjectExistsError) -> StoredObject:
        """Return the object if it is ours: after a lost answer the request was sent again, and met what the first has stored.

        Raises:
            ObjectExistsError: ``error``, unless the object is of this very put.
        """
        document = await self._look()
        if not self._is_ours(document):
            raise error
        return stored_object("put", self._key, document)

    def _is_ours(self, document: dict[str, Any]) -> bool:
        """Return whether ``document`` names this very put, which must be a conditional one."""
        metadata = document.get("metadata")
        return self._writer is not None and isinstance(metadata, dict) and metadata.get(_WRITER) == self._writer

    async def _look(self) -> dict[str, Any]:
        try:
            answer = await self._requests.ask("head", self._key, "GET", self._urls.object(self._key, fields=FIELDS))
        except ObjectNotFoundError as error:
            raise StoreError(verb="put", key=self._key, reason="it was taken, and is not there") from error
        return read_document("put", self._key, answer.body)

    async def _remove(self, document: dict[str, Any]) -> None:
        """Remove the object that ``document``, the answer to this put, describes: none of another put or generation."""
        generation = document.get("generation")
        is_ours = document.get("name") == self._key and (self._writer is None or self._is_ours(document))
        if not generation or not is_ours:
            _log.warning("store.upload.left_over", key=self._key, reason="the answer does not say which object it is")
            return
        try:
            url = self._urls.object(self._key, ifGenerationMatch=str(generation))
            await self._requests.ask("delete", self._key, "DELETE", url)
        except StoreError as error:
            _log.warning("store.upload.left_over", key=self._key, reason=error.reason)

    def _description(self) -> dict[str, Any]:
        described: dict[str, Any] = {"name": self._key, "contentType": "application/octet-stream"}
        if self._settings.storage_class is not None:
            described["storageClass"] = self._settings.storage_class
        if self._writer is not None:
            described["metadata"] = {_WRITER: self._writer}
        return described

    def _open_part(self, view: memoryview, body: ObjectBody, *, head: bytes = b"", tail: bytes = b"") -> OpenBody:
        stall_s = self._settings.attempt_timeout_s

        @asynccontextmanager
        async def opened() -> AsyncIterator[AsyncIterator[bytes | memoryview]]:
            async with watched_part(view, grant=body.grant, stall_timeout_s=stall_s) as part:
                yield _framed(head, aiter(part), tail)

        return opened

    def _check_size(self, body: ObjectBody, filler: PartFiller) -> None:
        if body.size_bytes not in (None, filler.size_bytes):
            reason = f"{filler.size_bytes} bytes came instead of {body.size_bytes}"
            raise StoreError(verb="put", key=self._key, reason=reason)


async def _framed(head: bytes, part: AsyncIterator[memoryview], tail: bytes) -> AsyncIterator[bytes | memoryview]:
    if head:
        yield head
    async for piece in part:
        yield piece
    if tail:
        yield tail


def _is_at(endpoint_url: str, address: str) -> bool:
    """Return whether ``address`` has the scheme, host and port of ``endpoint_url``: only there may a token be sent."""
    try:
        return URL(address, encoded=True).origin() == URL(endpoint_url).origin()
    except ValueError:
        return False


def _kept_bytes(answer: GcsAnswer) -> int:
    """Return how many bytes of the upload the service has, by its header ``Range: bytes=0-41``; none without one."""
    last = answer.headers.get("Range", "").rpartition("-")[2]
    return int(last) + 1 if last.isdigit() else 0
