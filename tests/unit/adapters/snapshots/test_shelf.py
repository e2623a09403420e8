"""Snapshots in a store: what a deposed leader writes counts for nothing, and a damaged one has a predecessor."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import zstandard
from crc32c import crc32c

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.snapshots import codec
from tiersidecar.adapters.snapshots.codec import read_partition_snapshot, write_partition_snapshot
from tiersidecar.adapters.snapshots.shelf import StoreShelf, list_snapshots, read_latest, snapshot_key
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import CorruptDataError, ObjectExistsError, StoreError
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import Pause, PausedThing, PauseKind
from tiersidecar.domain.trash import SaidDelete, TrashEntry, TrashId, TrashKind
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion
from tiersidecar.ports.state_log import Hold, PartitionState, TopicState
from tiersidecar.ports.store import BytesBody, StoredObject

PREFIX, PLACE = "cluster/", (TOPIC_ID_PARTITION.topic_id, TOPIC_ID_PARTITION.partition)
ENTRY = TrashEntry(
    id=TrashId(generation=0, leader_epoch=LeaderEpoch(2), kind=TrashKind.USER, opened_ms=5),
    decided_ms=6,
    due_ms=7,
    up_to=Offset(10),
    by="alice",
)
FULL = PartitionSnapshot(
    cluster_id="ours",
    topic_id_partition=TOPIC_ID_PARTITION,
    version=SnapshotVersion(leader_epoch=LeaderEpoch(2), serial=1),
    written_ms=8,
    broker_id=1,
    incarnation="a/b",
    segments=(
        replace(remote_segment(0, 9, epochs=((0, 0), (2, 4))), custom_metadata=b"\x01", txn_index_empty=True),
        remote_segment(10, 19, epochs=((2, 4),)),
    ),
    highest_offsets={0: 3, 2: 19},
    state=PartitionState(
        remote_log_start_offset=Offset(4),
        remote_log_start_epoch=LeaderEpoch(2),
        user_deletes=(SaidDelete(leader_epoch=LeaderEpoch(2), offset=Offset(4)),),
        hold=Hold(serial=1, is_held=True, until=Offset(7)),
        kept=(ENTRY,),
    ),
    topic_state=TopicState(topic="orders", mode="strict", former_settings={"retention.ms": None}),
    trash=(ENTRY,),
    pauses=(Pause(thing=PausedThing(kind=PauseKind.DELETES), topic="(all)", since_ms=1, by="bob"),),
    settings={"key.prefix": PREFIX},
)


def version(epoch: int, serial: int) -> SnapshotVersion:
    return SnapshotVersion(leader_epoch=LeaderEpoch(epoch), serial=serial)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock(), ids=SystemIds())


async def latest(store: MemoryStore) -> tuple[PartitionSnapshot | None, list[str]]:
    keys = (await list_snapshots(store, PREFIX)).get(PLACE, [])
    return await read_latest(store, keys, PLACE, InlineBlocking())


def test_all_of_a_snapshot_is_read_back() -> None:
    assert read_partition_snapshot(write_partition_snapshot(FULL), where="x") == FULL


@pytest.mark.parametrize("position", [0, 40, 400, -30, -1])
def test_one_wrong_byte_is_noticed(position: int) -> None:
    data = bytearray(write_partition_snapshot(FULL))
    data[position] ^= 1
    with pytest.raises(CorruptDataError, match="checksum"):
        read_partition_snapshot(bytes(data), where="x")


def sealed(head: dict[str, object], rest: bytes) -> bytes:
    body = json.dumps(head).encode() + b"\n" + rest
    return body + crc32c(body).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "use the release that wrote it"),
        ({"format": "other"}, "not that of a snapshot"),
        ({"segments": 3}, "2 segments where its head says 3"),
        ({"segments": 1}, "more than 1 segments"),
        ({"segments": -1}, "-1 segments"),
        ({"segments": 500_001}, "500001 segments"),
        ({"records_bytes": 1 << 40}, "bytes of records"),
        ({"records_bytes": 2 * (4 + (1 << 16)) + 1}, "131081 bytes of records of 2 segments"),
        ({"written_ms": 1 << 63}, "more than 64 bits"),
        ({"records_bytes": 7}, "where its head says 7"),
        ({"topic_id": "x"}, "no snapshot"),
        ({"state": {"remote_log_start_offset": "4"}}, "remote_log_start_offset"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], reason: str) -> None:
    text, _, rest = write_partition_snapshot(FULL).partition(b"\n")
    with pytest.raises(CorruptDataError, match=reason):
        read_partition_snapshot(sealed({**json.loads(text), **change}, rest[:-4]), where="x")


def test_a_frame_that_says_that_it_is_larger_than_its_head_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    text, _, _ = write_partition_snapshot(FULL).partition(b"\n")
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 22))
    opened: list[object] = []
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda: opened.append(1))
    with pytest.raises(CorruptDataError, match="4194304 bytes where its head says"):
        read_partition_snapshot(sealed(json.loads(text), bomb), where="x")
    assert opened == []


@pytest.mark.parametrize("records", [b"\0\0", b"\0\0\0\x09x", b"\xff\xff\xff\xff"])
def test_records_that_are_cut_short_are_refused(records: bytes) -> None:
    text, _, _ = write_partition_snapshot(FULL).partition(b"\n")
    head = {**json.loads(text), "records_bytes": len(records)}
    with pytest.raises(CorruptDataError, match="no snapshot"):
        read_partition_snapshot(sealed(head, zstandard.ZstdCompressor().compress(records)), where="x")


def with_records(records: bytes, count: int) -> bytes:
    """A snapshot that has ``count`` segments, by what it says."""
    text, _, _ = write_partition_snapshot(FULL).partition(b"\n")
    head = {**json.loads(text), "segments": count, "records_bytes": len(records)}
    return sealed(head, zstandard.ZstdCompressor().compress(records))


def test_many_segments_are_read_back() -> None:
    """Records lie across the pieces that are opened."""
    segments = tuple(
        replace(remote_segment(10 * number, 10 * number + 9), custom_metadata=b"x" * (number % 200))
        for number in range(5000)
    )
    snapshot = replace(FULL, segments=segments)
    assert read_partition_snapshot(write_partition_snapshot(snapshot), where="x") == snapshot


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        pytest.param(bytes(200_000_000), "no snapshot|corrupt", id="empty records"),
        pytest.param(b"\0\x01\0\x01" + bytes(100_000_000), "a record of 65537 bytes", id="a large record"),
    ],
)
def test_what_opens_to_much_is_opened_piece_by_piece(records: bytes, reason: str) -> None:
    """A kilobyte in the bucket is a gigabyte in memory otherwise."""
    data = with_records(records, 4000)
    assert len(data) < 50_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match=reason):
            read_partition_snapshot(data, where="x")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(b'{"format":"' + b"x" * (8 << 20), "does not end within 8,388,608 bytes", id="many bytes"),
        pytest.param(b'{"format":[' + b"[]," * 200_000, "more than 400,000 values", id="many values"),
        pytest.param(b'{"format":' * 60_000, "not JSON", id="deeply nested"),
    ],
)
def test_a_head_is_bounded_before_it_is_parsed(text: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser holds the interpreter for as long as it takes, and 25 times its bytes."""
    body = text + b"\n"
    parsed: list[bytes] = []
    loads = json.loads

    def watched(said: bytes) -> object:
        parsed.append(said)
        return loads(said)

    monkeypatch.setattr(json, "loads", watched)
    with pytest.raises(CorruptDataError, match=reason):
        read_partition_snapshot(body + crc32c(body).to_bytes(4, "big"), where="x")
    assert parsed == ([text] if reason == "not JSON" else [])


