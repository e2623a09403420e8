"""The same with many things."""

from __future__ import annotations

import asyncio

import pytest

from tiersidecar.app.at_once import at_once


async def test_results_come_in_the_order_of_the_things_and_some_run_together() -> None:
    running, most = 0, 0

    async def twice(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - number):
            await asyncio.sleep(0)
        running -= 1
        return 2 * number

    assert await at_once(twice, range(10), 3) == [2 * number for number in range(10)]
    assert most == 3


async def test_the_first_error_ends_the_others() -> None:
    ended: list[int] = []

    async def fail(number: int) -> None:
        if number == 1:
            raise KeyError(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(KeyError):
        await at_once(fail, range(3), 3)
    assert sorted(ended) == [0, 2]
