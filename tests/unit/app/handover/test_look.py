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
from tests.support.metadata_events import FINISHED, ORDERS, added, updated
from tests.support.scripted import MemoryStateLog
from tests.unit.app.handover.test_run import seen
from tests.unit.decide.test_handover import Partition
from tests.unit.decide.test_native_tiering import copied
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.handover.look import leader_epochs_of, open_histories, segments_elsewhere
from tiersidecar.decide.native_events import gone_from
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import LeaderView, MetadataEvent
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata
from tiersidecar.ports.broker import EpochAsked, EpochEndAnswer
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.remote_objects import recorded_keys


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

    section = SimpleNamespace(
        key_prefix="", encryption_key_pairs={}, encryption_key_pair_id=None, encryption_key_wrapping=None
    )
    config = SimpleNamespace(store=section)
    session: Any = SimpleNamespace(follow=follow, config=config, state=state, clock=ManualClock())
    async with AsyncExitStack() as stack:
        histories = await open_histories(session, stack, store, [ORDERS])
        return await histories.of(ORDERS, Lineage.of(live).entries)


def told(*events: MetadataEvent) -> NativeSegments:
    return NativeSegments(events)


def test_what_only_kafkas_topic_has_is_no_leftover_while_its_objects_exist() -> None:
    native, ours = told(*copied(1, 0, 9), *copied(2, 10, 19), *copied(9, 30, 59)), told(*copied(1, 0, 9))
    gone = gone_from(native, ours)
    assert [one.start_offset for one in gone] == [10, 30]
    key = recorded_keys(gone[1], "tier/").log
    look = replace(seen(Partition()), gone=tuple(gone), object_bytes={key: 5})
    assert [one.start_offset for one in look.with_objects] == [30]


def test_what_lies_in_a_place_is_named_and_not_taken_for_lost() -> None:
    """S-293."""
    placed = write_custom_metadata(CustomMetadata(place="cold"))
    segments = told(added(1, 0, 9), updated(1, FINISHED, custom=placed), *copied(2, 10, 19))
    assert {place: [one.start_offset for one in some] for place, some in segments_elsewhere(segments).items()} == {
        "cold": [0]
    }
    look = replace(seen(Partition()), segments=segments, object_bytes={})
    assert [one.start_offset for one in look.without_objects] == [10]
