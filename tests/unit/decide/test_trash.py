"""What goes into the trash, when it is due, and what may be removed (issue 16: trash)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.expiry import HOUR_MS, NOW_MS, segment, segments
from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.trash import (
    TrashDelays,
    TrashPlan,
    TrashView,
    decide_trash,
    deleted_topic,
    kept_from,
    needless,
    purged_deletes,
    replaced,
    user_delete,
)
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.seen_time import UnseenTime
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import FINAL, SaidDelete, TrashEntry, TrashId, TrashKind

DAY = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
AT_ONCE = TrashDelays()
DOUBTED = TrashTime(now_ms=NOW_MS, doubt="the wall clock jumped")
UNSEEN = TrashTime(now_ms=NOW_MS, unseen=(UnseenTime(from_ms=NOW_MS - HOUR_MS // 2, to_ms=NOW_MS - 1),))


def entry(
    up_to: int = -1,
    *,
    kind: TrashKind = TrashKind.RETENTION,
    due_in_h: float = 1,
    decided_h: float = 1,
    epoch: int = 0,
    generation: int = 0,
    names: tuple[RemoteLogSegmentMetadata, ...] = (),
    purged: bool = False,
) -> TrashEntry:
    """Decided ``decided_h`` hours ago, due in ``due_in_h`` hours."""
    decided_ms = NOW_MS - int(decided_h * HOUR_MS)
    opened_ms = decided_ms - decided_ms % HOUR_MS
    return TrashEntry(
        id=TrashId(generation=generation, leader_epoch=LeaderEpoch(epoch), kind=kind, opened_ms=opened_ms),
        decided_ms=decided_ms,
        due_ms=NOW_MS + int(due_in_h * HOUR_MS),
        up_to=Offset(up_to),
        segments=frozenset(name.remote_log_segment_id.uuid for name in names),
        purged_ms=decided_ms if purged else -1,
    )


def plan(
    *entries: TrashEntry,
    gone_to: int = 300,
    was: int | None = None,
    remote: tuple[RemoteLogSegmentMetadata, ...] = segments(5),
    kind: TrashKind = TrashKind.RETENTION,
    given_up: tuple[RemoteLogSegmentMetadata, ...] | None = None,
    **fields: Any,
) -> TrashPlan:
    """The start is at ``gone_to``, and was durable at ``was``; segments below it are given up."""
    going = tuple(one for one in remote if one.end_offset < gone_to) if given_up is None else given_up
    return decide_trash(
        TrashView(
            **{
                "entries": entries,
                "user_deletes": said(*entries, up_to=gone_to if was is None else was),
                "generation": 0,
                "lineage": Lineage.of([(0, 0)]),
                "leader_epoch": LeaderEpoch(0),
                "delays": DAY,
                "time": TrashTime(now_ms=NOW_MS),
                "by": "broker 1",
                "durable_start_offset": gone_to if was is None else was,
                "start_offset": gone_to,
                "given_up": [Removal(metadata=one, reason="because", kind=kind) for one in going],
                "segments": remote,
                **fields,
            }
        )
    )


def said(*entries: TrashEntry, up_to: int) -> list[SaidDelete]:
    """The users' deletes of those ``entries`` that ``up_to``, the durable start, has followed."""
    return [
        SaidDelete(opened_ms=one.id.opened_ms, leader_epoch=one.id.leader_epoch, offset=one.up_to)
        for one in entries
        if one.kind is TrashKind.USER and one.up_to <= up_to
    ]


SAID = said(entry(300, kind=TrashKind.USER), up_to=300)[0]


def starts(removals: tuple[Removal, ...]) -> list[int]:
    return [removal.metadata.start_offset for removal in removals]


