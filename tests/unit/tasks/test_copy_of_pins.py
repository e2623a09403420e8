"""Copying what the broker has deleted: real segments, real links (S-049)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.recopy_requests import always_wanted
from tests.support.remote_events import fold, in_state
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.decide.cleanup import Removal
from tiersidecar.domain.errors import SegmentChangedError, SegmentNotReadyError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.tasks.segment_objects import LayoutSettings

PLACES = ["copy.started.published", "copy.log.stored", "copy.indexes.stored", "copy.manifest.stored"]


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[TierShell]:
    async with ThreadBlocking(max_threads=4) as blocking:
        shell = TierShell(
            tmp_path,
            blocking,
            LayoutSettings(),
            TopicPolicy(local_retention_bytes=0),
            partitions=("plain-0", "transactions-0", "epochs-0"),
        )
        await shell.look()
        yield shell


async def pin_all(shell: TierShell, topic_id_partition: TopicIdPartition) -> None:
    pins = FilesystemPins([str(shell.log_dir)], blocking=shell.blocking)
    assert await pins.prepare() == {}
    local = shell.table.local.partitions[topic_id_partition]
    for segment in local.sealed_segments:
        shell.table.pins.add(await pins.pin(local, segment))


async def delete_as_retention_does(shell: TierShell, topic_id_partition: TopicIdPartition, count: int) -> None:
    """The oldest ``count`` segments go, and so do the epochs below the new log start (``truncateFromStart``)."""
    local = shell.table.local.partitions[topic_id_partition]
    for segment in local.segments[:count]:
        for path in Path(local.directory).glob(f"{segment.base_offset:020d}.*"):
            path.unlink()
    log_start_offset = local.segments[count].base_offset
    epoch = [entry.epoch for entry in local.leader_epochs if entry.start_offset <= log_start_offset][-1]
    later = [entry for entry in local.leader_epochs if entry.start_offset > log_start_offset]
    lines = [(epoch, log_start_offset), *later]
    text = f"0\n{len(lines)}\n" + "".join(f"{line} {start}\n" for line, start in lines)
    Path(local.directory, "leader-epoch-checkpoint").write_text(text)
    await shell.look()


def finished(shell: TierShell) -> list[RemoteLogSegmentMetadata]:
    return in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)


@pytest.mark.parametrize("name", ["plain-0", "transactions-0", "epochs-0"])
async def test_what_the_broker_deleted_is_copied_from_its_pins(shell: TierShell, name: str) -> None:
    topic_id_partition = shell.topic_id_partition(name)
    bases = [segment.base_offset for segment in shell.table.local.partitions[topic_id_partition].segments]
    shell.broker.last_stable_offsets[topic_id_partition] = bases[-1]
    await pin_all(shell, topic_id_partition)
    await delete_as_retention_does(shell, topic_id_partition, len(bases) - 1)
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert [segment.start_offset for segment in finished(shell)] == bases[:-1]
    assert [segment.next_offset for segment in finished(shell)] == bases[1:]


async def test_pins_below_the_remote_log_start_are_not_copied_again(shell: TierShell) -> None:
    """Their remote copies have expired, or a user deleted them; the keeper has not dropped them yet."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    bases = [segment.base_offset for segment in shell.table.local.partitions[topic_id_partition].segments]
    shell.broker.last_stable_offsets[topic_id_partition] = bases[-1]
    await pin_all(shell, topic_id_partition)
    await delete_as_retention_does(shell, topic_id_partition, len(bases) - 1)
    start = PartitionState(remote_log_start_offset=Offset(bases[2]), remote_log_start_epoch=LeaderEpoch(0))
    await shell.state.publish_partition_state(topic_id_partition, start)
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert [segment.start_offset for segment in finished(shell)] == bases[2:-1]


async def test_it_is_the_same_as_a_copy_of_the_brokers_own_files(shell: TierShell, tmp_path: Path) -> None:
    """Epochs of every segment and their blobs included, though the broker has dropped them from its file."""
    topic_id_partition = shell.topic_id_partition("epochs-0")
    await pin_all(shell, topic_id_partition)
    local = shell.table.local.partitions[topic_id_partition]
    await delete_as_retention_does(shell, topic_id_partition, len(local.segments) - 1)
    await shell.copy.run(shell.tiered(topic_id_partition))
    other = TierShell(tmp_path / "other", shell.blocking, LayoutSettings(), TopicPolicy(), partitions=("epochs-0",))
    await other.look()
    await other.copy.run(other.tiered(topic_id_partition))
    assert len(finished(shell)) > 1
    for ours, theirs in zip(finished(shell), finished(other), strict=True):
        assert ours.segment_leader_epochs == theirs.segment_leader_epochs
        assert ours.segment_size_in_bytes == theirs.segment_size_in_bytes
    for suffix in (".log", ".indexes"):
        assert await objects(shell, suffix) == await objects(other, suffix)


async def objects(shell: TierShell, suffix: str) -> list[bytes]:
    keys = sorted([stored.key async for stored in shell.store.list_objects()])
    return [bytes(await shell.store.fetch_object(key, max_bytes=2**30)) for key in keys if key.endswith(suffix)]


