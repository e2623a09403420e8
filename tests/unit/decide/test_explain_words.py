"""What people are told of a segment, word for word, where another sentence would send them to the wrong place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, segment, segments
from tests.unit.decide.test_explain import FINISHED_3, STARTED, Given, assert_is_what_then_happens, entry
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.explain import Finding, Stops, explain
from tiersidecar.decide.segment_rows import RowState, segment_rows
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.domain.seen_time import UnseenTime
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import TrashEntry, TrashKind

LAG: dict[str, Any] = {"copy_lag_ms": 12 * HOUR_MS, "copy_lag_bytes": 10**9}
OF_ANOTHER = ((7, 0),)
ELSEWHERE = segment(0, 89, age_h=3, epochs=OF_ANOTHER)
TWO_HOURS: dict[str, Any] = {"retention_ms": 2 * HOUR_MS}


def said(given: Given, stops: Stops, offset: int, state: RowState, about: str) -> Finding:
    """The finding, after it was compared with what the decisions do now and then."""
    view = given.view
    (account,) = (one for one in explain(view, stops, offset).accounts if one.row.state is state)
    (finding,) = (one for one in account.findings if one.about == about)
    assert_is_what_then_happens(view, stops, account, finding)
    return finding


def when(hours: float | str | None) -> tuple[bool, int | None]:
    """``is_due`` and ``changes_ms``: "now", hours from now, or None where time alone changes nothing."""
    if hours is None or isinstance(hours, str):
        return hours == "now", None
    return False, NOW_MS + int(hours * HOUR_MS)


@pytest.mark.parametrize(
    ("given", "offset", "state", "says", "hours"),
    [
        pytest.param(
            Given(local=(0, 100, 200), lso=50),
            99,
            RowState.LOCAL,
            "last stable offset 50 is below its end 100: a transaction is open, or replicas in sync are behind",
            None,
            id="the last offset of a segment is asked about, and its own reason is told without another's",
        ),
        pytest.param(
            Given(local=(0, 100, 200), ages_h=(3, 1), policy=LAG),
            0,
            RowState.LOCAL,
            "remote.copy.lag.ms and remote.copy.lag.bytes hold it back (its newest record is 3h old, the lag is 12h; "
            "2.0 KiB came after it, the lag is 953.7 MiB)",
            9,
            id="the first waits for no younger one behind it",
        ),
        pytest.param(
            Given(local=(0, 100), ages_h=(3,), stamped=True, policy=LAG),
            0,
            RowState.LOCAL,
            "remote.copy.lag.ms and remote.copy.lag.bytes hold it back (its newest record is 3h old, the lag is 12h; "
            "1.0 KiB came after it, the lag is 953.7 MiB)",
            9,
            id="its age is that of its records, and not of its file",
        ),
        pytest.param(
            Given(local=(0, 100), ages_h=(3,), policy={"copy_lag_ms": -1, "copy_lag_bytes": 10**9}),
            0,
            RowState.LOCAL,
            "remote.copy.lag.ms and remote.copy.lag.bytes hold it back (its newest record is 3h old, the lag is no limit; "
            "1.0 KiB came after it, the lag is 953.7 MiB)",
            None,
            id="a lag that is an unlimited local retention ends by no time",
        ),
        pytest.param(
            Given(local=(0, 100), ages_h=(3,), policy={"copy_lag_ms": 12 * HOUR_MS, "copy_lag_bytes": -1}),
            0,
            RowState.LOCAL,
            "remote.copy.lag.ms and remote.copy.lag.bytes hold it back (its newest record is 3h old, the lag is 12h; "
            "1.0 KiB came after it, the lag is no limit)",
            9,
            id="a lag without limit by size ends by time",
        ),
        pytest.param(
            Given(local=(0, 100, 200), ages_h=(1, 3), policy=LAG, lso=150),
            150,
            RowState.LOCAL,
            "the segment at 0 must be copied first, and waits: remote.copy.lag.ms and remote.copy.lag.bytes hold it back "
            "(its newest record is 1h old, the lag is 12h; 2.0 KiB came after it, the lag is 953.7 MiB)",
            None,
            id="no time is told where an open transaction is in the way then, too",
        ),
        pytest.param(
            Given(local=(0, 100), ages_h=(13,), policy=LAG, lso=50),
            0,
            RowState.LOCAL,
            "last stable offset 50 is below its end 100: a transaction is open, or replicas in sync are behind",
            None,
            id="a lag that is over is not what it waits for",
        ),
        pytest.param(
            Given(local=(0, 100, 200), pinned=True, log_start=100, policy={**LAG, "copy_disabled": True}),
            0,
            RowState.PINNED,
            "remote.log.copy.disable is true",
            None,
            id="a pin waits for no lag",
        ),
        pytest.param(
            Given(
                remote=(segment(0, 89, epochs=OF_ANOTHER), *segments(2, first=100)), local=(0, 100, 200), ages_h=(1, 1)
            ),
            50,
            RowState.LOCAL,
            "its offsets are remote already",
            None,
            id="what readers find in the copy of another leader is not copied again",
        ),
        pytest.param(
            Given(
                remote=segments(2, first=100),
                local=(0, 100, 200, 300),
                holes=(ByteRange(0, 100),),
                ages_h=(3, 1),
                policy=LAG,
            ),
            50,
            RowState.LOCAL,
            "remote.copy.lag.ms and remote.copy.lag.bytes hold it back (its newest record is 3h old, the lag is 12h; "
            "3.0 KiB came after it, the lag is 953.7 MiB)",
            9,
            id="a hole below what is remote is copied too",
        ),
    ],
)
def test_why_it_is_not_copied(given: Given, offset: int, state: RowState, says: str, hours: float | None) -> None:
    found = said(given, Stops(), offset, state, "copy")
    assert (found.says, found.is_due, found.changes_ms) == (says, *when(hours))


@pytest.mark.parametrize(
    ("offset", "wait_s", "expected"),
    [
        pytest.param(0, 0, ("it is copied next", *when("now")), id="the quota lets it begin now"),
        pytest.param(
            0,
            90,
            ("it is copied next, and the copy quota lets the next begin in 1m 30s", *when(1 / 40)),
            id="the next waits for the quota",
        ),
        pytest.param(
            250,
            2,
            (
                "it may be copied: 2 segments of the partition go first, and the copy quota lets the next begin in 2s",
                *when(None),
            ),
            id="what is behind others waits for more than the quota",
        ),
        pytest.param(
            250,
            0,
            ("it may be copied: 2 segments of the partition go first", *when("now")),
            id="what is behind others waits for them alone",
        ),
    ],
)
def test_when_it_is_copied(offset: int, wait_s: float, expected: tuple[str, bool, int | None]) -> None:
    view = Given(local=(0, 100, 200, 300)).view
    (account,) = explain(view, Stops(copy_wait_s=wait_s), offset).accounts
    (found,) = (one for one in account.findings if one.about == "copy")
    assert (found.says, found.is_due, found.changes_ms) == expected


UP_TO_300 = (0, 100, 200, 300)
BY_SIZE = "local.retention.bytes has no limit"


@pytest.mark.parametrize(
    ("given", "offset", "state", "says", "hours"),
    [
        pytest.param(
            Given(remote=FINISHED_3, local=UP_TO_300, policy={"local_retention_bytes": 10 * SEGMENT_BYTES}),
            50,
            RowState.BOTH,
            "local retention keeps it: local.retention.ms has no limit; the local log has 4.0 KiB, and "
            "local.retention.bytes is 10.0 KiB",
            None,
            id="by size alone",
        ),
        pytest.param(
            Given(remote=FINISHED_3, local=UP_TO_300, policy={"local_retention_bytes": 7 * SEGMENT_BYTES // 2}),
            50,
            RowState.BOTH,
            "local retention keeps it: local.retention.ms has no limit; the local log has 4.0 KiB, 3.0 KiB without it, and "
            "local.retention.bytes is 3.5 KiB",
            None,
            id="by size, where the log is above the limit with it and below without it",
        ),
        pytest.param(
            Given(remote=segments(4), local=(0, 100, 200, 300, 400), policy={"local_retention_ms": 5 * HOUR_MS // 2}),
            250,
            RowState.BOTH,
            f"local data is trimmed oldest first, and the segment at 100 stays: local retention keeps it: its newest record is "
            f"2h old, and local.retention.ms is 2h 30m; {BY_SIZE}",
            1.5,
            id="behind the first that stays, and not behind one that goes",
        ),
        pytest.param(
            Given(
                remote=segments(4),
                local=(0, 100, 200, 300, 400),
                log_start=100,
                policy={"local_retention_ms": 5 * HOUR_MS},
            ),
            250,
            RowState.BOTH,
            f"local data is trimmed oldest first, and the segment at 100 stays: local retention keeps it: its newest record is "
            f"2h old, and local.retention.ms is 5h; {BY_SIZE}",
            4,
            id="a file below the log start, which the broker is about to remove, is in nothing's way",
        ),
        pytest.param(
            Given(remote=FINISHED_3[1:], local=UP_TO_300, policy={"local_retention_ms": HOUR_MS}),
            150,
            RowState.BOTH,
            "local data is trimmed oldest first, and the segment at 0 stays: it is not remote yet",
            None,
            id="behind one that is not remote yet",
        ),
        pytest.param(
            Given(
                remote=(segment(0, 99, age_h=1), segment(100, 199, age_h=3)),
                local=(0, 100, 200),
                policy={"local_retention_ms": 2 * HOUR_MS},
            ),
            150,
            RowState.BOTH,
            f"local data is trimmed oldest first, and the segment at 0 stays: local retention keeps it: its newest record is "
            f"1h old, and local.retention.ms is 2h; {BY_SIZE}",
            1,
            id="behind one that is remote and young",
        ),
        pytest.param(
            Given(
                remote=FINISHED_3[2:],
                local=UP_TO_300,
                start=200,
                trash=(entry(200, due_h=5),),
                delay_h=6,
                policy={"local_retention_ms": 6 * HOUR_MS},
            ),
            250,
            RowState.BOTH,
            "what the broker has below offset 200 is not remote, and in the trash: what follows is trimmed once that is due, "
            "or purged",
            None,
            id="behind what only the broker has, in the trash",
        ),
        pytest.param(
            Given(
                remote=tuple(replace(one, max_timestamp_ms=-1) for one in FINISHED_3),
                local=UP_TO_300,
                ages_h=(5, 4, 3),
                policy={"local_retention_ms": 6 * HOUR_MS},
            ),
            50,
            RowState.BOTH,
            f"local retention keeps it: its newest record is 5h old, and local.retention.ms is 6h; {BY_SIZE}",
            1,
            id="records without times are as old as their file",
        ),
        pytest.param(
            Given(remote=(segment(0, 149, age_h=2),), local=UP_TO_300, policy={"local_retention_ms": 6 * HOUR_MS}),
            149,
            RowState.BOTH,
            "it is not remote yet, and only what is remote is trimmed",
            None,
            id="a remote segment that ends within a local one: that one goes whole, or not",
        ),
        pytest.param(
            Given(remote=(segment(0, 349, age_h=2),), local=UP_TO_300),
            349,
            RowState.BOTH,
            "it is in the active segment, which is never trimmed",
            None,
            id="a remote segment that ends within the active one",
        ),
        pytest.param(
            Given(local=UP_TO_300, log_start=200, pinned=True),
            150,
            RowState.GIVEN_UP,
            "it is below the log start 200: the broker removes its file",
            None,
            id="a file that the broker removes in its own time",
        ),
    ],
)
def test_why_it_is_not_trimmed(given: Given, offset: int, state: RowState, says: str, hours: float | None) -> None:
    view = replace(given.view, trim=replace(given.view.trim, given_up_offset=given.start))
    accounts = explain(view, Stops(), offset).accounts
    (found,) = (
        one
        for account in accounts
        if account.row.state is state and (account.row.local is None) is (account.row.end_offset in (149, 349))
        for one in account.findings
        if one.about == "trim"
    )
    assert (found.says, found.is_due, found.changes_ms) == (says, *when(hours))


TRIMMED: dict[str, Any] = {"local": (300,), "log_start": 300}
NO_SIZE = "retention.bytes has no limit"
BY_SIDECAR = ", decided by broker 1 at 2023-11-14T21:13:20Z"


@pytest.mark.parametrize(
    ("given", "stops", "offset", "state", "says", "hours"),
    [
        pytest.param(
            Given(remote=FINISHED_3, policy={"retention_ms": 5 * HOUR_MS // 2}, start=0, **TRIMMED),
            Stops(),
            0,
            RowState.REMOTE,
            f"total retention keeps it: its newest record is 2h old, and retention.ms is 2h 30m; {NO_SIZE}",
            0.5,
            id="kept",
        ),
        pytest.param(
            Given(local=(0, 100, 200), ages_h=(3, 2), policy={"retention_ms": 2.5 * HOUR_MS}),
            Stops(),
            0,
            RowState.LOCAL,
            f"it is past the total retention: its newest record is 3h old, and retention.ms is 2h 30m; {NO_SIZE}; the remote "
            "log start moves past it",
            "now",
            id="past it, and never copied",
        ),
        pytest.param(
            Given(local=(0, 100, 200), ages_h=(3, 2), policy={"retention_ms": 2.5 * HOUR_MS}, start=100),
            Stops(),
            0,
            RowState.LOCAL,
            "it was given up: it is below the remote log start 100",
            None,
            id="given up already, and never copied",
        ),
        pytest.param(
            Given(local=(0, 100, 200), ages_h=(3, 2), policy={"retention_ms": 2.5 * HOUR_MS}),
            Stops(delete="mode is observe"),
            0,
            RowState.LOCAL,
            f"it is past the total retention: its newest record is 3h old, and retention.ms is 2h 30m; {NO_SIZE}; but "
            "nothing remote is deleted: mode is observe",
            None,
            id="past it, and nothing may be deleted",
        ),
        pytest.param(
            Given(local=(0, 100, 200), ages_h=(3, 2), stamped=True, policy={"retention_ms": 5 * HOUR_MS}),
            Stops(),
            150,
            RowState.LOCAL,
            f"total retention keeps it: its newest record is 2h old, and retention.ms is 5h; {NO_SIZE}",
            3,
            id="what was never copied is as old as its records",
        ),
        pytest.param(
            Given(remote=FINISHED_3, start=99, policy={"retention_ms": 5 * HOUR_MS}, **TRIMMED),
            Stops(),
            99,
            RowState.REMOTE,
            f"total retention keeps it: its newest record is 2h old, and retention.ms is 5h; {NO_SIZE}",
            3,
            id="what a user's delete left of a segment is kept like the whole",
        ),
        pytest.param(
            Given(
                remote=(segment(0, 99, age_h=1), segment(100, 199, age_h=3)),
                start=99,
                policy={"retention_ms": 6 * HOUR_MS},
                local=(200,),
                log_start=200,
            ),
            Stops(),
            150,
            RowState.REMOTE,
            f"total retention keeps it: its newest record is 3h old, and retention.ms is 6h; {NO_SIZE}",
            5,
            id="and keeps what follows it",
        ),
        pytest.param(
            Given(
                remote=(segment(0, 99, age_h=1), segment(100, 199, age_h=3)),
                start=100,
                trash=(entry(100, due_h=5),),
                delay_h=6,
                policy={"retention_ms": 6 * HOUR_MS},
                local=(200,),
                log_start=200,
            ),
            Stops(),
            150,
            RowState.REMOTE,
            f"total retention keeps it: its newest record is 3h old, and retention.ms is 6h; {NO_SIZE}",
            3,
            id="what was given up before keeps nothing",
        ),
        pytest.param(
            Given(
                remote=FINISHED_3,
                start=0,
                policy={"retention_ms": 5 * HOUR_MS},
                limits=ExpiryLimits(max_share=0.1),
                **TRIMMED,
            ),
            Stops(),
            250,
            RowState.REMOTE,
            f"total retention keeps it: its newest record is 0ms old, and retention.ms is 5h; {NO_SIZE}",
            None,
            id="no time is told where the guard would stop then",
        ),
        pytest.param(
            Given(remote=FINISHED_3, start=100, trash=(entry(100, due_h=5),), delay_h=6, **TRIMMED),
            Stops(),
            0,
            RowState.TRASH,
            f"it is given up{BY_SIDECAR}: it ends below the remote log start 100; until it is due, `tiersidecar undelete` "
            "restores it",
            5,
            id="in the trash",
        ),
        pytest.param(
            Given(
                remote=FINISHED_3,
                start=100,
                trash=(entry(100, due_h=5),),
                delay_h=6,
                unseen=(UnseenTime(from_ms=NOW_MS - HOUR_MS // 2, to_ms=NOW_MS),),
                **TRIMMED,
            ),
            Stops(),
            0,
            RowState.TRASH,
            f"it is given up{BY_SIDECAR}: it ends below the remote log start 100; until it is due, `tiersidecar undelete` "
            "restores it",
            5.5,
            id="in the trash for longer by what of its delay no sidecar saw pass",
        ),
        pytest.param(
            Given(
                remote=FINISHED_3,
                start=200,
                trash=(
                    replace(entry(200, due_h=5), by="broker 2", id=replace(entry(200, due_h=5).id, opened_ms=1)),
                    entry(100, due_h=3),
                ),
                delay_h=6,
                **TRIMMED,
            ),
            Stops(),
            0,
            RowState.TRASH,
            f"it is given up{BY_SIDECAR}: it ends below the remote log start 200; until it is due, `tiersidecar undelete` "
            "restores it",
            3,
            id="of several decisions about it the first that is due counts",
        ),
        pytest.param(
            Given(
                remote=FINISHED_3,
                start=200,
                trash=(entry(200, due_h=5), entry(100, due_h=-3, generation=-1)),
                delay_h=6,
                **TRIMMED,
            ),
            Stops(),
            150,
            RowState.TRASH,
            f"it is given up{BY_SIDECAR}: it ends below the remote log start 200; until it is due, `tiersidecar undelete` "
            "restores it",
            5,
            id="a decision about what lies before it is not about it",
        ),
        pytest.param(
            Given(
                remote=FINISHED_3,
                start=100,
                trash=(entry(100, due_h=5), entry(100, due_h=-3, generation=-1)),
                delay_h=6,
                **TRIMMED,
            ),
            Stops(),
            0,
            RowState.TRASH,
            f"it is given up{BY_SIDECAR}: it ends below the remote log start 100; until it is due, `tiersidecar undelete` "
            "restores it",
            5,
            id="nor is one that was undone",
        ),
        pytest.param(
            Given(remote=FINISHED_3, start=100, delay_h=6, **TRIMMED),
            Stops(),
            0,
            RowState.TRASH,
            "it is given up: it ends below the remote log start 100; until it is due, `tiersidecar undelete` restores it",
            None,
            id="given up, and no decision is in the trash yet: with the next round its delay begins",
        ),
    ],
)
def test_why_it_does_not_expire(
    given: Given, stops: Stops, offset: int, state: RowState, says: str, hours: float | str | None
) -> None:
    found = said(given, stops, offset, state, "expiry")
    assert (found.says, found.is_due, found.changes_ms) == (says, *when(hours))


@pytest.mark.parametrize(
    ("given", "offset", "told"),
    [
        pytest.param(Given(local=(0, 100)), 150, {"active": ["copy", "trim"]}, id="active"),
        pytest.param(Given(local=(0, 100)), 50, {"local": ["copy", "trim", "expiry"]}, id="local"),
        pytest.param(
            Given(local=(0, 100, 200), pinned=True, log_start=100),
            50,
            {"pinned": ["copy", "trim", "expiry"]},
            id="the broker has given up what is pinned: only the pin has it",
        ),
        pytest.param(
            Given(remote=(segment(0, 99, state=STARTED),), local=(0, 100)),
            50,
            {"copying": ["copy", "trim"]},
            id="a copy in flight does not expire",
        ),
        pytest.param(Given(remote=FINISHED_3, local=UP_TO_300), 50, {"both": ["trim", "expiry"]}, id="in both tiers"),
        pytest.param(
            Given(remote=(segment(0, 149), segment(150, 299)), local=UP_TO_300),
            50,
            {"both": ["trim", "expiry"]},
            id="in both tiers, with other borders",
        ),
        pytest.param(
            Given(remote=FINISHED_3, local=(200, 300), log_start=200),
            50,
            {"remote": ["expiry"]},
            id="remote: nothing is to be copied or trimmed",
        ),
        pytest.param(
            Given(local=UP_TO_300, log_start=200), 50, {"given-up": ["trim"]}, id="a file below the broker's log start"
        ),
        pytest.param(
            Given(remote=FINISHED_3, start=100, delay_h=6, local=UP_TO_300),
            50,
            {"trash": ["expiry"]},
            id="in the trash and on the disk",
        ),
        pytest.param(
            Given(
                remote=(segment(0, 99), segment(100, 199, epochs=((7, 100),))),
                local=(100, 200),
                log_start=100,
                lineage=((0, 0), (9, 100)),
            ),
            150,
            {"local": ["copy", "trim", "expiry"], "outside-lineage": ["expiry"]},
            id="what a deposed leader copied stands for no local segment of the same offsets",
        ),
    ],
)
def test_what_is_told_of_each(given: Given, offset: int, told: dict[str, list[str]]) -> None:
    found: dict[str, list[str]] = {}
    for account in explain(given.view, Stops(), offset).accounts:
        assert account.count == 1
        known = found.setdefault(account.row.state.value, [finding.about for finding in account.findings])
        assert known == [finding.about for finding in account.findings], (
            "all that are in the same state are told the same"
        )
        assert account.row.state is not RowState.OUTSIDE_LINEAGE or account.row.local is None
    assert found == told


IN_TRASH = (
    "what the broker has below offset 100 is not remote, and in the trash: what follows is trimmed "
    "once that is due, or purged"
)
NOT_REMOTE = "it is not remote yet, and only what is remote is trimmed"


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        pytest.param(50, IN_TRASH, id="the first, which is in the trash"),
        pytest.param(150, IN_TRASH, id="one behind it that is remote"),
        pytest.param(250, NOT_REMOTE, id="one behind it that is not remote has a reason of its own"),
    ],
)
def test_what_is_not_trimmed_for_what_is_in_the_trash(offset: int, says: str) -> None:
    given = Given(remote=FINISHED_3[1:2], local=UP_TO_300, policy={"local_retention_ms": 0}).view
    view = replace(given, trim=replace(given.trim, given_up_offset=Offset(100)))
    found = [one for account in explain(view, Stops(), offset).accounts for one in account.findings]
    assert [one.says for one in found if one.about == "trim"] == [says]


LOST = "it is of a history that lost an election: it is never read, and is deleted once it is past the total retention"


@pytest.mark.parametrize(
    ("given", "stops", "says", "hours"),
    [
        pytest.param(
            Given(remote=(ELSEWHERE, *FINISHED_3), policy={"retention_ms": 5 * HOUR_MS}),
            Stops(),
            LOST,
            2,
            id="it is younger than the retention",
        ),
        pytest.param(Given(remote=(ELSEWHERE, *FINISHED_3), policy=TWO_HOURS), Stops(), LOST, "now", id="it is older"),
        pytest.param(
            Given(remote=(ELSEWHERE, *FINISHED_3), policy={"retention_ms": 5 * HOUR_MS}, delay_h=24),
            Stops(),
            LOST,
            2,
            id="it goes into the trash then",
        ),
        pytest.param(Given(remote=(ELSEWHERE, *FINISHED_3)), Stops(), LOST, None, id="retention has no limit by time"),
        pytest.param(
            Given(remote=(ELSEWHERE, *FINISHED_3), policy=TWO_HOURS),
            Stops(delete="mode is observe"),
            f"{LOST}; but nothing remote is deleted: mode is observe",
            None,
            id="nothing remote is deleted",
        ),
    ],
)
def test_what_becomes_of_a_segment_that_lost_an_election(
    given: Given, stops: Stops, says: str, hours: float | str | None
) -> None:
    accounts = explain(given.view, stops, 50).accounts
    (account,) = (one for one in accounts if one.row.state is RowState.OUTSIDE_LINEAGE)
    (found,) = account.findings
    assert (found.about, found.says, found.is_due, found.changes_ms) == ("expiry", says, *when(hours))


def named(segment: RemoteLogSegmentMetadata, *, generation: int = 0) -> TrashEntry:
    decided = entry(-1, due_h=5, generation=generation)
    return replace(
        decided,
        id=replace(decided.id, kind=TrashKind.OUTSIDE_LINEAGE),
        segments=frozenset({segment.remote_log_segment_id.uuid}),
    )


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        pytest.param(
            Given(remote=(segment(0, 0),), local=(0,)),
            [(0, 0, "both"), (0, None, "active")],
            id="a remote segment of one record within the active one, which comes after it",
        ),
        pytest.param(
            Given(remote=FINISHED_3[:1], local=(0, 100), log_start=99),
            [(0, 99, "both"), (100, None, "active")],
            id="the broker still has its last offset",
        ),
        pytest.param(
            Given(remote=(segment(0, 99), segment(100, 249)), local=(0, 200), log_start=200),
            [(0, 99, "remote"), (0, 199, "given-up"), (100, 249, "both"), (200, None, "active")],
            id="a file that the broker is about to remove is in its tier no more",
        ),
        pytest.param(
            Given(remote=(ELSEWHERE, segment(0, 99)), trash=(named(ELSEWHERE),), delay_h=24, policy=TWO_HOURS),
            [(0, 89, "trash"), (0, 99, "remote")],
            id="a segment of another history that an entry of the trash names",
        ),
        pytest.param(
            Given(remote=(ELSEWHERE, segment(0, 99)), delay_h=24, policy=TWO_HOURS),
            [(0, 89, "outside-lineage"), (0, 99, "remote")],
            id="one that is past its retention, before any entry names it",
        ),
        pytest.param(
            Given(
                remote=(ELSEWHERE, segment(0, 99)),
                trash=(named(ELSEWHERE, generation=1),),
                delay_h=24,
                policy=TWO_HOURS,
            ),
            [(0, 89, "outside-lineage"), (0, 99, "remote")],
            id="an entry of another generation of the start names nothing",
        ),
        pytest.param(
            Given(remote=FINISHED_3[:1], start=99, policy=TWO_HOURS),
            [(0, 99, "remote")],
            id="one that is due is read up to its last offset, until the start is durable",
        ),
        pytest.param(
            Given(remote=FINISHED_3[:1], start=100, policy=TWO_HOURS), [(0, 99, "trash")], id="and then no more"
        ),
        pytest.param(
            Given(remote=FINISHED_3[:1]), [(0, 99, "remote")], id="a broker whose directory is not known has nothing"
        ),
    ],
)
def test_rows(given: Given, rows: list[tuple[int, int | None, str]]) -> None:
    found = segment_rows(given.view)
    assert [(one.start_offset, one.end_offset, one.state.value) for one in found] == rows


@pytest.mark.parametrize(
    ("given", "offset", "says"),
    [
        pytest.param(
            Given(remote=FINISHED_3[2:], start=100, **TRIMMED),
            99,
            "offset 99 is below the remote log start 100: it is gone. Retention or a user has deleted it, or the broker had "
            "deleted it before the first copy",
            id="deleted",
        ),
        pytest.param(
            Given(remote=FINISHED_3[2:], start=100, **TRIMMED),
            100,
            "offset 100 is below the first offset of either tier, 200",
            id="not deleted by any decision, and not there",
        ),
        pytest.param(
            Given(remote=(*segments(2), *segments(1, first=300))),
            250,
            "neither tier holds offset 250: the broker deleted it before it was copied",
            id="a gap before the last segment",
        ),
        pytest.param(
            Given(remote=FINISHED_3),
            300,
            "offset 300 is beyond the last segment that is known, which ends at 299",
            id="not written yet, or not known",
        ),
    ],
)
def test_an_offset_that_nobody_has(given: Given, offset: int, says: str) -> None:
    assert explain(given.view, Stops(), offset).missing == says
