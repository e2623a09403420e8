"""What Kafka's own metadata topic is told before a hand-over: a row for each difference from the sidecar's (issue 21)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.metadata_events import DELETED, DELETING, FINISHED, STARTED, added, segment_id, updated
from tests.unit.decide.test_native_tiering import begun, copied
from tiersidecar.decide.native_events import gone_from, published_into
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState

Event = tuple[int, RemoteLogSegmentState]
"""Of which segment, and into which state."""

NOW_MS = 99
DELETION = [updated(1, DELETING)]

ROWS: dict[str, tuple[Sequence[Sequence[MetadataEvent]], Sequence[Sequence[MetadataEvent]], list[Event]]] = {
    "it knows all": ([copied(1, 0, 9)], [copied(1, 0, 9)], []),
    "it knows no segment": ([], [copied(1, 0, 9)], [(1, STARTED), (1, FINISHED)]),
    "it lacks a segment among others": (
        [copied(1, 0, 9), copied(3, 20, 29)],
        [copied(1, 0, 9), copied(2, 10, 19), copied(3, 20, 29)],
        [(2, STARTED), (2, FINISHED)],
    ),
    "it lacks several: the one that ends first is told first": (
        [],
        [copied(2, 10, 19), copied(1, 0, 9)],
        [(1, STARTED), (1, FINISHED), (2, STARTED), (2, FINISHED)],
    ),
    "it lacks two that overlap: the longer takes the place of the shorter": (
        [],
        [copied(1, 0, 19), copied(2, 0, 9)],
        [(2, STARTED), (2, FINISHED), (1, STARTED), (1, FINISHED)],
    ),
    "it lacks two that end together: the one that begins first is told first": (
        [],
        [copied(2, 5, 9), copied(1, 0, 9)],
        [(1, STARTED), (1, FINISHED), (2, STARTED), (2, FINISHED)],
    ),
    "it lacks a copy that is not finished": ([], [begun(1, 0, 9)], [(1, STARTED)]),
    "it lacks one that is being deleted": ([], [[*copied(1, 0, 9), *DELETION]], [(1, STARTED), (1, DELETING)]),
    "it lacks a copy that was given up: it is never finished": (
        [],
        [[*begun(1, 0, 9), *DELETION]],
        [(1, STARTED), (1, DELETING)],
    ),
    "what is being deleted is told before what is finished": (
        [],
        [copied(1, 0, 9), [*copied(2, 10, 19), updated(2, DELETING)]],
        [(2, STARTED), (2, DELETING), (1, STARTED), (1, FINISHED)],
    ),
    "a copy has finished since": ([begun(1, 0, 9)], [copied(1, 0, 9)], [(1, FINISHED)]),
    "a deletion has begun since": ([copied(1, 0, 9)], [[*copied(1, 0, 9), *DELETION]], [(1, DELETING)]),
    "a copy was given up since": ([begun(1, 0, 9)], [[*begun(1, 0, 9), *DELETION]], [(1, DELETING)]),
    "it has gone on further: nothing goes back": ([[*copied(1, 0, 9), *DELETION]], [copied(1, 0, 9)], []),
    "it has finished what we have not": ([copied(1, 0, 9)], [begun(1, 0, 9)], []),
    "the sidecar has deleted it": ([copied(1, 0, 9)], [], [(1, DELETING), (1, DELETED)]),
    "the sidecar has deleted what was never finished": ([begun(1, 0, 9)], [], [(1, DELETING), (1, DELETED)]),
    "the sidecar has finished a deletion": ([[*copied(1, 0, 9), *DELETION]], [], [(1, DELETING), (1, DELETED)]),
    "deletions are told before copies": (
        [copied(1, 0, 9)],
        [copied(2, 0, 19)],
        [(1, DELETING), (1, DELETED), (2, STARTED), (2, FINISHED)],
    ),
}


def told(*events: MetadataEvent) -> NativeSegments:
    return NativeSegments(events)


def folded(events: Sequence[Sequence[MetadataEvent]]) -> NativeSegments:
    return NativeSegments(event for some in events for event in some)


@pytest.mark.parametrize("sentence", ROWS)
def test_what_kafkas_topic_is_told(sentence: str) -> None:
    native, ours, expected = ROWS[sentence]
    after, events = published_into(folded(native), folded(ours), NOW_MS)
    assert [number_and_state(event) for event in events] == expected
    assert told_apart(after) == told_apart(NativeSegments([*(one for some in native for one in some), *events]))


def number_and_state(event: MetadataEvent) -> Event:
    assert isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate)
    return int.from_bytes(event.remote_log_segment_id.uuid, "big"), event.state


def told_apart(segments: NativeSegments) -> list[Event]:
    return sorted(number_and_state(one) for one in segments)


def test_what_it_has_is_left_as_it_was() -> None:
    native = told(*copied(1, 0, 9))
    published_into(native, told(*copied(2, 10, 19)), NOW_MS)
    assert told_apart(native) == [(1, FINISHED)]


def test_a_deletion_says_when_and_keeps_whose_copy_it_was_and_where_its_objects_are() -> None:
    native = told(added(1, 0, 9, broker=7), updated(1, FINISHED, broker=7, custom=b"prefix"))
    _, events = published_into(native, NativeSegments(), NOW_MS)
    for event in events:
        assert isinstance(event, RemoteLogSegmentMetadataUpdate)
        assert (event.remote_log_segment_id, event.broker_id) == (segment_id(1), BrokerId(7))
        assert (event.event_timestamp_ms, event.custom_metadata) == (NOW_MS, b"prefix")


def test_what_is_gone_is_what_only_kafkas_topic_has() -> None:
    native, ours = told(*copied(1, 0, 9), *copied(2, 10, 19)), told(*begun(1, 0, 9), *copied(3, 20, 29))
    assert [one.start_offset for one in gone_from(native, ours)] == [10]


def test_kafkas_topic_gets_what_it_lacks_and_the_longest_copy_last() -> None:
    ours = told(*copied(1, 0, 19), *copied(2, 0, 9), *copied(3, 20, 29))
    native, events = published_into(NativeSegments(), ours, NOW_MS)
    assert [one.start_offset for one in native] == [0, 0, 20]
    assert native.segment_for(0, 15) is not None, "the shorter copy comes first, so the longer one takes its place"
    assert len(events) == 6
    assert published_into(native, ours, NOW_MS)[1] == ()


@pytest.mark.parametrize("broken_after", range(7))
def test_a_second_run_goes_on_wherever_the_first_one_broke_off(broken_after: int) -> None:
    ours = told(*copied(1, 0, 19), *copied(2, 0, 9), *copied(3, 20, 29))
    whole, events = published_into(NativeSegments(), ours, NOW_MS)
    native, rest = published_into(told(*events[:broken_after]), ours, NOW_MS)
    assert [*events[:broken_after], *rest] == list(events)
    assert {one.state for one in native} == {FINISHED}
    assert native.segment_for(0, 15) == whole.segment_for(0, 15)


def test_what_went_on_since_a_former_plan_goes_on_there_and_nothing_goes_back() -> None:
    native = told(*copied(1, 0, 9), *copied(2, 10, 19), updated(2, DELETING), added(3, 20, 29))
    ours = told(*copied(1, 0, 9), updated(1, DELETING), *copied(2, 10, 19), *copied(3, 20, 29))
    after, events = published_into(native, ours, NOW_MS)
    assert [
        (one.remote_log_segment_id, one.state) for one in events if isinstance(one, RemoteLogSegmentMetadataUpdate)
    ] == [
        (segment_id(1), DELETING),
        (segment_id(3), FINISHED),
    ]
    assert {one.start_offset: one.state for one in after} == {0: DELETING, 10: DELETING, 20: FINISHED}
