"""Which segments an erasure rewrites, which it retires, and which it must leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.expiry import segment
from tiersidecar.decide.erasure import (
    Erasing,
    ErasureStep,
    ErasureView,
    decide_erasure,
    reason_to_leave_behind,
    unreadable_segments,
)
from tiersidecar.decide.trash import TrashDelays, replaced
from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.domain.offsets import ByteRange, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashKind

OLD = segment(0, 99)
NEXT = segment(100, 199)
LAST = segment(200, 299)
NEW = replace(
    OLD,
    remote_log_segment_id=replace(OLD.remote_log_segment_id, uuid=Uuid(b"the-new-segment-")),
    event_timestamp_ms=OLD.event_timestamp_ms + 1,
)
PART = segment(0, 49)
ACROSS = segment(50, 149)
FOREIGN = segment(100, 199, epochs=((1, 100),))
CUT_OFF = segment(150, 199, epochs=((1, 150),))
OF_THIS_EPOCH = segment(150, 299, epochs=((2, 150),))
ERASED = replaced([OLD], LeaderEpoch(0), opened_ms=1, delays=TrashDelays(user_ms=1000), now_ms=1, by="erase")
CLEANED = replaced(
    [OLD],
    LeaderEpoch(0),
    opened_ms=1,
    delays=TrashDelays(user_ms=1000),
    now_ms=1,
    by="a cleaner",
    kind=TrashKind.COMPACTION,
)
R, T, I, L = Erasing.REWRITE, Erasing.RETIRE, Erasing.IN_TRASH, Erasing.LEAVE  # noqa: E741 - a table's columns
ALL_TRIMMED = {1: 500, 2: 500}


def uuid(one: RemoteLogSegmentMetadata) -> Uuid:
    return one.remote_log_segment_id.uuid


def view(
    segments: Sequence[RemoteLogSegmentMetadata],
    starts: Mapping[int, int],
    silent: Mapping[int, str] | None = None,
    trash: Sequence[TrashEntry] = (),
    hidden: Sequence[RemoteLogSegmentMetadata] = (),
) -> ErasureView:
    return ErasureView(
        hidden={uuid(one) for one in hidden},
        segments=segments,
        trash=trash,
        log_starts={BrokerId(one): Offset(start) for one, start in starts.items()},
        silent={BrokerId(one): why for one, why in (silent or {}).items()},
    )


@pytest.mark.parametrize(
    ("seen", "dirty", "clean", "expected"),
    [
        pytest.param(view([OLD, NEXT], ALL_TRIMMED), [OLD], [NEXT], [R], id="below every replica's start: rewritten"),
        pytest.param(view([OLD, NEXT], {1: 500, 2: 99}), [OLD], [], [L], id="a follower still has its last offset"),
        pytest.param(view([OLD, NEXT], {1: 100, 2: 100}), [OLD, NEXT], [], [R, L], id="the start is right behind it"),
        pytest.param(view([OLD], {1: 500}, {2: "away"}), [OLD], [], [L], id="one replica does not say"),
        pytest.param(view([OLD], {}), [OLD], [], [L], id="no replica says"),
        pytest.param(
            view([OLD, NEW], ALL_TRIMMED, hidden=[OLD]),
            [OLD],
            [NEW],
            [T],
            id="killed before it was in the trash: retired",
        ),
        pytest.param(view([OLD, NEW], ALL_TRIMMED), [OLD], [], [R], id="what nobody has read stands for nothing"),
        pytest.param(view([OLD, PART], ALL_TRIMMED), [OLD], [PART], [R], id="half of it elsewhere is not all"),
        pytest.param(
            view([OLD, PART], ALL_TRIMMED),
            [OLD, PART],
            [],
            [R, T],
            id="a smaller copy is covered by the larger's new one",
        ),
        pytest.param(
            view([PART, OLD], ALL_TRIMMED, hidden=[PART]), [PART], [OLD], [T], id="a smaller copy that nobody reads"
        ),
        pytest.param(
            view([OLD, NEXT, ACROSS], ALL_TRIMMED),
            [ACROSS],
            [OLD, NEXT],
            [R],
            id="in clean ones too, and yet it is read",
        ),
        pytest.param(
            view([PART, OLD], ALL_TRIMMED, hidden=[PART]),
            [PART],
            [],
            [L],
            id="hidden by a larger one that cannot be read",
        ),
        pytest.param(
            view([OLD, NEW], ALL_TRIMMED, trash=[ERASED], hidden=[OLD]),
            [OLD],
            [],
            [R],
            id="in the trash, and its new one is lost: rewritten again",
        ),
        pytest.param(
            view([OLD, NEW], {1: 500, 2: 99}, trash=[ERASED], hidden=[OLD]),
            [OLD],
            [NEW],
            [L],
            id="in the trash, and local again: a broker's log start went back",
        ),
        pytest.param(
            view([OLD], {1: 0}, trash=[ERASED]),
            [OLD],
            [],
            [L],
            id="in the trash, its new one lost, and local again: left",
        ),
        pytest.param(
            view([OLD, NEW], ALL_TRIMMED, trash=[ERASED], hidden=[OLD]),
            [OLD],
            [NEW],
            [I],
            id="in the trash by an erasure",
        ),
        pytest.param(
            view([OLD, NEW], ALL_TRIMMED, trash=[ERASED]),
            [OLD, NEW],
            [],
            [R, I],
            id="its new one has another key: again",
        ),
        pytest.param(
            view([OLD, FOREIGN, OF_THIS_EPOCH], ALL_TRIMMED), [FOREIGN], [OLD], [L], id="of another history: left"
        ),
        pytest.param(view([OLD, NEXT], ALL_TRIMMED), [], [OLD, NEXT], [], id="none has such records"),
    ],
)
def test_what_becomes_of_segments_with_such_records(
    seen: ErasureView,
    dirty: Sequence[RemoteLogSegmentMetadata],
    clean: Sequence[RemoteLogSegmentMetadata],
    expected: Sequence[Erasing],
) -> None:
    steps = decided(seen, dirty, clean)
    assert [step.erasing for step in steps] == expected
    assert {uuid(step.segment) for step in steps} == {uuid(one) for one in dirty}
    assert all(step.reason for step in steps)


def decided(
    seen: ErasureView,
    dirty: Sequence[RemoteLogSegmentMetadata],
    clean: Sequence[RemoteLogSegmentMetadata],
    unread: Sequence[RemoteLogSegmentMetadata] = (),
) -> list[ErasureStep]:
    return decide_erasure(seen, *({uuid(one) for one in some} for some in (dirty, clean, unread)))


ALL_LOCAL = {1: 0, 2: 0}


@pytest.mark.parametrize(
    ("seen", "dirty", "clean", "unread", "expected"),
    [
        pytest.param(view([OLD, NEXT], ALL_LOCAL), [OLD, NEXT], [], [], [R, R], id="what is local does not count"),
        pytest.param(view([OLD], {}, {1: "away"}), [OLD], [], [], [R], id="nor a replica that does not say"),
        pytest.param(
            view([OLD, NEXT, LAST], ALL_LOCAL), [NEXT, LAST], [], [OLD], [L, L], id="behind one that cannot be read"
        ),
        pytest.param(
            view([OLD, NEXT, LAST], ALL_LOCAL), [OLD, LAST], [], [NEXT], [R, L], id="before one that cannot be read"
        ),
        pytest.param(
            view([OLD, NEW, NEXT], ALL_LOCAL, hidden=[OLD]),
            [NEXT],
            [NEW],
            [OLD],
            [R],
            id="one that nobody reads keeps nothing from being rewritten",
        ),
        pytest.param(
            view([OLD, NEW], ALL_LOCAL, hidden=[OLD]),
            [OLD],
            [],
            [],
            [L],
            id="hidden by one that was not read: never over the cleaner one",
        ),
        pytest.param(
            view([OLD, NEW], ALL_LOCAL, trash=[CLEANED], hidden=[OLD]),
            [OLD, NEW],
            [],
            [],
            [R, I],
            id="replaced by the cleaner, with the new one rewritten",
        ),
        pytest.param(view([OLD, NEW], ALL_LOCAL, hidden=[OLD]), [OLD], [NEW], [], [T], id="killed before the trash"),
        pytest.param(
            view([OLD, CUT_OFF, OF_THIS_EPOCH], ALL_LOCAL),
            [CUT_OFF, OF_THIS_EPOCH],
            [OLD],
            [],
            [R, L],
            id="another history is never read, and keeps nothing",
        ),
        pytest.param(
            view([OLD, FOREIGN, OF_THIS_EPOCH], ALL_LOCAL),
            [FOREIGN, OF_THIS_EPOCH],
            [OLD],
            [],
            [L, L],
            id="behind one of which readers get the front, up to where another history begins",
        ),
        pytest.param(
            view([OLD, FOREIGN, OF_THIS_EPOCH], ALL_LOCAL),
            [OF_THIS_EPOCH],
            [OLD],
            [FOREIGN],
            [L],
            id="behind one whose front readers get, and that cannot be read here",
        ),
    ],
)
def test_what_becomes_of_segments_of_a_compacted_topic(
    seen: ErasureView,
    dirty: Sequence[RemoteLogSegmentMetadata],
    clean: Sequence[RemoteLogSegmentMetadata],
    unread: Sequence[RemoteLogSegmentMetadata],
    expected: Sequence[Erasing],
) -> None:
    steps = decided(replace(seen, is_compacted=True), dirty, clean, unread)
    assert [step.erasing for step in steps] == expected


def test_of_a_compacted_topic_unfinished_copies_below_the_end_may_hold_such_records() -> None:
    """Leftovers of a killed swap; copies beyond it are in hand, and not looked at."""
    swapped, copied = replace(NEW, state=State.COPY_SEGMENT_STARTED), replace(LAST, state=State.COPY_SEGMENT_STARTED)
    seen = replace(view([OLD, NEXT, swapped, copied], ALL_LOCAL), is_compacted=True)
    assert [one for one, _ in unreadable_segments(seen)] == [swapped]
    assert seen.remote_end == 200


def test_what_the_trash_names_for_any_reason_stands_for_nothing_else() -> None:
    outside = replace(ERASED, id=replace(ERASED.id, kind=TrashKind.OUTSIDE_LINEAGE), segments=frozenset({uuid(NEW)}))
    seen = view([OLD, NEW], ALL_TRIMMED, trash=[outside], hidden=[OLD])
    (step,) = decided(seen, [OLD], [NEW])
    assert step.erasing is R
    by_offsets = replace(outside, id=replace(outside.id, kind=TrashKind.RETENTION))
    (step,) = decided(replace(seen, trash=[by_offsets]), [OLD], [NEW])
    assert step.erasing is T, "an entry that is about offsets names nothing"


def test_a_compacted_topic_says_behind_which_segment_records_are_left() -> None:
    seen = replace(view([OLD, NEXT, LAST], ALL_LOCAL), is_compacted=True)
    (step,) = decided(seen, [NEXT], [], unread=[OLD])
    assert step.reason == reason_to_leave_behind(OLD)
    assert "from offset 0 on, has or may have records of these keys" in step.reason


def test_nothing_is_remote_where_no_copy_is_finished() -> None:
    assert view([], {}).remote_end == 0
    assert view([replace(OLD, state=State.COPY_SEGMENT_STARTED)], {}).remote_end == 0
    assert view([OLD, NEXT], {}).remote_end == 200


@pytest.mark.parametrize(
    ("asked", "erasing"),
    [
        pytest.param(ByteRange(0, 100), L, id="all of it"),
        pytest.param(ByteRange(0, 1), L, id="its first offset"),
        pytest.param(ByteRange(99, 100), L, id="its last offset"),
        pytest.param(ByteRange(50, 60), L, id="offsets within it"),
        pytest.param(ByteRange(100, 200), R, id="what follows it"),
    ],
)
def test_what_repair_has_asked_for_again_is_not_rewritten_before_that_is_answered(
    asked: ByteRange, erasing: Erasing
) -> None:
    (step,) = decided(replace(view([OLD, NEXT], ALL_TRIMMED), asked=[asked]), [OLD], [])
    assert step.erasing is erasing
    assert ("repair has asked for another copy of some of its offsets" in step.reason) is (erasing is L)
    (behind,) = decided(replace(view([OLD, NEXT], ALL_TRIMMED), asked=[ByteRange(0, 100)]), [NEXT], [])
    assert behind.erasing is R, "what lies before it does not matter"


def test_what_is_in_the_trash_is_done_with_whatever_repair_has_asked_for() -> None:
    seen = replace(view([OLD, NEW], ALL_TRIMMED, trash=[ERASED], hidden=[OLD]), asked=[ByteRange(0, 100)])
    (step,) = decided(seen, [OLD], [NEW])
    assert (step.erasing, step.reason) == (I, "an earlier erasure replaced it")
    (step,) = decided(replace(seen, is_compacted=True), [OLD], [NEW])
    assert (step.erasing, step.reason) == (I, "an earlier erasure, or the cleaner, replaced it")


@pytest.mark.parametrize(
    ("seen", "local_start"),
    [
        pytest.param(view([], {1: 500, 2: 99}), 99, id="the lowest of all replicas"),
        pytest.param(view([], {1: 500}, {2: "away"}), -1, id="one does not say"),
        pytest.param(view([], {}), -1, id="no replica is known"),
    ],
)
def test_below_which_offset_no_replica_has_anything(seen: ErasureView, local_start: int) -> None:
    assert seen.local_start == local_start


def test_replicas_that_do_not_say_are_named_with_their_reasons() -> None:
    (step,) = decided(view([OLD], {1: 500}, {3: "away", 2: "it is of an older release"}), [OLD], [])
    assert step.reason == (
        "not every replica reports where its log starts (broker 2: it is of an older release; broker 3: away)"
    )
    (step,) = decided(view([OLD], {}), [OLD], [])
    assert step.reason == "no replica says where its log starts"


def test_what_is_still_local_is_named_with_its_offsets_and_brokers() -> None:
    (step,) = decide_erasure(view([NEXT], {1: 150, 2: 120, 3: 200}), {uuid(NEXT)}, set())
    assert step.reason == "still local: offsets 120 to 199 are in the logs of brokers 1, 2 until they are trimmed"
    (step,) = decide_erasure(view([NEXT], {1: 199, 2: 200}), {uuid(NEXT)}, set())
    assert step.reason == "still local: offsets 199 to 199 are in the logs of brokers 1 until they are trimmed"


def test_the_one_that_is_read_is_rewritten_first() -> None:
    """Of equal spans the latest; a native broker reads what is finished last, so the other one must not be finished again."""
    steps = decide_erasure(view([OLD, NEW, LAST], ALL_TRIMMED), {uuid(OLD), uuid(NEW), uuid(LAST)}, set())
    assert [(step.segment, step.erasing) for step in steps] == [(NEW, R), (OLD, T), (LAST, R)]


def test_what_may_hold_such_records_and_is_not_read() -> None:
    copied, going = replace(OLD, state=State.COPY_SEGMENT_STARTED), replace(NEXT, state=State.DELETE_SEGMENT_STARTED)
    local = replace(LAST, state=State.COPY_SEGMENT_STARTED)
    found = unreadable_segments(view([copied, going, local], {1: 250, 2: 200}))
    assert [one for one, _ in found] == [copied, going]
