"""Segments whose companions are missing or damaged are copied all the same, with companions made from the batches (U9)."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.remote_events import fold, in_state
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.domain.errors import SegmentNotReadyError, SegmentWithoutEpochError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.index_blob import IndexKind
from tiersidecar.formats.aiven.manifest import read_manifest
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_time_index, read_transaction_index
from tiersidecar.formats.kafka.producer_state import open_states, read_producer_snapshot
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.tasks.segment_objects import LayoutSettings


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[TierShell]:
    async with ThreadBlocking(max_threads=2) as blocking:
        shell = TierShell(
            tmp_path,
            blocking,
            LayoutSettings(),
            TopicPolicy(),
            clock=ManualClock(),
            partitions=("plain-0", "transactions-0"),
        )
        await shell.look()
        yield shell


def segment(shell: TierShell, name: str, number: int) -> tuple[TopicIdPartition, LocalSegment]:
    topic_id_partition = shell.topic_id_partition(name)
    return topic_id_partition, shell.table.local.partitions[topic_id_partition].segments[number]


def companion(segment: LocalSegment, kind: str) -> Path:
    offset = segment.next_base_offset if kind == "snapshot" else segment.base_offset
    return Path(segment.directory, f"{offset:020d}.{kind}")


async def stored(shell: TierShell, segment: LocalSegment, kind: IndexKind) -> bytes:
    """The artefact as it lies in the store."""
    keys = [one.key async for one in shell.store.list_objects() if f"/{segment.base_offset:020d}-" in one.key]
    manifest = read_manifest(
        await shell.store.fetch_object(next(key for key in keys if key.endswith("manifest")), max_bytes=2**30)
    )
    byte_range = manifest.indexes.range_of(kind)
    assert byte_range is not None
    blob = await shell.store.fetch_object(next(key for key in keys if key.endswith("indexes")), max_bytes=2**30)
    return blob[byte_range.start : byte_range.stop]


async def wait_for_it_in_vain(shell: TierShell, topic_id_partition: TopicIdPartition, what: str) -> None:
    clock = shell.clock
    assert isinstance(clock, ManualClock)
    for _ in range(2):
        with pytest.raises(SegmentNotReadyError, match=what):
            await shell.copy.run(shell.tiered(topic_id_partition))
        await clock.advance(30)
    assert [event for event in shell.metadata.events if event.state is not State.COPY_SEGMENT_FINISHED] == []


@pytest.mark.parametrize("damage", ["missing", "flipped bit"])
@pytest.mark.parametrize("earlier", ["with the earlier one", "with no snapshot at all"])
async def test_a_producer_snapshot_is_made_from_the_batches_after_a_minute(
    shell: TierShell, damage: str, earlier: str
) -> None:
    """U9, Aiven #649: producers that wrote before the segment are known only by the earlier snapshot."""
    topic_id_partition, first = segment(shell, "transactions-0", 0)
    snapshot = companion(first, "snapshot")
    expected = snapshot.read_bytes()
    if damage == "missing":
        snapshot.unlink()
    else:
        snapshot.write_bytes(expected[:-1] + bytes([expected[-1] ^ 1]))
    if earlier == "with no snapshot at all":
        for other in Path(first.directory).glob("*.snapshot"):
            other.unlink()
    await wait_for_it_in_vain(shell, topic_id_partition, "snapshot")
    with capture_logs() as logs:
        if earlier == "with no snapshot at all":
            with pytest.raises(SegmentNotReadyError):  # the next segment waits for its own
                await shell.copy.run(shell.tiered(topic_id_partition))
        else:
            await shell.copy.run(shell.tiered(topic_id_partition))
    rebuilt = await stored(shell, first, IndexKind.PRODUCER_SNAPSHOT)
    assert {*read_producer_snapshot(rebuilt)} == {*read_producer_snapshot(expected)}, "it is the first segment"
    [told] = [log for log in logs if log["event"] == "segment.artefacts.rebuilt"]
    assert told["artefacts"] == ["producer snapshot"]
    assert told["log_level"] == "warning"