def put(found: TrashPlan) -> list[tuple[TrashKind, int, int]]:
    """Kind, offset and hours until due of each new entry."""
    return [(one.kind, one.up_to, (one.due_ms - NOW_MS) // HOUR_MS) for one in found.put]


def test_what_is_decided_now_is_due_after_the_delay_and_nothing_goes_before() -> None:
    found = plan(was=0)
    assert put(found) == [(TrashKind.RETENTION, 300, 24)]
    assert found.put[0].by == "broker 1"
    assert found.put[0].reason == "because"
    assert (found.removals, found.due_start_offset) == ((), -1)
    assert starts(found.waiting) == [0, 100, 200]


@pytest.mark.parametrize(
    ("entries", "fields", "removed", "due_start"),
    [
        pytest.param([entry(300)], {}, [], -1, id="an entry that is not due lets nothing go"),
        pytest.param([entry(300, due_in_h=0)], {}, [0, 100, 200], 300, id="a due one lets go what it covers"),
        pytest.param(
            [entry(200, due_in_h=0), entry(300, decided_h=0)], {}, [0, 100], 200, id="each part by its own time"
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER, due_in_h=0), entry(200, due_in_h=23)],
            {},
            [0, 100, 200],
            300,
            id="what a user deleted beyond goes with all below it: the user's delete is about that too",
        ),
        pytest.param([entry(250, due_in_h=0)], {}, [0, 100], 250, id="a segment that reaches over the offset stays"),
        pytest.param(
            [entry(300, due_in_h=0)],
            {"time": DOUBTED},
            [],
            -1,
            id="nothing is due by a clock in doubt",
        ),
        pytest.param(
            [entry(300, due_in_h=0)], {"time": UNSEEN}, [], -1, id="nor by a clock that went on while nobody was there"
        ),
        pytest.param(
            [entry(300, purged=True)],
            {"time": DOUBTED},
            [0, 100, 200],
            300,
            id="what an operator purged waits for no clock",
        ),
        pytest.param(
            [entry(300, due_in_h=0, generation=0)], {"generation": 1}, [], -1, id="a decision that was undone is void"
        ),
        pytest.param(
            [entry(300, due_in_h=0, generation=2)],
            {"generation": 1},
            [],
            -1,
            id="one of a generation whose start is not read yet waits for it",
        ),
        pytest.param(
            [entry(500, due_in_h=0, epoch=1)],
            {"was": 300, "lineage": Lineage.of([(0, 0), (1, 0)])},
            [0, 100, 200],
            300,
            id="a later leader's entry beyond the start lets nothing go that is not below the start",
        ),
        pytest.param(
            [entry(500, due_in_h=0, decided_h=0)],
            {"was": 200},
            [],
            -1,
            id="a decision whose start never came does not shorten the delay of a later one",
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER, due_in_h=0, decided_h=0)],
            {"was": 0},
            [],
            -1,
            id="nor does a user's delete that nobody came to say, however recent",
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER, due_in_h=0, decided_h=0)],
            {"user_deletes": []},
            [],
            -1,
            id="nor once retention has moved the start there",
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER, due_in_h=0)],
            {"user_deletes": [replace(SAID, offset=Offset(200))]},
            [0, 100],
            200,
            id="a user's entry counts up to where the delete was said",
        ),
        pytest.param(
            [entry(200, kind=TrashKind.USER, due_in_h=0)],
            {"user_deletes": [replace(SAID, opened_ms=FINAL)]},
            [0, 100],
            200,
            id="what is final was said too",
        ),
        pytest.param(
            [entry(200, kind=TrashKind.USER, due_in_h=0, epoch=1)],
            {"user_deletes": [replace(SAID, opened_ms=FINAL)], "lineage": Lineage.of([(0, 0), (1, 0)])},
            [],
            -1,
            id="but not of a later epoch",
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER)],
            {"user_deletes": [], "delays": AT_ONCE},
            [],
            -1,
            id="what a former release said without naming it waits as long",
        ),
        pytest.param(
            [entry(500, due_in_h=0, epoch=1)],
            {"lineage": Lineage.of([(1, 0), (2, 150)])},
            [0],
            150,
            id="a decision about a history that was cut holds as far as that history",
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER)],
            {"broker_keeps": True},
            [],
            -1,
            id="in race mode what a user deleted waits, too",
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER, due_in_h=0)],
            {"broker_keeps": True},
            [0, 100, 200],
            300,
            id="in race mode local data go where a user deleted them and the time is over",
        ),
        pytest.param(
            [entry(200, kind=TrashKind.USER, due_in_h=0, decided_h=2), entry(300, kind=TrashKind.USER)],
            {"broker_keeps": True},
            [0, 100],
            200,
            id="in race mode each user's delete has its own time",
        ),
        pytest.param(
            [entry(300, due_in_h=0)],
            {"broker_keeps": True, "user_deletes": [replace(SAID, offset=Offset(100), opened_ms=FINAL)]},
            [0, 100, 200],
            100,
            id="in race mode retention lets no local data go",
        ),
        pytest.param([], {"delays": AT_ONCE}, [0, 100, 200], 300, id="without a delay it goes at once"),
        pytest.param(
            [entry(200)],
            {"delays": AT_ONCE},
            [200],
            -1,
            id="a delay that was taken out of the configuration still counts for what was decided before",
        ),
        pytest.param(
            [entry(200), entry(100, due_in_h=0)],
            {"delays": AT_ONCE},
            [0, 200],
            100,
            id="and what of it is due goes",
        ),
        pytest.param(
            [entry(kind=TrashKind.TOPIC, due_in_h=0)], {}, [], -1, id="a topic that is there after all was not deleted"
        ),
    ],
)
def test_what_may_go(entries: list[TrashEntry], fields: dict[str, Any], removed: list[int], due_start: int) -> None:
    found = plan(*entries, **fields)
    assert (starts(found.removals), found.due_start_offset) == (removed, due_start)
    assert sorted(starts((*found.removals, *found.waiting))) == [0, 100, 200]


