"""Two leaders' events in every order against a plain model (issue 4, Must show)."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, STARTED, added, updated
from tiersidecar.domain.errors import IllegalTransitionError, UnknownSegmentError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState, is_valid_transition

PARTITIONS = tuple(replace(ORDERS, partition=partition) for partition in range(2))
LOG_END = 25
EPOCHS = range(2)


@dataclass
class Model:
    """The rules in their plainest form: a dict of segments, searched from end to end.  ``finished`` has them in the order in
    which they were finished, the last time counts."""

    segments: dict[bytes, RemoteLogSegmentMetadata] = field(default_factory=dict)
    finished: list[bytes] = field(default_factory=list)
    highest: dict[int, int] = field(default_factory=dict)

    def fold(self, event: MetadataEvent) -> None:
        assert isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate)
        uuid = event.remote_log_segment_id.uuid
        known = self.segments.get(uuid)
        is_added = isinstance(event, RemoteLogSegmentMetadata)
        if is_added != (event.state is STARTED) or (known is None and not is_added):
            return
        if not is_valid_transition(None if known is None else known.state, event.state):
            return
        if isinstance(event, RemoteLogSegmentMetadata):
            self.segments[uuid] = event
        elif known is not None:
            self.segments[uuid] = known.with_update(event)
        if event.state is FINISHED:
            self.finished = [*(one for one in self.finished if one != uuid), uuid]
            for epoch, (_, end) in spans(self.segments[uuid]).items():
                self.highest[epoch] = max(end, self.highest.get(epoch, -1))
        if event.state is DELETED:
            del self.segments[uuid]

    def is_later(self, one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
        """Return whether it was finished after ``other``, by the order of events and by their times."""
        places = [self.finished.index(segment.remote_log_segment_id.uuid) for segment in (one, other)]
        return places[0] > places[1] and one.event_timestamp_ms > other.event_timestamp_ms

    def holders(self, epoch: int, offset: int) -> list[RemoteLogSegmentMetadata]:
        """Every finished segment that has ``offset`` as written in ``epoch``."""
        return [
            metadata
            for metadata in self.segments.values()
            if metadata.state is FINISHED
            and epoch in spans(metadata)
            and spans(metadata)[epoch][0] <= offset <= spans(metadata)[epoch][1]
        ]


def spans(metadata: RemoteLogSegmentMetadata) -> dict[int, tuple[int, int]]:
    entries = metadata.segment_leader_epochs
    ends = [following.start_offset - 1 for following in entries[1:]] + [metadata.end_offset]
    return {entry.epoch: (entry.start_offset, end) for entry, end in zip(entries, ends, strict=True)}


def replayed(owner: TopicIdPartition, events: list[MetadataEvent]) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache(owner)
    for event in events:
        deliver(cache, event)
    cache.mark_loaded()
    return cache


def deliver(cache: RemoteLogMetadataCache, event: MetadataEvent) -> None:
    with suppress(IllegalTransitionError, UnknownSegmentError):  # as the consumer does (S-100)
        cache.apply(event)


class TwoLeaders(RuleBasedStateMachine):
    """Two brokers both believe that they lead.  Each partition's events have one order; across partitions, any."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[list[MetadataEvent]] = [[] for _ in PARTITIONS]
        self.consumed = [0 for _ in PARTITIONS]
        self.caches = [replayed(owner, []) for owner in PARTITIONS]
        self.models = [Model() for _ in PARTITIONS]
        self.segments = 0

    @rule(
        which=st.sampled_from([0, 1]),
        broker=st.sampled_from([1, 2]),
        start=st.sampled_from([0, 5, 10]),
        length=st.sampled_from([5, 10, 15]),
        first_epoch=st.sampled_from(EPOCHS),
        border=st.sampled_from([5, 30]),
        then=st.sampled_from([[], [FINISHED], [FINISHED], [FINISHED], [FINISHED, DELETING], [DELETING]]),
    )
    def a_leader_copies(
        self,
        which: int,
        broker: int,
        start: int,
        length: int,
        first_epoch: int,
        border: int,
        then: list[RemoteLogSegmentState],
    ) -> None:
        """Leaders roll differently: any start, any length, sometimes an epoch border inside; they get as far as they get."""
        self.segments += 1
        owner, end = PARTITIONS[which], start + length - 1
        epochs = {first_epoch: start} | ({first_epoch + 1: start + border} if start + border <= end else {})
        self.logs[which].append(added(self.segments, start, end, epochs, owner=owner, broker=broker))
        self.logs[which].extend(updated(self.segments, state, owner=owner, broker=broker) for state in then)

    @rule(which=st.sampled_from([0, 1]))
    def something_foreign_adds_a_finished_segment(self, which: int) -> None:
        self.segments += 1
        self.logs[which].append(added(self.segments, 0, LOG_END, owner=PARTITIONS[which], state=FINISHED))

    @precondition(lambda self: self.segments > 0)
    @rule(
        which=st.sampled_from([0, 1]),
        broker=st.sampled_from([1, 2]),
        state=st.sampled_from(RemoteLogSegmentState),
        data=st.data(),
    )
    def a_leader_moves_any_segment_to_any_state(
        self, which: int, broker: int, state: RemoteLogSegmentState, data: st.DataObject
    ) -> None:
        """Late, early, twice, or of a segment of the other partition: a zombie may write anything."""
        number = data.draw(st.integers(1, self.segments))
        self.logs[which].append(updated(number, state, owner=PARTITIONS[which], broker=broker, custom=bytes([broker])))

    @precondition(lambda self: any(model.segments for model in self.models))
    @rule(which=st.sampled_from([0, 1]), state=st.sampled_from([FINISHED, DELETING, DELETED]), data=st.data())
    def a_leader_moves_a_segment_that_is_there(
        self, which: int, state: RemoteLogSegmentState, data: st.DataObject
    ) -> None:
        known = sorted(self.models[which].segments)
        if known:
            number = int.from_bytes(data.draw(st.sampled_from(known)), "big")
            self.logs[which].append(updated(number, state, owner=PARTITIONS[which]))
            self.read_on(which, len(self.logs[which]))

    @precondition(lambda self: any(self.logs))
    @rule(which=st.sampled_from([0, 1]), data=st.data())
    def an_event_is_written_twice(self, which: int, data: st.DataObject) -> None:
        if self.logs[which]:
            self.logs[which].append(data.draw(st.sampled_from(self.logs[which])))

    @rule(which=st.sampled_from([0, 1]), count=st.sampled_from([1, 2, 100]))
    def the_consumer_reads(self, which: int, count: int) -> None:
        self.read_on(which, count)

    def read_on(self, which: int, count: int) -> None:
        for event in self.logs[which][self.consumed[which] :][:count]:
            deliver(self.caches[which], event)
            self.models[which].fold(event)
            self.consumed[which] += 1

    @rule(which=st.sampled_from([0, 1]))
    def the_daemon_restarts_without_a_snapshot(self, which: int) -> None:
        """T-73."""
        self.caches[which] = replayed(PARTITIONS[which], self.logs[which][: self.consumed[which]])

    @rule(which=st.sampled_from([0, 1]))
    def the_daemon_restarts_from_a_snapshot(self, which: int) -> None:
        self.caches[which] = RemoteLogMetadataCache.from_image(PARTITIONS[which], self.caches[which].image())
        self.caches[which].mark_loaded()

    @invariant()
    def segments_are_those_of_the_model(self) -> None:
        for cache, model in zip(self.caches, self.models, strict=True):
            listed = list(cache.list_remote_log_segments())
            assert {m.remote_log_segment_id.uuid: m for m in listed} == model.segments
            assert [m.start_offset for m in listed] == sorted(m.start_offset for m in listed)
            assert cache.picture().segments() == tuple(listed)
            unfinished = [m for m in listed if m.state is not FINISHED]
            assert {m.remote_log_segment_id for m in cache.list_unfinished_segments()} == {
                m.remote_log_segment_id for m in unfinished
            }
            assert cache.remote_log_size_bytes() == sum(m.segment_size_in_bytes for m in listed)
            assert cache.mark == cache.picture().mark

    @invariant()
    def each_epoch_lists_its_segments(self) -> None:
        for cache, model in zip(self.caches, self.models, strict=True):
            for epoch in (*EPOCHS, 2):
                of_epoch = {uuid for uuid, metadata in model.segments.items() if epoch in spans(metadata)}
                listed = [m.remote_log_segment_id.uuid for m in cache.list_remote_log_segments(epoch)]
                assert sorted(listed) == sorted(of_epoch)
                assert cache.highest_offset_for_epoch(epoch) == model.highest.get(epoch)

    @invariant()
    def runs_are_the_offsets_that_finished_segments_hold(self) -> None:
        for cache, model in zip(self.caches, self.models, strict=True):
            for epoch in (*EPOCHS, 2):
                held = [offset for offset in range(LOG_END + 1) if model.holders(epoch, offset)]
                firsts = [offset for offset in held if offset - 1 not in held]
                lasts = [offset for offset in held if offset + 1 not in held]
                assert list(cache.finished_runs(epoch)) == [
                    (first, last + 1) for first, last in zip(firsts, lasts, strict=True)
                ]

    @invariant()
    def every_offset_that_a_finished_segment_holds_is_read(self) -> None:
        """Rule 1, and only COPY_SEGMENT_FINISHED is read (S-114); of several holders none that another one covers."""
        for cache, model in zip(self.caches, self.models, strict=True):
            for epoch in EPOCHS:
                for offset in range(LOG_END):
                    holders = model.holders(epoch, offset)
                    metadata = cache.remote_log_segment_metadata(epoch, offset)
                    assert (metadata is None) == (not holders)
                    everyone = list(cache.finished_segments_at(epoch, offset))
                    assert everyone[:1] == ([] if metadata is None else [metadata])
                    assert sorted(map(str, everyone)) == sorted(map(str, holders))
                    if metadata is None:
                        continue
                    assert metadata in holders
                    first, last = spans(metadata)[epoch]
                    for start, end in (spans(other)[epoch] for other in holders):
                        assert not (start <= first and last <= end and (start, end) != (first, last))


TestTwoLeaders = pytest.mark.slow(TwoLeaders.TestCase)
TestTwoLeaders.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", range(20))
def test_of_equal_spans_none_is_read_that_was_replaced_whatever_is_deleted(seed: int) -> None:
    """Cleaners and erasures replace segments, and retention deletes others meanwhile."""
    draw, cache, model = random.Random(seed), replayed(ORDERS, []), Model()
    for number in range(1, 12):
        start = draw.choice([0, 5, 10])
        events: list[MetadataEvent] = [added(number, start, start + draw.choice([4, 9])), updated(number, FINISHED)]
        if draw.random() < 0.4:
            events.append(updated(draw.randint(1, number), DELETING))
        for event in events:
            deliver(cache, event)
            model.fold(event)
        for offset in range(LOG_END):
            if (given := cache.remote_log_segment_metadata(0, offset)) is not None:
                twins = [one for one in model.holders(0, offset) if spans(one)[0] == spans(given)[0]]
                assert not [one for one in twins if model.is_later(one, given)]
