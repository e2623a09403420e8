"""Operations of an object store: one Protocol per verb (obspec's way), and :class:`Store`, which has them all.

What every kind of store does alike is here too: which keys it takes, those that mean the same object everywhere, and the probe
that finds a bad store at start.

Keys are ``/``-separated relative paths.  Every verb raises :class:`~tiersidecar.domain.errors.StoreError` (retriable) when
the store is away or refuses, and its subclasses where named.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.errors import LogDirError, StoreError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking, Clock, Ids

Buffer = bytes | bytearray | memoryview

Take = Callable[[memoryview], int]
"""Gets a piece of an object, and returns how many bytes of it, from its beginning, it has dealt with: the next piece begins
behind them.  0 ends the feeding.  It must not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as the store describes it.

    ``crc32c`` is the full-object CRC32C that the store itself computed or keeps, None where it has none.
    """

    key: str
    size_bytes: int
    modified_ms: int
    crc32c: int | None = None


_SLICE_BYTES = 1024 * 1024
"""Read and looked at in one go: it stays in the processor's cache between the two, and until it is written."""


def _unseen(position: int, part: memoryview) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """An open file whose bytes from ``byte_range`` are exactly the body, so that a store may read it where it needs them.

    ``look`` is shown all that is read, with its position in the file, and may raise; it must see the whole range in order,
    and again any part that is read again.
    """

    fileno: int
    path: str
    byte_range: ByteRange
    look: Callable[[int, memoryview], None] = _unseen

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from byte ``position`` of the file on; the count is short only at the end of the file.  Blocks.

        Raises:
            LogDirError: the disk fails; no fault of the store.
        """
        done = 0
        while done < len(buffer):
            part = buffer[done : done + _SLICE_BYTES]
            try:
                count = os.preadv(self.fileno, [part], position + done)
            except OSError as error:
                raise LogDirError(path=self.path, reason=str(error.strerror)) from error
            if count == 0:
                break
            self.look(position + done, part[:count])
            done += count
        return done


class ObjectBody(Protocol):
    """Bytes to be stored, in pieces.

    Pieces are asked for one at a time, in their order; one may be asked for again, and then has the same bytes.  The caller
    of :meth:`piece` owns the buffer until it asks for the next one.
    """

    @property
    def size_bytes(self) -> int | None:
        """Return the size of all pieces together; None while a compressing transform has not seen them all."""

    @property
    def piece_count(self) -> int: ...

    @property
    def source_file(self) -> SourceFile | None:
        """Return the file that is this body byte for byte, or None when it is transformed.  A store that reads it need not ask
        for pieces."""

    async def piece(self, index: int) -> Buffer:
        """Return piece ``index``, counted from 0."""

    async def grant(self, wanted_bytes: int) -> int:
        """Return how many of ``wanted_bytes`` the store may hand on now, to its disk or network: at least 1.

        A store asks before each slice that it writes or sends, and again when it sends one again.  Uploads are paced here, and
        their progress is seen here.
        """


@dataclass(frozen=True, slots=True)
class BytesBody:
    """A body that is in memory already: index blobs and manifests."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def piece_count(self) -> int:
        return 1

    @property
    def source_file(self) -> SourceFile | None:
        return None

    async def piece(self, index: int) -> Buffer:
        return self.data

    async def grant(self, wanted_bytes: int) -> int:
        return wanted_bytes


class PutObject(Protocol):
    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        """Store ``body`` under ``key``: durable, and visible whole or not at all, when this returns.

        Overwrites (S-194), unless ``if_absent``.  Cancelled or failed, it leaves nothing under ``key`` that was not
        there before, as far as the store can promise it.

        Raises:
            ObjectExistsError: ``if_absent`` and the key is taken.
        """


class FetchRange(Protocol):
    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        """Return exactly ``len(byte_range)`` bytes.

        Raises:
            ObjectNotFoundError: no such object.
            StoreError: also when the object is shorter than asked for.
        """

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        """Return a whole small object (manifest, index blob), of at most ``max_bytes``: no more is fetched of a larger one.

        ``max_bytes`` is the most that an object of this kind may have: any client with write access can put a larger one there.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectTooLargeError: it has more than ``max_bytes``.
        """


class FeedRange(Protocol):
    @property
    def is_local(self) -> bool:
        """Return whether objects are files here: the kernel keeps what was read, so a second cache would hold it twice."""

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        """Pass the bytes of ``byte_range`` to ``take``, piece by piece in their order, until it returns 0.

        Where the store ``is_local``, a piece has 4 MiB at most, and ``take`` runs in the thread that reads, so that bytes are
        looked at while they are in the processor's cache; it may keep the pieces.  Elsewhere all bytes may come as one piece.

        Raises:
            ObjectNotFoundError: no such object.
            StoreError: also when the object is shorter than asked for; what came before has been handed over.
        """


