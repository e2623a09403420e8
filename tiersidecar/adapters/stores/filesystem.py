"""Objects as files: the embedded default store, in the layout of the plugin's FileSystemStorage (root directory + key)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.short_turns import short_turns
from tiersidecar.adapters.stores.directory_listing import KeyInterval, list_directory
from tiersidecar.adapters.stores.plain_files import (
    RootIsAwayError,
    open_plain_file,
    plain_file_status,
    require_directory,
)
from tiersidecar.adapters.stores.temporary_file import (
    SLICE_BYTES,
    ObjectModes,
    TemporaryFile,
    remove_empty_directories,
    sweep,
    sync_directories,
)
from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.store import ObjectBody, SourceFile, StoredObject, Take, probe_store, require_valid_key

TEMPORARY_DIRECTORY = ".tiersidecar-tmp"
STALE_TEMPORARY_MS = 24 * 60 * 60 * 1000
_SWEEP_S = 5.0
"""How long the opening of a store waits for its sweep, which goes on behind it."""

T = TypeVar("T")

_PIECE_BYTES = 4 * 1024 * 1024
"""Handed over at once, and in memory once more while the receiver keeps it."""

_MAX_NAME_BYTES = 255
"""NAME_MAX of Linux's file systems."""

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""A path that is no file of ours: its key names no object."""

_MOUNT_IS_AWAY = frozenset(
    {
        errno.ENOTCONN,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
    }
)
"""Errors of network and FUSE mounts for any request; EIO is usually about one file."""

_log = structlog.get_logger(__name__)


class FilesystemStore:
    """Files below ``root``, which must exist: if it were made here, a directory on the root disk would replace a volume that
    failed to mount.

    A put writes a file in ``<root>/.tiersidecar-tmp``, syncs it, renames it and syncs the directories.  So everything
    below the root is one file system.  No object can have the name of a directory that another's key needs, nor a
    segment between slashes more than 255 bytes: a topic of over 232 characters is refused.

    ``crc32c`` of what it returns is always None.  A file system keeps no checksum, and a sum over the bytes that we just
    handed to write(2) would say nothing about the disk.  A caller that wants to know reads back, which reads the disk since a
    put drops its pages from the page cache.

    The rename is the commit: a put cancelled before it leaves nothing, one cancelled while it runs may have stored.

    Only plain files are objects: links, which could lead out of the store, and named pipes are refused and never listed.
    Directories may be links.

    A body with a ``source_file`` is read in the thread that writes: its pieces are never asked for.
    """

    def __init__(
        self, *, root: str, blocking: Blocking, ids: Ids, probe_prefix: str = "", modes: ObjectModes | None = None
    ) -> None:
        self._root, self._modes = Path(root), modes or ObjectModes()
        self._blocking, self._ids, self._probe_prefix = blocking, ids, probe_prefix

    @property
    def description(self) -> str:
        return f"filesystem {self._root}"

    @property
    def max_name_bytes(self) -> int | None:
        return _MAX_NAME_BYTES

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        target = self._path("put", key)
        with _translated("put", key):
            name = format_uuid(self._ids.random_uuid())
            temporary = TemporaryFile(directory=self._root / TEMPORARY_DIRECTORY, name=name, modes=self._modes)
            try:
                status = await self._write(key, body, temporary)
                publish = temporary.link_to if if_absent else temporary.rename_to
                await self._blocking.run(publish, target, self._root)
            except FileExistsError as error:
                await self._blocking.run(temporary.discard)
                raise ObjectExistsError(verb="put", key=key, reason="it exists already") from error
            except BaseException:
                with suppress(OSError):
                    await self._blocking.run(temporary.discard)
                raise
        return _stored_object(key, status)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
        data = await self._look("fetch", key, _read_range, byte_range.start, len(byte_range))
        if len(data) != len(byte_range):
            asked = f"{byte_range.stop - byte_range.start} bytes from byte {byte_range.start}"
            raise StoreError(verb="fetch", key=key, reason=f"it holds only {len(data)} of the {asked}")
        return data

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        data = await self._look("fetch", key, _read_range, 0, max_bytes + 1)
        if len(data) > max_bytes:
            raise ObjectTooLargeError(key=key, max_bytes=max_bytes)
        return data

    @property
    def is_local(self) -> bool:
        return True

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._feed(_feed_range, key, byte_range, take)

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self._feed(_feed_with_rests, key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        return _stored_object(key, await self._look("head", key, plain_file_status))

    async def delete_objects(self, keys: Sequence[str]) -> None:
        paths: dict[str, Path] = {}
        faults: list[StoreError] = []
        for key in keys:
            try:
                paths[key] = self._path("delete", key)
            except StoreError as fault:
                faults.append(fault)
        with _translated("delete", ", ".join(keys[:3])):
            failed = await self._blocking.run(_remove_files, paths, self._root)
        faults += [StoreError(verb="delete", key=key, reason=explain_os_error(error)) for key, error in failed]
        if faults:
            raise faults[0]

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        interval = KeyInterval(prefix.encode(), start_after.encode())
        with _translated("list", prefix):
            async for stored in list_directory(
                self._root, interval, hidden=TEMPORARY_DIRECTORY, blocking=self._blocking
            ):
                yield stored

    async def check_writable(self) -> None:
        with _translated("use", str(self._root)):
            await self._blocking.run(os.listdir, self._root)
        await probe_store(self, ids=self._ids, prefix=self._probe_prefix)

    async def sweep_stale(self, *, older_than_ms: int) -> int:
        """Remove what puts of dead processes left, last written before ``older_than_ms``; return how many files."""
        with _translated("sweep", TEMPORARY_DIRECTORY):
            return await self._blocking.run(sweep, self._root / TEMPORARY_DIRECTORY, older_than_ms)

    async def _write(self, key: str, body: ObjectBody, temporary: TemporaryFile) -> os.stat_result:
        await self._blocking.run(temporary.open, body.size_bytes)
        if body.source_file is not None:
            await self._copy(body, body.source_file, temporary)
        else:
            await self._append(body, temporary)
        if body.size_bytes not in (None, temporary.written_bytes):
            came = f"{temporary.written_bytes} bytes came instead of {body.size_bytes}"
            raise StoreError(verb="put", key=key, reason=came)
        return await self._blocking.run(temporary.make_durable)

    async def _feed(self, feed: Callable[..., int], key: str, byte_range: ByteRange, take: Take) -> None:
        missing = await self._look("fetch", key, feed, byte_range, take)
        if missing:
            asked = f"{len(byte_range)} bytes from byte {byte_range.start}"
            raise StoreError(verb="fetch", key=key, reason=f"it ends {missing} bytes before the end of the {asked}")

    async def _copy(self, body: ObjectBody, source: SourceFile, temporary: TemporaryFile) -> None:
        copy: Callable[[SourceFile, int], None] = temporary.copy_slice
        size_bytes = len(source.byte_range)
        while temporary.written_bytes < size_bytes:
            wanted = min(size_bytes - temporary.written_bytes, SLICE_BYTES)
            count = await body.grant(wanted)
            if count < wanted:  # an upload that may not have all of it is in no hurry
                copy = temporary.copy_with_rests
                temporary.take_small_steps()
            await self._blocking.run(copy, source, count)

    async def _append(self, body: ObjectBody, temporary: TemporaryFile) -> None:
        for index in range(body.piece_count):
            rest = memoryview(await body.piece(index)).cast("B")
            while rest:
                count = await body.grant(len(rest))
                if count < len(rest):
                    temporary.take_small_steps()
                await self._blocking.run(temporary.write, rest[:count])
                rest = rest[count:]

    async def _look(self, verb: str, key: str, look: Callable[..., T], *args: object) -> T:
        """Do ``look(path, *args)``; a missing file is a missing object, but only while the root is there."""
        path = self._path(verb, key)
        with _translated(verb, key):
            try:
                return await self._blocking.run(look, path, *args)
            except _ABSENT as error:
                await self._blocking.run(require_directory, self._root)
                raise ObjectNotFoundError(verb=verb, key=key, reason="no such object") from error

    def _path(self, verb: str, key: str) -> Path:
        require_valid_key(verb, key)
        if key.split("/", 1)[0] == TEMPORARY_DIRECTORY:
            raise StoreError(verb=verb, key=key, reason=f"{TEMPORARY_DIRECTORY} is for files that are being written")
        return self._root / key


@asynccontextmanager
async def open_filesystem_store(
    *,
    root: str,
    blocking: Blocking,
    clock: Clock,
    ids: Ids,
    probe_prefix: str = "",
    stale_temporary_ms: int = STALE_TEMPORARY_MS,
    modes: ObjectModes | None = None,
) -> AsyncIterator[FilesystemStore]:
    """Yield the store, without files that dead processes left half written ``stale_temporary_ms`` ago or longer (a younger
    file may be a put of another sidecar on a shared mount).

    ``probe_prefix`` is where :meth:`FilesystemStore.check_writable` writes: our ``key.prefix``.  ``modes`` are those of new
    objects and directories; by default their owner and group may read them.
    """
    store = FilesystemStore(root=root, blocking=blocking, ids=ids, probe_prefix=probe_prefix, modes=modes)
    sweeping = asyncio.create_task(_sweep(store, clock.now_ms() - stale_temporary_ms), name=f"sweep of {root}")
    try:
        # Only to have it done where it is quick: a mount that hangs must not keep the stores of other places from opening.
        await asyncio.wait((sweeping,), timeout=_SWEEP_S)
        yield store
    finally:
        sweeping.cancel()


async def _sweep(store: FilesystemStore, older_than_ms: int) -> None:
    try:
        swept = await store.sweep_stale(older_than_ms=older_than_ms)
    except StoreError as error:  # check_writable reports what is wrong with a store
        _log.warning("store.sweep.failed", store=store.description, reason=error.reason)
    else:
        if swept:
            _log.info("store.sweep.finished", store=store.description, files=swept)


@contextmanager
def _translated(verb: str, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_away = isinstance(error, RootIsAwayError) or error.errno in _MOUNT_IS_AWAY
        raise StoreError(verb=verb, key=key, reason=explain_os_error(error), is_away=is_away) from error


def _read_range(path: Path, start: int, count: int) -> bytes:
    """Return up to ``count`` bytes; fewer only where the file ends."""
    with open_plain_file(path) as (fileno, size_bytes):
        count = min(count, max(size_bytes - start, 0))  # pread allocates what it is asked for
        data = os.pread(fileno, count, start)
        while len(data) < count and (more := os.pread(fileno, count - len(data), start + len(data))):
            data += more  # one pread moves 2 GiB at most
        return data


def _feed_range(path: Path, byte_range: ByteRange, take: Take) -> int:
    """Hand over the range; return how many bytes the file is short of it."""
    with open_plain_file(path) as (fileno, _):
        os.posix_fadvise(fileno, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # twice the usual read-ahead
        position = byte_range.start
        while position < byte_range.stop:
            piece = os.pread(fileno, min(_PIECE_BYTES, byte_range.stop - position), position)
            if not piece:
                return byte_range.stop - position
            taken_bytes = take(memoryview(piece))
            if not taken_bytes:
                break
            position += taken_bytes
        return 0


def _feed_with_rests(path: Path, byte_range: ByteRange, take: Take) -> int:
    """Hand over the range like :func:`_feed_range`, in short turns; all pieces are of one buffer."""
    with open_plain_file(path) as (fileno, _):
        buffer = memoryview(bytearray())
        for position, count in short_turns(fileno, byte_range.start, byte_range.stop):
            buffer = buffer if len(buffer) >= count else memoryview(bytearray(count))
            done = 0
            while done < count:
                came = os.preadv(fileno, [buffer[done:count]], position + done)
                if not came:
                    return byte_range.stop - position - done
                done += came
            if take(buffer[:count]) < count:
                break
        return 0


def _remove_files(paths: Mapping[str, Path], root: Path) -> list[tuple[str, OSError]]:
    """Unlink each path and the directories that this empties; return keys that failed, with their errors.

    Raises:
        OSError: the root is not there: objects on a volume that is not mounted are not deleted.
    """
    failed: list[tuple[str, OSError]] = []
    for key, path in paths.items():
        try:
            with suppress(*_ABSENT):
                path.unlink()
        except OSError as error:
            failed.append((key, error))
    require_directory(root)  # after them: a file counts as absent only while the root is there
    for directory, key in {path.parent: key for key, path in paths.items()}.items():
        try:
            remove_empty_directories(directory, root=root)
            sync_directories(directory, root=root)
        except OSError as error:
            failed.append((key, error))
    return failed


def _stored_object(key: str, status: os.stat_result) -> StoredObject:
    return StoredObject(key=key, size_bytes=status.st_size, modified_ms=status.st_mtime_ns // 1_000_000)