@pytest.mark.parametrize(
    ("entries", "fields", "expected"),
    [
        pytest.param([entry(300)], {}, [], id="nothing twice"),
        pytest.param([], {}, [(TrashKind.RETENTION, 300, 24)], id="a former release's start: decided now"),
        pytest.param([entry(200)], {}, [(TrashKind.RETENTION, 300, 24)], id="what no entry covers is decided now"),
        pytest.param(
            [entry(300, decided_h=0)],
            {"was": 200},
            [(TrashKind.RETENTION, 300, 24)],
            id="a start that moves now is decided now, whatever was said before",
        ),
        pytest.param([], {"gone_to": 0}, [], id="nothing below the start, nothing to say"),
        pytest.param(
            [],
            {"gone_to": 50, "log_start_offset": 0, "high_watermark": 900},
            [(TrashKind.RETENTION, 50, 24)],
            id="what is only in the broker's log is trash too",
        ),
        pytest.param(
            [entry(50)], {"gone_to": 50, "log_start_offset": 0, "high_watermark": 900}, [], id="and said once"
        ),
        pytest.param(
            [entry(300, kind=TrashKind.USER)],
            {"gone_to": 400},
            [(TrashKind.RETENTION, 400, 24)],
            id="retention beyond a user's delete is its own decision",
        ),
        pytest.param([], {"delays": AT_ONCE}, [], id="without a delay there is nothing to write"),
        pytest.param(
            [],
            {"given_up": segments(5), "kind": TrashKind.DISABLE, "gone_to": 200},
            [(TrashKind.DISABLE, 500, 24)],
            id="switched off with deletion: all that is remote, above the local start too",
        ),
        pytest.param(
            [entry(500, kind=TrashKind.DISABLE)],
            {"given_up": segments(5), "kind": TrashKind.DISABLE, "gone_to": 200, "was": 100, "all_goes": True},
            [],
            id="switched off with deletion: said once, however the broker's own log start moves on",
        ),
    ],
)
def test_what_is_said(
    entries: list[TrashEntry], fields: dict[str, Any], expected: list[tuple[TrashKind, int, int]]
) -> None:
    assert put(plan(*entries, **fields)) == expected


OUTSIDE = segments(2, uuid=None, epochs=((9, 0),))


def test_segments_outside_the_lineage_are_named_and_go_by_name_alone() -> None:
    given_up: dict[str, Any] = {"given_up": OUTSIDE, "kind": TrashKind.OUTSIDE_LINEAGE, "gone_to": 300}
    (named,) = plan(**given_up).put
    assert named.kind is TrashKind.OUTSIDE_LINEAGE
    assert named.segments == {one.remote_log_segment_id.uuid for one in OUTSIDE}
    assert plan(entry(300, due_in_h=0), **given_up).removals == (), "the offsets of this history say nothing of them"
    due = replace(named, due_ms=NOW_MS)
    assert starts(plan(due, **given_up).removals) == [0, 100]
    assert plan(due, **{**given_up, "given_up": ()}).removals == (), "they are not to go any more"


