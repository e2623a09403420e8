"""Where the remote log starts that nobody has said yet (finding 1 of issue 16)."""

from __future__ import annotations

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
