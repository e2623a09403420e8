"""Findings of a reconcile run, rule by rule (S-072, S-231, S-307, U11, U12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.reconcile_findings import ACTIONS, FindingKind, Graces
from tiersidecar.decide.reconcile_offsets import LineSegment, PartitionLine, decide_offsets, readable_offsets
from tiersidecar.decide.reconcile_segments import (
    INDEXES,
    KINDS,
    LOG,
    MANIFEST,
    Listed,
    ManifestFacts,
    SegmentRow,
    decide_segment,
    needs_manifest,
)
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.states import RemoteLogSegmentState as State

NOW_MS, OLD_MS = 1_000_000, 100_000
GRACES = Graces(finding_ms=60_000, copy_ms=300_000)
STARTED, FINISHED = State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED
DELETING, DELETED = State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED
SIZES = {LOG: 1000, INDEXES: 100, MANIFEST: 10}
KEYS = {kind: f"t-id/0/7-s.{kind}" for kind in KINDS}
FITS = ManifestFacts(log_bytes=1000, indexes_bytes=100)
K = FindingKind


def objects(*, modified_ms: int = OLD_MS, **sizes: int) -> dict[str, Listed]:
    return {
        kind: Listed(key=KEYS[kind], size_bytes=size_bytes, modified_ms=modified_ms)
        for kind, size_bytes in (
            SIZES | {MANIFEST if kind == "manifest" else kind: n for kind, n in sizes.items()}
        ).items()
        if size_bytes >= 0
    }


def row(before: State | None, after: State | None, **others: object) -> SegmentRow:
    made = SegmentRow(
        topic="t",
        topic_id="id",
        partition=0,
        segment_id="s",
        start_offset=7,
        end_offset=9,
        before=before,
        after=after,
        since_ms=-1 if after is None else OLD_MS,
        segment_size_bytes=1000,
        keys={} if after is None else KEYS,
        objects=objects(),
    )
    return replace(made, **others)  # type: ignore[arg-type]


LIVE = row(FINISHED, FINISHED, manifest=FITS)


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        pytest.param(LIVE, [], id="a finished segment with its three objects, whose manifest fits"),
        pytest.param(replace(LIVE, manifest=None), [], id="the same, manifests not read"),
        pytest.param(replace(LIVE, objects=objects(log=-1)), [K.MISSING_OBJECT], id="its log is gone"),
        pytest.param(replace(LIVE, objects={}, manifest=None), [K.MISSING_OBJECT] * 3, id="all three are gone: one each"),
        pytest.param(
            replace(LIVE, objects={}, manifest=None, since_ms=NOW_MS - 1), [], id="gone, but finished a moment ago"
        ),
        pytest.param(
            replace(LIVE, objects=objects(log=-1), before=STARTED), [], id="not yet finished when the listing began"
        ),
        pytest.param(
            replace(LIVE, objects=objects(log=-1), after=DELETING), [], id="its deletion began during the listing"
        ),
        pytest.param(
            replace(LIVE, objects=objects(log=-1), after=DELETED), [], id="it was deleted during the listing"
        ),
        pytest.param(replace(LIVE, objects=objects(log=999)), [K.SIZE_MISMATCH], id="the log lacks a byte"),
        pytest.param(replace(LIVE, objects=objects(indexes=101)), [K.SIZE_MISMATCH], id="the indexes have one more"),
        pytest.param(
            replace(LIVE, objects=objects(log=1028), manifest=None), [], id="a log that may be encrypted, manifests not read"
        ),
        pytest.param(
            replace(LIVE, objects=objects(log=1028), manifest=None, is_plain=True),
            [K.SIZE_MISMATCH],
            id="a log that nothing transforms has another size than its segment, manifests not read",
        ),
        pytest.param(
            replace(LIVE, manifest=None, remote_size_bytes=1111), [K.SIZE_MISMATCH], id="not the size of the custom metadata"
        ),
        pytest.param(replace(LIVE, remote_size_bytes=0), [K.SIZE_MISMATCH], id="the custom metadata say that it is empty"),
        pytest.param(replace(LIVE, remote_size_bytes=1110), [], id="together the size of the custom metadata"),
        pytest.param(
            replace(LIVE, objects=objects(log=999), remote_size_bytes=1110),
            [K.SIZE_MISMATCH],
            id="a log of the wrong size is told once, though the sum is wrong too",
        ),
        pytest.param(
            replace(LIVE, manifest=ManifestFacts(fault="not JSON")), [K.UNREADABLE_MANIFEST], id="a manifest that is no JSON"
        ),
        pytest.param(
            replace(LIVE, manifest=ManifestFacts(contradiction="end offset 8")),
            [K.CONTRADICTING_MANIFEST],
            id="a manifest of another segment",
        ),
        pytest.param(
            replace(LIVE, manifest=ManifestFacts(is_gone=True), objects=objects(manifest=-1)),
            [],
            id="a manifest that was deleted since the listing",
        ),
        pytest.param(replace(LIVE, is_topic_known=False), [K.UNKNOWN_TOPIC_ID], id="finished, of a topic that is gone"),
        pytest.param(
            replace(LIVE, is_topic_known=False, since_ms=NOW_MS), [], id="finished a moment ago, of a topic not seen yet"
        ),
        pytest.param(row(STARTED, STARTED), [K.STUCK_COPY], id="a copy begun long ago"),
        pytest.param(row(STARTED, STARTED, objects={}), [K.STUCK_COPY], id="a copy begun long ago that stored nothing"),
        pytest.param(row(None, STARTED, since_ms=NOW_MS - 299_999), [], id="a copy within its grace"),
        pytest.param(row(STARTED, STARTED, since_ms=NOW_MS - 300_000), [K.STUCK_COPY], id="a copy whose grace ends now"),
        pytest.param(
            row(DELETING, DELETING, since_ms=NOW_MS - 60_000), [K.DANGLING_DELETE], id="a deletion whose grace ends now"
        ),
        pytest.param(
            replace(LIVE, objects=objects(log=-1), since_ms=NOW_MS - 60_000),
            [K.MISSING_OBJECT],
            id="its log is gone, finished a grace ago",
        ),
        pytest.param(
            row(None, None, objects=objects(modified_ms=NOW_MS - 60_000)),
            [K.ORPHAN_OBJECT] * 3,
            id="objects as old as the grace that no event names",
        ),
        pytest.param(
            row(DELETED, DELETED, since_ms=NOW_MS - 60_000),
            [K.OBJECT_AFTER_DELETE] * 3,
            id="objects of a segment deleted a grace ago",
        ),
        pytest.param(
            row(DELETED, DELETED, since_ms=0, objects=objects(modified_ms=NOW_MS - 59_999)),
            [],
            id="young objects of a segment deleted long ago",
        ),
        pytest.param(
            replace(LIVE, manifest=ManifestFacts(log_bytes=1001, indexes_bytes=99)),
            [K.SIZE_MISMATCH] * 2,
            id="the manifest has other sizes: one finding each",
        ),
        pytest.param(
            replace(LIVE, manifest=None, objects=objects(indexes=-1), remote_size_bytes=1110),
            [K.MISSING_OBJECT],
            id="one is missing: the sum is told no more",
        ),
        pytest.param(
            replace(LIVE, is_plain=True, manifest=ManifestFacts(is_gone=True), objects=objects(log=1028)),
            [K.SIZE_MISMATCH],
            id="a manifest that is gone says nothing of sizes: the segment's own counts",
        ),
        pytest.param(row(DELETING, DELETING), [K.DANGLING_DELETE], id="a deletion begun long ago"),
        pytest.param(row(DELETING, DELETING, since_ms=NOW_MS - 59_999), [], id="a deletion within the grace"),
        pytest.param(row(FINISHED, DELETING), [], id="a deletion begun during the listing"),
        pytest.param(row(DELETED, DELETED), [K.OBJECT_AFTER_DELETE] * 3, id="objects of a deleted segment"),
        pytest.param(row(DELETED, DELETED, objects={}), [], id="a deleted segment without objects"),
        pytest.param(row(DELETING, DELETED), [], id="a deletion that finished during the listing"),
        pytest.param(
            row(DELETED, DELETED, since_ms=NOW_MS - 59_999), [], id="objects of a segment deleted within the grace"
        ),
        pytest.param(row(None, None), [K.ORPHAN_OBJECT] * 3, id="objects that no event names"),
        pytest.param(
            row(None, None, objects=objects(modified_ms=NOW_MS - 59_999)), [], id="young objects that no event names"
        ),
        pytest.param(
            row(None, None, objects=objects(modified_ms=NOW_MS + 5_000)), [], id="objects from a clock that is ahead"
        ),
        pytest.param(
            row(None, None, is_topic_known=False),
            [K.UNKNOWN_TOPIC_ID] * 3,
            id="objects that no event names, of no topic of this cluster: another's, perhaps",
        ),
    ],
)  # fmt: skip
def test_segments(seen: SegmentRow, kinds: list[FindingKind]) -> None:
    assert [finding.kind for finding in decide_segment(seen, GRACES, NOW_MS)] == kinds


def test_a_finding_says_what_and_where() -> None:
    (finding,) = decide_segment(replace(LIVE, objects=objects(log=999)), GRACES, NOW_MS)
    assert (finding.topic, finding.topic_id, finding.partition, finding.segment_id) == ("t", "id", 0, "s")
    assert (finding.key, finding.expected_bytes, finding.found_bytes) == (KEYS[LOG], 1000, 999)
    assert (finding.start_offset, finding.end_offset, finding.age_ms) == (7, 9, NOW_MS - OLD_MS)
    assert finding.detail == "the log object has another size than it must have"


def test_a_sum_that_is_wrong_is_told_of_the_log_by_what_it_lacks() -> None:
    (finding,) = decide_segment(replace(LIVE, manifest=None, remote_size_bytes=1111), GRACES, NOW_MS)
    assert (finding.key, finding.found_bytes, finding.expected_bytes) == (KEYS[LOG], 1000, 1001)
    assert finding.age_ms == NOW_MS - OLD_MS
    assert "1110 bytes together" in finding.detail
    assert "say 1111" in finding.detail


@pytest.mark.parametrize("is_owned", [True, False])
def test_of_a_topic_that_was_ours_the_finding_says_that_it_is_being_deleted(is_owned: bool) -> None:
    """The topic may have been deleted a moment ago: only the age of the segment's last event is known."""
    (finding,) = decide_segment(replace(LIVE, is_topic_known=False, is_topic_owned=is_owned), GRACES, NOW_MS)
    assert finding.detail.startswith("the cluster has no topic of this id")
    assert ("the topic was deleted, perhaps just now" in finding.detail) == is_owned


