"""Random events of one remote partition: legal and illegal moves, repeated, out of order, of several segments."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.support.metadata_events import ORDERS, added, updated
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata
from tiersidecar.domain.states import RemoteLogSegmentState, RemotePartitionDeleteState

SEGMENTS = 3
_ORDER = list(RemoteLogSegmentState)


def event_sequence(seed: int, owner: TopicIdPartition = ORDERS) -> list[MetadataEvent]:
    """Draw up to fourteen events; each has a time of its own."""
    chance = random.Random(seed)
    found: list[MetadataEvent] = []
    for _ in range(chance.randint(1, 8)):
        found += _move(chance, owner)
    if chance.random() < 0.3:
        chance.shuffle(found)
    if chance.random() < 0.3:
        found.insert(chance.randrange(len(found) + 1), chance.choice(found))
    return [replace(event, event_timestamp_ms=1000 + at, broker_id=BrokerId(at % 4)) for at, event in enumerate(found)]


def _move(chance: random.Random, owner: TopicIdPartition) -> list[MetadataEvent]:
    number, kind = chance.randrange(SEGMENTS), chance.random()
    if kind < 0.3:  # the way it should go, up to some state
        return [_event(number, state, owner) for state in _ORDER[: chance.randint(1, 4)]]
    if kind < 0.85:
        return [_event(number, chance.choice(_ORDER), owner)]
    if kind < 0.92:  # an addition that is none
        return [replace(_added(number, owner), state=chance.choice(_ORDER))]
    states = (
        list(RemotePartitionDeleteState) if chance.random() < 0.5 else [chance.choice(list(RemotePartitionDeleteState))]
    )
    return [
        RemotePartitionDeleteMetadata(
            topic_id_partition=owner,
            broker_id=BrokerId(1),
            event_timestamp_ms=0,
            state=RemotePartitionDeleteState(state),
        )
        for state in states
    ]


def _event(number: int, state: RemoteLogSegmentState, owner: TopicIdPartition) -> MetadataEvent:
    if state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
        return _added(number, owner)
    return updated(number, state, owner=owner)


def _added(number: int, owner: TopicIdPartition) -> RemoteLogSegmentMetadata:
    return added(number, number * 10, number * 10 + 9, owner=owner)