def test_what_is_named_and_not_due_holds_back_no_local_data_where_there_is_no_delay() -> None:
    named = entry(kind=TrashKind.OUTSIDE_LINEAGE, names=OUTSIDE)
    assert plan(named, delays=AT_ONCE).due_start_offset == 300


def test_an_entry_of_a_delete_of_everything_says_why() -> None:
    (said,) = plan(given_up=segments(5), kind=TrashKind.DISABLE, gone_to=200).put
    assert said.reason == "because"
    (of_one,) = plan(given_up=segments(1), kind=TrashKind.DISABLE, gone_to=50).put
    assert (of_one.reason, of_one.up_to) == ("because", 100)
    (named,) = plan(given_up=OUTSIDE[:1], kind=TrashKind.OUTSIDE_LINEAGE, gone_to=0).put
    assert named.reason == "because"


def test_so_many_segments_are_named_in_turns() -> None:
    many = segments(700)
    (named,) = plan(given_up=many, kind=TrashKind.OUTSIDE_LINEAGE, gone_to=0, remote=many).put
    assert len(named.segments) == 500
    again = plan(named, given_up=many, kind=TrashKind.OUTSIDE_LINEAGE, gone_to=0, remote=many)
    assert again.put == (), "an entry has room for no more"
    later = plan(
        named,
        given_up=many,
        kind=TrashKind.OUTSIDE_LINEAGE,
        gone_to=0,
        remote=many,
        time=TrashTime(now_ms=NOW_MS + HOUR_MS),
    )
    assert [len(one.segments) for one in later.put] == [200]


def test_tiering_switched_on_again_keeps_what_a_delete_of_everything_had_not_removed() -> None:
    """Only what lies below the start is given up then, and is decided anew: a delete of everything that does not hold any more
    makes nothing due by its own time (issue 16, trash)."""
    switched_off = entry(500, kind=TrashKind.DISABLE, due_in_h=0)
    found = plan(switched_off, gone_to=200)
    assert (found.removals, found.due_start_offset, found.take_out) == ((), -1, (switched_off,))
    assert put(found) == [(TrashKind.RETENTION, 200, 24)]
    still_off = plan(switched_off, given_up=segments(5), kind=TrashKind.DISABLE, gone_to=200, all_goes=True)
    assert starts(still_off.removals) == [0, 100, 200, 300, 400]


@pytest.mark.parametrize(
    ("said_to", "purged_to", "final_to"),
    [
        pytest.param(200, 300, 200, id="a user had deleted less than the entry has"),
        pytest.param(300, 200, 200, id="what was said beyond it is not purged with it"),
    ],
)
def test_what_is_purged_is_final_up_to_where_both_reach(said_to: int, purged_to: int, final_to: int) -> None:
    purged = entry(purged_to, kind=TrashKind.USER)
    other = replace(SAID, opened_ms=SAID.opened_ms - 1)
    deletes = [other, replace(SAID, offset=Offset(said_to))]
    assert purged_deletes([purged], deletes) == (replace(SAID, opened_ms=FINAL, offset=Offset(final_to)),)
    assert purged_deletes([], deletes) == ()


@pytest.mark.parametrize("later", [TrashKind.RETENTION, TrashKind.USER])
def test_what_is_decided_after_tiering_was_switched_on_again_waits_its_own_delay(later: TrashKind) -> None:
    found = plan(entry(500, kind=TrashKind.DISABLE, due_in_h=0), entry(300, kind=later, decided_h=0, due_in_h=1))
    assert (found.removals, found.due_start_offset) == ((), -1)


