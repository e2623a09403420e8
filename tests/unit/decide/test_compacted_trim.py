"""How far the local log of a compacted topic may be trimmed, by the two cleaners (S-266, S-267)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.compacted_trim import CleanerSighting, RoomView, decide_room, with_sighting
from tiersidecar.domain.offsets import Offset

DAY_S = 86_400.0
NOW_S, NOW_MS = 10 * DAY_S, 1_790_000_000_000
SEEN = RoomView(
    cleaner_offset=Offset(100),
    oldest_dirty_ms=None,
    brokers=100,
    sightings=(CleanerSighting(offset=100, at_s=NOW_S),),
    now_s=NOW_S,
    now_ms=NOW_MS,
    delete_retention_ms=int(DAY_S * 1000),
    min_compaction_lag_ms=0,
)


def seen(offset: int, ago_s: float) -> CleanerSighting:
    return CleanerSighting(offset=offset, at_s=NOW_S - ago_s)


@pytest.mark.parametrize(
    ("view", "stop", "says"),
    [
        pytest.param(SEEN, 100, "clean up to offset 100", id="both cleaners are equally far"),
        pytest.param(replace(SEEN, brokers=70), 70, "the broker's up to 70", id="the broker's is behind"),
        pytest.param(
            replace(SEEN, brokers=150, sightings=(seen(100, DAY_S * 0.4), seen(150, 0))),
            100,
            "up to 150",
            id="ours is behind, and the broker's was there less than half of delete.retention.ms ago",
        ),
        pytest.param(
            replace(SEEN, brokers=150, sightings=(seen(100, DAY_S * 0.5), seen(150, 0))),
            100,
            "up to 150",
            id="the broker's was there just half of delete.retention.ms ago",
        ),
        pytest.param(
            replace(SEEN, brokers=150, sightings=(seen(100, DAY_S * 0.6), seen(150, 0))),
            -1,
            "after the next round of the sidecar's cleaner",
            id="the broker's went past longer ago: tombstones may have gone",
        ),
        pytest.param(
            replace(SEEN, brokers=150, sightings=(seen(150, 0),)),
            -1,
            "after the next round of the sidecar's cleaner",
            id="nobody saw when the broker's went past",
        ),
        pytest.param(replace(SEEN, cleaner_offset=None), -1, "has not been cleaned yet", id="ours never ran"),
        pytest.param(replace(SEEN, brokers=-1), -1, "the broker's cleaner has not", id="the broker's never ran"),
        pytest.param(
            replace(SEEN, brokers=0), 0, "the broker's up to 0", id="the broker's ran and found nothing clean"
        ),
        pytest.param(replace(SEEN, brokers=None), -1, "unreadable", id="the broker's checkpoint is damaged"),
        pytest.param(
            replace(SEEN, oldest_dirty_ms=NOW_MS - int(DAY_S * 1000) - 1),
            -1,
            "the sidecar's cleaner is late",
            id="what was copied more than delete.retention.ms ago is dirty",
        ),
        pytest.param(
            replace(SEEN, oldest_dirty_ms=NOW_MS - int(DAY_S * 1000)),
            100,
            "clean up to offset 100",
            id="what was copied just delete.retention.ms ago is dirty, and not late",
        ),
        pytest.param(
            replace(SEEN, oldest_dirty_ms=NOW_MS - int(DAY_S * 1000) - 1, min_compaction_lag_ms=1),
            100,
            "",
            id="the topic itself wants it to stay dirty for longer",
        ),
    ],
)
def test_how_far_a_trim_may_go(view: RoomView, stop: int, says: str) -> None:
    room = decide_room(view)
    assert room.stop_offset == stop
    assert says in room.reason


def test_of_an_offset_that_is_seen_again_the_last_time_counts() -> None:
    known = with_sighting((), 5, 1.0)
    assert with_sighting(known, 5, 2.0) == (CleanerSighting(offset=5, at_s=2.0),)
    further = with_sighting(known, 7, 2.0)
    assert further == (*known, CleanerSighting(offset=7, at_s=2.0))
    assert with_sighting(further, 7, 3.0) == (*known, CleanerSighting(offset=7, at_s=3.0)), "those before it stay"
    assert with_sighting(further, 5, 3.0) == (*further, CleanerSighting(offset=5, at_s=3.0)), "it was set back"


def test_few_sightings_are_kept() -> None:
    known: tuple[CleanerSighting, ...] = ()
    for offset in range(1000):
        known = with_sighting(known, offset, float(offset))
    assert len(known) < 100
    assert known[-1].offset == 999
