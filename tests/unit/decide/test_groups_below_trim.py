"""What a group has yet to read below the start of the brokers' logs: a row for each place where it can stand (issue 20)."""

from __future__ import annotations

import pytest

from tiersidecar.decide.groups_below_trim import BelowStart, LocalStart, Partition, decide_below

STARTS = {
    ("orders", 0): LocalStart(local_log_start_offset=100, remote_log_start_offset=40),
    ("orders", 1): LocalStart(local_log_start_offset=200, remote_log_start_offset=0),
    ("clicks", 0): LocalStart(local_log_start_offset=50, remote_log_start_offset=0),
}

ROWS: dict[str, tuple[dict[Partition, int], dict[str, tuple[int, set[tuple[int, int]]]]]] = {
    "a group without commits": ({}, {}),
    "at the local start all that follows is on the disk": ({("orders", 0): 100}, {}),
    "one record below it": ({("orders", 0): 99}, {"orders": (1, {(0, 99)})}),
    "what was given up below the remote log start does not count": ({("orders", 0): 10}, {"orders": (60, {(0, 10)})}),
    "at the remote log start all that is remote is still to be read": (
        {("orders", 0): 40},
        {"orders": (60, {(0, 40)})},
    ),
    "several partitions of a topic are counted together": (
        {("orders", 0): 90, ("orders", 1): 150},
        {"orders": (60, {(0, 90), (1, 150)})},
    ),
    "topics are counted apart": (
        {("orders", 0): 90, ("clicks", 0): 20},
        {"orders": (10, {(0, 90)}), "clicks": (30, {(0, 20)})},
    ),
    "a partition that is not led here says nothing, and hides none of the others": (
        {("elsewhere", 0): 1, ("orders", 0): 90},
        {"orders": (10, {(0, 90)})},
    ),
    "nor does one that reads from the disk": (
        {("orders", 1): 500, ("orders", 0): 90},
        {"orders": (10, {(0, 90)})},
    ),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_what_a_group_has_below_the_local_starts(sentence: str) -> None:
    committed, expected = ROWS[sentence]
    assert decide_below(committed, STARTS) == {
        topic: BelowStart(offsets=offsets, committed=frozenset(places)) for topic, (offsets, places) in expected.items()
    }
