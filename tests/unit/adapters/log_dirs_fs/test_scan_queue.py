"""One scan at a time, and for every caller one that began after it asked."""

from __future__ import annotations

import asyncio

from tests.support.manual_clock import settle
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import LogDirScan
from tiersidecar.adapters.log_dirs_fs.log_dirs import ScanQueue


class Scans:
    """Scans that end when told to; each says which it was."""

    def __init__(self) -> None:
        self.began = 0
        self.may_end = asyncio.Semaphore(0)
        self.running = 0

    async def __call__(self) -> LogDirScan:
        self.began += 1
        number = self.began
        self.running += 1
        assert self.running == 1
        await self.may_end.acquire()
        self.running -= 1
        return LogDirScan(faults={"number": str(number)})


def number_of(scan: asyncio.Task[LogDirScan]) -> str:
    return scan.result().faults["number"]


async def test_who_comes_while_one_runs_shares_the_next() -> None:
    scans = Scans()
    queue = ScanQueue(scans)
    first = queue.next_scan()
    await settle()
    second, third = queue.next_scan(), queue.next_scan()
    assert second is third
    await settle()
    assert scans.began == 1
    scans.may_end.release()
    await settle()
    assert (number_of(first), scans.began) == ("1", 2)
    fourth = queue.next_scan()  # the second has begun already: what it saw may be older than this question
    assert fourth is not second
    scans.may_end.release()
    scans.may_end.release()
    await settle()
    assert (number_of(second), number_of(fourth)) == ("2", "3")


async def test_one_that_hangs_is_not_doubled() -> None:
    scans = Scans()
    queue = ScanQueue(scans)
    queue.next_scan()
    asked = {queue.next_scan() for _ in range(5)}
    await settle()
    assert (len(asked), scans.began) == (1, 1)
    scans.may_end.release()
    scans.may_end.release()
    await asyncio.wait(asked)


async def test_asked_again_later_it_scans_again() -> None:
    scans = Scans()
    queue = ScanQueue(scans)
    for number in "1234":
        scans.may_end.release()
        scan = queue.next_scan()
        await scan
        assert number_of(scan) == number