@pytest.mark.parametrize(
    ("entries", "time", "expected"),
    [
        pytest.param([entry(300, due_in_h=-2)], DOUBTED, -1, id="nothing is due by a clock in doubt"),
        pytest.param([entry(300, purged=True)], DOUBTED, 300, id="what an operator purged waits for no clock"),
        pytest.param([entry(300, due_in_h=0)], UNSEEN, -1, id="a delay that nobody saw pass is not over"),
    ],
)
def test_from_where_on_pins_are_kept_by_a_clock_in_doubt(
    entries: list[TrashEntry], time: TrashTime, expected: int
) -> None:
    """Pins may be the only copy (issue 16, trash: by a clock in doubt nothing becomes due)."""
    lineage = Lineage.of([(0, 0)])
    start = Offset(300)
    assert kept_from(entries, user_deletes=[], generation=0, lineage=lineage, start_offset=start, time=time) == expected


@pytest.mark.parametrize(
    ("one", "fields", "is_out"),
    [
        pytest.param(entry(300, due_in_h=0), {}, False, id="what it covers is still there"),
        pytest.param(entry(300, due_in_h=0), {"given_up": ()}, True, id="nothing left of it"),
        pytest.param(entry(300), {"given_up": ()}, False, id="not due yet: an undelete may still ask for it"),
        pytest.param(
            entry(300, due_in_h=0),
            {"given_up": (), "log_start_offset": 200, "high_watermark": 900},
            False,
            id="the broker still has it",
        ),
        pytest.param(
            entry(300, due_in_h=0),
            {"given_up": (), "log_start_offset": 250, "high_watermark": 250},
            True,
            id="the broker's log is shorter than that",
        ),
        pytest.param(
            entry(300, due_in_h=0),
            {"given_up": (), "log_start_offset": 200},
            True,
            id="the broker has not said where its log ends: what it still has is not known",
        ),
        pytest.param(
            entry(300, due_in_h=0),
            {"given_up": (), "log_start_offset": 200, "high_watermark": 900, "broker_keeps": True},
            True,
            id="in race mode what the broker still has is its own business",
        ),
        pytest.param(
            entry(300, kind=TrashKind.USER, due_in_h=0),
            {"given_up": (), "log_start_offset": 200, "high_watermark": 900, "broker_keeps": True},
            False,
            id="but for what a user deleted",
        ),
        pytest.param(
            entry(300, due_in_h=0),
            {"given_up": (), "log_start_offset": None, "high_watermark": 900},
            True,
            id="the broker has not said where its log begins",
        ),
        pytest.param(
            entry(200, due_in_h=0),
            {"given_up": (), "log_start_offset": 200, "high_watermark": 900},
            True,
            id="the broker's log begins where it ends, below the start",
        ),
        pytest.param(
            entry(500, kind=TrashKind.DISABLE, due_in_h=0),
            {"given_up": (), "all_goes": True, "gone_to": 200, "log_start_offset": 200, "high_watermark": 900},
            True,
            id="all that was remote is gone, and the log begins where the start is",
        ),
        pytest.param(entry(300, due_in_h=0), {"generation": 1}, True, id="undone"),
        pytest.param(
            entry(300, due_in_h=0),
            {"given_up": (), "was": 300, "gone_to": 400, "log_start_offset": 300, "high_watermark": 900},
            True,
            id="a decision whose start came is done, though the start moves on now",
        ),
        pytest.param(
            entry(400, decided_h=0, kind=TrashKind.USER),
            {"was": 300, "gone_to": 350},
            False,
            id="a user's delete whose start is on its way, while retention moves the start as well",
        ),
        pytest.param(
            entry(400, decided_h=1 / 6, kind=TrashKind.USER),
            {"was": 300, "gone_to": 350},
            False,
            id="ten minutes after it too",
        ),
        pytest.param(
            entry(400, decided_h=0.2, due_in_h=0, kind=TrashKind.USER),
            {"was": 300, "gone_to": 350},
            True,
            id="later than that, and due: nobody comes to say it",
        ),
        pytest.param(entry(kind=TrashKind.TOPIC), {}, True, id="of a topic that is there after all"),
        pytest.param(
            entry(400, decided_h=0),
            {"was": 300, "gone_to": 350},
            True,
            id="this leader's own decision, whose start did not follow",
        ),
        pytest.param(
            entry(400, due_in_h=0, decided_h=1 / 6, kind=TrashKind.USER),
            {"given_up": ()},
            False,
            id="a start that may be on its way for ten minutes",
        ),
        pytest.param(entry(300, generation=2), {"generation": 1}, False, id="of a generation that is to come"),
        pytest.param(
            entry(400, due_in_h=0, decided_h=0, kind=TrashKind.USER),
            {"given_up": ()},
            False,
            id="its start is on its way",
        ),
        pytest.param(
            entry(400, due_in_h=0, kind=TrashKind.USER), {"given_up": ()}, True, id="its start never came, and is late"
        ),
        pytest.param(
            entry(kind=TrashKind.OUTSIDE_LINEAGE, names=OUTSIDE, due_in_h=0),
            {"given_up": (), "remote": OUTSIDE},
            False,
            id="a named segment is there, whatever state it is in",
        ),
        pytest.param(
            entry(kind=TrashKind.OUTSIDE_LINEAGE, names=OUTSIDE, due_in_h=0),
            {"given_up": ()},
            False,
            id="named segments of the same ids",
        ),
        pytest.param(
            entry(kind=TrashKind.OUTSIDE_LINEAGE, names=OUTSIDE, due_in_h=0),
            {"given_up": (), "remote": ()},
            True,
            id="all that were named are gone",
        ),
    ],
)
def test_what_is_done_is_taken_out(one: TrashEntry, fields: dict[str, Any], is_out: bool) -> None:
    assert (one in plan(one, **fields).take_out) is is_out


