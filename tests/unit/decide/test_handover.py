"""Whether a partition may be handed over to native tiering: a row for each thing that is in the way (issue 21; S-293)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.support.metadata_events import DELETED, DELETING, ORDERS, added, segment_id, updated
from tests.unit.decide.test_native_tiering import NOW_MS, ONE_EPOCH, THREE, TWO_EPOCHS, begun, copied, log
from tiersidecar.decide.handover import (
    HandoverView,
    Obstacle,
    PartitionHandover,
    decide_epochs,
    decide_handover,
    last_before_mounts,
)
from tiersidecar.decide.native_tiering import NativeLog, NativeRetention
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import MetadataEvent

UNLIMITED = NativeRetention()
TRIMMED = log(30, {0: 30})
"""As E2 found it: the sidecar has trimmed to 30, and nothing before is known to the broker."""


@dataclass(frozen=True, kw_only=True)
class Partition:
    events: Sequence[Sequence[MetadataEvent]] = THREE
    broker: NativeLog = TRIMMED
    lineage: Mapping[int, int] | None = None
    start: int = 0
    retention: NativeRetention = UNLIMITED
    in_trash: Sequence[int] = ()
    erased: Sequence[int] = ()
    recopied: Sequence[int] = ()
    awaits_answer: bool = False
    open_at_mounts: Sequence[int] = ()
    elsewhere: Sequence[int] = ()

    def decide(self, accepted: frozenset[Obstacle] = frozenset()) -> PartitionHandover:
        view = HandoverView(
            owner=ORDERS,
            segments=NativeSegments(event for some in self.events for event in some),
            lineage=Lineage.of(sorted((ONE_EPOCH if self.lineage is None else self.lineage).items())),
            broker=self.broker,
            remote_log_start_offset=Offset(self.start),
            retention=self.retention,
            in_trash=frozenset(segment_id(number).uuid for number in self.in_trash),
            erased=frozenset(segment_id(number).uuid for number in self.erased),
            recopied=frozenset(segment_id(number).uuid for number in self.recopied),
            awaits_answer=self.awaits_answer,
            open_at_mounts=tuple(added(number, number * 10 - 10, number * 10 - 1) for number in self.open_at_mounts),
            elsewhere={"cold": [added(number, number * 10 - 10, number * 10 - 1) for number in self.elsewhere]}
            if self.elsewhere
            else {},
        )
        return decide_handover(view, NOW_MS, accepted)


ROWS = {
    "after a trim, naively all would go, and prepared nothing": (Partition(), []),
    "before any trim, nothing would go either way": (Partition(broker=log(0, ONE_EPOCH, local=0)), []),
    "an epoch that the broker has forgotten is in our history": (
        Partition(events=(copied(1, 0, 19), copied(2, 20, 29, {2: 20})), broker=log(30, {2: 30}), lineage=TWO_EPOCHS),
        [],
    ),
    "a partition without remote data needs nothing": (
        Partition(events=(), broker=log(0, ONE_EPOCH, local=0), start=-1),
        [],
    ),
    "a copy in flight": (Partition(events=(*THREE, begun(4, 30, 39))), [Obstacle.UNFINISHED_COPY]),
    "a deletion in flight": (
        Partition(events=(*THREE, [updated(1, DELETING)]), start=10),
        [Obstacle.UNFINISHED_DELETE],
    ),
    "what is in the trash": (Partition(start=10, in_trash=[1]), [Obstacle.TRASH]),
    "what an erasure has replaced": (Partition(in_trash=[1], erased=[1]), [Obstacle.ERASURE]),
    "an undelete that no leader has answered": (Partition(awaits_answer=True), [Obstacle.UNANSWERED_UNDELETE]),
    "what is to be copied again": (Partition(recopied=[2]), [Obstacle.RECOPY]),
    "transactions that a mount has ended, where nothing behind it is copied": (
        Partition(open_at_mounts=[3]),
        [Obstacle.MOUNT],
    ),
    "what lies in another place than section store, where the plugin would not look": (
        Partition(elsewhere=[2]),
        [Obstacle.ELSEWHERE],
    ),
    "no remote log start": (Partition(start=-1), [Obstacle.NO_START]),
    "a hole between the tiers": (Partition(events=THREE[:2]), [Obstacle.GAP]),
    "a hole among the remote segments that is still local": (
        Partition(events=(THREE[0], THREE[2]), broker=log(10, {0: 10}, local=10)),
        [Obstacle.GAP],
    ),
    "what the broker would raise its log start over, since it lists nothing there": (
        Partition(events=THREE[1:]),
        [Obstacle.GAP],
    ),
    "no epoch before the broker's first": (
        Partition(lineage={3: 30}, broker=log(30, {3: 30})),
        [Obstacle.HISTORY],
    ),
    "a segment of an epoch that nobody knows any more reaches over what users have deleted": (
        Partition(
            events=(copied(1, 0, 19), copied(2, 20, 29, {3: 20})), lineage={3: 5}, broker=log(30, {3: 30}), start=19
        ),
        [Obstacle.HISTORY, Obstacle.GAP],
    ),
    "such a segment that users have deleted all of is not in the way": (
        Partition(
            events=(copied(1, 0, 19), copied(2, 20, 29, {3: 20})), lineage={3: 5}, broker=log(30, {3: 30}), start=20
        ),
        [],
    ),
    "an unclean election cut what was copied, and the new leader rolls elsewhere": (
        Partition(
            events=(copied(1, 0, 19), copied(2, 20, 29, {3: 20}), copied(3, 22, 59, {3: 22, 4: 25})),
            lineage={0: 0, 3: 20, 4: 25},
            broker=log(60, {4: 60}),
        ),
        [Obstacle.CUT],
    ),
    "an unclean election cut what was copied, and the new leader's first segment begins there": (
        Partition(
            events=(copied(1, 0, 19), copied(2, 20, 29, {3: 20}), copied(3, 25, 59, {4: 25})),
            lineage={0: 0, 3: 20, 4: 25},
            broker=log(60, {4: 60}),
        ),
        [Obstacle.CUT],
    ),
    "a later epoch of a segment that is read is of another history": (
        Partition(
            events=(copied(1, 0, 29, {0: 0, 3: 20}), copied(2, 20, 59, {4: 20})),
            lineage={0: 0, 4: 20},
            broker=log(60, {4: 60}),
        ),
        [Obstacle.CUT],
    ),
    "a log that ends before the last copy does": (Partition(broker=log(20, ONE_EPOCH, end=25)), [Obstacle.CUT]),
    "a log that lacks the last record of the last copy": (
        Partition(broker=log(20, ONE_EPOCH, end=29)),
        [Obstacle.CUT],
    ),
    "what was cut, and nobody reads, is not in the way": (
        Partition(
            events=(copied(1, 0, 19), copied(2, 20, 29, {3: 20}), copied(3, 20, 59, {3: 20, 4: 25})),
            lineage={0: 0, 3: 20, 4: 25},
            broker=log(60, {4: 60}),
        ),
        [],
    ),
    "what was cut, and users have deleted, is not in the way": (
        Partition(
            events=(copied(1, 0, 19), copied(2, 20, 29, {3: 20}), copied(3, 25, 59, {4: 25})),
            lineage={0: 0, 3: 20, 4: 25},
            broker=log(60, {4: 60}),
            start=30,
        ),
        [],
    ),
    "what was cut is read only below what users have, as another copy takes its place there": (
        Partition(
            events=(copied(1, 0, 29), copied(2, 10, 19), copied(3, 20, 59, {4: 20})),
            lineage={0: 0, 4: 20},
            broker=log(60, {4: 60}),
            start=15,
        ),
        [],
    ),
    "what was cut holds its epoch's last offset that users have": (
        Partition(
            events=(copied(1, 0, 29, {0: 0, 3: 20}), copied(2, 25, 59, {4: 25})),
            lineage={0: 0, 4: 25},
            broker=log(60, {4: 60}),
            start=19,
        ),
        [Obstacle.GAP, Obstacle.CUT],
    ),
    "what was cut has nothing in this history of what users have": (
        Partition(
            events=(copied(1, 0, 29, {0: 0, 3: 20}), copied(2, 25, 59, {4: 25})),
            lineage={0: 0, 4: 25},
            broker=log(60, {4: 60}),
            start=20,
        ),
        [Obstacle.GAP],
    ),
    "what was cut is not read where its epoch has ended here, though that goes on in what was lost": (
        Partition(
            events=(copied(1, 0, 29), copied(2, 30, 39), copied(3, 25, 59, {4: 25})),
            lineage={0: 0, 4: 25},
            broker=log(60, {4: 60}),
            start=27,
        ),
        [],
    ),
    "what was cut before its epoch begins here is not read": (
        Partition(
            events=(copied(1, 0, 19), copied(2, 10, 18, {3: 10}), copied(3, 20, 59, {3: 20})),
            lineage={0: 0, 3: 20},
            broker=log(60, {3: 60}),
        ),
        [],
    ),
    "what was cut, and goes with all around it that is past retention": (
        Partition(
            events=(copied(1, 0, 29), copied(2, 10, 19), copied(3, 20, 49, {4: 20}), copied(5, 50, 59, {4: 50})),
            lineage={0: 0, 4: 20},
            broker=log(60, {4: 60}),
            retention=NativeRetention(retention_ms=NOW_MS - 50),
        ),
        [Obstacle.RETENTION],
    ),
    "what is past the retention of the native topic": (
        Partition(retention=NativeRetention(retention_ms=NOW_MS - 15)),
        [Obstacle.RETENTION],
    ),
    "a shorter copy that hides a longer one": (
        Partition(events=(copied(1, 0, 19), copied(2, 0, 9), copied(3, 20, 29))),
        [Obstacle.DISPLACED],
    ),
    "what is beyond the end of the log is not to be published again": (
        Partition(events=(copied(1, 0, 119), copied(2, 0, 9), copied(3, 20, 29))),
        [Obstacle.GAP],
    ),
    "nothing is remote though the users' log starts at 0, and the broker has nothing there": (
        Partition(events=(), broker=log(7, {0: 7}, local=7), start=0),
        [Obstacle.GAP],
    ),
    "a deleted copy that still hides a longer one": (
        Partition(
            events=(
                copied(1, 0, 19),
                copied(2, 0, 9),
                [updated(2, DELETING), updated(2, DELETED)],
                copied(3, 20, 29),
            )
        ),
        [Obstacle.DISPLACED],
    ),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_what_is_in_the_way(sentence: str) -> None:
    partition, obstacles = ROWS[sentence]
    plan = partition.decide()
    assert [finding.obstacle for finding in plan.findings] == obstacles
    assert all(finding.detail and finding.remedy for finding in plan.findings)


def test_what_a_naive_switch_costs_is_told_apart_from_what_goes_anyway() -> None:
    plan = Partition(start=10).decide()
    lost = [int.from_bytes(one.segment.remote_log_segment_id.uuid, "big") for one in plan.lost_naively]
    assert lost == [2, 3]
    assert (plan.log_start_offset, plan.leader_epochs) == (10, ((0, 0),))
    assert [one.segment.start_offset for one in plan.prepared.deletions] == [0]


def test_what_users_have_deleted_up_to_the_end_of_the_log_goes_anyway() -> None:
    plan = Partition(start=100).decide()
    assert [one.segment.start_offset for one in plan.prepared.deletions] == [0, 10, 20]
    assert (plan.lost_naively, plan.findings) == ((), ())


def test_what_was_never_tiered_keeps_the_brokers_log_start() -> None:
    plan = Partition(events=(), broker=log(7, {0: 7}, local=0), lineage={0: 7}, start=-1).decide()
    assert (plan.log_start_offset, plan.leader_epochs, plan.findings) == (7, ((0, 7),), ())
    assert plan.owner == ORDERS


def test_of_what_is_remote_nothing_is_given_up_while_no_start_is_known() -> None:
    plan = Partition(start=-1).decide()
    assert (plan.log_start_offset, plan.prepared.deletions) == (0, ())


def test_an_operator_may_give_up_trash_and_what_is_past_retention() -> None:
    partition = Partition(start=10, in_trash=[1], retention=NativeRetention(retention_ms=NOW_MS - 25), recopied=[3])
    accepted = frozenset({Obstacle.TRASH, Obstacle.RETENTION, Obstacle.RECOPY})  # the last is not for giving up
    assert [one.obstacle for one in partition.decide(accepted).findings] == [Obstacle.RECOPY]


def test_what_an_erasure_has_replaced_is_not_for_giving_up() -> None:
    """A native broker would keep the objects, and with them what was to be erased."""
    accepted = frozenset({Obstacle.TRASH, Obstacle.ERASURE})
    plan = Partition(start=10, in_trash=[1, 2], erased=[2]).decide(accepted)
    assert [one.obstacle for one in plan.findings] == [Obstacle.ERASURE]


def test_displaced_segments_are_read_once_they_are_published_again() -> None:
    plan = Partition(events=(copied(1, 0, 19), copied(2, 0, 9), copied(3, 20, 29))).decide()
    assert [one.start_offset for one in plan.displaced] == [0]
    assert plan.prepared.unreadable == ()


@pytest.mark.parametrize(
    ("events", "published"),
    [
        pytest.param(
            (copied(1, 0, 19), copied(2, 10, 19), copied(3, 0, 4), copied(4, 10, 14), copied(5, 20, 39, {1: 20})),
            [(10, 19), (0, 19)],
            id="of two that end together the longer comes last",
        ),
        pytest.param(
            (copied(1, 0, 9), copied(2, 10, 19), copied(3, 0, 4), copied(4, 10, 14), copied(5, 20, 39, {1: 20})),
            [(0, 9), (10, 19)],
            id="the one that ends first comes first",
        ),
        pytest.param(
            (copied(1, 0, 34, {0: 0, 1: 20}), copied(2, 0, 9), copied(3, 20, 39, {1: 20})),
            [(0, 34), (20, 39)],
            id="one that takes its place again takes that of a longer one in a later epoch, which follows",
        ),
    ],
)
def test_in_which_order_displaced_segments_are_published(
    events: Sequence[Sequence[MetadataEvent]], published: list[tuple[int, int]]
) -> None:
    plan = Partition(events=events, lineage={0: 0, 1: 20}, broker=log(40, {1: 40}, local=40, end=40)).decide()
    assert [(one.start_offset, one.end_offset) for one in plan.displaced] == published
    assert plan.prepared.unreadable == ()


def test_a_segment_is_published_again_though_only_its_last_or_first_offset_is_not_found() -> None:
    plan = Partition(events=(copied(1, 0, 19), copied(2, 0, 18), copied(3, 20, 29))).decide()
    assert [(one.start_offset, one.end_offset) for one in plan.displaced] == [(0, 19)]
    beside = (copied(1, 0, 18), copied(2, 0, 9), copied(3, 20, 29))
    plan = Partition(events=beside).decide()
    assert [(one.start_offset, one.end_offset) for one in plan.displaced] == [(0, 18)], (
        "and not what lies beside the hole"
    )
    assert plan.prepared.unreadable == ((19, 20),)


def test_what_publishing_again_would_not_mend_is_not_published() -> None:
    """The short one begins within the long one, and stays where it is read: the rest of the long one is not found."""
    plan = Partition(events=(copied(1, 0, 19), copied(4, 5, 9), copied(3, 20, 29))).decide()
    assert plan.displaced == ()
    (finding,) = plan.findings
    assert (finding.obstacle, finding.detail) == (
        Obstacle.GAP,
        "a native broker finds no segment for offsets [10, 20)",
    )


def entries(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in pairs)


EPOCHS = {
    "the history comes back before the live file": (((0, 0), (3, 20)), ((3, 30),), ((0, 0), (3, 20))),
    "an election after the plan stays": (((0, 0), (3, 20)), ((3, 30), (4, 50)), ((0, 0), (3, 20), (4, 50))),
    "a replica that lags keeps what it has": (((0, 0), (3, 20), (5, 40)), ((3, 30),), ((0, 0), (3, 20))),
    "an empty file gets what is planned": (((0, 0), (3, 20)), (), ((0, 0), (3, 20))),
    "a file that needs nothing stays": (((0, 0),), ((0, 0),), ((0, 0),)),
    "an epoch that begins elsewhere is another history": (((0, 0), (3, 20), (5, 40)), ((3, 30), (5, 35)), None),
    "an epoch that the file has before one of the plan is another history": (
        ((0, 0), (3, 20), (5, 40)),
        ((3, 30), (4, 35), (5, 40)),
        None,
    ),
}


@pytest.mark.parametrize("sentence", EPOCHS)
def test_what_a_replicas_epoch_file_must_say(sentence: str) -> None:
    planned, live, expected = EPOCHS[sentence]
    found = decide_epochs(entries(*planned), entries(*live))
    assert found == (None if expected is None else entries(*expected))


MOUNTED = {
    "a mount at 30": {0: 0, 1000: 30},
    "two, at 10 and 20": {0: 0, 1000: 10, 2001: 20},
    "none": {0: 0, 999: 10, 1500: 20},
    "high": {5000: 0, 5001: 10},
}
BEFORE = {
    "elections of a cluster that begins with high epochs": ("high", (copied(1, 0, 9, {5000: 0}),), 0, []),
    "a mount right at what users have": ("a mount at 30", THREE, 29, [20]),
    "a mount, and nothing behind it is copied": ("a mount at 30", THREE, 0, [20]),
    "a mount, and what follows is copied": ("a mount at 30", (*THREE, copied(4, 30, 39, {1000: 30})), 0, []),
    "a mount, and the copy of what follows is in flight": ("a mount at 30", (*THREE, begun(4, 30, 39)), 0, [20]),
    "a mount below what users have": ("a mount at 30", THREE, 30, []),
    "of two mounts the last one, as the other is copied over": (
        "two, at 10 and 20",
        (copied(1, 0, 9), copied(2, 10, 19, {1000: 10})),
        0,
        [10],
    ),
    "a mount, and the one record behind it is copied": (
        "a mount at 30",
        (*THREE, copied(4, 30, 30, {1000: 30})),
        0,
        [],
    ),
    "elections, however many": ("none", THREE, 0, []),
}


@pytest.mark.parametrize("sentence", BEFORE)
def test_the_last_segment_before_a_mount(sentence: str) -> None:
    mounts, events, start, expected = BEFORE[sentence]
    segments = NativeSegments(event for some in events for event in some)
    found = last_before_mounts(segments, Lineage.of(sorted(MOUNTED[mounts].items())), start)
    assert [one.start_offset for one in found] == expected


def test_segments_are_named_by_their_first_few() -> None:
    many = [added(number, number * 10, number * 10 + 9) for number in range(4, 12)]
    (finding,) = Partition(events=(*THREE, *([one] for one in many))).decide().findings
    assert finding.detail.startswith("8 segments: offsets 40 to 49, ")
    assert finding.detail.endswith(" and 3 more")
    (finding,) = Partition(events=(*THREE, *([one] for one in many[:5]))).decide().findings
    assert finding.detail == "5 segments: offsets 40 to 49, 50 to 59, 60 to 69, 70 to 79, 80 to 89"
    (finding,) = Partition(events=(*THREE, [many[0]])).decide().findings
    assert finding.detail == "1 segment: offsets 40 to 49"
