"""Threads that read segments can be made to wait behind everybody else's I/O (U14)."""

from __future__ import annotations

from tiersidecar.adapters.blocking import ThreadBlocking
from tiersidecar.adapters.io_priority import enter_idle_io_class, io_class


async def test_threads_of_a_pool_are_idle_and_no_others() -> None:
    async with (
        ThreadBlocking(max_threads=2, initializer=enter_idle_io_class) as idle,
        ThreadBlocking(max_threads=1) as normal,
    ):
        assert await idle.run(io_class) == 3
        assert await normal.run(io_class) != 3
    assert io_class() != 3
