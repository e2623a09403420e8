"""Ids from the system are such as Kafka would hand out.

Threads behind the event loop: bounded, and never outliving what they work on.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.domain.ids import is_acceptable_random_uuid


def test_uuids_are_version_4_and_never_begin_with_a_dash() -> None:
    ids = [SystemIds().random_uuid() for _ in range(2000)]  # one in 64 would begin with a dash
    assert len(set(ids)) == 2000
    assert all(is_acceptable_random_uuid(uuid) and uuid[6] >> 4 == 4 for uuid in ids)


def test_random_numbers_and_bytes_are_as_asked() -> None:
    assert len(SystemIds().random_bytes(32)) == 32
    assert all(0 <= SystemIds().random() < 1 for _ in range(100))


def test_the_monotonic_clock_does_not_go_back() -> None:
    readings = [SystemClock().monotonic_s() for _ in range(100)]
    assert readings == sorted(readings)


async def test_the_wall_clock_counts_milliseconds() -> None:
    before = SystemClock().now_ms()
    await SystemClock().sleep(0)
    assert 1_600_000_000_000 < before <= SystemClock().now_ms() < 10_000_000_000_000


async def test_gives_the_result_and_runs_off_the_loop() -> None:
    async with ThreadBlocking(max_threads=1, name="disk") as blocking:
        assert await blocking.run(divmod, 17, 5) == (3, 2)
        assert (await blocking.run(threading.current_thread)).name.startswith("disk")


async def test_passes_the_functions_exception() -> None:
    async with ThreadBlocking(max_threads=1) as blocking:
        with pytest.raises(ZeroDivisionError):
            await blocking.run(divmod, 1, 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await blocking.run(next, iter(()))


async def test_runs_no_more_at_once_than_it_has_threads() -> None:
    running, most = 0, 0
    lock, both = threading.Lock(), threading.Barrier(2)

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(timeout=30)
        with lock:
            running -= 1

    async with ThreadBlocking(max_threads=2) as blocking:
        await asyncio.gather(*(blocking.run(count) for _ in range(6)))
    assert most == 2


async def test_a_cancelled_caller_waits_until_the_function_has_ended() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(timeout=30)
        ended.set()

    async with ThreadBlocking(max_threads=2) as blocking:
        caller = asyncio.create_task(blocking.run(work))
        await blocking.run(begun.wait)
        caller.cancel()
        done, _ = await asyncio.wait([caller], timeout=0)
        assert not done
        caller.cancel()  # a second one does not free it either
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert ended.is_set()


async def test_a_cancelled_caller_takes_back_what_has_not_begun() -> None:
    begun, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def occupy() -> None:
        begun.set()
        assert go_on.wait(timeout=30)

    async with ThreadBlocking(max_threads=1) as blocking:
        first = asyncio.create_task(blocking.run(occupy))
        second = asyncio.create_task(blocking.run(ran.append, "second"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second  # while the only thread is still busy
        go_on.set()
        await first
    assert ran == []


async def test_what_a_closed_pool_drops_is_cancelled() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        assert go_on.wait(timeout=30)

    blocking = ThreadBlocking(max_threads=1)
    first = asyncio.create_task(blocking.run(occupy))
    second = asyncio.create_task(blocking.run(print, "never"))
    await asyncio.to_thread(begun.wait)
    blocking.close()
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()
    await first


def test_a_function_that_outlives_the_loop_ends_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """A thread in a dead mount comes back long after its process gave up on it."""
    begun, go_on = threading.Event(), threading.Event()
    blocking = ThreadBlocking(max_threads=1, name="stuck")

    def stick() -> None:
        begun.set()
        assert go_on.wait(timeout=30)

    loop = asyncio.new_event_loop()
    task = loop.create_task(blocking.run(stick))
    loop.run_until_complete(asyncio.sleep(0))
    assert begun.wait(timeout=30)
    loop.close()
    go_on.set()
    (thread,) = (one for one in threading.enumerate() if one.name.startswith("stuck"))
    blocking.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert not [record for record in caplog.records if record.name == "concurrent.futures"]
    del task


@pytest.mark.parametrize(
    "error", [ValueError("too late to matter"), StopIteration()], ids=["an error", "a next() too many"]
)
async def test_a_cancelled_callers_failed_function_is_not_complained_about(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert go_on.wait(timeout=30)
        raise error

    async with ThreadBlocking(max_threads=2) as blocking:
        caller = asyncio.create_task(blocking.run(fail))
        await blocking.run(begun.wait)
        caller.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(30):
                await caller
    assert "never retrieved" not in caplog.text
