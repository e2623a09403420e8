"""Which segments go because repair found them needless, decided anew when they are due (issue 16, finding 7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, going, segment, segments, view
from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.expiry_standing import standings
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.decide.needless import is_covered, needless_segments
from tiersidecar.decide.trash import TrashDelays, needless
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashKind

DAY = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
THREE = segments(3)
TWIN = segment(100, 199, uuid=b"another copy 16b")
LONGER = segment(50, 250, uuid=b"a longer one 16b")


def entry(
    *needless_ones: RemoteLogSegmentMetadata, kind: TrashKind = TrashKind.REPAIR, due: bool = True, generation: int = 0
) -> TrashEntry:
    """Decided a day ago, and due now."""
    decided = needless(
        needless_ones[0],
        LeaderEpoch(0),
        generation=generation,
        delays=DAY,
        now_ms=NOW_MS - (24 if due else 1) * HOUR_MS,
        reason="others hold all its records",
        by="repair on host a",
    )
    uuids = frozenset(one.remote_log_segment_id.uuid for one in needless_ones)
    return replace(decided, id=replace(decided.id, kind=kind), segments=uuids)


def held(
    *trash: TrashEntry, remote: tuple[RemoteLogSegmentMetadata, ...] = (*THREE, TWIN), **fields: Any
) -> ExpiryView:
    return view(remote, trash=trash, delays=DAY, **{"start": 0, "log_start_offset": 0, "high_watermark": 900, **fields})


def found_needless(given: ExpiryView, *given_up: RemoteLogSegmentMetadata) -> list[RemoteLogSegmentMetadata]:
    removals = [Removal(metadata=one, reason="it goes") for one in given_up]
    return [one.metadata for one in needless_segments(given, standings(given.remote_segments, given.lineage), removals)]


OF_ANOTHER_HISTORY = segment(100, 199, epochs=((7, 100),), uuid=b"of another log 1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(held(), [], id="nobody has named any: two copies of the same offsets stay"),
        pytest.param(held(entry(TWIN)), [TWIN], id="named, and another holds all of it"),
        pytest.param(held(entry(TWIN), remote=(THREE[0], TWIN, THREE[2])), [], id="its twin has expired meanwhile"),
        pytest.param(
            held(entry(TWIN), remote=(*THREE, OF_ANOTHER_HISTORY)), [], id="it is gone, another is none of it"
        ),
        pytest.param(
            held(entry(OF_ANOTHER_HISTORY), remote=(*THREE, OF_ANOTHER_HISTORY)),
            [],
            id="of another history: that goes by its own retention",
        ),
        pytest.param(
            held(entry(TWIN), remote=(THREE[0], OF_ANOTHER_HISTORY, TWIN, THREE[2])),
            [],
            id="what holds it is of another history",
        ),
        pytest.param(held(entry(TWIN), entry(THREE[1])), [], id="both were named: neither goes for the other"),
        pytest.param(
            held(entry(TWIN), entry(THREE[1], kind=TrashKind.OUTSIDE_LINEAGE)),
            [],
            id="what holds it is named in the trash for another reason",
        ),
        pytest.param(
            held(entry(TWIN), entry(THREE[1], kind=TrashKind.RETENTION)),
            [TWIN],
            id="an entry that is about offsets names nothing",
        ),
        pytest.param(held(entry(TWIN, kind=TrashKind.OUTSIDE_LINEAGE)), [], id="named, but not by repair"),
        pytest.param(held(entry(TWIN, generation=1)), [], id="by an entry of a generation that is to come"),
        pytest.param(held(entry(TWIN), start_generation=1), [], id="by an entry that was undone"),
        pytest.param(
            held(entry(TWIN), damaged=frozenset({THREE[1].remote_log_segment_id.uuid})),
            [],
            id="what holds it is damaged",
        ),
        pytest.param(
            held(entry(TWIN), in_flight={THREE[1].remote_log_segment_id}),
            [],
            id="what holds it is being deleted right now",
        ),
        pytest.param(
            held(entry(TWIN), remote=(THREE[0], replace(THREE[1], state=State.COPY_SEGMENT_STARTED), TWIN)),
            [],
            id="what holds it is not finished",
        ),
        pytest.param(
            held(entry(LONGER), remote=(*THREE, LONGER)), [LONGER], id="others hold it together, beyond both its ends"
        ),
        pytest.param(
            held(entry(LONGER), remote=(THREE[0], THREE[2], LONGER)),
            [],
            id="others hold its ends, and nobody its middle",
        ),
        pytest.param(
            held(entry(LONGER), remote=(*THREE[:2], segment(200, 249), LONGER)), [], id="its last offset is in no other"
        ),
        pytest.param(
            held(entry(LONGER), remote=(*THREE[:2], segment(200, 250), LONGER)),
            [LONGER],
            id="its last offset is in one",
        ),
        pytest.param(
            held(entry(LONGER), remote=(segment(51, 199), THREE[2], LONGER)), [], id="its first offset is in no other"
        ),
        pytest.param(held(entry(TWIN), start=199), [TWIN], id="all but the last offset of both is given up"),
        pytest.param(held(entry(TWIN), start=200), [], id="both lie below the start: they go by that"),
    ],
)
def test_needless_segments(given: ExpiryView, expected: list[RemoteLogSegmentMetadata]) -> None:
    assert found_needless(given) == expected


def test_what_goes_for_another_reason_holds_nothing_and_goes_for_no_other() -> None:
    given = held(entry(TWIN))
    assert found_needless(given, THREE[1]) == []
    assert found_needless(given, TWIN) == []
    assert found_needless(given, THREE[0]) == [TWIN]


def test_a_segment_does_not_cover_itself() -> None:
    assert not is_covered(TWIN, [TWIN])
    assert is_covered(TWIN, [TWIN, THREE[1]])
    assert not is_covered(TWIN, [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(held(entry(TWIN)), [(100, 199)], id="due: it goes"),
        pytest.param(held(entry(TWIN, due=False)), [], id="not due yet"),
        pytest.param(held(entry(TWIN), hold="held until noon"), [], id="an operator holds the partition"),
        pytest.param(held(entry(TWIN), retention_h=1, clock_doubt="the clock jumped"), [], id="expiry stops"),
        pytest.param(held(entry(TWIN), high_watermark=150), [], id="expiry stops without asking the clock"),
        pytest.param(held(entry(TWIN), in_flight={TWIN.remote_log_segment_id}), [], id="it is in flight"),
    ],
)
def test_when_they_go(given: ExpiryView, expected: list[tuple[int, int]]) -> None:
    plan = decide_expiry(given)
    assert going(plan) == expected
    assert [(one.kind, one.reason) for one in plan.expired] == [
        (TrashKind.REPAIR, "repair: other live segments hold all its records") for _ in expected
    ]
    assert plan.remote_log_start_offset == 0, "what is needless moves no start"


def test_an_entry_of_repair_ends_when_its_segment_is_gone_or_needed_again() -> None:
    named = entry(TWIN)
    assert decide_expiry(held(named)).trash.take_out == (), "it is to go still"
    assert decide_expiry(held(named, remote=THREE)).trash.take_out == (named,), "gone"
    assert decide_expiry(held(named, remote=(THREE[0], TWIN, THREE[2]))).trash.take_out == (named,), "needed"
    waiting = entry(TWIN, due=False)
    assert decide_expiry(held(waiting, remote=THREE)).trash.take_out == (), "an undelete may still ask for it"


def test_the_entry_says_what_and_until_when() -> None:
    said = needless(
        TWIN, LeaderEpoch(3), generation=2, delays=DAY, now_ms=NOW_MS, reason="others hold it", by="repair on host a"
    )
    assert (said.id.generation, said.id.leader_epoch, said.kind) == (2, 3, TrashKind.REPAIR)
    assert (said.decided_ms, said.due_ms) == (NOW_MS, NOW_MS + 24 * HOUR_MS)
    assert said.segments == {TWIN.remote_log_segment_id.uuid}
    assert said.up_to == -1
    assert (said.reason, said.by) == ("others hold it", "repair on host a")
    soon = needless(THREE[1], LeaderEpoch(3), generation=2, delays=DAY, now_ms=NOW_MS + HOUR_MS // 4, reason="", by="")
    assert soon.id == said.id, "what is decided within a 24th of the delay shares an entry"
    later = needless(THREE[1], LeaderEpoch(3), generation=2, delays=DAY, now_ms=NOW_MS + HOUR_MS, reason="", by="")
    assert later.id != said.id
