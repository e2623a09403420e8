"""Marks: which leftovers were seen when, so that a later run deletes only what has been one all the while.

Each run that marks puts one object of JSON lines under ``<key.prefix>.tiersidecar/reconcile/marks/``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tiersidecar.domain.own_objects import MARKS
from tiersidecar.ports.store import BytesBody, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An object as it was when it was marked."""

    key: str
    size_bytes: int
    modified_ms: int
    marked_ms: int


async def read_marks(store: Store, key_prefix: str) -> dict[str, Mark]:
    """By key, the newest of each; a line that cannot be read marks nothing."""
    found: dict[str, Mark] = {}
    names = [stored.key async for stored in store.list_objects(f"{key_prefix}{MARKS}")]
    for name in names:
        for line in (await store.fetch_object(name)).splitlines():
            try:
                mark = Mark(**json.loads(line))
            except (TypeError, ValueError):
                continue
            if mark.key not in found or found[mark.key].marked_ms < mark.marked_ms:
                found[mark.key] = mark
    return found


async def put_marks(store: Store, key_prefix: str, marks: Sequence[Mark], *, name: str) -> None:
    """Marks of one run."""
    lines = "".join(json.dumps(asdict(mark), ensure_ascii=False) + "\n" for mark in marks)
    await store.put_object(f"{key_prefix}{MARKS}{name}.jsonl", BytesBody(lines.encode()))


async def drop_marks(store: Store, key_prefix: str, *, older_than_ms: int) -> None:
    """Remove marks so old that what they name is gone, or is marked anew."""
    old = [
        stored.key async for stored in store.list_objects(f"{key_prefix}{MARKS}") if stored.modified_ms < older_than_ms
    ]
    await store.delete_objects(old)
