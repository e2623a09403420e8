"""What a hand-over is decided on (issue 21): the leader's epoch file, read over the wire, and what Kafka's topic lacks.

The leader answers as ``LeaderEpochFileCache.endOffsetFor`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, STARTED, added, segment_id, updated
from tests.support.scripted import MemoryStateLog
from tests.unit.app.handover.test_run import seen
from tests.unit.decide.test_handover import Partition
from tests.unit.decide.test_native_tiering import copied
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.handover.look import _open_histories, leader_epochs_of
from tiersidecar.decide.native_events import gone_from, published_into
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView, MetadataEvent, RemoteLogSegmentMetadataUpdate
from tiersidecar.formats.aiven.keys import recorded_keys
from tiersidecar.ports.broker import EpochAsked, EpochEndAnswer
from tiersidecar.ports.state_log import PartitionState


class Leader:
    """Answers by an epoch file, in leader epoch ``current``."""

    def __init__(self, epochs: Sequence[tuple[int, int]], *, current: int, log_end: int = 100) -> None:
        self._epochs, self._current, self._log_end = dict(epochs), current, log_end
        self.asked = 0

    async def end_of_epochs(
        self, asked: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, EpochEndAnswer]:
        self.asked += 1
        return {partition: self._answer(question) for partition, question in asked.items()}

    def _answer(self, question: EpochAsked) -> EpochEndAnswer:
        if question.current_epoch != self._current:
            return EpochEndAnswer(epoch=NO_EPOCH, end_offset=NO_OFFSET, error="FENCED_LEADER_EPOCH")
        if question.epoch == max(self._epochs, default=-1):
            return EpochEndAnswer(epoch=question.epoch, end_offset=Offset(self._log_end))
        higher = min((epoch for epoch in self._epochs if epoch > question.epoch), default=None)
        if higher is None or question.epoch < 0:
            return EpochEndAnswer(epoch=NO_EPOCH, end_offset=NO_OFFSET)
        floor = max((epoch for epoch in self._epochs if epoch <= question.epoch), default=question.epoch)
        return EpochEndAnswer(epoch=LeaderEpoch(floor), end_offset=Offset(self._epochs[higher]))


def view(leader_epoch: int) -> LeaderView:
    broker = BrokerId(1)
    return LeaderView(
        topic_id_partition=ORDERS,
        leader_id=broker,
        leader_epoch=LeaderEpoch(leader_epoch),
        replicas=(broker,),
        in_sync_replicas=(broker,),
    )


ROWS = {
    "one epoch from the beginning": ([(0, 0)], 0, 0),
    "one epoch, cut by a trim": ([(0, 30)], 0, 30),
    "a later epoch, cut by a trim": ([(3, 30)], 3, 30),
    "several": ([(0, 0), (3, 20), (4, 50)], 4, 0),
    "several, cut by a trim": ([(3, 30), (7, 50)], 7, 30),
    "a log start within an epoch, whose entry is older": ([(3, 20), (7, 50)], 7, 30),
    "epochs without records between": ([(2, 0), (9, 40), (12, 90)], 12, 0),
    "the first epoch has begun before the log start": ([(0, 0), (1, 10)], 1, 5),
    "records without an epoch before the first": ([(5, 40)], 5, 0),
    "an epoch that has no record yet": ([(0, 0), (6, 100)], 6, 0),
    "no epoch": ([], 0, 0),
}


@pytest.mark.parametrize("sentence", ROWS)
async def test_the_leaders_epochs(sentence: str) -> None:
    epochs, current, log_start = ROWS[sentence]
    leader = Leader(epochs, current=current)
    found = await leader_epochs_of(leader, view(current), Offset(log_start))
    # Before epoch 0 there is none to ask about: it counts from the log start, as a broker's file has it.
    assert [tuple(entry) for entry in found] == [
        (epoch, start if epoch else max(start, log_start)) for epoch, start in epochs
    ]
    assert leader.asked <= len(epochs) + 2


async def test_another_leader_is_no_answer() -> None:
    with pytest.raises(BrokerRefusedError, match="FENCED_LEADER_EPOCH"):
        await leader_epochs_of(Leader([(0, 0)], current=5), view(4), Offset(0))


async def test_epochs_that_the_leader_has_forgotten_and_the_state_topic_has_come_first() -> None:
    """As the daemon reads it: else what an unclean election cut off passes for the history before the file (rule 4)."""
    state = MemoryStateLog()
    await state.publish_partition_state(ORDERS, PartitionState().with_epochs(Lineage.of([(3, 0), (7, 336)])))
    lineage = await history_of(state, [(7, 657)])
    assert [tuple(entry) for entry in lineage.entries] == [(3, 0), (7, 336)]


async def history_of(state: MemoryStateLog, live: Sequence[tuple[int, int]]) -> Lineage:
    """Of a partition of which nothing is remote."""
    metadata, store = MemoryMetadataLog(), MemoryStore(clock=ManualClock(), ids=SystemIds())
    await metadata.assign([ORDERS])

    async def follow(owners: Sequence[TopicIdPartition]) -> MemoryMetadataLog:
        return metadata

    config = SimpleNamespace(store=SimpleNamespace(key_prefix="", encryption_key_pairs={}, encryption_key_pair_id=None))
    session: Any = SimpleNamespace(follow=follow, config=config, state=state, clock=ManualClock())
    async with AsyncExitStack() as stack:
        histories = await _open_histories(session, stack, store, [ORDERS])
        return await histories.of(ORDERS, Lineage.of(live).entries)


def told(*events: MetadataEvent) -> NativeSegments:
    return NativeSegments(events)


def test_kafkas_topic_gets_what_it_lacks_and_the_longest_copy_last() -> None:
    ours = told(*copied(1, 0, 19), *copied(2, 0, 9), *copied(3, 20, 29))
    native, events = published_into(NativeSegments(), ours, 99)
    assert [one.start_offset for one in native] == [0, 0, 20]
    assert native.segment_for(0, 15) is not None, "the shorter copy comes first, so the longer one takes its place"
    assert len(events) == 6
    assert published_into(native, ours, 99)[1] == ()


def test_what_has_gone_since_a_former_plan_is_deleted_there_too() -> None:
    native, _ = published_into(NativeSegments(), told(*copied(1, 0, 9), *copied(2, 10, 19)), 99)
    after, events = published_into(native, told(*copied(2, 10, 19)), 99)
    assert [one.state for one in events] == [DELETING, DELETED]
    assert [one.start_offset for one in after] == [10]


@pytest.mark.parametrize("broken_after", range(7))
def test_a_second_run_goes_on_wherever_the_first_one_broke_off(broken_after: int) -> None:
    ours = told(*copied(1, 0, 19), *copied(2, 0, 9), *copied(3, 20, 29))
    whole, events = published_into(NativeSegments(), ours, 99)
    native, rest = published_into(told(*events[:broken_after]), ours, 99)
    assert [*events[:broken_after], *rest] == list(events)
    assert {one.state for one in native} == {FINISHED}
    assert native.segment_for(0, 15) == whole.segment_for(0, 15)


def test_what_went_on_since_a_former_plan_goes_on_there_and_nothing_goes_back() -> None:
    native = told(*copied(1, 0, 9), *copied(2, 10, 19), updated(2, DELETING), added(3, 20, 29))
    ours = told(*copied(1, 0, 9), updated(1, DELETING), *copied(2, 10, 19), *copied(3, 20, 29))
    after, events = published_into(native, ours, 99)
    assert [
        (one.remote_log_segment_id, one.state) for one in events if isinstance(one, RemoteLogSegmentMetadataUpdate)
    ] == [
        (segment_id(1), DELETING),
        (segment_id(3), FINISHED),
    ]
    assert {one.start_offset: one.state for one in after} == {0: DELETING, 10: DELETING, 20: FINISHED}


def test_what_only_kafkas_topic_has_is_no_leftover_while_its_objects_exist() -> None:
    native, ours = told(*copied(1, 0, 9), *copied(2, 10, 19), *copied(9, 30, 59)), told(*copied(1, 0, 9))
    gone = gone_from(native, ours)
    assert [one.start_offset for one in gone] == [10, 30]
    key = recorded_keys(gone[1], "tier/").log
    look = replace(seen(Partition()), gone=tuple(gone), object_bytes={key: 5})
    assert [one.start_offset for one in look.with_objects] == [30]


def test_what_is_unfinished_stays_in_the_way() -> None:
    native, _ = published_into(NativeSegments(), told(*copied(1, 0, 9), added(2, 10, 19)), 99)
    assert [one.state for one in native] == [STARTED, FINISHED]
