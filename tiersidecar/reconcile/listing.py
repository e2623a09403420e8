"""List the store in ranges of keys that together leave nothing out, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, MutableMapping, Sequence

from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.ids import place_of
from tiersidecar.ports.store import ListObjects, StoredObject

_ROWS = 5000
_RANGES_AT_ONCE = 8


def ranges_between(prefixes: Iterable[str], bounds: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return ranges that cover every key under one of ``prefixes``, cut at ``bounds``: the prefix, the key after which
    to begin, and the last key ("" for none).  A prefix lists one place: an empty one covers no other's."""
    found: list[tuple[str, str, str]] = []
    kept: list[str] = []
    for prefix in sorted(set(prefixes)):
        if any(prefix.startswith(other) and place_of(prefix) == place_of(other) for other in kept):
            continue
        kept.append(prefix)
        inside = sorted({bound for bound in bounds if bound.startswith(prefix) and bound > prefix})
        for after, upto in zip(["", *inside], [*inside, ""], strict=True):
            found.append((prefix, after, upto))
    return found


async def list_ranges(
    store: ListObjects, ranges: Sequence[tuple[str, ...]], away: MutableMapping[str, str]
) -> AsyncGenerator[list[StoredObject], None]:
    """Yield the objects of all ``ranges``, some thousand at a time, in no order.

    A place besides the default one that stops answering is noted in ``away``, by the prefix of its ranges with the reason: what
    was yielded of it by then is not all that it has.

    Raises:
        StoreError: another range could not be listed to its end; then nothing more is yielded.
    """
    found: asyncio.Queue[list[StoredObject] | None] = asyncio.Queue(_RANGES_AT_ONCE)
    turn = asyncio.Semaphore(_RANGES_AT_ONCE)

    async def walk() -> None:
        async with asyncio.TaskGroup() as tasks:
            for prefix, after, upto in ranges:
                tasks.create_task(_list_range_of_place(store, (prefix, after, upto), found, turn, away))

    async def walk_to_the_end() -> None:
        try:
            await walk()
        finally:
            await found.put(None)

    walking = asyncio.create_task(walk_to_the_end())
    try:
        while (rows := await found.get()) is not None:
            yield rows
        try:
            await walking
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
    finally:
        walking.cancel()


async def _list_range_of_place(
    store: ListObjects,
    key_range: tuple[str, str, str],
    found: asyncio.Queue[list[StoredObject] | None],
    turn: asyncio.Semaphore,
    away: MutableMapping[str, str],
) -> None:
    prefix = key_range[0]
    async with turn:
        if prefix in away:
            return  # each of its ranges would wait as long
        try:
            await _list_range(store, key_range, found)
        except StoreError as error:
            if not error.is_away or not place_of(prefix):
                raise
            away[prefix] = error.reason


async def _list_range(
    store: ListObjects, key_range: tuple[str, str, str], found: asyncio.Queue[list[StoredObject] | None]
) -> None:
    prefix, after, upto = key_range
    rows: list[StoredObject] = []
    async for stored in store.list_objects(prefix, start_after=after):
        if upto and stored.key > upto:
            break
        rows.append(stored)
        if len(rows) == _ROWS:
            await found.put(rows)
            rows = []
    if rows:
        await found.put(rows)
