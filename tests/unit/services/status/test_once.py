"""One piece of work for all who ask at once."""

from __future__ import annotations

import asyncio

import pytest

from tiersidecar.services.status.once import Once

WAIT_S = 30.0


class Work:
    def __init__(self) -> None:
        self.done, self.gate, self.error = 0, asyncio.Event(), ""

    async def make(self) -> int:
        await self.gate.wait()
        self.done += 1
        if self.error:
            raise ValueError(self.error)
        return self.done


async def test_a_crowd_has_it_made_once() -> None:
    work = Work()
    once = Once(work.make, kept_s=60)
    async with asyncio.timeout(WAIT_S):
        asking = [asyncio.create_task(once.value()) for _ in range(50)]
        await asyncio.sleep(0)
        work.gate.set()
        assert await asyncio.gather(*asking) == [1] * 50
        assert await once.value() == 1


async def test_what_is_no_longer_kept_is_made_anew() -> None:
    work = Work()
    work.gate.set()
    once = Once(work.make, kept_s=-1)
    assert [await once.value(), await once.value()] == [1, 2]


async def test_a_caller_that_goes_away_takes_it_from_nobody() -> None:
    work = Work()
    once = Once(work.make, kept_s=60)
    first, second = asyncio.create_task(once.value()), asyncio.create_task(once.value())
    await asyncio.sleep(0)
    first.cancel()
    work.gate.set()
    assert await second == 1


async def test_a_failure_is_told_to_all_and_not_kept() -> None:
    work = Work()
    work.gate.set()
    work.error = "away"
    once = Once(work.make, kept_s=60)
    with pytest.raises(ValueError, match="away"):
        await once.value()
    work.error = ""
    assert await once.value() == 2