ELSEWHERE = row(DELETED, DELETED, is_topic_known=False)


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        pytest.param(ELSEWHERE, [K.UNKNOWN_TOPIC_ID], id="deleted, and objects are left: another cluster's, perhaps"),
        pytest.param(replace(ELSEWHERE, objects={}), [], id="deleted, and nothing is left of it"),
        pytest.param(
            row(DELETING, DELETING, is_topic_known=False, objects={}),
            [K.UNKNOWN_TOPIC_ID],
            id="its deletion has begun, and has not finished",
        ),
        pytest.param(row(DELETING, DELETED, is_topic_known=False), [], id="its deletion finished during the listing"),
        pytest.param(replace(ELSEWHERE, since_ms=NOW_MS - 60_000), [K.UNKNOWN_TOPIC_ID], id="deleted a grace ago"),
        pytest.param(replace(ELSEWHERE, since_ms=NOW_MS - 59_999), [], id="deleted within the grace"),
        pytest.param(
            replace(ELSEWHERE, is_topic_owned=True),
            [K.OBJECT_AFTER_DELETE] * 3,
            id="the store says that the id was ours: what is left is a leftover",
        ),
        pytest.param(
            row(DELETING, DELETING, is_topic_known=False, is_topic_owned=True),
            [K.DANGLING_DELETE],
            id="ours, and its deletion does not go on",
        ),
        pytest.param(
            row(STARTED, STARTED, is_topic_known=False, is_topic_owned=True),
            [K.UNKNOWN_TOPIC_ID],
            id="a copy of a topic that was deleted meanwhile is told as that",
        ),
    ],
)
def test_segments_of_topics_that_this_cluster_does_not_have(seen: SegmentRow, kinds: list[FindingKind]) -> None:
    assert [finding.kind for finding in decide_segment(seen, GRACES, NOW_MS)] == kinds


