"""What a segment becomes in the store under each layout, and a store that says something else of it than what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.remote_events import fold, in_state
from tests.support.remote_runs import key_ring
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import SegmentChangedError, SegmentNotReadyError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.transforms import ENCRYPTION_OVERHEAD, IV_SIZE
from tiersidecar.ports.store import ObjectBody, StoredObject
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.segment_objects import LayoutSettings

CHUNK = 4000
PLAIN = LayoutSettings(chunk_size=CHUNK)
PACKED = LayoutSettings(chunk_size=CHUNK, compression=True)
SEALED = LayoutSettings(chunk_size=CHUNK, key_ring=key_ring())
BOTH = LayoutSettings(chunk_size=CHUNK, compression=True, key_ring=key_ring())


class Store(MemoryStore):
    """Says of each object that it stores what ``says`` makes of the truth; ``takes`` is how it asks for pieces."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock(), ids=SystemIds())
        self.says: Callable[[StoredObject], StoredObject] = lambda stored: stored
        self.takes: Callable[[ObjectBody], Any] | None = None

    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        if self.takes is not None and key.endswith(".log"):
            await self.takes(body)
        return self.says(await super().put_object(key, body, if_absent=if_absent))


@pytest.fixture
async def blocking() -> AsyncIterator[ThreadBlocking]:
    async with ThreadBlocking(max_threads=2) as threads:
        yield threads


async def opened(directory: Path, blocking: Any, layout: LayoutSettings, name: str = "plain-0") -> TierShell:
    """A sidecar that may copy the first two segments of a partition."""
    shell = TierShell(
        directory, blocking, layout, TopicPolicy(local_retention_bytes=0), store=Store(), partitions=[name]
    )
    await shell.look()
    topic_id_partition = shell.topic_id_partition(name)
    shell.broker.last_stable_offsets[topic_id_partition] = (
        shell.table.local.partitions[topic_id_partition].segments[2].base_offset
    )
    return shell


def topic_id_partition_of(shell: TierShell) -> TopicIdPartition:
    (topic_id_partition,) = shell.table.local.partitions
    return topic_id_partition


def finished(shell: TierShell) -> list[RemoteLogSegmentMetadata]:
    return in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)


def files(shell: TierShell) -> list[bytes]:
    return [
        Path(segment.log_path).read_bytes()
        for segment in shell.table.local.partitions[topic_id_partition_of(shell)].segments[:2]
    ]


async def objects(shell: TierShell) -> list[bytes]:
    """Of the two finished segments' .log."""
    return [
        await shell.store.fetch_object(recorded_keys(segment, "").in_upload_order[0], max_bytes=2**30)
        for segment in finished(shell)
    ]