async def test_a_snapshot_that_comes_in_time_is_taken_as_it_is(shell: TierShell) -> None:
    topic_id_partition, first = segment(shell, "transactions-0", 0)
    snapshot = companion(first, "snapshot")
    expected = snapshot.read_bytes()
    snapshot.unlink()
    with pytest.raises(SegmentNotReadyError, match="is not there"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    snapshot.write_bytes(expected)
    with capture_logs() as logs:
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert await stored(shell, first, IndexKind.PRODUCER_SNAPSHOT) == expected
    assert not [log for log in logs if log["event"] == "segment.artefacts.rebuilt"]


@pytest.mark.parametrize(
    ("kind", "index"),
    [("index", IndexKind.OFFSET), ("timeindex", IndexKind.TIMESTAMP), ("txnindex", IndexKind.TRANSACTION)],
)
async def test_an_index_that_fails_its_checks_is_made_anew_at_once(
    shell: TierShell, kind: str, index: IndexKind
) -> None:
    topic_id_partition, first = segment(shell, "transactions-0", 0)
    path = companion(first, kind)
    expected = path.read_bytes()
    path.write_bytes(expected[:-3])
    await shell.copy.run(shell.tiered(topic_id_partition))
    made = await stored(shell, first, index)
    if kind == "timeindex":  # the broker's entries follow its appends; the last one is what counts
        made, expected = made[-12:], expected[-12:]
    assert made == expected
    assert path.read_bytes() != expected, "the broker's own file is left alone (rule 2)"


async def test_a_time_index_that_ends_too_early_never_becomes_a_max_timestamp(shell: TierShell) -> None:
    """It passes its own checks; published, it would let the segment expire before its time."""
    topic_id_partition, first = segment(shell, "plain-0", 0)
    path = companion(first, "timeindex")
    expected = read_time_index(path.read_bytes(), base_offset=first.base_offset).timestamps_ms[-1]
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(SegmentNotReadyError, match="its time index says"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    await shell.copy.run(shell.tiered(topic_id_partition))
    finished = [one for one in fold(shell.metadata.events) if one.state is State.COPY_SEGMENT_FINISHED]
    assert finished[0].max_timestamp_ms == expected
    assert (await stored(shell, first, IndexKind.TIMESTAMP))[-12:-4] == expected.to_bytes(8, "big")


async def test_batches_of_another_history_are_not_copied(shell: TierShell) -> None:
    topic_id_partition, _ = segment(shell, "plain-0", 0)
    local = shell.table.local.partitions[topic_id_partition]
    epochs = tuple(EpochEntry(LeaderEpoch(epoch + 3), start) for epoch, start in local.leader_epochs)
    other = replace(local, leader_epochs=epochs)
    shell.table.local = replace(
        shell.table.local, partitions={**shell.table.local.partitions, topic_id_partition: other}
    )
    shell.table.assignment = {topic_id_partition: shell.tiered(topic_id_partition)}
    with pytest.raises(SegmentNotReadyError, match="leader epoch 0 from offset 0"):
        await shell.copy.run(shell.table.assignment[topic_id_partition])
    assert not [event for event in shell.metadata.events if event.state is State.COPY_SEGMENT_FINISHED]


def lose_producers(shell: TierShell, topic_id_partition: TopicIdPartition, number: int) -> None:
    """What a broker's files are whose log begins with this segment: as if no producer had written before."""
    snapshot: bytes | None = None
    for one in shell.table.local.partitions[topic_id_partition].segments[number:]:
        rebuilder = SegmentRebuilder(where=one.log_path, base_offset=one.base_offset, earlier_snapshot=snapshot)
        rebuilder.feed(Path(one.log_path).read_bytes())
        made = rebuilder.finish()
        Path(one.directory, f"{one.base_offset:020d}.txnindex").write_bytes(made.transaction_index or b"")
        snapshot = made.producer_snapshot
        if one.next_base_offset is not None:
            companion(one, "snapshot").write_bytes(snapshot)
    Path(
        one.directory, f"{shell.table.local.partitions[topic_id_partition].segments[number].base_offset:020d}.snapshot"
    ).unlink()


async def artefacts_of(
    shell: TierShell, topic_id_partition: TopicIdPartition
) -> list[tuple[bytes, set[tuple[int, int]]]]:
    """Transaction index, and what is open where it ends, of each segment that was copied."""
    found = []
    for one in in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED):
        index = (await shell.blobs.read_index_files(one)).transaction_index
        assert one.txn_index_empty == (not index)
        states = open_states(await shell.blobs.read_producer_snapshot(one))
        found.append((index, {(state.producer_id, state.current_transaction_first_offset) for state in states}))
    return found


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("restarted", [False, True])
async def test_transactions_that_the_broker_has_lost_are_read_off_the_batches(
    shell: TierShell, tmp_path: Path, number: int, restarted: bool
) -> None:
    """Rule 14: index, snapshot and the flag in the event are as if it had lost nothing, also where another sidecar goes on."""
    topic_id_partition, border = segment(shell, "transactions-0", number)
    whole = TierShell(
        tmp_path / "whole", shell.blocking, LayoutSettings(), TopicPolicy(), partitions=("plain-0", "transactions-0")
    )
    await whole.look()
    await whole.copy.run(whole.tiered(whole.topic_id_partition("transactions-0")))
    expected = await artefacts_of(whole, whole.topic_id_partition("transactions-0"))

    shell.broker.last_stable_offsets[topic_id_partition], stable = (
        border.base_offset,
        shell.broker.last_stable_offsets[topic_id_partition],
    )
    await shell.copy.run(shell.tiered(topic_id_partition))
    lose_producers(shell, topic_id_partition, number)
    shell.broker.last_stable_offsets[topic_id_partition] = stable
    if restarted:
        shell.uploader._carried = shell.carried()
    await shell.copy.run(shell.tiered(topic_id_partition))
    assert await artefacts_of(shell, topic_id_partition) == expected
    assert any(entry.first_offset < border.base_offset for entry in entries_of(expected[number:])), (
        "one crosses the border"
    )


def entries_of(artefacts: list[tuple[bytes, set[tuple[int, int]]]]) -> list[AbortedTransaction]:
    return [one for index, _ in artefacts for one in read_transaction_index(index, base_offset=Offset(0))]


async def test_segments_below_the_first_leader_epoch_halt_the_partition_until_the_log_starts_above(
    shell: TierShell,
) -> None:
    """Finding 6 of issue 16: a broker that was upgraded from before 0.11 has no epoch for what it had by then."""
    topic_id_partition, third = segment(shell, "plain-0", 2)
    begin_epochs_at(third)
    for old in shell.table.local.partitions[topic_id_partition].segments[:2]:
        write_epochs(old, -1)
    await shell.look()
    last_old = third.base_offset - 1
    with pytest.raises(SegmentWithoutEpochError, match=f"offsets 0 to {last_old} lie below the first leader epoch"):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert [one.key async for one in shell.store.list_objects()] == []
    assert shell.metadata.events == []
    assert shell.state.partition_state(topic_id_partition).remote_log_start_offset == -1
    assert "data from before Kafka 0.11" in shell.table.record(topic_id_partition).copy_held_back
    await shell.trim.run(shell.tiered(topic_id_partition))
    assert shell.broker.deleted == []

    shell.broker.log_starts[topic_id_partition] = third.base_offset
    await shell.copy.run(shell.tiered(topic_id_partition))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    assert min(one.start_offset for one in finished) == third.base_offset


def begin_epochs_at(segment: LocalSegment) -> None:
    """As the broker does at a DeleteRecords; its log start falls back when it is killed soon after."""
    Path(segment.directory, "leader-epoch-checkpoint").write_text(f"0\n1\n0 {segment.base_offset}\n")


def write_epochs(segment: LocalSegment, epoch: int) -> None:
    """Another leader epoch in the batches: no checksum covers it."""
    data = bytearray(Path(segment.log_path).read_bytes())
    position = 0
    while position < len(data):
        _, length = struct.unpack_from(">qi", data, position)
        struct.pack_into(">i", data, position + 12, epoch)
        position += 12 + length
    Path(segment.log_path).write_bytes(data)


async def test_epochs_that_the_brokers_file_has_dropped_are_taken_from_the_batches(shell: TierShell) -> None:
    """A broker killed between the epochs of a new log start, written at once, and the start itself, written once a minute."""
    topic_id_partition, third = segment(shell, "plain-0", 2)
    begin_epochs_at(third)
    await shell.look()
    with capture_logs() as told:
        await shell.copy.run(shell.tiered(topic_id_partition))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    local = shell.table.local.partitions[topic_id_partition]
    assert [one.start_offset for one in finished] == [one.base_offset for one in local.sealed_segments]
    assert finished[0].segment_leader_epochs == (EpochEntry(LeaderEpoch(0), Offset(0)),)
    assert [one["leader_epochs"] for one in told if one["event"] == "leader_epochs.from_batches"] == [[0]]
    assert shell.table.record(topic_id_partition).copy_held_back == ""


async def test_of_several_epochs_each_is_taken_from_the_batches(shell: TierShell) -> None:
    """Up to the one that the file begins with: the walk ends there."""
    topic_id_partition, third = segment(shell, "plain-0", 2)
    first, second = shell.table.local.partitions[topic_id_partition].segments[:2]
    write_epochs(first, 3)
    write_epochs(second, 5)
    for later in shell.table.local.partitions[topic_id_partition].segments[2:]:
        write_epochs(later, 7)
    Path(third.directory, "leader-epoch-checkpoint").write_text(f"0\n1\n7 {third.base_offset}\n")
    await shell.look()
    await shell.copy.run(shell.tiered(topic_id_partition))
    finished = in_state(fold(shell.metadata.events), State.COPY_SEGMENT_FINISHED)
    assert [one.segment_leader_epochs for one in finished[:3]] == [
        ((3, first.base_offset),),
        ((5, second.base_offset),),
        ((7, third.base_offset),),
    ]


@pytest.mark.parametrize(
    "epochs", [pytest.param((5, 3), id="they fall"), pytest.param((3, 9), id="above the file's first")]
)
async def test_epochs_that_no_broker_writes_are_not_believed(shell: TierShell, epochs: tuple[int, int]) -> None:
    topic_id_partition, third = segment(shell, "plain-0", 2)
    for old, epoch in zip(shell.table.local.partitions[topic_id_partition].segments[:2], epochs, strict=True):
        write_epochs(old, epoch)
    Path(third.directory, "leader-epoch-checkpoint").write_text(f"0\n1\n7 {third.base_offset}\n")
    await shell.look()
    with pytest.raises(SegmentWithoutEpochError):
        await shell.copy.run(shell.tiered(topic_id_partition))
    assert shell.metadata.events == []
