"""Why a segment is where it is: what is said equals what the decisions do, now and then (issue 20)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, UNGUARDED, segment, segments
from tests.support.segments import local_segments
from tiersidecar.decide.copy import CopyView, decide_copy
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.decide.explain import Account, Finding, Stops, explain
from tiersidecar.decide.segment_rows import PartitionView, RowState, segment_rows
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.decide.trim import Holder, TrimHold, TrimView, decide_hold, decide_trim
from tiersidecar.domain.offsets import ByteRange, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.seen_time import UnseenTime
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind

DAY_H = 24
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@dataclass(frozen=True, kw_only=True)
class Given:
    """A partition: ``local`` are base offsets 100 apart, the last one active; ``ages_h`` those of the sealed ones, by the time
    of their files, or where they are ``stamped`` by that of their records: then the files are new."""

    remote: tuple[RemoteLogSegmentMetadata, ...] = ()
    local: tuple[int, ...] = ()
    ages_h: tuple[float, ...] = ()
    policy: dict[str, Any] = field(default_factory=dict)
    log_start: int = 0
    start: int = 0
    lso: int = 10**9
    trash: tuple[TrashEntry, ...] = ()
    delay_h: float = 0
    limits: ExpiryLimits = UNGUARDED
    hold: str = ""
    pinned: bool = False
    lineage: tuple[tuple[int, int], ...] = ((0, 0),)
    holes: tuple[ByteRange, ...] = ()
    unseen: tuple[UnseenTime, ...] = ()
    stamped: bool = False

    @property
    def view(self) -> PartitionView:
        policy, lineage = TopicPolicy(**self.policy), Lineage.of(self.lineage)
        local = self._local()
        within = [one for one in self.remote if one.is_within(lineage)]
        copied = max((one.end_offset for one in within if one.state.name == "COPY_SEGMENT_FINISHED"), default=-1)
        expiry = ExpiryView(
            policy=policy,
            lineage=lineage,
            remote_segments=self.remote,
            local_segments=local,
            now_ms=NOW_MS,
            remote_log_start_offset=self.start,
            trim_offset=self.log_start,
            held_offset=self.log_start,
            log_start_offset=self.log_start,
            high_watermark=self.lso,
            begun=frozenset(),
            limits=self.limits,
            trash=self.trash,
            delays=TrashDelays(retention_ms=int(self.delay_h * HOUR_MS)),
            hold=self.hold,
            unseen=self.unseen,
        )
        return PartitionView(
            copy=CopyView(
                policy=policy,
                segments=local,
                copied_offset=copied,
                last_stable_offset=self.lso,
                now_ms=NOW_MS,
                remote_log_start_offset=self.start,
                holes=self.holes,
            ),
            expiry=expiry,
            plan=decide_expiry(expiry),
            trim=TrimView(
                policy=policy,
                lineage=lineage,
                segments=local,
                log_start_offset=self.log_start,
                remote_segments=self.remote,
                now_ms=NOW_MS,
            ),
        )

    def _local(self) -> tuple[LocalSegment, ...]:
        made = local_segments(*self.local, size_bytes=SEGMENT_BYTES, modified_ms=NOW_MS)
        ages = (*self.ages_h, *[0.0] * len(made))
        time = "max_timestamp_ms" if self.stamped else "modified_ms"
        return tuple(
            replace(one, pinned=self.pinned and number == 0, **{time: int(NOW_MS - age * HOUR_MS)})  # type: ignore[arg-type]
            for number, (one, age) in enumerate(zip(made, ages, strict=False))
        )


def entry(up_to: int, *, due_h: float, generation: int = 0) -> TrashEntry:
    """A decision of retention to give up all below ``up_to``."""
    return TrashEntry(
        id=TrashId(generation=generation, leader_epoch=LeaderEpoch(0), kind=TrashKind.RETENTION, opened_ms=0),
        decided_ms=NOW_MS - HOUR_MS,
        due_ms=int(NOW_MS + due_h * HOUR_MS),
        up_to=Offset(up_to),
        reason="retention.ms is over",
        by="broker 1",
    )


HELD = Holder(group="billing", offset=Offset(100), reason="consumer group billing has read up to 100")
FINISHED_3 = segments(3)  # [0, 99] 2 h old, [100, 199] 1 h old, [200, 299] new

SITUATIONS = [
    pytest.param(
        Given(local=(0, 100)), Stops(), 150, RowState.ACTIVE, "copy", "once the broker has rolled it", None, id="active"
    ),
    pytest.param(
        Given(local=(0, 100)), Stops(), 150, RowState.ACTIVE, "trim", "never trimmed", None, id="active, not trimmed"
    ),
    pytest.param(
        Given(local=(0, 100)), Stops(), 50, RowState.LOCAL, "copy", "it is copied next", "now", id="sealed a moment ago"
    ),
    pytest.param(
        Given(local=(0, 100, 200, 300)),
        Stops(),
        250,
        RowState.LOCAL,
        "copy",
        "2 segments of the partition go first",
        "now",
        id="in a queue of its own partition",
    ),
    pytest.param(
        Given(local=(0, 100, 200), lso=50),
        Stops(),
        50,
        RowState.LOCAL,
        "copy",
        "last stable offset 50 is below its end 100",
        None,
        id="an open transaction holds it",
    ),
    pytest.param(
        Given(local=(0, 100, 200), lso=50),
        Stops(),
        150,
        RowState.LOCAL,
        "copy",
        "the segment at 0 must be copied first, and waits: last stable offset 50",
        None,
        id="a segment before it is held by an open transaction",
    ),
    pytest.param(
        Given(local=(0, 100), ages_h=(3,), policy={"copy_lag_ms": 12 * HOUR_MS, "copy_lag_bytes": 10**9}),
        Stops(),
        0,
        RowState.LOCAL,
        "copy",
        "its newest record is 3h old, the lag is 12h; 1.0 KiB came after it, the lag is 953.7 MiB",
        9,
        id="the copy lag holds it for nine hours more",
    ),
    pytest.param(
        Given(local=(0, 100, 200), ages_h=(1, 3), policy={"copy_lag_ms": 12 * HOUR_MS, "copy_lag_bytes": 10**9}),
        Stops(),
        150,
        RowState.LOCAL,
        "copy",
        "the segment at 0 must be copied first",
        11,
        id="a younger segment before it holds it, too",
    ),
    pytest.param(
        Given(local=(0, 100), policy={"copy_disabled": True}),
        Stops(),
        0,
        RowState.LOCAL,
        "copy",
        "remote.log.copy.disable is true",
        None,
        id="copying is switched off",
    ),
    pytest.param(
        Given(local=(0, 100)),
        Stops(copy="mode is observe"),
        0,
        RowState.LOCAL,
        "copy",
        "nothing is copied: mode is observe",
        None,
        id="the daemon only observes",
    ),
    pytest.param(
        Given(local=(0, 100, 200), start=100),
        Stops(),
        50,
        RowState.LOCAL,
        "copy",
        "below the remote log start 100",
        None,
        id="given up before it was copied",
    ),
    pytest.param(
        Given(remote=(segment(0, 99, state=STARTED),), local=(0, 100)),
        Stops(),
        0,
        RowState.COPYING,
        "copy",
        "broker 1 has begun to copy it, at 2023-11-14T22:13:20Z",
        "now",
        id="a copy in flight",
    ),
    pytest.param(
        Given(local=(0, 100, 200), pinned=True, log_start=100),
        Stops(),
        0,
        RowState.PINNED,
        "copy",
        "it is copied next",
        "now",
        id="only a pin has it",
    ),
    pytest.param(
        Given(local=(0, 100, 200), pinned=True, log_start=100),
        Stops(),
        0,
        RowState.PINNED,
        "trim",
        "the broker has deleted it, and only a pin keeps it on this disk",
        None,
        id="it names the pin",
    ),
    pytest.param(
        Given(local=(0, 100)), Stops(), 0, RowState.LOCAL, "trim", "not remote yet", None, id="not trimmed: not remote"
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_ms": 6 * HOUR_MS}),
        Stops(),
        0,
        RowState.BOTH,
        "trim",
        "its newest record is 2h old, and local.retention.ms is 6h; local.retention.bytes has no limit",
        4,
        id="local retention by time keeps it for four hours more",
    ),
    pytest.param(
        Given(
            remote=(segment(0, 99, age_h=1), segment(100, 199, age_h=3)),
            local=(0, 100, 200),
            policy={"local_retention_ms": 2 * HOUR_MS},
        ),
        Stops(),
        150,
        RowState.BOTH,
        "trim",
        "local data is trimmed oldest first, and the segment at 0 stays",
        1,
        id="past local retention behind one that is not",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_bytes": 10 * SEGMENT_BYTES}),
        Stops(),
        0,
        RowState.BOTH,
        "trim",
        "the local log has 4.0 KiB, and local.retention.bytes is 10.0 KiB",
        None,
        id="local retention by size keeps it",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_ms": HOUR_MS}),
        Stops(),
        0,
        RowState.BOTH,
        "trim",
        "local.retention.ms allows its trim: it is trimmed once",
        "now",
        id="past local retention",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_ms": 0}),
        Stops(trim="retention.ms is 604800000, must be -1"),
        0,
        RowState.BOTH,
        "trim",
        "nothing of it is trimmed: retention.ms is 604800000",
        None,
        id="the topic's settings do not fit",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_ms": 0}),
        Stops(unproven="object x is missing", unproven_from=100),
        150,
        RowState.BOTH,
        "trim",
        "its remote copy must be proven first: object x is missing",
        None,
        id="its remote copy could not be read back",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_ms": 0}),
        Stops(uncleaned="it still has a tombstone at offset 120", uncleaned_from=100),
        150,
        RowState.BOTH,
        "trim",
        "it waits for a cleaner: it still has a tombstone at offset 120",
        None,
        id="of a compacted topic one of the cleaners has to act first",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"mode": RetentionMode.RACE}),
        Stops(),
        0,
        RowState.BOTH,
        "trim",
        "in race mode the broker deletes",
        None,
        id="race mode",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(200, 300), log_start=200, policy={"retention_ms": 12 * HOUR_MS}),
        Stops(),
        0,
        RowState.REMOTE,
        "expiry",
        "total retention keeps it: its newest record is 2h old, and retention.ms is 12h; retention.bytes has no limit",
        10,
        id="total retention keeps it for ten hours more",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(200, 300), log_start=200, policy={"retention_bytes": 100 * SEGMENT_BYTES}),
        Stops(),
        150,
        RowState.REMOTE,
        "expiry",
        "retention.ms has no limit; the log has 4.0 KiB, and retention.bytes is 100.0 KiB",
        None,
        id="total retention by size keeps it",
    ),
    pytest.param(
        Given(
            remote=(segment(0, 99, age_h=1), segment(100, 199, age_h=9)),
            local=(200,),
            log_start=200,
            policy={"retention_ms": 6 * HOUR_MS},
        ),
        Stops(),
        150,
        RowState.REMOTE,
        "expiry",
        "its newest record is 9h old, and retention.ms is 6h",
        5,
        id="past total retention behind one that is not",
    ),
    pytest.param(
        Given(remote=FINISHED_3, local=(200, 300), log_start=200, policy={"retention_ms": HOUR_MS}, hold="by Ann"),
        Stops(),
        0,
        RowState.REMOTE,
        "expiry",
        "nothing of the partition expires: by Ann",
        None,
        id="held after an undelete",
    ),
    pytest.param(
        Given(
            remote=FINISHED_3,
            local=(300,),
            log_start=300,
            policy={"retention_ms": HOUR_MS},
            limits=ExpiryLimits(max_share=0.1),
        ),
        Stops(),
        0,
        RowState.REMOTE,
        "expiry",
        "deletes.max.share.per.round of 0.1",
        None,
        id="more is due at once than the guard lets go",
    ),
    pytest.param(
        Given(
            remote=FINISHED_3,
            local=(300,),
            log_start=300,
            start=100,
            trash=(entry(100, due_h=5),),
            delay_h=6,
            policy={"retention_ms": 90 * HOUR_MS},
        ),
        Stops(),
        0,
        RowState.TRASH,
        "expiry",
        "decided by broker 1",
        5,
        id="in the trash for five hours more",
    ),
    pytest.param(
        Given(
            remote=FINISHED_3,
            local=(300,),
            log_start=300,
            start=100,
            trash=(entry(100, due_h=-1),),
            delay_h=6,
            policy={"retention_ms": 90 * HOUR_MS},
        ),
        Stops(),
        0,
        RowState.TRASH,
        "expiry",
        "its deletion is due",
        "now",
        id="in the trash, and due",
    ),
    pytest.param(
        Given(
            remote=FINISHED_3,
            local=(300,),
            log_start=300,
            start=100,
            trash=(entry(100, due_h=-1),),
            delay_h=6,
            policy={"retention_ms": 90 * HOUR_MS},
        ),
        Stops(delete="brokers 3 have no sidecar of this version yet"),
        0,
        RowState.TRASH,
        "expiry",
        "nothing remote is deleted: brokers 3",
        None,
        id="due, and a broker has no sidecar",
    ),
    pytest.param(
        Given(remote=(segment(0, 99, state=DELETING), *FINISHED_3[1:]), local=(300,), log_start=300, start=100),
        Stops(),
        0,
        RowState.DELETING,
        "expiry",
        "its deletion has begun",
        "now",
        id="half deleted",
    ),
    pytest.param(
        Given(
            remote=(segment(0, 99), segment(100, 199, epochs=((7, 100),))),
            local=(100, 200),
            log_start=100,
            lineage=((0, 0), (9, 100)),
        ),
        Stops(),
        150,
        RowState.OUTSIDE_LINEAGE,
        "expiry",
        "of a history that lost an election",
        None,
        id="of a deposed leader",
    ),
]


@pytest.mark.parametrize(("given", "stops", "offset", "state", "about", "words", "when"), SITUATIONS)
def test_a_situation(
    given: Given, stops: Stops, offset: int, state: RowState, about: str, words: str, when: float | str | None
) -> None:
    """``when``: "now", hours from now, or None where time alone changes nothing."""
    view = given.view
    account = next(one for one in explain(view, stops, offset).accounts if one.row.state is state)
    (finding,) = (one for one in account.findings if one.about == about)
    assert words in finding.says
    assert account.count == 1
    due = isinstance(when, (int, float))
    assert finding.changes_ms == (NOW_MS + int(float(when) * HOUR_MS) if due and when is not None else None)
    assert finding.is_due is (when == "now")
    assert_is_what_then_happens(view, stops, account, finding)


def assert_is_what_then_happens(view: PartitionView, stops: Stops, account: Account, finding: Finding) -> None:
    """Not before the time that is told, then; at once where that is told; and never where nothing is in the way but time."""
    if account.row.state in (RowState.COPYING, RowState.DELETING):
        return  # begun: not these decisions' any more
    if finding.is_due:
        assert happens(view, account, finding, NOW_MS)
    elif finding.changes_ms is not None:
        assert not happens(view, account, finding, finding.changes_ms - 1)
        assert happens(view, account, finding, finding.changes_ms)
    elif stops == Stops():
        assert not happens(view, account, finding, NOW_MS)


def happens(view: PartitionView, account: Account, finding: Finding, now_ms: int) -> bool:
    """By the decision itself: it is copied, trimmed, given up, or removed from the trash."""
    row = account.row
    if finding.about == "copy":
        return row.local in decide_copy(replace(view.copy, now_ms=now_ms)).segments
    if finding.about == "trim":
        return any(step.local == row.local for step in decide_trim(replace(view.trim, now_ms=now_ms)))
    plan = decide_expiry(replace(view.expiry, now_ms=now_ms))
    if row.state is RowState.TRASH:
        return any(removal.metadata == row.remote for removal in plan.expired)
    before, after = view.expiry.remote_log_start_offset, plan.remote_log_start_offset
    return row.end_offset is not None and before <= row.end_offset < after


def test_a_group_that_has_not_read_it_holds_it() -> None:
    view = Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_ms": 0}).view
    stops = Stops(hold=decide_hold(decide_trim(view.trim), [HELD]))
    said = {offset: finding_of(view, stops, offset, "trim") for offset in (50, 150)}
    assert said[50].is_due
    assert "it is held: consumer group billing has read up to 100" in said[150].says
    assert not said[150].is_due


def finding_of(view: PartitionView, stops: Stops, offset: int, about: str) -> Finding:
    (account,) = explain(view, stops, offset).accounts
    return next(finding for finding in account.findings if finding.about == about)


@pytest.mark.parametrize(
    ("given", "offset", "words"),
    [
        pytest.param(
            Given(remote=FINISHED_3[1:], local=(300,), log_start=300, start=100),
            50,
            "below the remote log start 100",
            id="gone",
        ),
        pytest.param(
            Given(remote=FINISHED_3[:1], local=(200, 300), log_start=200),
            150,
            "neither tier holds offset 150",
            id="a gap",
        ),
        pytest.param(Given(), 7, "no segment", id="an empty partition"),
        pytest.param(Given(remote=FINISHED_3), 300, "beyond the last segment", id="not written yet"),
    ],
)
def test_an_offset_that_no_segment_holds(given: Given, offset: int, words: str) -> None:
    found = explain(given.view, Stops(), offset)
    assert (found.accounts, words in found.missing) == ((), True), found.missing


def test_without_an_offset_each_run_of_segments_is_told_once() -> None:
    view = Given(remote=segments(5), local=(300, 400, 500, 600, 700), log_start=300).view
    assert [
        (account.row.state, account.row.start_offset, account.count) for account in explain(view, Stops()).accounts
    ] == [
        (RowState.REMOTE, 0, 3),
        (RowState.BOTH, 300, 2),
        (RowState.LOCAL, 500, 2),
        (RowState.ACTIVE, 700, 1),
    ]


def test_replicas_that_roll_differently_have_rows_of_their_own() -> None:
    view = Given(remote=(segment(0, 149), segment(150, 299)), local=(0, 100, 200, 300)).view
    assert [(row.start_offset, row.end_offset, row.state.value) for row in segment_rows(view)] == [
        (0, 99, "both"),
        (0, 149, "both"),
        (100, 199, "both"),
        (150, 299, "both"),
        (200, 299, "both"),
        (300, None, "active"),
    ]


def test_the_hold_of_nobody_is_no_hold() -> None:
    assert Stops().hold == TrimHold(allowed=())


def test_what_the_broker_has_yet_to_remove_is_given_up() -> None:
    view = Given(remote=FINISHED_3[2:], local=(0, 100, 200, 300), log_start=200, start=200).view
    rows = {row.start_offset: row.state for row in segment_rows(view)}
    assert rows == {0: RowState.GIVEN_UP, 100: RowState.GIVEN_UP, 200: RowState.BOTH, 300: RowState.ACTIVE}


def test_nothing_local_is_trimmed_where_the_topics_settings_do_not_let_it() -> None:
    view = Given(remote=FINISHED_3, local=(0, 100, 200, 300), policy={"local_retention_ms": 0}).view
    held = replace(view, trim=replace(view.trim, untrimmable="retention.ms is 1000, must be -1"))
    finding = finding_of(held, Stops(), 50, "trim")
    assert finding == Finding(about="trim", says="nothing local is trimmed: retention.ms is 1000, must be -1")


def test_a_remote_segment_that_spans_local_ones_goes_as_the_one_with_its_end_does() -> None:
    remote = (segment(0, 149), segment(150, 200), segment(201, 299))
    view = Given(remote=remote, local=(0, 100, 200, 300), policy={"local_retention_ms": 0}).view
    said = {
        (account.row.start_offset, account.row.end_offset, proven_to): finding.says
        for offset, proven_to in ((0, 0), (0, 100), (0, 200), (200, 200))
        for account in explain(view, Stops(unproven="object x is missing", unproven_from=proven_to), offset).accounts
        for finding in account.findings
        if finding.about == "trim"
    }
    assert "object x is missing" in said[(0, 149, 100)], "its end lies in the local segment at 100"
    assert "object x is missing" not in said[(0, 99, 100)], "which is the next one after this"
    assert "object x is missing" not in said[(0, 149, 200)]
    assert "object x is missing" in said[(150, 200, 200)], "its last offset is the first of the local segment at 200"
