"""Marks of repair: what anybody may have put beside them marks nothing, and what a run puts can be read."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.repair_look import Mark, put_marks, read_marks
from tiersidecar.domain.own_objects import MARKS, MOST_MARKS_BYTES
from tiersidecar.ports.store import BytesBody
from tiersidecar.testing.store_contract import keys_of

MARK = Mark(key="t/a", size_bytes=1, modified_ms=2, marked_ms=3)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock(), ids=SystemIds())


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("[" * 60_000, id="deeply nested"),
        pytest.param(json.dumps({**asdict(MARK), "key": ["t/a"]}), id="a key that is no text"),
        pytest.param(json.dumps({**asdict(MARK), "marked_ms": "9"}), id="a time that is no number"),
        pytest.param("{", id="no JSON"),
    ],
)
async def test_a_line_that_cannot_be_read_marks_nothing(store: MemoryStore, line: str) -> None:
    await put_marks(store, "p/", [MARK], name="1")
    await store.put_object(f"p/{MARKS}2.jsonl", BytesBody(line.encode()))
    assert await read_marks(store, "p/") == {"t/a": MARK}


async def test_an_object_that_is_too_large_marks_nothing_and_is_named(store: MemoryStore) -> None:
    await put_marks(store, "p/", [MARK], name="1")
    forged = json.dumps(asdict(replace(MARK, key="t/b"))).encode() + b"\n" * MOST_MARKS_BYTES
    await store.put_object(f"p/{MARKS}2.jsonl", BytesBody(forged))
    with capture_logs() as told:
        assert await read_marks(store, "p/") == {"t/a": MARK}
    assert [(one["event"], one["key"]) for one in told] == [("repair.marks.unreadable", f"p/{MARKS}2.jsonl")]


async def test_many_marks_are_put_in_objects_that_readers_take(store: MemoryStore) -> None:
    marks = [replace(MARK, key=f"t/{number}") for number in range(100)]
    await put_marks(store, "p/", marks, name="1", most_bytes=1000)
    sizes = [stored.size_bytes async for stored in store.list_objects("p/")]
    assert len(sizes) > 5
    assert max(sizes) <= 1000
    assert (await keys_of(store))[0] == f"p/{MARKS}1-1.jsonl"
    assert await read_marks(store, "p/") == {mark.key: mark for mark in marks}