def test_a_deposed_leaders_decision_is_taken_out_before_the_start_moves_there() -> None:
    of_old_leader = entry(300, decided_h=0, epoch=0)
    found = plan(of_old_leader, was=100, leader_epoch=LeaderEpoch(1), lineage=Lineage.of([(0, 0), (1, 400)]))
    assert found.take_out == (of_old_leader,)
    assert put(found) == [(TrashKind.RETENTION, 300, 24)]


def test_decisions_within_a_part_of_the_delay_share_an_entry_and_those_after_a_purge_do_not() -> None:
    first, soon = plan(was=0).put[0], plan(was=0, time=TrashTime(now_ms=NOW_MS + HOUR_MS // 4)).put[0]
    assert first.id == soon.id
    assert first.merged_with(soon).due_ms == soon.due_ms
    assert plan(was=0, time=TrashTime(now_ms=NOW_MS + HOUR_MS)).put[0].id != first.id
    purged = replace(first, purged_ms=first.decided_ms)
    after = plan(purged, was=0, time=TrashTime(now_ms=NOW_MS + HOUR_MS // 4))
    assert after.put[0].id != first.id
    assert after.put[0].id.opened_ms == NOW_MS + HOUR_MS // 4
    assert replace(after.put[0].id, opened_ms=first.id.opened_ms) == first.id


def test_a_users_delete_has_its_own_delay() -> None:
    said = user_delete(
        Offset(70),
        LeaderEpoch(3),
        generation=2,
        delays=DAY,
        now_ms=NOW_MS,
        by="someone",
        from_offset=Offset(40),
    )
    assert said.from_offset == 40, "where the log started before"
    assert (said.up_to, said.due_ms - NOW_MS, said.id.generation, said.by) == (70, HOUR_MS, 2, "someone")
    assert (said.kind, said.id.leader_epoch, said.decided_ms) == (TrashKind.USER, 3, NOW_MS)
    assert said.reason == "a user deleted it"
    soon = user_delete(Offset(80), LeaderEpoch(3), generation=2, delays=DAY, now_ms=NOW_MS + HOUR_MS // 48, by="other")
    later = user_delete(Offset(80), LeaderEpoch(3), generation=2, delays=DAY, now_ms=NOW_MS + HOUR_MS // 12, by="other")
    at_once = user_delete(Offset(70), LeaderEpoch(3), generation=2, delays=AT_ONCE, now_ms=NOW_MS + 1, by="someone")
    assert at_once.id.opened_ms == at_once.due_ms == NOW_MS + 1
    assert soon.id == said.id != later.id, "those within a 24th of its own delay share an entry"


NAME = user_delete(Offset(70), LeaderEpoch(3), generation=2, delays=DAY, now_ms=NOW_MS, by="someone")
PURGED = replace(NAME, purged_ms=NAME.decided_ms)
NEXT_MS = NOW_MS + 1000


def said_by(opened_ms: int, leader_epoch: int = 3) -> SaidDelete:
    return SaidDelete(opened_ms=opened_ms, leader_epoch=LeaderEpoch(leader_epoch), offset=Offset(70))


@pytest.mark.parametrize(
    ("entries", "deletes", "opened_ms"),
    [
        pytest.param([], [], NAME.id.opened_ms, id="the first in its time"),
        pytest.param([NAME], [said_by(NAME.id.opened_ms)], NAME.id.opened_ms, id="another, which shares the entry"),
        pytest.param([PURGED], [], NEXT_MS, id="an operator has purged the first: undone, that would come back"),
        pytest.param([], [said_by(NAME.id.opened_ms)], NEXT_MS, id="the first is carried out, and its entry is gone"),
        pytest.param([], [said_by(NAME.id.opened_ms, 4)], NAME.id.opened_ms, id="that of another epoch is another"),
        pytest.param(
            [PURGED],
            [said_by(NEXT_MS), said_by(NEXT_MS + 1)],
            NEXT_MS + 2,
            id="the millisecond is taken, too, and the next one",
        ),
        pytest.param(
            [replace(NAME, purged_ms=0)], [], NEXT_MS, id="purged, were it at the beginning of time: it is final"
        ),
    ],
)
def test_which_entry_a_users_delete_shares(
    entries: list[TrashEntry], deletes: list[SaidDelete], opened_ms: int
) -> None:
    made = user_delete(
        Offset(80),
        LeaderEpoch(3),
        generation=2,
        delays=DAY,
        now_ms=NEXT_MS,
        by="other",
        entries=entries,
        user_deletes=deletes,
    )
    assert made.id == replace(NAME.id, opened_ms=opened_ms)


@pytest.mark.parametrize(
    ("entries", "fields", "stop"),
    [
        pytest.param([], {"gone_to": 300}, 300, id="what is decided now"),
        pytest.param([entry(400, kind=TrashKind.USER)], {"gone_to": 300}, 300, id="not what no user came to say"),
        pytest.param([], {"gone_to": 0}, -1, id="nothing"),
        pytest.param([entry(400, kind=TrashKind.USER)], {"delays": AT_ONCE}, 300, id="without a delay up to the start"),
    ],
)
def test_below_which_offset_all_is_decided(entries: list[TrashEntry], fields: dict[str, Any], stop: int) -> None:
    assert plan(*entries, **fields).stop == stop


def test_a_deleted_topic_goes_after_the_delay_of_retention() -> None:
    said = deleted_topic(delays=replace(DAY, user_ms=1), now_ms=NOW_MS, by="broker 1")
    assert said.due_ms - NOW_MS == 24 * HOUR_MS
    assert (said.decided_ms, said.up_to, said.by, said.reason) == (NOW_MS, -1, "broker 1", "its topic is deleted")
    assert said.id == TrashId(generation=0, leader_epoch=LeaderEpoch(-1), kind=TrashKind.TOPIC, opened_ms=0)
    later = deleted_topic(delays=DAY, now_ms=NOW_MS + HOUR_MS, by="broker 2")
    assert said.id == later.id, "whichever sidecar says it, and when: it is one decision"
    assert all(said.covers(one, Lineage.of([])) for one in (*OUTSIDE, segment(0, 99)))


@pytest.mark.parametrize(
    ("entries", "fields", "expected"),
    [
        pytest.param([], {}, 300, id="nothing is in the trash: nothing below the start is kept"),
        pytest.param([entry(300, due_in_h=0)], {}, 300, id="all that was decided is due"),
        pytest.param([entry(300)], {}, -1, id="nothing is due: all that there is is kept"),
        pytest.param([entry(100, due_in_h=0), entry(300)], {}, 100, id="kept from the end of what is due"),
        pytest.param(
            [entry(100, due_in_h=0), entry(200, due_in_h=0), entry(300)], {}, 200, id="of the furthest of them"
        ),
        pytest.param(
            [entry(900, due_in_h=0), entry(950)], {}, 300, id="never from beyond the start: that is not given up"
        ),
        pytest.param([entry(300, generation=1)], {}, 300, id="a decision of another generation keeps nothing here"),
        pytest.param([entry(100, due_in_h=0, generation=1), entry(300)], {}, -1, id="nor does it let anything go"),
        pytest.param(
            [entry(kind=TrashKind.OUTSIDE_LINEAGE, names=segments(2))], {}, 300, id="named segments are not local data"
        ),
        pytest.param(
            [entry(500, due_in_h=0, epoch=1), entry(300, epoch=2)],
            {"lineage": Lineage.of([(1, 0), (2, 150)])},
            150,
            id="a due decision about a history that was cut holds as far as that history",
        ),
        pytest.param([entry(300, purged=True)], {}, 300, id="what an operator purged is kept no longer"),
        pytest.param(
            [entry(200, kind=TrashKind.USER, due_in_h=0), entry(300)],
            {"user_deletes": [replace(SAID, opened_ms=NOW_MS - HOUR_MS)]},
            -1,
            id="a due delete that no user has said lets nothing go",
        ),
    ],
)
def test_local_data_is_kept_as_long_as_what_was_decided_about_it(
    entries: list[TrashEntry], fields: dict[str, Any], expected: int
) -> None:
    defaults = {
        "user_deletes": [],
        "generation": 0,
        "lineage": Lineage.of([(0, 0)]),
        "start_offset": Offset(300),
        "time": TrashTime(now_ms=NOW_MS),
    }
    assert kept_from(entries, **{**defaults, **fields}) == expected


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([0, 100, 200, 300, 400, 500]), st.booleans()), max_size=12
    )
)
def test_whatever_happens_nothing_goes_before_its_delay_and_everything_goes_after_it(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Rounds at random times with a start that rises; each may be cut short before its start or before its entries."""
    now_h, start, entries = 0, 0, dict[TrashId, TrashEntry]()
    decided_h: dict[int, int] = {}
    remote = list(segments(5))
    rounds = [*steps, (24, 0, True), (25, 0, True)]
    for hours, wanted, is_whole in rounds:
        now_h += hours
        found = plan(
            *entries.values(),
            gone_to=max(wanted, start),
            was=start,
            remote=tuple(remote),
            time=TrashTime(now_ms=NOW_MS + now_h * HOUR_MS),
        )
        for gone in found.take_out:
            entries.pop(gone.id, None)
        for new in found.put:
            entries[new.id] = entries.get(new.id, new).merged_with(new)
        if not is_whole:
            continue
        for offset in range(start, max(wanted, start), 100):
            decided_h[offset] = now_h
        start = max(wanted, start)
        for removal in found.removals:
            assert now_h - decided_h[removal.metadata.start_offset] >= 24
            remote.remove(removal.metadata)
    assert all(one.start_offset >= start for one in remote)


@pytest.mark.parametrize(
    ("kind", "delay_h", "reason"),
    [
        pytest.param(TrashKind.ERASURE, 1, "an erasure replaced it", id="an erasure waits as a user's delete does"),
        pytest.param(TrashKind.COMPACTION, 24, "a cleaned segment replaced it", id="a cleaner as retention does"),
    ],
)
def test_the_entry_of_what_was_replaced(kind: TrashKind, delay_h: int, reason: str) -> None:
    delays = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
    one = segment(0, 99)
    found = replaced([one], LeaderEpoch(3), opened_ms=7, delays=delays, now_ms=NOW_MS, by="broker 1", kind=kind)
    assert found == TrashEntry(
        id=TrashId(generation=0, leader_epoch=LeaderEpoch(3), kind=kind, opened_ms=7),
        decided_ms=NOW_MS,
        due_ms=NOW_MS + delay_h * HOUR_MS,
        segments=frozenset({one.remote_log_segment_id.uuid}),
        reason=reason,
        by="broker 1",
    )


def test_the_entry_of_a_needless_segment_waits_as_retention_does() -> None:
    delays = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
    found = needless(segment(0, 99), LeaderEpoch(3), generation=2, delays=delays, now_ms=NOW_MS, reason="r", by="b")
    assert found.due_ms == NOW_MS + 24 * HOUR_MS
