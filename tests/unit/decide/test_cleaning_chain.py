"""Through which remote segments a cleaner may go (S-243, S-263, S-276)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, segment
from tiersidecar.decide.cleaning_chain import ChainView, CleaningChain, clean_up_to, decide_chain, horizons_due_by
from tiersidecar.decide.trash import TrashDelays, replaced
from tiersidecar.domain.cleaner import short_name
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import ByteRange, EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind

FIRST, SECOND, THIRD = segment(0, 99, age_h=9), segment(100, 199, age_h=8), segment(200, 299, age_h=7)
ALL = (FIRST, SECOND, THIRD)


def copy(
    of: RemoteLogSegmentMetadata, *, hours_ago: float, name: bytes = b"the-other-twin--"
) -> RemoteLogSegmentMetadata:
    """Of the same span, finished so long ago."""
    named = replace(of.remote_log_segment_id, uuid=Uuid(name))
    return replace(of, remote_log_segment_id=named, event_timestamp_ms=int(NOW_MS - hours_ago * HOUR_MS))


CLEANED = copy(SECOND, hours_ago=1)
STARTED = replace(copy(SECOND, hours_ago=1), state=State.COPY_SEGMENT_STARTED)
FOREIGN = replace(SECOND, segment_leader_epochs=(EpochEntry(LeaderEpoch(1), Offset(100)),))


def view(
    segments: Sequence[RemoteLogSegmentMetadata],
    *trash: TrashEntry,
    start: int = -1,
    lineage: tuple[tuple[int, int], ...] = ((0, 0),),
    asked: Sequence[ByteRange] = (),
    hidden: Sequence[RemoteLogSegmentMetadata] = (),
) -> ChainView:
    return ChainView(
        segments=segments,
        trash=trash,
        lineage=Lineage.of(lineage),
        start_offset=Offset(start),
        asked=asked,
        hidden=frozenset(one.remote_log_segment_id.uuid for one in hidden),
    )


def chain(segments: Sequence[RemoteLogSegmentMetadata], *trash: TrashEntry, **seen: Any) -> CleaningChain:
    return decide_chain(view(segments, *trash, **seen))


def in_trash(*segments: RemoteLogSegmentMetadata, kind: TrashKind = TrashKind.COMPACTION) -> TrashEntry:
    if kind is not TrashKind.REPAIR:
        return replaced(
            segments, LeaderEpoch(0), opened_ms=5, delays=TrashDelays(), now_ms=5, by="a cleaner", kind=kind
        )
    named = frozenset(one.remote_log_segment_id.uuid for one in segments)
    entry_id = TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=kind, opened_ms=5)
    return TrashEntry(id=entry_id, decided_ms=5, due_ms=5, segments=named)


@pytest.mark.parametrize(
    ("found", "segments", "twins", "stopped"),
    [
        pytest.param(chain([]), [], [], "", id="nothing is remote"),
        pytest.param(chain(ALL), ALL, [], "", id="end to end"),
        pytest.param(chain([FIRST, THIRD]), [FIRST], [], "no segment holds offsets 100 to 199", id="a hole"),
        pytest.param(chain(ALL, start=150), [SECOND, THIRD], [], "", id="below the start nothing counts"),
        pytest.param(chain([*ALL, STARTED]), ALL, [], "", id="a copy that is not finished"),
        pytest.param(
            chain([*ALL, CLEANED]), [FIRST, CLEANED, THIRD], [SECOND], "", id="killed before the entry in the trash"
        ),
        pytest.param(
            chain([*ALL, CLEANED], hidden=[CLEANED]),
            ALL,
            [CLEANED],
            "",
            id="a clock was wrong: events tell what is given",
        ),
        pytest.param(chain([*ALL, CLEANED], in_trash(SECOND)), [FIRST, CLEANED, THIRD], [], "", id="what was replaced"),
        pytest.param(
            chain([*ALL, CLEANED], in_trash(SECOND, kind=TrashKind.ERASURE)),
            [FIRST, CLEANED, THIRD],
            [],
            "",
            id="what an erasure replaced",
        ),
        pytest.param(
            chain([*ALL, CLEANED], in_trash(SECOND, kind=TrashKind.REPAIR)),
            [FIRST, CLEANED, THIRD],
            [],
            "",
            id="what repair takes for needless",
        ),
        pytest.param(chain([FIRST, SECOND], in_trash(SECOND)), [FIRST, SECOND], [], "", id="what replaced it is gone"),
        pytest.param(
            chain([*ALL, segment(150, 249)]),
            [FIRST],
            [],
            "the segment from offset 100 on overlaps another one",
            id="another leader rolled elsewhere",
        ),
        pytest.param(
            chain([FIRST, segment(0, 49), SECOND]),
            [],
            [],
            "the segment from offset 0 on overlaps another one",
            id="one within another",
        ),
        pytest.param(
            chain([FIRST, segment(0, 199), SECOND], in_trash(FIRST, SECOND)),
            [],
            [],
            "the segment from offset 0 on overlaps another one",
            id="one in the place of several: a look-up in the middle would still find an old one",
        ),
        pytest.param(
            chain([FIRST, replace(SECOND, segment_leader_epochs=FOREIGN.segment_leader_epochs), THIRD]),
            [FIRST],
            [],
            "no segment holds offsets 100 to 199",
            id="of another history",
        ),
        pytest.param(
            chain(ALL, lineage=((0, 0), (1, 150))),
            [FIRST],
            [],
            "a segment from offset 100 on is of another history, in whole or in part",
            id="an election has cut one",
        ),
        pytest.param(
            chain(ALL, asked=[ByteRange(120, 130)]),
            [FIRST],
            [],
            "repair has asked for another copy of offsets from 100 on",
            id="some of it is to be copied again",
        ),
    ],
)
def test_the_chain(
    found: CleaningChain,
    segments: Sequence[RemoteLogSegmentMetadata],
    twins: Sequence[RemoteLogSegmentMetadata],
    stopped: str,
) -> None:
    assert (list(found.segments), list(found.twins), found.stopped) == (list(segments), list(twins), stopped)


def test_of_three_of_one_span_the_latest_is_given_and_the_others_are_twins() -> None:
    latest = copy(FIRST, hours_ago=0.5, name=b"the-third-twin--")
    middle = copy(FIRST, hours_ago=1)
    found = chain([FIRST, middle, latest])
    assert found.segments == (latest,)
    assert list(found.twins) == [middle, FIRST]


def names(*segments: RemoteLogSegmentMetadata) -> list[str]:
    return [short_name(one.remote_log_segment_id.uuid) for one in segments]


@pytest.mark.parametrize(
    ("segments", "offset", "said", "clean"),
    [
        pytest.param(ALL, 300, names(*ALL), 300, id="as it was"),
        pytest.param(ALL, 200, names(FIRST, SECOND), 200, id="what is dirty has no name"),
        pytest.param(ALL, 250, names(*ALL), 250, id="within a segment"),
        pytest.param([SECOND, THIRD], 300, names(*ALL), 300, id="the first one is deleted"),
        pytest.param([FIRST, CLEANED, THIRD], 300, names(*ALL), 100, id="another one is given"),
        pytest.param(ALL, 300, names(SECOND, THIRD), 0, id="one came in front"),
        pytest.param(ALL, 300, [], 0, id="nothing was said of segments"),
        pytest.param([], 300, names(*ALL), 300, id="nothing is there"),
    ],
)
def test_how_far_the_chain_is_what_was_cleaned(
    segments: Sequence[RemoteLogSegmentMetadata], offset: int, said: Sequence[str], clean: int
) -> None:
    assert clean_up_to(segments, Offset(offset), said) == clean


def given_up(below: int, *, opened_ms: int) -> TrashEntry:
    """An entry of retention's."""
    entry_id = TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=TrashKind.RETENTION, opened_ms=opened_ms)
    return TrashEntry(id=entry_id, decided_ms=opened_ms + 5, due_ms=opened_ms + 9, up_to=Offset(below))


