"""Slots go in turns, the live ones before a backfill, and never more than there are (S-171, S-174)."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tests.support.manual_clock import settle
from tiersidecar.tasks.copy_admission import LIVE, CopySlots


class Job:
    """Holds a slot until told to stop."""

    def __init__(self, slots: CopySlots, rank: int, log: list[str], name: str) -> None:
        self.stop = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(slots, rank, log, name))

    async def _run(self, slots: CopySlots, rank: int, log: list[str], name: str) -> None:
        async with slots.taking(rank):
            log.append(name)
            await self.stop.wait()


async def test_within_a_rank_first_come_is_first_served() -> None:
    slots, log = CopySlots(1), []  # type: ignore[var-annotated]
    jobs = [Job(slots, LIVE, log, name) for name in "abc"]
    for job in jobs:
        await settle()
        job.stop.set()
    await settle()
    assert log == ["a", "b", "c"]


async def test_a_partition_with_a_backlog_queues_again_behind_the_others() -> None:
    """Fair between partitions: one hot topic does not starve others."""
    slots, log = CopySlots(2), []

    async def partition(name: str, segments: int) -> None:
        for _ in range(segments):
            async with slots.taking(LIVE):
                log.append(name)
                await asyncio.sleep(0)

    await asyncio.gather(partition("hot", 50), *(partition(f"cold {n}", 2) for n in range(8)))
    assert all(log.index(f"cold {n}") < 20 for n in range(8))


async def test_what_is_live_goes_before_every_backfill() -> None:
    slots, log = CopySlots(1), []  # type: ignore[var-annotated]
    first = Job(slots, 0, log, "first")
    await settle()
    later = [Job(slots, rank, log, f"rank {rank}") for rank in (2, 0, 1, LIVE)]
    for job in (first, *later):
        job.stop.set()
    await settle(50)
    assert log == ["first", f"rank {LIVE}", "rank 0", "rank 1", "rank 2"]


async def test_a_backfill_never_takes_the_last_slot() -> None:
    slots, log = CopySlots(3, reserved=1), []  # type: ignore[var-annotated]
    jobs = [Job(slots, 0, log, "backfill") for _ in range(5)]
    await settle()
    assert log == ["backfill"] * 2
    live = Job(slots, LIVE, log, "live")
    await settle()
    assert log[-1] == "live"
    for job in (*jobs, live):
        job.stop.set()
    await settle(50)
    assert log.count("backfill") == 5


async def test_a_single_slot_serves_a_backfill_too() -> None:
    slots, log = CopySlots(1, reserved=1), []  # type: ignore[var-annotated]
    Job(slots, 0, log, "backfill").stop.set()
    await settle()
    assert log == ["backfill"]


async def test_a_larger_size_lets_more_in_at_once_and_a_smaller_one_puts_none_out() -> None:
    slots, log = CopySlots(1), []  # type: ignore[var-annotated]
    jobs = [Job(slots, LIVE, log, str(number)) for number in range(4)]
    await settle()
    slots.size = 3
    await settle()
    assert len(log) == 3
    slots.size = 1
    jobs[0].stop.set()
    jobs[1].stop.set()
    await settle()
    assert len(log) == 3, "one is still in"
    jobs[2].stop.set()
    await settle()
    assert len(log) == 4
    jobs[3].stop.set()
    await settle()


@given(st.lists(st.tuples(st.integers(-1, 2), st.sampled_from(["work", "cancel", "cancel at once"])), max_size=12))
def test_cancelled_jobs_lose_no_slot(jobs: list[tuple[int, str]]) -> None:
    async def story() -> None:
        slots, log = CopySlots(2, reserved=1), []  # type: ignore[var-annotated]
        running = []
        for number, (rank, what) in enumerate(jobs):
            job = Job(slots, rank, log, str(number))
            running.append(job)
            if what != "cancel at once":
                await settle(3)
            if what == "work":
                job.stop.set()
            else:
                job.task.cancel()
        await settle(100)
        for job in running:
            job.stop.set()
        await settle(100)
        assert not any(slots._taken.values())
        last = Job(slots, LIVE, log, "last")
        await settle(5)
        assert log[-1] == "last"
        last.stop.set()
        await settle(5)

    asyncio.run(story())


async def test_who_is_cancelled_in_the_moment_of_its_turn_leaves_it_to_the_next() -> None:
    slots, log, stop = CopySlots(1), list[str](), asyncio.Event()

    async def take_and_cancel() -> None:
        async with slots.taking(LIVE):
            await stop.wait()
        second.task.cancel()  # its turn has come, and it has not run since

    first = asyncio.ensure_future(take_and_cancel())
    await settle()
    second, third = Job(slots, LIVE, log, "b"), Job(slots, LIVE, log, "c")
    await settle()
    stop.set()
    await settle()
    assert (log, first.done()) == (["c"], True)
    third.stop.set()
    last, another = Job(slots, LIVE, log, "d"), Job(slots, LIVE, log, "e")
    await settle()
    assert log == ["c", "d"], "no slot was lost, and none was made"
    for job in (last, another):
        job.stop.set()
        await settle()
