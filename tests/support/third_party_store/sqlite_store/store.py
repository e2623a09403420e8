"""Objects in one SQLite file: option ``path``; ``passphrase`` is there to show that an option may be a secret."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import (
    ObjectBody,
    Options,
    Store,
    StoredObject,
    StoreTools,
    Take,
    probe_store,
    require_valid_key,
)

_PAGE = 100
_TABLE = "CREATE TABLE IF NOT EXISTS objects (key BLOB PRIMARY KEY, data BLOB NOT NULL, modified_ms INTEGER NOT NULL)"


class SqliteStore:
    def __init__(self, path: Path, tools: StoreTools) -> None:
        self._path, self._tools = path, tools
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._turn = threading.Lock()
        self._connection.execute(_TABLE)

    def close(self) -> None:
        self._connection.close()

    @property
    def description(self) -> str:
        return f"sqlite {self._path}"

    @property
    def max_name_bytes(self) -> int | None:
        return None

    @property
    def is_local(self) -> bool:
        return False

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        require_valid_key("put", key)
        data = bytearray()
        for index in range(body.piece_count):
            piece = memoryview(await body.piece(index)).cast("B")
            while piece:
                count = await body.grant(len(piece))
                data += piece[:count]
                piece = piece[count:]
        if body.size_bytes not in (None, len(data)):
            raise StoreError(verb="put", key=key, reason=f"{len(data)} bytes came instead of {body.size_bytes}")
        statement = f"INSERT OR {'IGNORE' if if_absent else 'REPLACE'} INTO objects VALUES (?, ?, ?)"
        modified_ms = self._tools.clock.now_ms()
        changed = await self._run(
            "put", key, lambda at: at.execute(statement, (key.encode(), data, modified_ms)).rowcount
        )
        if changed == 0:
            raise ObjectExistsError(verb="put", key=key, reason="it exists already")
        return StoredObject(key=key, size_bytes=len(data), modified_ms=modified_ms)

    async def fetch_range(self, key: str, byte_range: ByteRange) -> bytes:
        data = await self._data_of(key)
        if byte_range.stop > len(data):
            reason = f"it has {len(data)} bytes, byte {byte_range.stop - 1} was asked"
            raise StoreError(verb="fetch", key=key, reason=reason)
        return data[byte_range.start : byte_range.stop]

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        data = await self._data_of(key)
        if len(data) > max_bytes:
            raise ObjectTooLargeError(key=key, max_bytes=max_bytes)
        return data

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        take(memoryview(await self.fetch_range(key, byte_range)))

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        await self.feed_range(key, byte_range, take)

    async def head_object(self, key: str) -> StoredObject:
        size_bytes, modified_ms = await self._row("head", key, "length(data), modified_ms")
        return StoredObject(key=key, size_bytes=size_bytes, modified_ms=modified_ms)

    async def delete_objects(self, keys: Sequence[str]) -> None:
        named = [(key.encode(errors="replace"),) for key in keys]
        await self._run("delete", "", lambda at: at.executemany("DELETE FROM objects WHERE key = ?", named).rowcount)
        for key in keys:
            require_valid_key("delete", key)

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        wanted = "SELECT key, length(data), modified_ms FROM objects WHERE key > ? AND key >= ? ORDER BY key LIMIT ?"
        after = start_after.encode()
        while True:
            page = await self._run("list", prefix, partial(_all_of, wanted, (after, prefix.encode(), _PAGE)))
            for key, size_bytes, modified_ms in page:
                if not key.startswith(prefix.encode()):
                    return
                yield StoredObject(key=key.decode(), size_bytes=size_bytes, modified_ms=modified_ms)
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    async def check_writable(self) -> None:
        await probe_store(self, ids=self._tools.ids, prefix=self._tools.key_prefix)

    async def _data_of(self, key: str) -> bytes:
        data: bytes = (await self._row("fetch", key, "data"))[0]
        return data

    async def _row(self, verb: str, key: str, columns: str) -> tuple[Any, ...]:
        require_valid_key(verb, key)
        asked = f"SELECT {columns} FROM objects WHERE key = ?"
        row: tuple[Any, ...] | None = await self._run(
            verb, key, lambda at: at.execute(asked, (key.encode(),)).fetchone()
        )
        if row is None:
            raise ObjectNotFoundError(verb=verb, key=key, reason="no such object")
        return row

    async def _run(self, verb: str, key: str, statement: Callable[[sqlite3.Connection], Any]) -> Any:
        def in_turn() -> Any:
            with self._turn:
                return statement(self._connection)

        try:
            return await self._tools.blocking.run(in_turn)
        except sqlite3.Error as error:
            raise StoreError(verb=verb, key=key, reason=f"SQLite: {error}") from error


def _all_of(statement: str, asked: tuple[bytes, bytes, int], at: sqlite3.Connection) -> list[tuple[bytes, int, int]]:
    return at.execute(statement, asked).fetchall()


class SqliteKind:
    """The factory that the entry point names."""

    def faults(self, options: Options) -> Iterable[tuple[str, str]]:
        for option in options.keys() - {"path", "passphrase"}:
            yield option, "unknown option; there are path and passphrase"
        path = options.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            yield "path", f"expected an absolute path, got {path!r}"

    @asynccontextmanager
    async def open_store(self, options: Options, tools: StoreTools) -> AsyncIterator[Store]:
        store = SqliteStore(Path(str(options["path"])), tools)
        try:
            yield store
        finally:
            store.close()


kind = SqliteKind()