NO_EVENT = row(None, None, known_until=9, objects=objects(indexes=-1, manifest=-1))


@pytest.mark.parametrize(
    ("seen", "doubt", "kind", "detail"),
    [
        pytest.param(NO_EVENT, "", K.ORPHAN_OBJECT, "", id="events of later offsets are known: an orphan"),
        pytest.param(replace(NO_EVENT, known_until=7), "", K.ORPHAN_OBJECT, "", id="those known end where it begins"),
        pytest.param(
            replace(NO_EVENT, known_until=6),
            "",
            K.LOST_METADATA,
            "end at offset 6",
            id="it begins above all that are known",
        ),
        pytest.param(
            replace(NO_EVENT, start_offset=0, known_until=0),
            "",
            K.ORPHAN_OBJECT,
            "",
            id="one event, of offset 0, is known",
        ),
        pytest.param(
            replace(NO_EVENT, known_until=-1),
            "",
            K.LOST_METADATA,
            "none of its whole partition",
            id="of its partition no event is known at all",
        ),
        pytest.param(
            NO_EVENT,
            "the topic was made anew",
            K.LOST_METADATA,
            "the topic was made anew",
            id="the metadata are in doubt",
        ),
        pytest.param(
            replace(NO_EVENT, has_topics_name=False),
            "",
            K.FOREIGN_OBJECT,
            "another name than the key says",
            id="its key names another topic than the id is of",
        ),
        pytest.param(
            replace(NO_EVENT, is_topic_known=False),
            "",
            K.UNKNOWN_TOPIC_ID,
            "no topic has this id",
            id="of no topic of ours",
        ),
    ],
)
def test_objects_that_no_event_names(seen: SegmentRow, doubt: str, kind: FindingKind, detail: str) -> None:
    (finding,) = decide_segment(seen, GRACES, NOW_MS, doubt)
    assert finding.kind is kind
    assert finding.detail.startswith("no event names its segment")
    assert detail in finding.detail
    assert bool(detail) or finding.detail == "no event names its segment"