LAYOUTS = [
    pytest.param(PLAIN, id="as it is"),
    pytest.param(PACKED, id="compressed"),
    pytest.param(SEALED, id="encrypted"),
    pytest.param(BOTH, id="compressed and encrypted"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_what_was_stored_is_read_back_as_the_very_batches(
    tmp_path: Path, blocking: ThreadBlocking, layout: LayoutSettings
) -> None:
    """Else nothing would be trimmed: each segment is read back whole before."""
    shell = await opened(tmp_path, blocking, layout)
    tiered = shell.tiered(topic_id_partition_of(shell))
    await shell.copy.run(tiered)
    await shell.trim.run(tiered)
    third = shell.table.local.partitions[topic_id_partition_of(shell)].segments[2]
    assert shell.broker.deleted == [(topic_id_partition_of(shell), third.base_offset)]


async def test_what_nothing_is_done_to_is_the_file(tmp_path: Path, blocking: ThreadBlocking) -> None:
    shell = await opened(tmp_path, blocking, PLAIN)
    await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    assert await objects(shell) == files(shell)


async def test_each_chunk_is_encrypted_with_an_iv_of_its_own(tmp_path: Path, blocking: ThreadBlocking) -> None:
    """The same IV twice under one key would give the plain bytes away."""
    shell = await opened(tmp_path, blocking, SEALED)
    await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    for stored, file in zip(await objects(shell), files(shell), strict=True):
        chunks = -(-len(file) // CHUNK)
        assert chunks == 4
        assert len(stored) == len(file) + chunks * ENCRYPTION_OVERHEAD
        step = CHUNK + ENCRYPTION_OVERHEAD
        assert len({stored[at : at + IV_SIZE] for at in range(0, len(stored), step)}) == chunks


async def test_two_segments_have_two_data_keys(tmp_path: Path, blocking: ThreadBlocking) -> None:
    shell = await opened(tmp_path, blocking, SEALED)
    await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    manifests = [
        await shell.store.fetch_object(recorded_keys(segment, "").in_upload_order[2], max_bytes=2**30)
        for segment in finished(shell)
    ]
    keys = {manifest[manifest.index(b"dataKey") :][:200] for manifest in manifests}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("name", "layout", "is_smaller"),
    [
        pytest.param("plain-0", PACKED, True, id="batches that are not"),
        pytest.param("plain-0", replace(PACKED, skip_compressed=True), True, id="also where compressed ones are left"),
        pytest.param("compressed-0", replace(PACKED, skip_compressed=True), False, id="but those that are"),
    ],
)
async def test_what_is_compressed(
    tmp_path: Path, blocking: ThreadBlocking, name: str, layout: LayoutSettings, is_smaller: bool
) -> None:
    shell = await opened(tmp_path, blocking, layout, name)
    await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    for stored, file in zip(await objects(shell), files(shell), strict=True):
        assert (len(stored) < len(file)) is is_smaller
        assert is_smaller or stored == file


async def twice(body: ObjectBody) -> None:
    """A connection breaks after two pieces: the store begins anew."""
    first = [bytes(await body.piece(index)) for index in (0, 1)]
    assert [bytes(await body.piece(index)) for index in (0, 1)] == first
    assert bytes(await body.piece(1)) == first[1], "one piece again"


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_store_that_begins_anew_gets_the_same_bytes(
    tmp_path: Path, blocking: ThreadBlocking, layout: LayoutSettings
) -> None:
    shell = await opened(tmp_path, blocking, layout)
    assert isinstance(shell.store, Store)
    shell.store.takes = twice
    tiered = shell.tiered(topic_id_partition_of(shell))
    await shell.copy.run(tiered)
    await shell.trim.run(tiered)
    assert len(shell.broker.deleted) == 1, "read back, they are the very batches"


async def by_itself(body: ObjectBody) -> None:
    """Reads the file where it needs it, and never asks for a piece."""
    source = body.source_file
    assert source is not None
    assert source.byte_range == ByteRange(0, body.size_bytes or 0)
    read = bytearray(source.byte_range.stop)
    assert source.read_into(0, memoryview(read)) == len(read)
    assert bytes(read) == Path(source.path).read_bytes()


async def nothing_to_read(body: ObjectBody) -> None:
    assert body.source_file is None, "the object is not the file"


@pytest.mark.parametrize(
    ("layout", "takes"),
    [
        pytest.param(PLAIN, by_itself, id="the file, as it is"),
        pytest.param(PACKED, nothing_to_read, id="not where it is compressed"),
        pytest.param(SEALED, nothing_to_read, id="nor where it is encrypted"),
    ],
)
async def test_what_a_store_may_read_by_itself(
    tmp_path: Path, blocking: ThreadBlocking, layout: LayoutSettings, takes: Callable[[ObjectBody], Any]
) -> None:
    shell = await opened(tmp_path, blocking, layout)
    assert isinstance(shell.store, Store)
    shell.store.takes = takes
    await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    assert len(finished(shell)) == 2


def shorter(ending: str) -> Callable[[StoredObject], StoredObject]:
    def says(stored: StoredObject) -> StoredObject:
        return replace(stored, size_bytes=stored.size_bytes - 1) if stored.key.endswith(ending) else stored

    return says


def other_bytes(stored: StoredObject) -> StoredObject:
    return replace(stored, crc32c=(stored.crc32c or 0) ^ 1)


def no_checksum(stored: StoredObject) -> StoredObject:
    return replace(stored, crc32c=None)


@pytest.mark.parametrize(
    ("layout", "says", "reason", "stored"),
    [
        pytest.param(
            PLAIN, shorter(".log"), "it has 14413 bytes instead of 14414", 1, id="a byte of the log is missing"
        ),
        pytest.param(SEALED, shorter(".log"), "it has 14525 bytes instead of 14526", 1, id="also of an encrypted one"),
        pytest.param(PACKED, shorter(".log"), r"it has \d+ bytes instead of \d+", 1, id="also of a compressed one"),
        pytest.param(PLAIN, shorter(".indexes"), r"it has \d+ bytes instead of \d+", 2, id="a byte of the indexes"),
        pytest.param(PLAIN, shorter(".rsm-manifest"), r"it has \d+ bytes instead of \d+", 3, id="of the manifest"),
        pytest.param(PLAIN, other_bytes, r"CRC32C \w{8} instead of \w{8}", 1, id="other bytes than the file's"),
        pytest.param(SEALED, other_bytes, "", 6, id="what is encrypted has no checksum that we know"),
        pytest.param(PLAIN, no_checksum, "", 6, id="a store that keeps no checksums"),
    ],
)
async def test_what_the_store_says_of_an_object_is_compared(
    tmp_path: Path,
    blocking: ThreadBlocking,
    layout: LayoutSettings,
    says: Callable[[StoredObject], StoredObject],
    reason: str,
    stored: int,
) -> None:
    """``stored`` is how many objects there are then: the manifest, the mark of a whole segment, comes last."""
    shell = await opened(tmp_path, blocking, layout)
    assert isinstance(shell.store, Store)
    shell.store.says = says
    run = shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    if reason:
        with pytest.raises(StoreError, match=reason):
            await run
    else:
        await run
    assert len(finished(shell)) == (0 if reason else 2)
    assert len([one async for one in shell.store.list_objects()]) == stored


async def test_a_store_that_skips_a_chunk_has_not_stored_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = await opened(tmp_path, InlineBlocking(), PLAIN)
    assert isinstance(shell.store, Store)
    put = shell.store.put_object

    async def skipping(key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        if not key.endswith(".log"):
            return await put(key, body, if_absent=if_absent)
        for index in range(1, body.piece_count):
            await body.piece(index)
        return StoredObject(key=key, size_bytes=body.size_bytes or 0, modified_ms=0)

    monkeypatch.setattr(shell.store, "put_object", skipping)
    with pytest.raises(StoreError, match="did not take the chunks in their order"):
        await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))


async def test_the_places_where_a_copy_may_end_are_passed_in_their_order(tmp_path: Path) -> None:
    shell = await opened(tmp_path, InlineBlocking(), PLAIN)
    granted = list[int]()

    async def half() -> None:
        granted.append(len([name for name in shell.failpoints.passed if name == "copy.log.half"]))

    shell.failpoints.actions["copy.log.half"] = half
    await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    places = ["copy.log.half", "copy.log.stored", "copy.indexes.stored", "copy.manifest.stored"]
    assert [name for name in shell.failpoints.passed if name in places] == places * 2
    assert granted == [1, 2], "half is passed once in each"


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_copy_that_fails_leaves_nobody_reading_the_file(
    tmp_path: Path, blocking: ThreadBlocking, layout: LayoutSettings
) -> None:
    shell = await opened(tmp_path, blocking, layout)
    assert isinstance(shell.store, Store)

    async def breaks(body: ObjectBody) -> None:
        await body.piece(0)
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("read ahead ")]
        raise StoreError(verb="put", key="k", reason="connection reset")

    shell.store.takes = breaks
    with pytest.raises(StoreError, match="connection reset"):
        await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("read ahead ")]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_file_that_becomes_shorter_while_it_is_read_is_never_stored(
    tmp_path: Path, blocking: ThreadBlocking, layout: LayoutSettings
) -> None:
    shell = await opened(tmp_path, blocking, layout)
    assert isinstance(shell.store, Store)
    log = Path(shell.table.local.partitions[topic_id_partition_of(shell)].segments[0].log_path)

    async def cut(body: ObjectBody) -> None:
        await body.piece(0)
        log.write_bytes(log.read_bytes()[: CHUNK * 3])

    shell.store.takes = cut
    with pytest.raises((SegmentChangedError, SegmentNotReadyError)):
        await shell.copy.run(shell.tiered(topic_id_partition_of(shell)))
    assert [one async for one in shell.store.list_objects()] == []
    assert shell.state.partition_state(topic_id_partition_of(shell)).trim_offset == Offset(-1)