def test_leader_epochs_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_partition_snapshot(FULL)
    monkeypatch.setattr(codec, "MOST_EPOCHS", 2)
    with pytest.raises(CorruptDataError, match="more than 2 leader epochs"):
        read_partition_snapshot(data, where="x")


@pytest.mark.parametrize(
    ("bound", "most"),
    [
        ("MOST_SEGMENTS", 1),
        ("MOST_EPOCHS", 2),
        ("MOST_HEAD_BYTES", 1000),
        ("MOST_HEAD_VALUES", 40),
        ("MOST_RECORD_BYTES", 50),
        ("MOST_RECORDS_BYTES", 100),
        ("MOST_SNAPSHOT_BYTES", 1000),
    ],
)
async def test_nothing_is_put_that_readers_refuse(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    data = write_partition_snapshot(FULL)
    monkeypatch.setattr(codec, bound, most)
    key = snapshot_key(PREFIX, TOPIC_ID_PARTITION, FULL.version)
    with pytest.raises(StoreError, match=f"could not put '{key}': .*: readers would refuse it"):
        await StoreShelf(store, PREFIX, InlineBlocking()).put(FULL)
    if bound != "MOST_SNAPSHOT_BYTES":  # which readers ask the store for
        with pytest.raises(CorruptDataError):
            read_partition_snapshot(data, where="x")
    monkeypatch.undo()
    await StoreShelf(store, PREFIX, InlineBlocking()).put(FULL)


async def test_the_last_two_are_kept_and_the_last_counts(store: MemoryStore) -> None:
    shelf = StoreShelf(store, PREFIX, InlineBlocking())
    assert await shelf.latest(TOPIC_ID_PARTITION) == (None, None)
    for serial in (1, 2, 3):
        await shelf.put(replace(FULL, version=version(2, serial)))
    assert await shelf.latest(TOPIC_ID_PARTITION) == (version(2, 3), replace(FULL, version=version(2, 3)))
    keys = (await list_snapshots(store, PREFIX))[PLACE]
    assert keys == [snapshot_key(PREFIX, TOPIC_ID_PARTITION, version(2, serial)) for serial in (3, 2)]


async def test_it_lists_once_in_a_leader_epoch(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[str] = []

    def list_objects(prefix: str) -> AsyncIterator[StoredObject]:
        listings.append(prefix)
        return MemoryStore.list_objects(store, prefix)

    monkeypatch.setattr(store, "list_objects", list_objects)
    shelf = StoreShelf(store, PREFIX, InlineBlocking())
    await shelf.latest(TOPIC_ID_PARTITION)
    for serial in range(1, 9):
        await shelf.put(replace(FULL, version=version(2, serial)))
    assert len(listings) == 2, "before the first, and after it"
    other = StoreShelf(store, PREFIX, InlineBlocking())
    for serial in range(1, 4):
        await other.put(replace(FULL, version=version(3, serial)))
    await shelf.latest(TOPIC_ID_PARTITION)
    await shelf.put(replace(FULL, version=version(4, 1)))
    keys = (await list_snapshots(store, PREFIX))[PLACE]
    assert keys == [snapshot_key(PREFIX, TOPIC_ID_PARTITION, one) for one in (version(4, 1), version(3, 3))]


async def test_a_deposed_leader_overwrites_nothing(store: MemoryStore) -> None:
    shelf = StoreShelf(store, PREFIX, InlineBlocking())
    await shelf.put(replace(FULL, version=version(10, 1), broker_id=2))
    await shelf.put(replace(FULL, version=version(9, 700), broker_id=1))
    found, faults = await latest(store)
    assert (found and found.broker_id, faults) == (2, [])
    with pytest.raises(ObjectExistsError):
        await shelf.put(replace(FULL, version=version(10, 1), broker_id=3))


async def test_a_damaged_one_is_named_and_the_one_before_counts(store: MemoryStore) -> None:
    shelf = StoreShelf(store, PREFIX, InlineBlocking())
    for serial in (1, 2):
        await shelf.put(replace(FULL, version=version(2, serial)))
    key = snapshot_key(PREFIX, TOPIC_ID_PARTITION, version(2, 2))
    await store.put_object(key, BytesBody(b"{}\n"))
    found, faults = await latest(store)
    assert found == replace(FULL, version=version(2, 1))
    assert [key in fault for fault in faults] == [True]


async def test_a_snapshot_under_the_key_of_another_is_refused(store: MemoryStore) -> None:
    key = snapshot_key(PREFIX, TOPIC_ID_PARTITION, version(5, 1))
    await store.put_object(key, BytesBody(write_partition_snapshot(FULL)))
    found, faults = await latest(store)
    assert found is None
    assert "it is a snapshot of" in faults[0]


async def test_what_else_lies_there_is_passed_over(store: MemoryStore) -> None:
    for name in ("x", "AAAA/0/1.snapshot", "!!!!!!!!!!!!!!!!!!!!!!/0/0000000001-0000000000000000001.snapshot"):
        await store.put_object(f"{PREFIX}.tiersidecar/snapshots/{name}", BytesBody(b""))
    assert await list_snapshots(store, PREFIX) == {}


def test_a_snapshot_whose_topic_is_a_path_is_no_snapshot() -> None:
    """What may write to the bucket could name files outside of a broker's log dirs (issue 21)."""
    forged = replace(FULL, topic_id_partition=replace(TOPIC_ID_PARTITION, topic="../../etc"), segments=())
    with pytest.raises(CorruptDataError, match="is not a topic name"):
        read_partition_snapshot(write_partition_snapshot(forged), where="key")
