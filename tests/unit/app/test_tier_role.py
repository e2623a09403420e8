"""When the lease of the tier role is given back: in order, and behind everything that acts by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.pins import pin_of
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.key_wrapping.service_keys import ServiceKeys
from tiersidecar.app import tier_role
from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.parts import Parts
from tiersidecar.app.stop_signals import BeforeStop
from tiersidecar.app.tier_role import announce_stop, given_back_after, keep_probing_keys
from tiersidecar.domain.data_keys import KeyContext, WrappedKey, context_of_ids
from tiersidecar.domain.errors import KeyServiceError, TiersidecarError
from tiersidecar.ports.metrics.copying import COPY_LAG_SEGMENTS, PINS_SEGMENTS
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS
from tiersidecar.tasks.partition_table import PartitionTable
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
    await announce_stop(some, cast(TierLease, Lease(story, is_ours=is_ours)))
    assert story == (["announced", "2 s"] if is_in_use and is_ours else ["announced"])


async def test_what_is_not_told_in_time_keeps_no_process_from_stopping() -> None:
    before_stop = BeforeStop()
    await before_stop.do(0.01)
    before_stop.take(lambda: asyncio.sleep(60))
    with capture_logs() as logged:
        await before_stop.do(0.01)
    assert [one["event"] for one in logged] == ["daemon.stop.not_told"]


class TurningLease:
    """Ours and not ours in turns, as the test says."""

    def __init__(self) -> None:
        self.is_ours, self.reason_not_held, self._turned = False, "another one has it", asyncio.Event()

    async def keep(self) -> None:
        await asyncio.Event().wait()

    async def wait_while(self, *, ours: bool) -> None:
        while self.is_ours is ours:
            self._turned.clear()
            await self._turned.wait()

    async def turn(self, *, ours: bool) -> None:
        self.is_ours = ours
        self._turned.set()
        await asyncio.sleep(0.01)


async def test_nothing_that_was_known_in_the_role_is_known_after_another_process_had_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither its gauges: an alert by them would be of what the other process has long done."""
    table, telemetry, clock = PartitionTable(), RecordedTelemetry(), ManualClock()
    labels = {"topic": TOPIC_ID_PARTITION.topic, "partition": str(TOPIC_ID_PARTITION.partition)}
    told = ((COPY_LAG_SEGMENTS, labels), (HALTED_PARTITIONS, labels), (PINS_SEGMENTS, {"log_dir": "/logs"}))
    found: list[object] = []

    async def work(parts: Any, role: Any, gate: Any) -> None:
        found.append((dict(table.records), table.pins.unread, list(table.pins), parts.roster.turns))
        table.pins.unread, parts.status.lanes = frozenset(), "lanes"
        table.pins.add(pin_of(0, 50))
        table.record(TOPIC_ID_PARTITION).copied_offset = 49
        for metric, of in told:
            telemetry.gauge(metric, 7, **of)
        await asyncio.Event().wait()

    class SomeRoster:
        turns = 0

        def begin_anew(self) -> None:
            self.turns += 1

    async def stand_by(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(tier_role, "_work", work)
    monkeypatch.setattr(tier_role, "keep_roster", stand_by)
    some: Any = SimpleNamespace(
        config=SimpleNamespace(mode=None, log_dirs=["/logs/"], place_of_topic=lambda topic: ""),
        status=SimpleNamespace(reasons=[]),
        table=table,
        telemetry=telemetry,
        clock=clock,
        store=None,
        trash_clock=SimpleNamespace(keep=stand_by),
        roster=SomeRoster(),
        look_interval_s=1.0,
    )
    lease = TurningLease()
    role: Any = SimpleNamespace(lease=lease, remote_delete_blocker=lambda: "")
    running = asyncio.create_task(tier_role.run_tier(some, role))
    await asyncio.sleep(0.01)
    for ours in (True, False, True):
        if ours:
            assert all(telemetry.value(metric, **of) is None for metric, of in told)
        await lease.turn(ours=ours)
    assert found == [({}, None, [], 1), ({}, None, [], 2)]
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


class InlineKeys:
    """Keys that are asked for without threads, as the clock is moved by hand."""

    def __init__(self, keys: ServiceKeys) -> None:
        self._keys, self.blocking = keys, InlineBlocking()
        self.is_at_hand, self.probe = keys.is_at_hand, keys.probe

    @property
    def closed_reason(self) -> str:
        return self._keys.closed_reason


class Vault:
    """``KeyWrapping`` that raises ``error``, if there is one."""

    def __init__(self) -> None:
        self.error: TiersidecarError | None = None
        self.wrapped = list[tuple[bytes, KeyContext]]()

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        self.wrapped.append((data_key, context))
        if self.error is not None:
            raise self.error
        return WrappedKey("k", data_key[::-1])

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        return wrapped.data[::-1]


async def test_a_key_service_that_is_back_is_ready_again_though_nothing_is_to_be_copied() -> None:
    """/readyz stayed at 503 until the next copy."""
    vault, clock, context = Vault(), ManualClock(), context_of_ids("topic", "segment")
    keys = ServiceKeys("vault", vault, keep_s=60, now_s=clock.monotonic_s)
    vault.error = KeyServiceError(service="vault", verb="wrap", reason="no answer")
    with pytest.raises(KeyServiceError):
        keys.wrap(bytes(32), bytes, context)
    probing = asyncio.create_task(keep_probing_keys(InlineKeys(keys), clock, SystemIds(), 30.0))
    for asked, error in ((2, vault.error), (3, vault.error), (4, None), (4, None)):
        vault.error = error
        await clock.advance(30.0)
        assert len(vault.wrapped) == asked
        assert bool(keys.closed_reason) == (error is not None)
    probing.cancel()
    assert {tuple(one.items()) for _, one in vault.wrapped} == {tuple(context.items())}, "policies may look at it"
    assert len({data_key for data_key, _ in vault.wrapped}) == 4
