"""What a running program holds, and not what the test that looks at it knows."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.held_values import held_by


async def test_what_a_task_holds_is_found_by_frames_attributes_and_closures() -> None:
    class Part:
        __slots__ = ("limit",)

        def __init__(self) -> None:
            self.limit = 123_457

    async def work(part: Part, path: Path) -> None:
        name = "of a frame"
        await asyncio.sleep(60)
        print(part, path, name)

    task = asyncio.create_task(work(Part(), Path("/of/an/argument")))
    await asyncio.sleep(0)
    held = held_by([task])
    task.cancel()
    assert {"of a frame", "/of/an/argument", 123_457} <= held.values
    assert ("Part.limit", 123_457) in held.attributes
    assert "Part" in held.named


async def test_what_only_the_looking_test_knows_is_not_found() -> None:
    """Its own time limit lies in the loop's timers, and leads to its task."""
    wanted = {"limit": 7_654_321}

    async def work() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(60)
        print(loop)

    task = asyncio.create_task(work())
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
        held = held_by([task])
    task.cancel()
    assert "Timeout" in held.named
    assert wanted["limit"] not in held.values
