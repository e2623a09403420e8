"""Where the remote log starts that nobody has said yet (finding 1 of issue 16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.pins import pin_of
from tests.support.segments import local_segments, remote_segment
from tiersidecar.decide.expiry_standing import first_start, standings
from tiersidecar.domain.offsets import Lineage

LOCAL = local_segments(100, 200, 300)
PINNED = (pin_of(0, 50).segment, *LOCAL)


@pytest.mark.parametrize(
    ("remote", "fields", "start"),
    [
        pytest.param([], {}, 120, id="where the broker's log starts: users may have deleted what lies before"),
        pytest.param([(0, 99)], {}, 0, id="lower where a former release copied without saying a start"),
        pytest.param([(200, 299)], {}, 120, id="what was copied late gives nothing up"),
        pytest.param([], {"segments": PINNED}, 120, id="in strict mode a pin below the broker's start is no evidence"),
        pytest.param(
            [],
            {"segments": PINNED, "broker_expires": True},
            0,
            id="where the broker deletes what only a pin holds counts",
        ),
        pytest.param([], {"held_offset": 120}, 0, id="what was trimmed was remote, and nothing is: metadata not whole"),
        pytest.param([(100, 199)], {"held_offset": 120}, 100, id="what was trimmed is remote"),
        pytest.param(
            [],
            {"trim_offset": 60, "held_offset": 0},
            120,
            id="what was dropped was not remote: a user deleted beyond it",
        ),
        pytest.param(
            [],
            {"trim_offset": 120, "held_offset": 0, "segments": PINNED},
            0,
            id="of what was dropped a pin has the rest: it is to be copied",
        ),
        pytest.param(
            [],
            {"trim_offset": 119, "held_offset": 0, "segments": PINNED},
            120,
            id="not where a user has deleted it since",
        ),
        pytest.param(
            [], {"log_start_offset": None}, 100, id="the broker was not asked: the first offset that is known"
        ),
        pytest.param([(50, 99)], {"log_start_offset": None}, 50, id="also of what is remote"),
        pytest.param([], {"log_start_offset": None, "segments": ()}, -1, id="nothing is known"),
    ],
)
def test_first_start(remote: list[tuple[int, int]], fields: dict[str, Any], start: int) -> None:
    found = standings([remote_segment(*one) for one in remote], Lineage.of([(0, 0)]))
    defaults = {"log_start_offset": 120, "segments": LOCAL, "broker_expires": False}
    defaults |= {"trim_offset": -1, "held_offset": -1}
    assert first_start(found=found, **{**defaults, **fields}) == start


@pytest.mark.parametrize(
    ("remote", "lineage", "expected"),
    [
        pytest.param([(0, 99), (100, 199)], [(0, 0)], [(100, True, True), (100, True, True)], id="side by side"),
        pytest.param(
            [(0, 99), (50, 149)], [(0, 0)], [(100, True, True), (50, True, True)], id="what two have counts once"
        ),
        pytest.param(
            [(0, 99), (20, 39)], [(0, 0)], [(100, True, True), (0, True, True)], id="what lies within another has no weight"
        ),
        pytest.param([(0, 2), (1, 3)], [(0, 0)], [(100, True, True), (33, True, True)], id="whole bytes"),
        pytest.param(
            [(0, 99), (60, 159), (100, 199)],
            [(0, 0), (1, 100)],
            [(100, True, True), (0, False, True), (0, False, False)],
            id="of one that an election has cut readers get the front, and it has no weight",
        ),
        pytest.param([(0, 9)], [(0, 0), (1, 1)], [(0, False, True)], id="a front of one record, at offset 0"),
        pytest.param([(0, 9)], [(1, 0)], [(0, False, False)], id="nothing of an epoch that the history does not have"),
    ],
)  # fmt: skip
def test_what_a_segment_is_to_the_history(
    remote: list[tuple[int, int]], lineage: list[tuple[int, int]], expected: list[tuple[int, bool, bool]]
) -> None:
    segments = [replace(remote_segment(*one), segment_size_in_bytes=100) for one in remote]
    found = standings(segments, Lineage.of(lineage))
    assert [(one.weight_bytes, one.is_valid, one.serves) for one in found] == expected
    assert all(isinstance(one.weight_bytes, int) for one in found)
