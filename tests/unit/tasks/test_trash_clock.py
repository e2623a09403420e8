"""What a start says of the time that delays count."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.support.expiry import NOW_MS
from tests.support.expiry_world import StoppedClock
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.ports.seen_times import NoSeenTimes
from tiersidecar.tasks.trash_clock import TrashClock


@pytest.mark.parametrize(
    ("known", "events"),
    [
        pytest.param(None, [("clock.begun", {"delays_count_from_ms": NOW_MS})], id="a new state.dir"),
        pytest.param(
            SeenTime(until_ms=NOW_MS - 3_600_000),
            [("clock.unseen", {"from_ms": NOW_MS - 3_600_000, "to_ms": NOW_MS})],
            id="away for an hour",
        ),
        pytest.param(SeenTime(until_ms=NOW_MS - 1000), [], id="a restart"),
    ],
)
def test_a_start_says_what_time_does_not_count(
    known: SeenTime | None, events: list[tuple[str, dict[str, int]]]
) -> None:
    with capture_logs() as told:
        TrashClock(clock=StoppedClock(), times=NoSeenTimes(), known=known)
    assert [one["event"] for one in told] == [event for event, _ in events]
    for one, (_, facts) in zip(told, events, strict=True):
        assert facts.items() <= one.items()