@pytest.mark.parametrize(
    ("seen", "key", "found_bytes", "age_ms", "detail"),
    [
        pytest.param(
            replace(LIVE, objects=objects(log=-1)), KEYS[LOG], -1, 900_000, "the log object is not in", id="missing"
        ),
        pytest.param(
            replace(LIVE, manifest=ManifestFacts(fault="not JSON")),
            KEYS[MANIFEST],
            -1,
            900_000,
            "not JSON",
            id="unreadable",
        ),
        pytest.param(
            replace(LIVE, manifest=ManifestFacts(contradiction="end offset 8")),
            KEYS[MANIFEST],
            -1,
            900_000,
            "end offset 8",
            id="contradicting",
        ),
        pytest.param(row(STARTED, STARTED), "", -1, 900_000, "its copy was started", id="stuck copy"),
        pytest.param(row(DELETING, DELETING), "", -1, 900_000, "its deletion was started", id="dangling delete"),
        pytest.param(
            replace(LIVE, is_topic_known=False), "", -1, 900_000, "the cluster has no topic", id="of an unknown topic"
        ),
        pytest.param(
            replace(ELSEWHERE, since_ms=OLD_MS), "", -1, 900_000, "nothing says that the id was", id="perhaps another's"
        ),
        pytest.param(
            row(DELETED, DELETED, since_ms=0, objects=objects(indexes=-1, manifest=-1)),
            KEYS[LOG],
            1000,
            900_000,
            "deletion is finished",
            id="left by a deletion",
        ),
        pytest.param(
            row(None, None, objects=objects(indexes=-1, manifest=-1)),
            KEYS[LOG],
            1000,
            900_000,
            "no event names its segment",
            id="orphan",
        ),
    ],
)
def test_each_finding_says_what_and_where(
    seen: SegmentRow, key: str, found_bytes: int, age_ms: int, detail: str
) -> None:
    (finding,) = decide_segment(seen, GRACES, NOW_MS)
    assert (finding.topic, finding.topic_id, finding.partition, finding.segment_id) == ("t", "id", 0, "s")
    assert (finding.start_offset, finding.end_offset) == (7, 9)
    assert (finding.key, finding.found_bytes, finding.age_ms) == (key, found_bytes, age_ms)
    assert detail in finding.detail