EARLIER, LATER = given_up(100, opened_ms=NOW_MS), given_up(200, opened_ms=NOW_MS + 1)
ALLOWED_MS = 600_000
DELETING = replace(FIRST, state=State.DELETE_SEGMENT_STARTED)


@pytest.mark.parametrize(
    ("seen", "due_by_ms"),
    [
        pytest.param(view(ALL, EARLIER), None, id="no start is set"),
        pytest.param(view([SECOND, THIRD], EARLIER, start=100), None, id="nothing is below the start"),
        pytest.param(view([DELETING, SECOND], EARLIER, start=100), None, id="its deletion has begun"),
        pytest.param(view(ALL, EARLIER, start=50), None, id="the start is within a segment, which is in the chain"),
        pytest.param(view(ALL, EARLIER, start=100), NOW_MS - ALLOWED_MS, id="one may come back"),
        pytest.param(view(ALL, EARLIER, LATER, start=200), NOW_MS - ALLOWED_MS, id="two, given up one after the other"),
        pytest.param(view(ALL[1:], LATER, start=200), NOW_MS + 1 - ALLOWED_MS, id="the earlier one is gone"),
        pytest.param(view(ALL, EARLIER, start=200), 0, id="of one no decision is known"),
        pytest.param(view(ALL, start=100), 0, id="no decision is known"),
        pytest.param(
            view(ALL, in_trash(FIRST), start=100), None, id="the cleaner has replaced it: it never comes back"
        ),
        pytest.param(view([FOREIGN, THIRD], start=200), 0, id="of another history, and perhaps of this one again"),
    ],
)
def test_up_to_when_horizons_are_due(seen: ChainView, due_by_ms: int | None) -> None:
    assert horizons_due_by(seen) == due_by_ms


@pytest.mark.timeout(60)
def test_a_chain_of_many_segments_is_found_without_comparing_each_with_each() -> None:
    """It is asked for on the event loop, before each swap: by pairs this would take minutes."""
    many = [segment(start, start + 99, age_h=9) for start in range(0, 2_000_000, 100)]
    assert len(chain(many).segments) == len(many)
