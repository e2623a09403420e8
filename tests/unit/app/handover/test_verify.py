"""What a hand-over is compared with afterwards: one row for each thing that may have happened (issue 21)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, added, segment_id, updated
from tiersidecar.app.handover.plan import PlannedPartition, PlannedSegment
from tiersidecar.app.handover.verify import LogStarts, VerifiedPartition, compare_partition
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.reading.remote_objects import recorded_keys

SIZES = (1000, 200, 30)
TWO = ((1, 0, 9), (2, 10, 19))


def events_of(segments: Sequence[tuple[int, int, int]]) -> list[MetadataEvent]:
    return [
        event
        for number, start, end in segments
        for event in (added(number, start, end, size=1000), updated(number, FINISHED))
    ]


def objects_of(segments: Sequence[tuple[int, int, int]]) -> dict[str, int]:
    keys = [recorded_keys(added(*segment), "tier/").in_upload_order for segment in segments]
    return {key: size for some in keys for key, size in zip(some, SIZES, strict=True)}


def planned(*, goes: Sequence[int] = (), start: int = 0, foretold: int | None = None) -> PlannedPartition:
    return PlannedPartition(
        owner=ORDERS,
        log_start_offset=Offset(start),
        foretold_start=None if foretold is None else Offset(foretold),
        leader_epochs=(),
        high_watermark=Offset(30),
        copied_stop=Offset(20),
        segments=tuple(
            PlannedSegment(
                uuid=segment_id(number).uuid,
                start_offset=first,
                end_offset=last,
                size_bytes=1000,
                object_bytes=SIZES,
                goes="below-log-start" if number in goes else "",
            )
            for number, first, last in TWO
        ),
    )


@dataclass(frozen=True, kw_only=True)
class After:
    plan: PlannedPartition = field(default_factory=planned)
    events: Sequence[MetadataEvent] = field(default_factory=lambda: events_of(TWO))
    objects: dict[str, int] = field(default_factory=lambda: objects_of(TWO))
    log_start: int = 0

    to_native: bool = True
    users_start: int = -1

    def compare(self) -> VerifiedPartition:
        starts = LogStarts(now=self.log_start, users=self.users_start, to_native=self.to_native)
        return compare_partition(self.plan, NativeSegments(self.events), self.objects, "tier/", starts)


GONE = [updated(1, DELETING), updated(1, DELETED)]
ROWS: dict[str, tuple[Callable[[], After], tuple[int, int, int, int], str]] = {
    "all is as it was": (After, (2, 0, 0, 0), ""),
    "what was to go has gone": (
        lambda: After(plan=planned(goes=[1], start=10), events=[*events_of(TWO), *GONE], log_start=10),
        (1, 1, 0, 0),
        "",
    ),
    "what was to go is still there": (lambda: After(plan=planned(goes=[1], start=10), log_start=10), (1, 0, 1, 0), ""),
    "more was copied since": (lambda: After(events=events_of([*TWO, (3, 20, 29)])), (2, 0, 0, 1), ""),
    "what was to stay has gone": (
        lambda: After(events=[*events_of(TWO), *GONE]),
        (1, 0, 0, 0),
        "offsets 0 to 9 is no longer finished",
    ),
    "what was to stay is being deleted": (
        lambda: After(events=[*events_of(TWO), updated(1, DELETING)]),
        (1, 0, 0, 0),
        "offsets 0 to 9 is no longer finished",
    ),
    "an object has gone": (
        lambda: After(objects=dict(list(objects_of(TWO).items())[1:])),
        (2, 0, 0, 0),
        "its objects are not those of the plan (now none, ",
    ),
    "an object has another size": (
        lambda: After(objects={key: size + (size == 200) for key, size in objects_of(TWO).items()}),
        (2, 0, 0, 0),
        "its objects are not those of the plan",
    ),
    "another segment has its id": (
        lambda: After(events=events_of([(1, 0, 8), (2, 10, 19)]), objects=objects_of([(1, 0, 8), (2, 10, 19)])),
        (2, 0, 0, 0),
        "has other offsets or another size",
    ),
    "the log starts later than planned": (lambda: After(log_start=20), (2, 0, 0, 0), "its log starts at 20"),
    "the log starts later than foretold, though a segment was to go": (
        lambda: After(plan=planned(goes=[1], foretold=10), log_start=25),
        (1, 0, 1, 0),
        "its log starts at 25, and was to start at 10",
    ),
    "the log starts where it was foretold": (
        lambda: After(plan=planned(goes=[1], foretold=10), events=[*events_of(TWO), *GONE], log_start=10),
        (1, 1, 0, 0),
        "",
    ),
    "the log start fell back to what users had deleted": (
        lambda: After(plan=planned(start=5, foretold=5)),
        (2, 0, 0, 0),
        "its log starts at 0, and users have deleted what is below 5",
    ),
    "users deleted more after the plan": (
        lambda: After(plan=planned(foretold=0), users_start=7),
        (2, 0, 0, 0),
        "its log starts at 0, and users have deleted what is below 7: kafka-delete-records.sh",
    ),
    "users deleted more after the plan, and it was deleted again": (
        lambda: After(plan=planned(foretold=0), users_start=7, log_start=7),
        (2, 0, 0, 0),
        "",
    ),
    "taken over, before the sidecar's first round": (
        lambda: After(plan=planned(start=5), log_start=-1, to_native=False),
        (2, 0, 0, 0),
        "",
    ),
    "taken over, and users get back what they had deleted": (
        lambda: After(plan=planned(start=5), to_native=False),
        (2, 0, 0, 0),
        "users have deleted what is below 5: tiersidecar delete-records orders -p 0 --offset 5",
    ),
    "the log starts with the first segment": (
        lambda: After(
            plan=replace(planned(), segments=planned().segments[1:]), events=events_of(TWO[1:]), log_start=10
        ),
        (1, 0, 0, 0),
        "",
    ),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_one_partition_afterwards(sentence: str) -> None:
    make, counts, fault = ROWS[sentence]
    found = make().compare()
    assert (found.kept, found.gone, found.waiting, found.added) == counts
    if fault:
        assert fault in found.faults[0]
    else:
        assert found.faults == ()