def test_only_live_manifests_are_worth_a_request() -> None:
    assert needs_manifest(LIVE)
    assert not needs_manifest(replace(LIVE, objects=objects(manifest=-1)))
    assert not needs_manifest(replace(LIVE, after=DELETING))
    assert not needs_manifest(replace(LIVE, is_topic_known=False))


def test_every_kind_has_an_action() -> None:
    assert set(ACTIONS) == set(FindingKind)


def segment(
    name: str,
    start: int,
    end: int,
    *,
    epochs: dict[int, int] | None = None,
    broker: int = 1,
    at: int = 0,
    **others: object,
) -> LineSegment:
    """Started at ``at``, finished right after."""
    made = LineSegment(
        segment_id=name,
        start_offset=start,
        end_offset=end,
        epochs=tuple(EpochEntry(LeaderEpoch(e), Offset(o)) for e, o in (epochs or {0: start}).items()),
        broker_id=broker,
        started_at=at,
        finished_at=at + 1,
        since_ms=OLD_MS,
    )
    return replace(made, **others)  # type: ignore[arg-type]


A, B, C = segment("a", 0, 9, at=0), segment("b", 10, 19, at=2), segment("c", 20, 29, at=4)


@pytest.mark.parametrize(
    ("segments", "found"),
    [
        pytest.param([], [], id="nothing remote"),
        pytest.param([B, C], [], id="what came before has expired"),
        pytest.param([A, B, C], [], id="one after the other"),
        pytest.param([C, A, B], [], id="in whatever order they are told"),
        pytest.param([A, C], [(K.OFFSET_GAP, 10, 19)], id="the one in between is gone"),
        pytest.param([A, replace(B, is_going=True), C], [], id="the one in between is being deleted: that is told by itself"),
        pytest.param([A, replace(C, since_ms=NOW_MS)], [], id="a gap whose neighbour is younger than the grace"),
        pytest.param(
            [A, segment("b", 5, 24, at=2, broker=2), C], [], id="leaders changed, and the new one's segments roll elsewhere"
        ),
        pytest.param(
            [A, B, segment("b2", 10, 19, at=2, broker=2), C], [], id="two leaders copied the same offsets (S-042)"
        ),
        pytest.param(
            [A, replace(B, finished_at=9), segment("b2", 10, 19, at=6), C],
            [],
            id="the same broker began again before its first copy was finished after all",
        ),
        pytest.param(
            [A, B, C, segment("b2", 10, 19, at=8)],
            [(K.OFFSET_OVERLAP, 10, 19)],
            id="the same broker copied again what it had finished",
        ),
        pytest.param(
            [segment("one", 10, 10), segment("again", 10, 10, at=8)],
            [(K.OFFSET_OVERLAP, 10, 10)],
            id="a segment of a single record, copied again",
        ),
        pytest.param(
            [A, replace(B, finished_at=8), segment("b2", 10, 19, at=8), C],
            [],
            id="its first copy was finished by the very event that began the other",
        ),
        pytest.param(
            [A, segment("short", 10, 14, at=8), segment("long", 10, 19, at=2), C],
            [(K.OFFSET_OVERLAP, 10, 14)],
            id="of two that begin alike the shorter is the needless one",
        ),
        pytest.param(
            [A, B, C, segment("b2", 12, 15, at=8)], [(K.OFFSET_OVERLAP, 12, 15)], id="the same, and only a part of it"
        ),
        pytest.param(
            [A, segment("z", 10, 30, epochs={0: 10}, at=2), segment("n", 10, 19, epochs={1: 10}, broker=2, at=3)],
            [],
            id="an unclean election: the zombie's segment is no part of the line",
        ),
        pytest.param(
            [A, segment("z", 10, 19, epochs={0: 10}, at=2), segment("n", 15, 30, epochs={2: 15}, broker=2, at=3)],
            [],
            id="an unclean election cut a segment: its front is still read",
        ),
        pytest.param(
            [
                A,
                segment("z", 10, 29, epochs={0: 10}, at=2),
                segment("m", 15, 17, epochs={2: 15}, broker=2, at=3),
                segment("n", 25, 30, epochs={2: 25}, broker=2, at=4),
            ],
            [(K.OFFSET_GAP, 18, 24)],
            id="an unclean election cut a segment: from the cut on it holds nothing",
        ),
        pytest.param(
            [A, segment("z", 10, 29, epochs={0: 10, 1: 15}, at=2), segment("n", 20, 30, epochs={2: 20}, broker=2, at=3)],
            [],
            id="a segment of two epochs is cut in the later one",
        ),
        pytest.param(
            [
                A,
                segment("z", 10, 29, epochs={0: 10, 1: 15}, at=2),
                segment("m", 12, 16, epochs={2: 12}, broker=2, at=3),
                segment("n", 20, 30, epochs={2: 20}, broker=2, at=4),
            ],
            [(K.OFFSET_GAP, 17, 19)],
            id="a segment of two epochs is cut in the earlier one",
        ),
        pytest.param(
            [
                A,
                segment("z", 10, 29, epochs={0: 10}, at=2),
                segment("f", 10, 14, epochs={0: 10}, at=5),
                segment("n", 15, 30, epochs={2: 15}, at=7),
            ],
            [],
            id="the front of a cut segment was copied again, and is not needless: the cut one goes as a whole",
        ),
        pytest.param(
            [A, segment("b", 10, 19, epochs={0: 10, 1: 15}, at=2), segment("c", 20, 29, epochs={1: 20}, at=4)],
            [],
            id="an epoch that begins within a segment",
        ),
    ],
)  # fmt: skip
def test_offsets(segments: list[LineSegment], found: list[tuple[FindingKind, int, int]]) -> None:
    line = PartitionLine(topic="t", topic_id="id", partition=0, segments=segments)
    findings = decide_offsets(line, GRACES, NOW_MS)
    assert [(finding.kind, finding.start_offset, finding.end_offset) for finding in findings] == found


