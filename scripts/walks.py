"""Count the doors of four walks: the product's files and functions that run while a partition is copied, a segment is trimmed,
a Fetch is filled, and records are read over HTTP.

Each walk runs in this process, over a golden partition, with a scripted broker and the memory store; only what runs during the
walk itself is counted, not what builds the parts.  ``--files`` lists the files.  ``--most N`` exits with 1 where a
walk opens more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.gateway_world import Ask, fetch_request, fetch_response, open_world, out_of_range  # noqa: E402
from tests.support.manual_clock import ManualClock  # noqa: E402
from tests.support.recorded_telemetry import RecordedTelemetry  # noqa: E402
from tests.support.remote_runs import load_run  # noqa: E402
from tests.support.scripted_kafka import gateway_between, request, response  # noqa: E402
from tests.support.tier_shell import TierShell  # noqa: E402
from tests.unit.services.reader.service import open_service  # noqa: E402
from tiersidecar.adapters.clock import ThreadBlocking  # noqa: E402
from tiersidecar.domain.policy import TopicPolicy  # noqa: E402
from tiersidecar.tasks.segment_objects import LayoutSettings  # noqa: E402

PACKAGE = str(ROOT / "tiersidecar")
FETCH, VERSION = 1, 11
"""The last version of Fetch whose headers have no tagged fields."""
LOCAL = (200, 246)
"""The log start of the golden partition at its broker, and its high watermark."""

Work = Callable[[], Awaitable[None]]


class Doors:
    """Files and functions of the product that were entered while it was counting, in any thread."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.counts = False

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.functions})

    def enter(self, frame: FrameType, event: str, argument: Any) -> None:
        """For ``sys.setprofile``."""
        code = frame.f_code
        if self.counts and event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            self.functions.add((code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname.split(".<locals>")[0]))

    async def of(self, work: Work) -> None:
        """Count while ``work`` runs."""
        gc.collect()  # of what the walk before has left
        self.counts = True
        await work()
        self.counts = False


@asynccontextmanager
async def shell() -> AsyncIterator[TierShell]:
    """The tier role beside one partition, which has been looked at."""
    with tempfile.TemporaryDirectory() as directory:
        async with ThreadBlocking(max_threads=2) as blocking:
            role = TierShell(
                Path(directory),
                blocking,
                LayoutSettings(),
                TopicPolicy(local_retention_bytes=0),
                clock=ManualClock(now_ms=2_000_000_000_000),
                telemetry=RecordedTelemetry(),
                partitions=["plain-0"],
            )
            await role.look()
            yield role


async def copy(doors: Doors) -> None:
    """All sealed segments of one partition go to the store."""
    async with shell() as role:
        partition = role.tiered(role.topic_id_partition("plain-0"))
        await doors.of(lambda: role.copy.run(partition))
        assert role.metadata.segment_count(role.topic_id_partition("plain-0")), "nothing was copied"


async def trim(doors: Doors) -> None:
    """Both tiers are read and compared, and the broker's log start moves."""
    async with shell() as role:
        partition = role.tiered(role.topic_id_partition("plain-0"))
        await role.copy.run(partition)
        await doors.of(lambda: role.trim.run(partition))
        assert role.state.partition_state(role.topic_id_partition("plain-0")).trim_offset > 0, "nothing was trimmed"


async def fetch(doors: Doors) -> None:
    """A client's Fetch is out of range at its broker, and is filled."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    async with (
        open_world(run, partition, local=LOCAL) as world,
        gateway_between(more=lambda table: table.update({FETCH: world.fetch})) as ends,
    ):
        client, broker = await ends.pair()

        async def exchange() -> None:
            client.send(request(FETCH, VERSION, 7, fetch_request(VERSION, {partition: Ask(offset=33)})))
            await broker.frame()
            broker.send(response(7, fetch_response(VERSION, {partition: out_of_range()})))
            assert len(await client.frame()) > 1000, "nothing was filled"

        await doors.of(exchange)


async def read(doors: Doors) -> None:
    """Records of the remote tier, as lines of JSON."""
    async with open_service() as service:

        async def get() -> None:
            status, body, _ = await service.get("/topics/plain/partitions/0/records?offset=0&limit=10")
            assert status == 200, body
            assert body.count(b"\n") == 10

        await doors.of(get)


WALKS: dict[str, Callable[[Doors], Coroutine[Any, Any, None]]] = {
    "copy one partition": copy,
    "trim and read-back": trim,
    "gateway Fetch with fill": fetch,
    "HTTP read": read,
}


def walk(work: Callable[[Doors], Coroutine[Any, Any, None]]) -> Doors:
    """Return the doors of one walk."""
    doors = Doors()
    threading.setprofile(doors.enter)
    sys.setprofile(doors.enter)
    try:
        asyncio.run(work(doors))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return doors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    parser.add_argument("--most", type=int, help="files that a walk may open")
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    most = 0
    for name, work in WALKS.items():
        doors = walk(work)
        most = max(most, len(doors.files))
        print(f"{name:<24} {len(doors.files):>4} files {len(doors.functions):>5} functions")
        for file in doors.files if chosen.files else ():
            print(f"    {file} ({sum(found == file for found, _ in doors.functions)})")
    return int(chosen.most is not None and most > chosen.most)


if __name__ == "__main__":
    raise SystemExit(main())
