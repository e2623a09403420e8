"""What of a partition goes back to the brokers' disks, and what is in the way (issue 21)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.decide.back_to_local import REMEDIES, Hindrance, Piece, ReturnView, decide_return, uncovered
from tiersidecar.domain.offsets import Lineage, Offset

FIRST, SECOND = remote_segment(0, 99), remote_segment(100, 199)


def piece(start: int, stop: int, segment: Any = None) -> Piece:
    return Piece(start=Offset(start), stop=Offset(stop), segment=segment or remote_segment(start, stop - 1))


VIEW = ReturnView(
    owner=TOPIC_ID_PARTITION,
    lineage=Lineage.of([(0, 0)]),
    log_start_offset=Offset(0),
    broker_log_start_offset=Offset(200),
    high_watermark=Offset(250),
    pieces=(piece(0, 100, FIRST), piece(100, 200, SECOND)),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    view: ReturnView
    start: int = 0
    pieces: tuple[tuple[int, int], ...] = ((0, 100), (100, 200))
    gaps: tuple[tuple[int, int], ...] = ()
    hindrances: tuple[Hindrance, ...] = ()
    accepts_gaps: bool = False


def view(**changes: Any) -> ReturnView:
    return replace(VIEW, **changes)


ROWS = {
    "all that is remote goes back": Row(view=VIEW),
    "users' deletes stay deleted, in the middle of a segment too": Row(
        view=view(log_start_offset=Offset(150)), start=150, pieces=((150, 200),)
    ),
    "a log start above the broker's own": Row(view=view(log_start_offset=Offset(220)), start=220, pieces=()),
    "copies of what is still local are planned: another replica may begin later": Row(
        view=view(broker_log_start_offset=Offset(50))
    ),
    "nothing goes back beyond what all replicas have": Row(
        view=view(high_watermark=Offset(180), broker_log_start_offset=Offset(100)), pieces=((0, 100), (100, 180))
    ),
    "a hole is in the way": Row(
        view=view(pieces=(piece(0, 80), piece(100, 200, SECOND))),
        pieces=((0, 80), (100, 200)),
        gaps=((80, 100),),
        hindrances=(Hindrance.GAP,),
    ),
    "a hole that is given up": Row(
        view=view(pieces=(piece(0, 80), piece(100, 200, SECOND))),
        pieces=((0, 80), (100, 200)),
        gaps=((80, 100),),
        accepts_gaps=True,
    ),
    "a hole at the beginning, and one below the broker's log": Row(
        view=view(pieces=(piece(20, 180),)),
        pieces=((20, 180),),
        gaps=((0, 20), (180, 200)),
        hindrances=(Hindrance.GAP,),
    ),
    "a hole in what the leader has itself is none": Row(
        view=view(pieces=(piece(0, 100, FIRST),), broker_log_start_offset=Offset(100)), pieces=((0, 100),)
    ),
    "never tiered: its log begins where the broker's does": Row(
        view=view(log_start_offset=Offset(-1), pieces=()), start=200, pieces=()
    ),
    "tiered, and nobody has said where it begins": Row(
        view=view(log_start_offset=Offset(-1)), start=200, pieces=(), hindrances=(Hindrance.NO_START,)
    ),
    "an undelete that has no answer": Row(view=view(awaits_answer=True), hindrances=(Hindrance.UNANSWERED_UNDELETE,)),
    "the store has lost a part of one": Row(
        view=view(recopied=frozenset({SECOND.remote_log_segment_id.uuid})), hindrances=(Hindrance.RECOPY,)
    ),
    "the listing lacks an object of one": Row(
        view=view(incomplete=frozenset({FIRST.remote_log_segment_id.uuid})), hindrances=(Hindrance.OBJECTS,)
    ),
    "an object is missing of what nobody needs": Row(
        view=view(log_start_offset=Offset(100), incomplete=frozenset({FIRST.remote_log_segment_id.uuid})),
        start=100,
        pieces=((100, 200),),
    ),
    "no epoch is known of the beginning": Row(
        view=view(lineage=Lineage.of([(3, 100)])), hindrances=(Hindrance.HISTORY,)
    ),
    "no epoch is known at all": Row(view=view(lineage=Lineage()), hindrances=(Hindrance.HISTORY,)),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_what_goes_back(sentence: str) -> None:
    row = ROWS[sentence]
    found = decide_return(row.view, accepts_gaps=row.accepts_gaps)
    assert found.log_start_offset == row.start
    assert tuple((one.start, one.stop) for one in found.pieces) == row.pieces
    assert found.gaps == row.gaps
    assert tuple(one.hindrance for one in found.hindrances) == row.hindrances
    assert found.copied_stop == (row.pieces[-1][1] if row.pieces else 0)


def test_a_piece_that_is_cut_is_smaller() -> None:
    assert (piece(0, 100, FIRST).size_bytes, piece(50, 100, FIRST).size_bytes) == (100, 50)


def test_each_hindrance_has_a_remedy() -> None:
    assert set(REMEDIES) == set(Hindrance)


def test_overlapping_pieces_cover_what_either_has() -> None:
    assert list(uncovered([piece(0, 60), piece(40, 50), piece(70, 90)], 10, 100)) == [(60, 70), (90, 100)]
    assert list(uncovered([piece(0, 100), piece(110, 120)], 10, 100)) == [], (
        "what is missing beyond the end is no matter"
    )
    assert list(uncovered([piece(0, 90), piece(110, 120)], 10, 100)) == [(90, 100)]


def test_what_is_in_the_way_is_named_by_its_first_few_offsets() -> None:
    holes = tuple(piece(start, start + 10) for start in range(20, 180, 20))
    (gap,) = decide_return(view(pieces=holes)).hindrances
    assert gap.detail.endswith(" and 4 more")
    (gap,) = decide_return(view(pieces=holes[:4], broker_log_start_offset=Offset(100))).hindrances
    assert gap.detail == "offsets [0, 20), [30, 40), [50, 60), [70, 80), [90, 100)", "five are named"


def test_the_brokers_files_get_the_lineage_and_an_unanswered_undelete_is_said() -> None:
    found = decide_return(view(awaits_answer=True, lineage=Lineage.of([(0, 0), (3, 120)])))
    assert found.owner == TOPIC_ID_PARTITION
    assert found.leader_epochs == Lineage.of([(0, 0), (3, 120)]).entries
    (hindering,) = found.hindrances
    assert hindering.detail == "the remote log start was set back"