def test_a_gap_says_where_it_is_and_how_old_its_younger_neighbour() -> None:
    younger = replace(C, since_ms=OLD_MS + 5)
    (gap,) = decide_offsets(PartitionLine(topic="t", topic_id="id", partition=3, segments=[A, younger]), GRACES, NOW_MS)
    assert (gap.topic, gap.topic_id, gap.partition, gap.age_ms) == ("t", "id", 3, NOW_MS - OLD_MS - 5)
    assert "10 offsets between segments a and c" in gap.detail


@pytest.mark.parametrize(
    ("epochs", "end", "read"),
    [
        pytest.param({0: 0}, 9, [(0, 10)], id="whole"),
        pytest.param({0: 0}, 29, [(0, 20)], id="cut where the next epoch begins"),
        pytest.param({0: 10, 2: 20}, 29, [(10, 20), (20, 30)], id="of two epochs, each by itself"),
        pytest.param({0: 20}, 29, [], id="it begins where its epoch has ended"),
        pytest.param({2: 10}, 19, [], id="it ends where its epoch begins"),
        pytest.param({2: 10}, 20, [(20, 21)], id="all but its last offset lies before its epoch"),
        pytest.param({0: 0, 1: 10}, 29, [(0, 10)], id="nothing of an epoch that the history does not have"),
    ],
)
def test_what_is_read_of_a_segment(epochs: dict[int, int], end: int, read: list[tuple[int, int]]) -> None:
    entries = Lineage.of(sorted(epochs.items())).entries
    found = readable_offsets(Lineage.of([(0, 0), (2, 20)]), [(entries, end)])
    assert [(one.start, one.stop) for one in found] == read


