"""When the lease of the tier role is given back: in order, and behind everything that acts by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.parts import Parts
from tiersidecar.app.stop_signals import BeforeStop
from tiersidecar.app.tier_role import given_back_after, told_to_gateways
from tiersidecar.tasks.tier_lease import TierLease


class Lease:
    def __init__(self, story: list[str], *, is_ours: bool = True) -> None:
        self._story, self.is_ours = story, is_ours

    async def give_back(self) -> None:
        await asyncio.sleep(0)
        self._story.append("given back")

    async def announce_stop(self) -> None:
        self._story.append("announced")


@dataclass
class SomeParts:
    """As much as is asked of them."""

    requests_left_alone: Callable[[], int] = lambda: 0
    proposals: Any = None
    clock: Any = None


@dataclass
class SomeRole:
    lease: Lease | None


def parts(left_alone: int = 0) -> Parts:
    return cast(Parts, SomeParts(lambda: left_alone))


async def run(parts: Parts, lease: Lease | None, work: Callable[[], Any]) -> None:
    async with given_back_after(parts, cast(TierParts, SomeRole(lease))), asyncio.TaskGroup() as group:
        group.create_task(work())


async def stopped(parts: Parts, lease: Lease | None, work: Callable[[], Any]) -> None:
    running = asyncio.create_task(run(parts, lease, work))
    await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()


async def test_it_is_given_back_when_the_last_step_has_ended() -> None:
    story: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # a send whose answer is on its way
            story.append("last step")

    await stopped(parts(), Lease(story), work)
    assert story == ["last step", "given back"]


async def test_a_process_that_only_observes_has_none() -> None:
    await stopped(parts(), None, asyncio.Event().wait)


async def test_it_is_kept_where_a_request_to_the_store_has_not_ended() -> None:
    story: list[str] = []
    with capture_logs() as logged:
        await stopped(parts(left_alone=2), Lease(story), asyncio.Event().wait)
    assert story == []
    assert [one["reason"] for one in logged] == ["2 requests to the store have not ended"]


async def test_a_process_that_fails_keeps_it() -> None:
    story: list[str] = []

    async def fail() -> None:
        raise RuntimeError("unexpected")

    with pytest.raises(ExceptionGroup):
        await run(parts(), Lease(story), fail)
    assert story == []


@pytest.mark.parametrize(("is_in_use", "is_ours"), [(False, True), (True, True), (True, False)])
async def test_gateways_are_told_before_the_work_ends_and_waited_for_where_there_are_any(
    *, is_in_use: bool, is_ours: bool
) -> None:
    story: list[str] = []

    class Clock:
        async def sleep(self, seconds: float) -> None:
            story.append(f"{seconds:.0f} s")

    class SomeProposals:
        def __init__(self) -> None:
            self.is_in_use = is_in_use

    some = cast(Parts, SomeParts(proposals=SomeProposals(), clock=Clock()))
    await told_to_gateways(some, cast(TierLease, Lease(story, is_ours=is_ours)))
    assert story == (["announced", "2 s"] if is_in_use and is_ours else ["announced"])


async def test_what_is_not_told_in_time_keeps_no_process_from_stopping() -> None:
    before_stop = BeforeStop()
    await before_stop.do(0.01)
    before_stop.take(lambda: asyncio.sleep(60))
    with capture_logs() as logged:
        await before_stop.do(0.01)
    assert [one["event"] for one in logged] == ["daemon.stop.not_told"]
