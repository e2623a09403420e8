"""What a crowd of strangers may make the status service do."""

from __future__ import annotations

import asyncio

import pytest

from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.services.status.shares import Share

WAIT_S = 30.0


async def work(share: Share, lasts_s: float) -> None:
    async with share.place():
        await asyncio.sleep(lasts_s)


async def test_those_that_find_no_place_to_wait_are_turned_away() -> None:
    share = Share(at_once=1, waiting=1, rest=0.0)
    async with asyncio.timeout(WAIT_S), share.place(), asyncio.TaskGroup() as group:
        waiting = group.create_task(work(share, 0.0))
        await asyncio.sleep(0)
        with pytest.raises(QuotaExceededError):
            await work(share, 0.0)
        waiting.cancel()
    await work(share, 0.0)


async def test_a_place_rests_after_its_work() -> None:
    share, now_s = Share(at_once=1, waiting=9, rest=3.0), asyncio.get_running_loop().time
    began_s = now_s()
    async with asyncio.timeout(WAIT_S):
        await work(share, 0.1)
        await work(share, 0.0)
    assert now_s() - began_s >= 0.4 - 0.01


async def test_work_that_fails_leaves_its_place() -> None:
    share = Share(at_once=1, waiting=1, rest=1.0)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ValueError, match="broken"):
            async with share.place():
                raise ValueError("broken")
        await work(share, 0.0)