def test_a_segment_within_a_longer_one_of_its_broker_says_which() -> None:
    longer = segment("longer", 5, 25, at=0)
    line = PartitionLine(topic="t", topic_id="id", partition=3, segments=[longer, segment("late", 10, 19, at=8)])
    (finding,) = decide_offsets(line, GRACES, NOW_MS)
    assert (finding.segment_id, finding.detail) == (
        "late",
        "broker 1 had finished segment longer with all its offsets before",
    )


def test_a_needless_segment_says_which_it_is_and_what_holds_it() -> None:
    again = segment("b2", 10, 19, at=8, since_ms=OLD_MS + 5)
    line = PartitionLine(topic="t", topic_id="id", partition=3, segments=[A, B, C, again])
    (twin,) = decide_offsets(line, GRACES, NOW_MS)
    assert (twin.topic, twin.topic_id, twin.partition, twin.segment_id) == ("t", "id", 3, "b")
    assert twin.age_ms == NOW_MS - OLD_MS
    assert twin.detail == "broker 1 finished segment b2 with all its offsets after it"


def test_what_an_erasure_wrote_is_never_the_needless_one() -> None:
    """It has the broker and the offsets of the old one, and is the one that is read.  Neither does a larger segment of that
    broker make it needless while the old one is there: readers would have the old one again."""
    erased = segment("new", 10, 19, at=8)
    larger = segment("larger", 5, 25, at=4)
    for others, needless in [([A, B, C], ["b"]), ([A, replace(B, started_at=1), larger], ["b"])]:
        line = PartitionLine(topic="t", topic_id="id", partition=3, segments=[*others, erased])
        assert [one.segment_id for one in decide_offsets(line, GRACES, NOW_MS)] == needless


def test_what_is_found_is_told_once_the_grace_is_over() -> None:
    gap = [A, replace(C, since_ms=NOW_MS - GRACES.finding_ms)]
    line = PartitionLine(topic="t", topic_id="id", partition=0, segments=gap)
    assert len(decide_offsets(line, GRACES, NOW_MS)) == 1
    assert decide_offsets(line, GRACES, NOW_MS - 1) == ()


def test_cleaned_segments_may_cover_what_they_were_made_from() -> None:
    segments = [A, B, C, segment("b2", 10, 19, at=8)]
    line = PartitionLine(topic="t", topic_id="id", partition=0, segments=segments, is_compacted=True)
    assert decide_offsets(line, GRACES, NOW_MS) == ()
