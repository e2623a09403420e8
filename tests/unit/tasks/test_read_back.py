"""What is read back before a trim goes at the pace of uploads, on both sides (U14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tests.support.remote_events import fold
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.stores.wrapped_store import WrappedStore
from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import CorruptDataError, StoreError, TruncatedDataError
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.store import Store, StoredObject, Take
from tiersidecar.reading.segment_stream import Pace, SegmentStream
from tiersidecar.tasks.read_back import ReadBack, local_slice_bytes
from tiersidecar.tasks.segment_objects import LayoutSettings


class Scene:
    """One copied segment, what was read of it remotely, and a verifier with a pace of its own."""

    def __init__(self, shell: TierShell, clock: ManualClock) -> None:
        self.shell, self.clock, self.remote_bytes = shell, clock, 0
        self.keeps_bytes: int | None = None
        topic_id_partition = shell.topic_id_partition("plain-0")
        local = shell.table.local.partitions[topic_id_partition].segments[0]
        remote = [one for one in fold(shell.metadata.events) if one.topic_id_partition == topic_id_partition]
        self.step = TrimStep(local=local, remote=(remote[0],), reason="size", from_offset=Offset(0))
        self.spoils = False
        self.read_from(shell.store)

    def read_from(self, store: Store) -> None:
        self._stream = SegmentStream(store=store, blocking=self.shell.blocking, key_prefix="", key_ring=None)

    async def feed_log(
        self, metadata: RemoteLogSegmentMetadata, look: Callable[[memoryview], None], pace: Pace
    ) -> AsyncGenerator[int]:
        def look_at_what_there_is(part: memoryview) -> None:
            kept = part[: self.keeps_bytes - self.remote_bytes] if self.keeps_bytes is not None else part
            self.remote_bytes += len(kept)
            look(memoryview(bytes(len(kept))) if self.spoils else kept)

        async with aclosing(self._stream.feed_log(metadata, look_at_what_there_is, pace)) as parts:
            async for part_bytes in parts:
                yield part_bytes

    async def stored_checksum(self, metadata: RemoteLogSegmentMetadata) -> int | None:
        return await self._stream.stored_checksum(metadata)

    async def verify(self, *, trusts_checksums: bool = False) -> None:
        verifier = ReadBack(
            log_dirs=self.shell.log_dirs,
            remote=self,
            quota=self.shell.quota,
            pace=self.shell.pace,
            trusts_checksums=trusts_checksums,
        )
        await verifier.verify(self.step)


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    clock = ManualClock()
    shell = TierShell(tmp_path, InlineBlocking(), LayoutSettings(chunk_size=1024), TopicPolicy(), clock=clock)
    await shell.look()
    await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    return Scene(shell, clock)


async def test_a_read_back_is_no_burst(scene: Scene) -> None:
    size_bytes = scene.step.local.size_bytes
    scene.shell.pace.bytes_per_s = size_bytes // 4
    verifying = asyncio.create_task(scene.verify())
    await scene.clock.advance(1)
    assert 0 < scene.remote_bytes < size_bytes // 2
    await scene.clock.advance(2.5)
    assert not verifying.done(), "four seconds' worth of bytes"
    await scene.clock.advance(1)
    await settle()
    await verifying
    assert scene.remote_bytes == size_bytes


async def test_one_that_is_abandoned_leaves_no_file_open(scene: Scene) -> None:
    scene.shell.pace.bytes_per_s = scene.step.local.size_bytes // 4
    log_path = Path(scene.step.local.log_path)
    verifying = asyncio.create_task(scene.verify())
    await scene.clock.advance(1)
    assert log_path in open_files()
    verifying.cancel()
    await asyncio.wait([verifying])
    assert verifying.cancelled()
    assert log_path not in open_files()


async def test_a_remote_segment_that_ends_early_is_told(scene: Scene) -> None:
    scene.keeps_bytes = 1024
    with pytest.raises(TruncatedDataError):
        await scene.verify()


class LocalStore(WrappedStore):
    """The shell's, as one whose objects are files here; by which verb a .log was read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.verbs: list[str] = []

    is_local = True

    async def feed_range(self, key: str, byte_range: ByteRange, take: Take) -> None:
        self.verbs.append("at once")
        await super().feed_range(key, byte_range, take)

    async def feed_with_rests(self, key: str, byte_range: ByteRange, take: Take) -> None:
        self.verbs.append("with rests")
        await super().feed_with_rests(key, byte_range, take)


