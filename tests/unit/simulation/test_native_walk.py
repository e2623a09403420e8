"""Which begun deletions a native broker finishes, and that it stands in the same place as the product's own forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.simulation.native_walk import deletions_in_reach
from tests.support.metadata_events import DELETED, DELETING, FINISHED, added, segment_id, updated
from tiersidecar.decide.native_tiering import DeletionReason, NativeLog, NativeRetention, foretell
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate

LOG_END = 100
TWO_EPOCHS = ((0, 0), (2, 20))


def copied(number: int, start: int, end: int, epochs: dict[int, int] | None = None) -> list[MetadataEvent]:
    return [added(number, start, end, epochs), updated(number, FINISHED)]


def given_up(number: int, start: int, end: int, epochs: dict[int, int] | None = None) -> list[MetadataEvent]:
    """A copy that was interrupted, whose deletion has begun."""
    return [added(number, start, end, epochs), updated(number, DELETING)]


@dataclass(frozen=True, kw_only=True)
class Situation:
    events: Sequence[Sequence[MetadataEvent]]
    epochs: Sequence[tuple[int, int]] = ((0, 0),)
    reached: Sequence[int]


SITUATIONS = {
    "what is first of all is finished": Situation(events=(given_up(1, 0, 9), copied(2, 10, 19)), reached=[1]),
    "behind a segment that is kept it stays": Situation(events=(copied(1, 0, 9), given_up(2, 10, 19)), reached=[]),
    "behind a copy that has not finished it stays": Situation(
        events=([added(1, 0, 9)], given_up(2, 10, 19)), reached=[]
    ),
    "a finished copy of the same start comes before it": Situation(
        events=(given_up(1, 0, 9), copied(2, 0, 19)), reached=[]
    ),
    "one that begins lower comes before what is kept": Situation(
        events=(given_up(1, 0, 9), copied(2, 5, 19), given_up(3, 20, 29)), reached=[1]
    ),
    "behind others that were begun it is finished": Situation(
        events=(given_up(1, 0, 9), given_up(2, 10, 19), copied(3, 20, 29)), reached=[1, 2]
    ),
    "another history's segment does not end the walk": Situation(
        events=(copied(1, 0, 24, {0: 0}), given_up(2, 10, 15)), epochs=TWO_EPOCHS, reached=[2]
    ),
    "in a later epoch, where nothing of an earlier one is kept, it is finished": Situation(
        events=(given_up(1, 25, 29, {2: 25}), copied(2, 30, 39, {2: 30})), epochs=TWO_EPOCHS, reached=[1]
    ),
    "in a later epoch, behind what is kept of an earlier one, it stays": Situation(
        events=(copied(1, 0, 9), given_up(2, 25, 29, {2: 25})), epochs=TWO_EPOCHS, reached=[]
    ),
    "one of two epochs is finished once": Situation(
        events=(given_up(1, 10, 24, {0: 10, 2: 20}), copied(2, 25, 29, {2: 25})), epochs=TWO_EPOCHS, reached=[1]
    ),
    "of an epoch between those of the log it is listed in none, and stays": Situation(
        events=(given_up(1, 20, 29, {1: 20}), copied(2, 30, 39, {2: 30})), epochs=TWO_EPOCHS, reached=[]
    ),
    "what was deleted is not there": Situation(
        events=([*copied(1, 0, 9), updated(1, DELETING), updated(1, DELETED)], given_up(2, 10, 19)), reached=[2]
    ),
}


def folded(row: Situation) -> list[RemoteLogSegmentMetadata]:
    segments: dict[bytes, RemoteLogSegmentMetadata] = {}
    for event in (event for some in row.events for event in some):
        if isinstance(event, RemoteLogSegmentMetadata):
            segments[event.remote_log_segment_id.uuid] = event
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            uuid = event.remote_log_segment_id.uuid
            segments[uuid] = segments[uuid].with_update(event)
    return list(segments.values())


@pytest.mark.parametrize("sentence", SITUATIONS)
def test_which_begun_deletions_a_native_broker_finishes(sentence: str) -> None:
    row = SITUATIONS[sentence]
    found = deletions_in_reach(folded(row), Lineage.of(row.epochs), LOG_END)
    assert [one.remote_log_segment_id for one in found] == [segment_id(number) for number in row.reached]


@pytest.mark.parametrize("sentence", SITUATIONS)
def test_the_forecast_of_a_hand_over_says_the_same(sentence: str) -> None:
    row = SITUATIONS[sentence]
    log = NativeLog(
        log_start_offset=Offset(0),
        local_log_start_offset=Offset(0),
        log_end_offset=Offset(LOG_END),
        leader_epochs=Lineage.of(row.epochs),
    )
    events = (event for some in row.events for event in some)
    forecast = foretell(NativeSegments(events), log, NativeRetention(is_copying=False), 0)
    begun = [one.segment for one in forecast.deletions if one.reason is DeletionReason.BEGUN]
    assert [one.remote_log_segment_id for one in begun] == [segment_id(number) for number in row.reached]
