"""Programs at idle priority: real processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tiersidecar.adapters.programs import IdlePrograms

pytestmark = pytest.mark.timeout(120)


async def test_a_program_runs_at_the_lowest_priority_and_its_last_words_are_kept() -> None:
    end = await IdlePrograms().run_idle(
        [sys.executable, "-c", "import os; print('x' * 9000); print(os.nice(0)); raise SystemExit(3)"]
    )
    assert end.code == 3
    assert end.said.endswith("\n19")
    assert len(end.said) <= 4000


async def test_it_ends_with_us_and_its_children_with_it(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {told}.part; mv {told}.part {told}; wait"
    running = asyncio.create_task(IdlePrograms().run_idle(["/bin/sh", "-c", script]))
    async with asyncio.timeout(60):
        while not told.exists():  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.02)
    child = int(told.read_text())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(60):
        while _is_alive(child):  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.02)


async def test_a_program_that_is_not_there_is_an_error_or_ends_with_one() -> None:
    end = await IdlePrograms().run_idle(["/nonexistent/program"])
    assert end.code != 0


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