@pytest.mark.parametrize(
    ("is_limited", "verb"),
    [
        pytest.param(True, "with rests", id="a read-back under a rate rests: it is in no hurry (U14)"),
        pytest.param(False, "at once", id="one without a rate goes as fast as it can"),
    ],
)
async def test_whether_files_are_read_with_rests(scene: Scene, is_limited: bool, verb: str) -> None:
    store = LocalStore(scene.shell.store)
    scene.read_from(store)
    scene.shell.pace.bytes_per_s = 1000 * scene.step.local.size_bytes if is_limited else None
    await scene.verify()
    assert set(store.verbs) == {verb}
    assert scene.remote_bytes == scene.step.local.size_bytes


async def test_what_is_found_wrong_in_a_file_is_told_as_it_is(scene: Scene) -> None:
    scene.read_from(LocalStore(scene.shell.store))
    scene.shell.pace.bytes_per_s = 1000 * scene.step.local.size_bytes
    scene.spoils = True
    with pytest.raises(CorruptDataError):
        await scene.verify()


@pytest.mark.parametrize(
    ("rate", "slice_bytes"),
    [
        pytest.param(None, 256 * 1024, id="without a rate, what a core's cache holds"),
        pytest.param(1024, 256 * 1024, id="at a low rate, too"),
        pytest.param(16 * 2**20, 2**20, id="sixteen a second"),
        pytest.param(2**40, 4 * 2**20, id="a quota beyond all disks takes no memory: it was a segment of 1 GiB whole"),
    ],
)
def test_so_much_of_a_segment_is_in_memory(rate: int | None, slice_bytes: int) -> None:
    assert local_slice_bytes(rate) == slice_bytes


# -- verify.read.back: checksum


class SumsOf(WrappedStore):
    """The shell's store, which says ``crc32c`` and ``size_bytes`` of each .log, where they are given."""

    def __init__(self, store: Store, **said: int | None) -> None:
        super().__init__(store)
        self._said = said

    async def head_object(self, key: str) -> StoredObject:
        stored = await super().head_object(key)
        return replace(stored, **self._said) if key.endswith(".log") else stored  # type: ignore[arg-type]


async def test_the_stores_checksum_stands_for_its_bytes_where_it_may(scene: Scene) -> None:
    await scene.verify(trusts_checksums=True)
    assert scene.remote_bytes == 0
    await scene.verify()
    assert scene.remote_bytes == scene.step.local.size_bytes, "unless it may: then every byte is read"


@pytest.mark.parametrize(
    "crc32c",
    [
        pytest.param(None, id="the store keeps no checksum"),
        pytest.param(1, id="it keeps another one: which of both is wrong, the bytes tell"),
    ],
)
async def test_every_byte_is_read_where(scene: Scene, crc32c: int | None) -> None:
    scene.read_from(SumsOf(scene.shell.store, crc32c=crc32c))
    await scene.verify(trusts_checksums=True)
    assert scene.remote_bytes == scene.step.local.size_bytes


async def test_a_local_file_that_is_not_what_was_copied_is_found_by_its_checksum(scene: Scene) -> None:
    path = Path(scene.step.local.log_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptDataError):
        await scene.verify(trusts_checksums=True)


async def test_an_object_of_another_size_than_the_metadata_say_is_refused(scene: Scene) -> None:
    scene.read_from(SumsOf(scene.shell.store, size_bytes=17))
    with pytest.raises(CorruptDataError, match="it has 17 bytes"):
        await scene.verify(trusts_checksums=True)


async def test_a_segment_that_two_remote_ones_hold_is_read(scene: Scene) -> None:
    scene.step = replace(scene.step, remote=scene.step.remote * 2)
    with suppress(CorruptDataError):  # twice the same: only what is read of it counts here
        await scene.verify(trusts_checksums=True)
    assert scene.remote_bytes > 0


@pytest.mark.parametrize("kind", [".rsm-manifest", ".indexes"])
async def test_a_segment_without_its_companions_is_not_proven_by_a_checksum(scene: Scene, kind: str) -> None:
    keys = [stored.key async for stored in scene.shell.store.list_objects("") if stored.key.endswith(kind)]
    await scene.shell.store.delete_objects(keys)
    with pytest.raises(StoreError):
        await scene.verify(trusts_checksums=True)


async def test_a_compressed_segment_has_a_checksum_of_other_bytes(tmp_path: Path) -> None:
    settings = LayoutSettings(chunk_size=1024, compression=True)
    shell = TierShell(tmp_path, InlineBlocking(), settings, TopicPolicy(), clock=ManualClock())
    await shell.look()
    await shell.copy.run(shell.tiered(shell.topic_id_partition("plain-0")))
    scene = Scene(shell, ManualClock())
    await scene.verify(trusts_checksums=True)
    assert scene.remote_bytes == scene.step.local.size_bytes


def open_files() -> set[Path]:
    """What this process has open."""
    return {link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()}
