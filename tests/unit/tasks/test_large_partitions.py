"""A partition of very many remote segments: whoever looks at all of them does so in a thread, since a gateway may share the
loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.expiry_world import run
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tests.support.tier_shell import TierShell
from tests.unit.tasks.test_expire import TWO_OLD, sidecar, world_of
from tests.unit.tasks.test_topic_deletion import SAID, WITNESS, Cluster, Shell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.state_records import RecopyRequest
from tiersidecar.reading import lineage
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.copy_admission import copied_offset_of
from tiersidecar.tasks.segment_objects import LayoutSettings


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Who makes segments of pictures; to list them is an error."""
    found: list[threading.Thread] = []
    made: Callable[..., tuple[RemoteLogSegmentMetadata, ...]] = SegmentPicture.segments

    def segments(picture: SegmentPicture, from_offset: int = 0) -> tuple[RemoteLogSegmentMetadata, ...]:
        found.append(threading.current_thread())
        return made(picture, from_offset)

    def listed(*args: object) -> NoReturn:
        raise AssertionError("listed on the loop")

    monkeypatch.setattr(SegmentPicture, "segments", segments)
    monkeypatch.setattr(MemoryMetadataLog, "list_remote_log_segments", listed)
    return found


@pytest.mark.parametrize(("count", "in_a_thread"), [(256, False), (257, True)])
async def test_where_there_are_many_they_are_made_in_a_thread(
    makers: list[threading.Thread], count: int, *, in_a_thread: bool
) -> None:
    cache = RemoteLogMetadataCache(TOPIC_ID_PARTITION)
    for n in range(count):
        cache.apply(remote_segment(10 * n, 10 * n + 9, state=State.COPY_SEGMENT_STARTED))
    async with ThreadBlocking(max_threads=1) as blocking:
        made = await lineage.pictured_segments(cache.picture(), blocking, from_offset=10)
    assert [one.start_offset for one in made] == list(range(10, 10 * count, 10))
    assert (makers[0] is not threading.main_thread()) == in_a_thread


async def test_a_trim_makes_the_segments_in_a_thread_and_so_does_the_lineage(
    tmp_path: Path, makers: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "_MADE_ON_THE_LOOP", -1)
    async with ThreadBlocking(max_threads=2) as blocking:
        clock = ManualClock(now_ms=2_000_000_000_000)
        shell = TierShell(tmp_path, blocking, LayoutSettings(), TopicPolicy(local_retention_bytes=0), clock=clock)
        await shell.look()
        tiered = shell.tiered(shell.topic_id_partition("plain-0"))
        await shell.copy.run(tiered)
        await shell.trim.run(tiered)
    assert shell.broker.deleted
    assert len(makers) > 1
    assert threading.main_thread() not in makers


def test_an_expiry_lists_nothing_on_the_loop(makers: list[threading.Thread]) -> None:
    """2.4 s for 100,000 segments, every 30 s."""
    world = world_of(*TWO_OLD)
    run(sidecar(world).round())
    assert (world.start, len(makers)) == (200, 2)


def test_nor_does_the_deletion_of_a_topic(makers: list[threading.Thread]) -> None:
    world, cluster = world_of(*TWO_OLD), Cluster(TOPIC_ID_PARTITION, WITNESS)
    run(world.state.publish_partition_state(TOPIC_ID_PARTITION, SAID))
    shell = Shell(world, cluster)
    shell.topic_goes()
    cluster.existing.remove(TOPIC_ID_PARTITION)
    shell.sweep()
    shell.sweep(after_s=60)
    assert (world.store.keys, len(makers)) == (set(), 1)


@pytest.mark.parametrize("count", [256, 257])
async def test_how_far_is_copied_is_found_in_a_thread_where_an_election_has_cut_the_last_segment(
    makers: list[threading.Thread], count: int
) -> None:
    metadata = MemoryMetadataLog()
    await metadata.assign([TOPIC_ID_PARTITION])
    for n in range(count):
        segment = remote_segment(10 * n, 10 * n + 9, state=State.COPY_SEGMENT_STARTED)
        await metadata.publish(segment)
        await metadata.publish(_finished(segment))
    whole, cut = Lineage.of([(0, 0)]), Lineage.of([(0, 0), (1, 10 * count - 15)])
    async with ThreadBlocking(max_threads=1) as blocking:
        assert await copied_offset_of(metadata, TOPIC_ID_PARTITION, whole, blocking) == 10 * count - 1
        assert makers == [], "some look-ups do"
        assert await copied_offset_of(metadata, TOPIC_ID_PARTITION, cut, blocking) == 10 * count - 21
    assert [maker is threading.main_thread() for maker in makers] == [count == 256]


async def test_so_is_what_can_take_the_place_of_a_damaged_copy(
    tmp_path: Path, makers: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ThreadBlocking(max_threads=2) as blocking:
        shell = TierShell(tmp_path, blocking, LayoutSettings(), TopicPolicy(local_retention_bytes=0))
        await shell.look()
        shell.table.pins.unread = frozenset()
        topic_id_partition = shell.topic_id_partition("plain-0")
        await shell.copy.run(shell.tiered(topic_id_partition))
        victim = shell.metadata.picture(topic_id_partition).segments()[1]
        await shell.store.delete_objects([recorded_keys(victim).log])
        request = RecopyRequest(
            topic_id_partition=topic_id_partition,
            start_offset=victim.start_offset,
            end_offset=victim.end_offset,
            segment_uuid=victim.remote_log_segment_id.uuid,
            requested_ms=0,
        )
        await shell.state.request_recopy(request)
        await shell.look()
        makers.clear()
        monkeypatch.setattr(lineage, "_MADE_ON_THE_LOOP", -1)
        await shell.recopy.run(shell.tiered(topic_id_partition))
        assert not shell.state.recopies(topic_id_partition)
    assert makers
    assert threading.main_thread() not in makers


def _finished(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        state=State.COPY_SEGMENT_FINISHED,
    )
