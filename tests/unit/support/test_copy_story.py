"""The judge of the failover tests lets through what elections explain, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.copy_story import CopyStory, copy_stories
from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, added, updated
from tiersidecar.domain.segments import MetadataEvent


def copied(number: int, start: int, end: int, broker: int = 1) -> list[MetadataEvent]:
    return [added(number, start, end, broker=broker), updated(number, FINISHED, broker=broker)]


def story_of(events: list[MetadataEvent]) -> CopyStory:
    return copy_stories(events)[ORDERS]


@pytest.mark.parametrize(
    ("events", "counts", "next_offset"),
    [
        pytest.param(
            [*copied(1, 0, 49), *copied(2, 50, 99)],
            {},
            100,
            id="one leader, one segment after the other",
        ),
        pytest.param(
            [*copied(1, 0, 49), added(2, 50, 99), *copied(3, 50, 99, broker=2), *copied(4, 100, 149, broker=2)],
            {"interrupted": 1},
            150,
            id="a copy that died, and the next leader's in its place",
        ),
        pytest.param(
            [*copied(1, 0, 49), *copied(2, 40, 119, broker=2)],
            {"straddling": 1},
            120,
            id="the next leader rolled elsewhere: its segment straddles the border",
        ),
        pytest.param(
            [added(1, 0, 49), *copied(2, 0, 59, broker=2), updated(1, FINISHED)],
            {"late": 1},
            60,
            id="a deposed leader finishes what another has copied meanwhile",
        ),
        pytest.param(
            [
                *[added(1, 0, 49), *copied(2, 0, 29, broker=2), updated(1, FINISHED)],
                *[added(3, 30, 39, broker=2), updated(3, DELETING, broker=2), updated(3, DELETED, broker=2)],
            ],
            {"redundant": 1, "late": 1, "interrupted": 1},
            50,
            id="a copy that begins when a late one has just covered it, and is given up",
        ),
        pytest.param(
            [added(1, 0, 49), updated(1, DELETING), updated(1, FINISHED), updated(1, DELETED)],
            {"refused": 1, "interrupted": 1},
            0,
            id="a late FINISHED of what was deleted is not taken",
        ),
    ],
)
def test_what_elections_explain(events: list[MetadataEvent], counts: dict[str, int], next_offset: int) -> None:
    story = story_of(events)
    names = ("straddling", "late", "redundant", "refused", "interrupted")
    assert {name: getattr(story, name) for name in names} == dict.fromkeys(names, 0) | counts
    assert story.next_offset == next_offset


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        pytest.param([*copied(1, 0, 49), added(2, 51, 99)], "a gap", id="an offset left out"),
        pytest.param(
            [*copied(1, 0, 49), *copied(2, 50, 99, broker=2), added(3, 0, 49, broker=2)],
            "remote already",
            id="begun again for nothing",
        ),
        pytest.param(
            [*copied(1, 0, 49), *copied(2, 0, 49, broker=2)], "finished all the same", id="copied again for nothing"
        ),
        pytest.param([*copied(1, 0, 49), added(2, 40, 99)], "its own broker", id="an overlap without an election"),
        pytest.param(
            [added(1, 0, 49), *copied(2, 0, 49), updated(1, FINISHED)],
            "copied twice",
            id="a second copy beside the first, by the same broker",
        ),
    ],
)
def test_what_nothing_explains(events: list[MetadataEvent], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        story_of(events)
