"""What is published to make lost metadata anew: one row for each thing that can be true of a segment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from tests.support.metadata_events import DELETING, FINISHED, STARTED, added, segment_id
from tiersidecar.decide.recover import (
    BadManifest,
    Left,
    Recovery,
    RecoveryView,
    SnapshotSegments,
    StoredObjects,
    decide_recovery,
    events_of,
    in_order_of_events,
    recovery_below,
    wanted_manifests,
)
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState

WRITTEN_MS = 100
WHOLE = StoredObjects(start_offset=0, has_log=True, has_indexes=True, has_manifest=True, modified_ms=50)


def segment(
    number: int,
    start: int,
    end: int,
    *,
    state: RemoteLogSegmentState = FINISHED,
    custom: bytes | None = None,
    at_ms: int = 10,
    epochs: Mapping[int, int] | None = None,
) -> RemoteLogSegmentMetadata:
    one = added(number, start, end, epochs)
    return replace(one, state=state, custom_metadata=custom, event_timestamp_ms=at_ms)


def by_uuid(segments: Iterable[RemoteLogSegmentMetadata]) -> dict[Uuid, RemoteLogSegmentMetadata]:
    return {one.remote_log_segment_id.uuid: one for one in segments}


def snapshot(*segments: RemoteLogSegmentMetadata, highest: Mapping[int, int] | None = None) -> SnapshotSegments:
    found: dict[int, int] = {}
    for one in segments:
        epoch = one.segment_leader_epochs[-1].epoch
        found[epoch] = max(found.get(epoch, -1), one.end_offset)
    return SnapshotSegments(
        written_ms=WRITTEN_MS, segments=by_uuid(segments), highest_offsets=found if highest is None else highest
    )


@dataclass(frozen=True, kw_only=True)
class World:
    """``stored`` are the numbers of segments that have all three objects; those in ``partly`` lack the .log."""

    known: tuple[RemoteLogSegmentMetadata, ...] = ()
    snapshot: SnapshotSegments | None = None
    stored: tuple[int, ...] = ()
    partly: tuple[int, ...] = ()
    manifests: tuple[RemoteLogSegmentMetadata, ...] = ()
    bad: Mapping[int, BadManifest] = field(default_factory=dict)
    start: int = -1
    absent: tuple[int, ...] = ()

    def decide(self) -> Recovery:
        stored = {segment_id(number).uuid: WHOLE for number in self.stored}
        stored |= {segment_id(number).uuid: replace(WHOLE, has_log=False) for number in self.partly}
        stored = dict(sorted(stored.items()))
        known = by_uuid(self.known)
        manifests: dict[Uuid, RemoteLogSegmentMetadata | BadManifest] = dict(by_uuid(self.manifests))
        manifests |= {segment_id(number).uuid: manifest for number, manifest in self.bad.items()}
        wanted = wanted_manifests(known, self.snapshot, stored)
        return decide_recovery(
            RecoveryView(
                known=known,
                snapshot=self.snapshot,
                stored=stored,
                manifests={uuid: manifests[uuid] for uuid in wanted},
                start_for=lambda epoch: self.start,
                absent=frozenset(segment_id(number).uuid for number in self.absent),
            )
        )


LIVE = segment(1, 0, 9, custom=b"\x01\x02")
NEXT = segment(2, 10, 19)
OTHER_EPOCH = segment(3, 5, 14, epochs={7: 5})

PUBLISHED = {
    "a segment of the snapshot comes back with all its fields": (
        World(snapshot=snapshot(LIVE), stored=(1,)),
        [LIVE],
    ),
    "what is in the topic already is left": (World(known=(LIVE,), snapshot=snapshot(LIVE), stored=(1,)), []),
    "a deletion in flight goes on where it was": (
        World(snapshot=snapshot(replace(LIVE, state=DELETING)), partly=(1,)),
        [replace(LIVE, state=DELETING)],
    ),
    "a deletion in flight that has ended since stays ended": (
        World(snapshot=snapshot(replace(LIVE, state=DELETING))),
        [],
    ),
    "a segment whose objects have gone since does not come back": (World(snapshot=snapshot(LIVE)), []),
    "a copy in flight that left objects is published as begun, to be cleaned up": (
        World(snapshot=snapshot(segment(1, 0, 9, state=STARTED)), partly=(1,)),
        [segment(1, 0, 9, state=STARTED)],
    ),
    "a copy in flight that has finished since comes by its manifest": (
        World(snapshot=snapshot(segment(1, 0, 9, state=STARTED)), stored=(1,), manifests=(segment(1, 0, 9),)),
        [segment(1, 0, 9)],
    ),
    "what was copied after the snapshot comes by its manifest": (
        World(snapshot=snapshot(LIVE), stored=(1, 2), manifests=(NEXT,)),
        [LIVE, NEXT],
    ),
    "what was copied again after the snapshot comes by its manifest": (
        World(
            snapshot=snapshot(NEXT, highest={0: 19}), stored=(2, 1), manifests=(replace(LIVE, event_timestamp_ms=101),)
        ),
        [replace(LIVE, event_timestamp_ms=101), NEXT],
    ),
    "a snapshot of a partition of which nothing had been copied says nothing against a manifest": (
        World(snapshot=snapshot(), stored=(1,), manifests=(LIVE,)),
        [LIVE],
    ),
    "what replaced a segment of the snapshot after it comes by its manifest, and last": (
        World(snapshot=snapshot(LIVE), stored=(1, 4), manifests=(segment(4, 0, 9, at_ms=101),)),
        [LIVE, segment(4, 0, 9, at_ms=101)],
    ),
    "what has its last offset at the remote log start is not below it": (
        World(stored=(1,), manifests=(LIVE,), start=9),
        [LIVE],
    ),
    "without a snapshot all come by their manifests": (
        World(stored=(1, 2), manifests=(replace(LIVE, custom_metadata=None), NEXT)),
        [replace(LIVE, custom_metadata=None), NEXT],
    ),
    "replicas roll differently, so two segments may share offsets of one epoch": (
        World(stored=(1, 2), manifests=(segment(1, 0, 9), segment(2, 5, 19))),
        [segment(1, 0, 9), segment(2, 5, 19)],
    ),
}


@pytest.mark.parametrize("sentence", PUBLISHED)
def test_what_is_published(sentence: str) -> None:
    world, expected = PUBLISHED[sentence]
    found = world.decide()
    assert list(found.segments) == expected
    assert found.updates == ()
    assert found.left == ()


LEFT = {
    "objects without a manifest": (
        World(partly=(1,), snapshot=snapshot(NEXT), stored=(2,)),
        {1: Left.PARTIAL},
    ),
    "a live segment of the snapshot that lacks an object": (
        World(snapshot=snapshot(LIVE), partly=(1,)),
        {1: Left.PARTIAL},
    ),
    "a manifest that cannot be read": (
        World(stored=(1,), bad={1: BadManifest(reason=Left.UNREADABLE, detail="x")}),
        {1: Left.UNREADABLE},
    ),
    "a manifest of another segment": (
        World(stored=(1,), bad={1: BadManifest(reason=Left.WRONG_KEY, detail="x")}),
        {1: Left.WRONG_KEY},
    ),
    "two manifests whose common offsets different epochs wrote": (
        World(stored=(1, 3), manifests=(segment(1, 0, 9), OTHER_EPOCH)),
        {1: Left.CONFLICT, 3: Left.CONFLICT},
    ),
    "two that contradict each other beside one that agrees with both": (
        World(stored=(1, 2, 3), manifests=(segment(1, 0, 9), segment(2, 5, 19), segment(3, 15, 24, epochs={7: 15}))),
        {2: Left.CONFLICT, 3: Left.CONFLICT},
    ),
    "a manifest that contradicts a segment of the snapshot": (
        World(snapshot=snapshot(LIVE), stored=(1, 3), manifests=(OTHER_EPOCH,)),
        {3: Left.CONFLICT},
    ),
    "a manifest that contradicts a segment of the topic": (
        World(known=(LIVE,), stored=(1, 3), manifests=(OTHER_EPOCH,)),
        {3: Left.CONFLICT},
    ),
    "the smaller of two copies of the same offsets": (
        World(stored=(1, 4), manifests=(segment(1, 0, 9), segment(4, 2, 9))),
        {4: Left.COVERED},
    ),
    "a smaller copy of what the snapshot has, though it was made later": (
        World(snapshot=snapshot(LIVE), stored=(1, 4), manifests=(segment(4, 2, 9, at_ms=101),)),
        {4: Left.COVERED},
    ),
    "the earlier of two equal copies": (
        World(stored=(1, 4), manifests=(segment(1, 0, 9, at_ms=11), segment(4, 0, 9, at_ms=10))),
        {4: Left.COVERED},
    ),
    "an earlier copy of what the snapshot has": (
        World(snapshot=snapshot(LIVE), stored=(1, 4), manifests=(segment(4, 0, 9, at_ms=0),)),
        {4: Left.OLDER},
    ),
    "a copy of what the topic has": (
        World(known=(LIVE,), stored=(1, 4), manifests=(segment(4, 0, 9, at_ms=99),)),
        {4: Left.COVERED},
    ),
    "what was there when the snapshot was written, which does not have it": (
        World(snapshot=snapshot(NEXT), stored=(1, 2), manifests=(LIVE,)),
        {1: Left.OLDER},
    ),
    "what was copied in the very millisecond of the snapshot, which goes on beyond it": (
        World(snapshot=snapshot(NEXT), stored=(1, 2), manifests=(replace(LIVE, event_timestamp_ms=WRITTEN_MS),)),
        {1: Left.OLDER},
    ),
    "an early epoch's segment that no snapshot has, though that epoch has no live one": (
        World(
            snapshot=snapshot(segment(2, 10, 19, epochs={5: 10})),
            stored=(1, 2),
            manifests=(segment(1, 0, 9, epochs={2: 0}),),
        ),
        {1: Left.OLDER},
    ),
    "what lies below the remote log start": (
        World(stored=(1,), manifests=(LIVE,), start=10),
        {1: Left.BELOW_START},
    ),
    "the last offset of one is another's first, in another epoch": (
        World(stored=(1, 3), manifests=(segment(1, 0, 9), segment(3, 9, 14, epochs={7: 9}))),
        {1: Left.CONFLICT, 3: Left.CONFLICT},
    ),
    "a segment to which topic and snapshot give different offsets": (
        World(known=(segment(1, 0, 8),), snapshot=snapshot(LIVE), stored=(1,)),
        {1: Left.CONTRADICTION},
    ),
    "a finished segment of the topic that the store does not have": (
        World(known=(LIVE,), absent=(1,)),
        {1: Left.CONTRADICTION},
    ),
}


@pytest.mark.parametrize("sentence", LEFT)
def test_what_is_left_and_named(sentence: str) -> None:
    world, expected = LEFT[sentence]
    found = world.decide()
    assert {one.uuid: one.reason for one in found.left} == {
        segment_id(number).uuid: reason for number, reason in expected.items()
    }
    assert not {one.remote_log_segment_id.uuid for one in found.segments} & {one.uuid for one in found.left}
    assert [one.reason for one in found.contradictions] == [
        reason for reason in expected.values() if reason is Left.CONTRADICTION
    ]


def test_objects_of_a_copy_that_never_ended_are_named() -> None:
    unfinished = StoredObjects(start_offset=7, has_log=True)
    view = RecoveryView(known={}, snapshot=None, stored={segment_id(1).uuid: unfinished}, manifests={})
    (left,) = decide_recovery(view).left
    assert (left.reason, left.start_offset, left.end_offset, left.detail) == (
        Left.UNFINISHED,
        7,
        -1,
        "the store has no .indexes, .rsm-manifest of it",
    )


@pytest.mark.parametrize(
    ("in_topic", "in_snapshot", "published"),
    [
        (STARTED, FINISHED, [FINISHED]),
        (STARTED, DELETING, [DELETING]),
        (FINISHED, DELETING, [DELETING]),
        (DELETING, FINISHED, []),
        (FINISHED, FINISHED, []),
    ],
)
def test_what_the_topic_has_is_carried_on_and_never_taken_back(
    in_topic: RemoteLogSegmentState, in_snapshot: RemoteLogSegmentState, published: list[RemoteLogSegmentState]
) -> None:
    found = World(
        known=(segment(1, 0, 9, state=in_topic),), snapshot=snapshot(replace(LIVE, state=in_snapshot)), stored=(1,)
    ).decide()
    assert ([update.state for update in found.updates], found.segments) == (published, ())
    assert found.equal == (0 if published else 1)


COUNTS = {
    "all that has gone since the snapshot": (World(snapshot=snapshot(LIVE, NEXT)), (0, 0, 2)),
    "all that the topic has begun and the store has lost": (
        World(known=(replace(LIVE, state=STARTED), replace(NEXT, state=STARTED)), snapshot=snapshot(LIVE, NEXT)),
        (0, 0, 2),
    ),
    "what comes by its manifest": (World(stored=(1, 2), manifests=(LIVE, NEXT)), (2, 0, 0)),
    "what comes by its manifest beside one that never ended": (
        World(partly=(1,), stored=(2,), manifests=(NEXT,)),
        (1, 0, 0),
    ),
    "and beside one whose manifest cannot be read": (
        World(stored=(1, 2), bad={1: BadManifest(reason=Left.UNREADABLE, detail="x")}, manifests=(NEXT,)),
        (1, 0, 0),
    ),
    "what comes by the snapshot does not": (World(snapshot=snapshot(LIVE), stored=(1,)), (0, 0, 0)),
    "what the topic has as the snapshot does": (
        World(known=(LIVE, NEXT), snapshot=snapshot(LIVE, NEXT), stored=(1, 2)),
        (0, 2, 0),
    ),
    "what only the topic has is as it should be": (World(known=(LIVE, NEXT), stored=(1, 2)), (0, 2, 0)),
    "but for what the store has not": (World(known=(LIVE, NEXT), stored=(2,), absent=(1,)), (0, 1, 0)),
}


@pytest.mark.parametrize("sentence", COUNTS)
def test_what_is_counted(sentence: str) -> None:
    world, (from_manifests, equal, gone) = COUNTS[sentence]
    found = world.decide()
    assert (found.from_manifests, found.equal, found.gone) == (from_manifests, equal, gone)


DETAILS = {
    "what the reader of a manifest says": (
        World(stored=(1,), bad={1: BadManifest(reason=Left.UNREADABLE, detail="no JSON")}),
        ("no JSON", 0, -1),
    ),
    "what the store has not": (World(snapshot=snapshot(LIVE), partly=(1,)), ("the store has no .log of it", 0, 9)),
    "which object of a known one the store has not": (
        World(known=(replace(LIVE, state=STARTED),), snapshot=snapshot(LIVE), partly=(1,)),
        ("the store has no .log of it", 0, 9),
    ),
    "that the topic has what the store has not": (
        World(known=(LIVE,), absent=(1,)),
        ("the topic says that it is finished, the store has no manifest of it", 0, 9),
    ),
    "that topic and snapshot differ": (
        World(known=(segment(1, 0, 8),), snapshot=snapshot(LIVE), stored=(1,)),
        ("the topic gives it other offsets, epochs or sizes than the snapshot does", 0, 9),
    ),
    "which segment covers it": (
        World(known=(LIVE,), stored=(1, 4), manifests=(segment(4, 0, 9),)),
        (f"by {segment_id(1)} [0, 9]", 0, 9),
    ),
    "which one contradicts it": (
        World(known=(LIVE,), stored=(1, 3), manifests=(OTHER_EPOCH,)),
        (f"other leader epochs than in {segment_id(1)} [0, 9]", 5, 14),
    ),
}


@pytest.mark.parametrize("sentence", DETAILS)
def test_what_is_said_of_one_that_is_left(sentence: str) -> None:
    world, expected = DETAILS[sentence]
    (left,) = world.decide().left
    assert (left.detail, left.start_offset, left.end_offset) == expected


def test_events_are_those_that_kafka_writes() -> None:
    for state in (FINISHED, DELETING):
        first, second = events_of(replace(LIVE, state=state))
        assert first == replace(LIVE, state=STARTED, custom_metadata=None)
        assert isinstance(second, RemoteLogSegmentMetadataUpdate)
        assert (second.state, second.custom_metadata) == (state, LIVE.custom_metadata)


def test_the_first_event_of_one_in_another_place_names_that_place() -> None:
    first, second = events_of(LIVE, b"@cold")
    assert first == replace(LIVE, state=STARTED, custom_metadata=b"@cold")
    assert isinstance(second, RemoteLogSegmentMetadataUpdate)
    assert second.custom_metadata == LIVE.custom_metadata


def test_of_one_that_is_begun_there_is_one_event() -> None:
    assert list(events_of(replace(LIVE, state=STARTED))) == [replace(LIVE, state=STARTED, custom_metadata=None)]


def test_a_copy_that_was_given_up_does_not_count_as_copied() -> None:
    cache = RemoteLogMetadataCache(LIVE.topic_id_partition)
    for event in events_of(replace(segment(5, 20, 29, epochs={0: 20}), state=DELETING)):
        cache.apply(event)
    assert cache.highest_offset_for_epoch(0) is None, "what is above would be copied, and these offsets never"


@pytest.mark.parametrize("objects", ["none", "some"])
def test_what_the_topic_has_as_begun_is_finished_only_with_its_objects(objects: str) -> None:
    world = World(
        known=(replace(LIVE, state=STARTED),), snapshot=snapshot(LIVE), partly=(1,) if objects == "some" else ()
    )
    found = world.decide()
    assert (found.updates, found.segments) == ((), ())
    assert (found.gone, [one.reason for one in found.left]) == ((0, [Left.PARTIAL]) if objects == "some" else (1, []))


def test_of_segments_that_begin_together_the_longest_is_finished_last() -> None:
    long, short, deleted = segment(1, 0, 99), segment(2, 0, 50), segment(3, 0, 120, state=DELETING)
    inside = segment(4, 20, 60, epochs={0: 20, 5: 50})
    later = segment(5, 100, 109)
    assert in_order_of_events([long, deleted, later, inside, short]) == [deleted, short, inside, long, later]


def test_the_log_start_is_that_of_the_epoch_that_wrote_the_end() -> None:
    manifest = segment(1, 0, 9, epochs={3: 0, 5: 4})
    view = RecoveryView(known={}, snapshot=None, stored={segment_id(1).uuid: WHOLE}, manifests=by_uuid([manifest]))
    for epoch, segments, left in ((5, (), [Left.BELOW_START]), (3, (manifest,), [])):
        starts = defaultdict(lambda: -1, {epoch: 10})
        found = decide_recovery(replace(view, start_for=starts.__getitem__))
        assert (found.segments, [one.reason for one in found.left]) == (segments, left)


def test_of_equal_spans_the_latest_is_finished_last() -> None:
    """A native broker reads that one: the other may have what an erasure took out."""
    old, new = segment(9, 0, 9, at_ms=10), segment(1, 0, 9, at_ms=11)
    assert in_order_of_events([new, old]) == [old, new]
    twin = segment(2, 0, 9, at_ms=11)
    assert in_order_of_events([twin, old, new]) == [old, new, twin], "by their ids where even the times are equal"
    assert in_order_of_events([new, old, twin]) == [old, new, twin]


def test_only_manifests_that_say_what_nothing_else_says_are_read() -> None:
    begun = segment(3, 20, 29, state=STARTED)
    stored = {segment_id(number).uuid: WHOLE for number in (1, 2, 3, 4)}
    stored[segment_id(5).uuid] = replace(WHOLE, has_indexes=False)
    wanted = wanted_manifests(by_uuid([LIVE]), snapshot(NEXT, begun), stored)
    assert wanted == [segment_id(3).uuid, segment_id(4).uuid]


def test_a_segment_that_begins_where_the_log_has_gone_on_is_left() -> None:
    """Issue 21: the former cluster copied it after the plan of the mount was made."""
    below, across, beyond = segment(1, 0, 9), segment(2, 10, 19), segment(3, 20, 29)
    unfinished = segment(4, 20, 29, state=STARTED)
    recovery = Recovery(segments=(below, across, beyond, unfinished), from_manifests=2)
    assert recovery_below(recovery, 21) is recovery
    assert [one.start_offset for one in recovery_below(recovery, 20).left] == [20], "it begins right there"
    found = recovery_below(recovery, 15)
    assert (found.segments, found.from_manifests) == ((below, across, unfinished), 1)
    (left,) = found.left
    assert (left.uuid, left.start_offset, left.end_offset) == (segment_id(3).uuid, 20, 29)
    assert (left.reason, left.detail) == (Left.BEYOND_END, "the log goes on at 15")
    assert recovery_below(replace(recovery, segments=(beyond,), from_manifests=1), 15).from_manifests == 0
    with_others = recovery_below(replace(recovery, left=(replace(left, start_offset=17),)), 5)
    assert [one.start_offset for one in with_others.left] == [10, 17, 20], "in the order of their offsets"


def test_holes_are_left_with_what_begins_where_the_log_has_gone_on() -> None:
    recovery = Recovery(segments=(segment(1, 0, 9), segment(2, 40, 49)), holes=((10, 19), (20, 24), (30, 39)))
    assert recovery_below(recovery, 20).holes == ((10, 19),), "a hole that begins right there is none of this log"
    assert recovery_below(recovery, 21).holes == ((10, 19), (20, 24))
    assert recovery_below(recovery, 50).holes == recovery.holes
