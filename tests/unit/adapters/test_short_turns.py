"""Reading in short turns with rests between them (U14)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tiersidecar.adapters.short_turns import short_turns

KIB = 1024


@pytest.mark.parametrize(
    ("start", "stop", "turns"),
    [
        pytest.param(7, 7, [], id="nothing has no turn"),
        pytest.param(7, 107, [(7, 100)], id="a little goes in one turn, without a rest"),
        pytest.param(
            0, 130 * KIB, [(0, 64 * KIB), (64 * KIB, 64 * KIB), (128 * KIB, 2 * KIB)], id="64 KiB and what is left"
        ),
        pytest.param(
            0,
            3200 * KIB,
            [(at * 200 * KIB, 200 * KIB) for at in range(16)],
            id="a larger range takes no more turns than 16",
        ),
    ],
)
def test_the_turns_of_a_range(
    start: int, stop: int, turns: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    with (tmp_path / "file").open("w+b") as file:
        assert list(short_turns(file.fileno(), start, stop)) == turns
    assert len(rests) == max(len(turns) - 1, 0)