async def test_a_hole_that_an_earlier_leader_left_is_filled(shell: TierShell) -> None:
    topic_id_partition = shell.topic_id_partition("plain-0")
    bases = [segment.base_offset for segment in shell.table.local.partitions[topic_id_partition].segments]
    await pin_all(shell, topic_id_partition)
    held = next(pin for pin in shell.table.pins if pin.base_offset == bases[0])
    for pin in tuple(shell.table.pins):
        shell.table.pins.remove(pin)
    await delete_as_retention_does(shell, topic_id_partition, 1)
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert [segment.start_offset for segment in finished(shell)] == bases[1:-1]
    shell.table.pins.add(held)
    await shell.copy.run(shell.tiered(topic_id_partition))
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert [segment.start_offset for segment in finished(shell)] == bases[:-1], "once"


async def test_a_hole_that_only_a_pin_holds_is_copied_once_where_the_recopy_lane_came_first(shell: TierShell) -> None:
    topic_id_partition = shell.topic_id_partition("plain-0")
    tiered, lineage = shell.tiered(topic_id_partition), await shell.lineages.lineage(topic_id_partition)
    await pin_all(shell, topic_id_partition)
    await shell.copy.run(tiered)
    hole = finished(shell)[0]
    await shell.remover.remove(Removal(metadata=hole, reason="a hole is wanted"))
    await delete_as_retention_does(shell, topic_id_partition, 1)
    local = shell.table.local_partition(topic_id_partition)
    assert local is not None
    held = local.segments[0]
    assert held.pinned
    before, late = len(shell.metadata.events), list[asyncio.Task[RemoteLogSegmentMetadata]]()

    async def copy_lane_begins() -> None:
        shell.failpoints.actions.clear()
        late.append(asyncio.create_task(shell.uploader.upload(tiered, held, lineage)))
        await asyncio.sleep(0)

    shell.failpoints.actions["copy.checked"] = copy_lane_begins
    await shell.uploader.upload_again(tiered, held, lineage, always_wanted)
    with pytest.raises(SegmentChangedError, match="a copy of it was finished meanwhile"):
        await late[0]
    begun = [event for event in shell.metadata.events[before:] if isinstance(event, RemoteLogSegmentMetadata)]
    assert [one.start_offset for one in begun] == [hole.start_offset], "one copy was begun"


@pytest.mark.parametrize("place", PLACES)
async def test_a_truncation_in_the_middle_of_a_copy_abandons_it(shell: TierShell, place: str) -> None:
    """The same inode: what cuts the broker's file cuts the pin."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    first = Path(shell.table.local.partitions[topic_id_partition].segments[0].log_path)
    broker_file = os.open(first, os.O_RDWR)  # as Kafka's FileChannel, which lives longer than the name
    await pin_all(shell, topic_id_partition)
    await delete_as_retention_does(shell, topic_id_partition, 2)

    async def truncate() -> None:
        os.ftruncate(broker_file, os.fstat(broker_file).st_size - 100)

    shell.failpoints.actions[place] = truncate
    try:
        with pytest.raises((SegmentChangedError, StoreError)):
            await shell.copy.run(shell.tiered(topic_id_partition))
    finally:
        os.close(broker_file)
    assert [event.state for event in shell.metadata.events] == [State.COPY_SEGMENT_STARTED]


@pytest.mark.parametrize("place", PLACES)
async def test_an_election_that_cut_the_pinned_range_abandons_the_copy(shell: TierShell, place: str) -> None:
    """The pin itself is whole: only the epochs tell."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    await pin_all(shell, topic_id_partition)
    await delete_as_retention_does(shell, topic_id_partition, 2)
    checkpoint = Path(shell.table.local.partitions[topic_id_partition].directory, "leader-epoch-checkpoint")

    async def elect() -> None:
        checkpoint.write_text("0\n2\n0 0\n9 20\n")

    shell.failpoints.actions[place] = elect
    with pytest.raises(SegmentChangedError, match="leader epochs changed"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert [event.state for event in shell.metadata.events] == [State.COPY_SEGMENT_STARTED]


async def test_a_pin_of_another_history_is_not_even_begun(shell: TierShell) -> None:
    """Before the follow lane has dropped it: its batches' epochs contradict the lineage."""
    topic_id_partition = shell.topic_id_partition("plain-0")
    await pin_all(shell, topic_id_partition)
    await delete_as_retention_does(shell, topic_id_partition, 2)
    checkpoint = Path(shell.table.local.partitions[topic_id_partition].directory, "leader-epoch-checkpoint")
    checkpoint.write_text("0\n2\n0 0\n9 20\n")
    await shell.look()
    with pytest.raises(SegmentNotReadyError, match="leader epoch 0"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert shell.metadata.events == []


async def test_a_pin_that_is_dropped_meanwhile_costs_a_retry_and_no_event(shell: TierShell) -> None:
    topic_id_partition = shell.topic_id_partition("plain-0")
    await pin_all(shell, topic_id_partition)
    await delete_as_retention_does(shell, topic_id_partition, 2)
    for pin in shell.table.pins.of(topic_id_partition):
        Path(pin.segment.log_path).unlink()
    with pytest.raises(SegmentChangedError, match="gone"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert shell.metadata.events == []
