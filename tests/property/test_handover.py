"""Whatever order copies finished in, and wherever a sidecar trimmed to: a prepared hand-over loses nothing (issue 21)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, added, updated
from tiersidecar.decide.handover import HandoverView, Obstacle, PartitionHandover, decide_handover
from tiersidecar.decide.native_tiering import DeletionReason, NativeLog, NativeRetention
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata

END = 60
Copy = tuple[int, int]
"""First and last offset."""


@dataclass(frozen=True, kw_only=True)
class History:
    """``copies`` of several leaders, in the order in which they finished: together they hold [0, ``END``).  Those in
    ``deleted`` were deleted since: others hold what they held."""

    lineage: Lineage
    copies: tuple[Copy, ...]
    deleted: frozenset[int]
    start: int
    trimmed_to: int

    def events(self) -> list[MetadataEvent]:
        found: list[MetadataEvent] = []
        for number, (first, last) in enumerate(self.copies):
            epochs = {int(epoch): int(start) for epoch, start in self.lineage.entries_in_range(first, last + 1)}
            found += [added(number, first, last, epochs), updated(number, FINISHED)]
        for number in sorted(self.deleted):
            found += [updated(number, DELETING), updated(number, DELETED)]
        return found

    def view(self) -> HandoverView:
        return HandoverView(
            owner=ORDERS,
            segments=NativeSegments(self.events()),
            lineage=self.lineage,
            broker=NativeLog(
                log_start_offset=Offset(self.trimmed_to),
                local_log_start_offset=Offset(self.trimmed_to),
                log_end_offset=Offset(END + 10),
                leader_epochs=Lineage(self.lineage.entries_in_range(self.trimmed_to, END + 10)),
            ),
            remote_log_start_offset=Offset(self.start),
            retention=NativeRetention(),
        )


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Two leaders that roll differently have each copied all, or a part of it."""
    starts = draw(st.lists(st.integers(1, END - 1), max_size=3, unique=True).map(sorted))
    lineage = Lineage.of([(0, 0), *((2 * number + 1, start) for number, start in enumerate(starts))])
    whole = _rolled(draw(st.lists(st.integers(1, END - 1), max_size=5, unique=True).map(sorted)))
    others = _rolled(draw(st.lists(st.integers(1, END - 1), max_size=5, unique=True).map(sorted)))
    parts = draw(st.lists(st.sampled_from(others), max_size=len(others), unique=True))
    copies = draw(st.permutations([*whole, *(one for one in parts if one not in whole)]))
    deleted = [number for number, one in enumerate(copies) if one not in whole and draw(st.booleans())]
    trimmed_to = draw(st.integers(0, END))
    return History(
        lineage=lineage,
        copies=tuple(copies),
        deleted=frozenset(deleted),
        start=draw(st.integers(0, trimmed_to)),
        trimmed_to=trimmed_to,
    )


def _rolled(at: list[int]) -> list[Copy]:
    bounds = [0, *at, END]
    return [(first, stop - 1) for first, stop in pairwise(bounds)]


def _holes_by_hand(history: History, plan: PartitionHandover) -> list[int]:
    """Offsets from the users' start on that Kafka's fold of all events, with those of the plan, gives no segment for."""
    again = [finished_again(one) for one in plan.displaced]
    told = NativeSegments([*history.events(), *again])
    return [
        offset
        for offset in range(history.start, END)
        if told.segment_for(history.lineage.epoch_for_offset(offset) or 0, offset) is None
    ]


def finished_again(segment: RemoteLogSegmentMetadata) -> MetadataEvent:
    return updated(int.from_bytes(segment.remote_log_segment_id.uuid, "big"), FINISHED)


@given(histories())
def test_a_prepared_hand_over_keeps_and_reads_all_that_users_may_have(history: History) -> None:
    plan = decide_handover(history.view(), now_ms=0)
    assert {one.obstacle for one in plan.findings} <= {Obstacle.DISPLACED, Obstacle.GAP}
    holes = _holes_by_hand(history, plan)
    assert bool(holes) == any(one.obstacle is Obstacle.GAP for one in plan.findings), "and each is told"
    for hole in holes:
        assert any(first < hole <= last for first, last in history.copies), "only overlapping copies leave one"
    assert plan.prepared.copies_from == END
    for one in plan.prepared.deletions:
        assert one.reason in (DeletionReason.BELOW_LOG_START, DeletionReason.UNKNOWN_EPOCHS)
        assert one.segment.end_offset < history.start
    reached = {one.segment.remote_log_segment_id for one in plan.naive.deletions}
    wholly_above = [one for one in plan.prepared.kept if one.start_offset >= history.trimmed_to]
    assert not any(one.remote_log_segment_id in reached for one in wholly_above), "even a naive broker keeps these"