class FeedWithRests(Protocol):
    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        """Pass the bytes like :meth:`FeedRange.feed_range`, for a caller that is in no hurry: where the store ``is_local``, it
        is read in short turns with rests between them, so that no thread of the broker waits long for its core.  ``take`` must
        not keep the pieces, and ends the feeding if it has not dealt with all of one.

        Raises:
            As :meth:`FeedRange.feed_range`.
        """


class ReadStore(FetchRange, FeedRange, Protocol):
    """The operations of a store that reading needs."""


class OwnerStore(PutObject, FetchRange, Protocol):
    """The operations of a store that claims need: a put that succeeds only on a free key, and reading what is there."""


class HeadObject(Protocol):
    async def head_object(self, key: str) -> StoredObject:
        """Return size, time and checksum.

        Raises:
            ObjectNotFoundError: no such object.
        """


class DeleteObjects(Protocol):
    async def delete_objects(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are absent already are no error (S-071).  All are tried before it raises."""


class ListObjects(Protocol):
    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        """Yield objects whose key begins with ``prefix`` and sorts after ``start_after``, ascending by key bytes."""


class Store(PutObject, FetchRange, FeedRange, FeedWithRests, HeadObject, DeleteObjects, ListObjects, Protocol):
    """An object store, opened and closed by the composition root."""

    @property
    def description(self) -> str:
        """Return the store's place, for the operator: ``filesystem /srv/tier`` or ``s3://bucket/prefix``; no secrets."""

    @property
    def max_name_bytes(self) -> int | None:
        """Return the longest part of a key between slashes, in bytes of UTF-8; None where only whole keys have a limit."""

    async def check_writable(self) -> None:
        """Write, read back and remove a probe object.

        Raises:
            StoreError: naming what failed, so that a bad store is reported at start and not at the first segment.
        """


ENTRY_POINTS = "tiersidecar.stores"

Options = Mapping[str, object]
"""The section ``options`` as the file has it: texts, numbers, booleans, lists, mappings; secrets are resolved, as texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTools:
    """``key_prefix`` begins all our keys, and is where :meth:`Store.check_writable` may write.  Files and other blocking calls
    go through ``blocking``."""

    key_prefix: str
    blocking: Blocking
    clock: Clock
    ids: Ids


class StoreKind(Protocol):
    def faults(self, options: Options) -> Iterable[tuple[str, str]]:
        """Return what is wrong with ``options``: the option, and a sentence that says what it must be.  No I/O."""

    def open_store(self, options: Options, tools: StoreTools) -> AbstractAsyncContextManager[Store]:
        """Yield the store, closed at the end.  One that is away does not fail here, but when it is used."""


MAX_KEY_BYTES = 1024
"""S3's limit, the shortest of the stores'."""
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")


def require_valid_key(verb: str, key: str) -> None:
    """Refuse a key that a file system would read as another place, or that S3 would refuse.

    Raises:
        StoreError: absolute, empty or dot segments, control characters, not UTF-8, or over 1024 bytes.
    """
    reason = _fault_of(key)
    if reason is not None:
        raise StoreError(verb=verb, key=key, reason=reason)


def _fault_of(key: str) -> str | None:
    if not key:
        return "an object key cannot be empty"
    segments = key.split("/")
    if "" in segments:
        return "an object key has no empty segments: no slash first, last, or next to another"
    if "." in segments or ".." in segments:
        return "an object key has no '.' or '..' segments"
    if _CONTROL_CHARACTERS.search(key):
        return "an object key has no control characters"
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "an object key is UTF-8"
    return (
        f"an object key has at most {MAX_KEY_BYTES} bytes, this one {size_bytes}"
        if size_bytes > MAX_KEY_BYTES
        else None
    )


PROBE_NAME = "tiersidecar-probe-"


async def probe_store(store: Store, *, ids: Ids, prefix: str) -> None:
    """Do each verb once on ``<prefix>tiersidecar-probe-<id>``; nothing stays behind.

    ``prefix`` is where our objects go (``key.prefix``): credentials may not be good for any other place.

    Raises:
        StoreError: of the verb that failed; also when the store returns other bytes than were written.
    """
    key = f"{prefix}{PROBE_NAME}{format_uuid(ids.random_uuid())}"
    try:
        await _write_and_find(store, key, ids.random_bytes(32))
    except BaseException:
        with suppress(StoreError):
            await store.delete_objects([key])
        raise
    await store.delete_objects([key])


async def _write_and_find(store: Store, key: str, data: bytes) -> None:
    await store.put_object(key, BytesBody(data))
    if await store.fetch_object(key, max_bytes=len(data)) != data:
        raise StoreError(verb="read back", key=key, reason="the store gave other bytes than were written")
    if [found.key async for found in store.list_objects(key)] != [key]:
        raise StoreError(verb="list", key=key, reason="an object just written is not listed")
