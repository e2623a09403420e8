"""While the store is away no copy is begun: what closes the gate, what opens it, and what is told."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, StoreError
from tiersidecar.ports.metrics.process import STORE_WRITABLE
from tiersidecar.tasks.store_gates import StoreGate

AWAY, DENIED = "connection refused", "access denied"


class Store(MemoryStore):
    """``trouble`` answers the probe; ``held`` keeps it waiting."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock, ids=SystemIds())
        self.trouble, self.probes = "", 0
        self.held: asyncio.Event | None = None

    async def check_writable(self) -> None:
        self.probes += 1
        if self.held is not None:
            await self.held.wait()
        if self.trouble:
            raise StoreError(verb="put", key="probe", reason=self.trouble)


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Store(self.clock)
        self.telemetry = RecordedTelemetry()
        self.gate = StoreGate(self.store, self.clock, self.telemetry)

    async def copy(self, reason: str) -> None:
        """A copy that meets a store error."""
        with suppress(StoreError):
            async with self.gate.watching():
                raise StoreError(verb="put", key="k", reason=reason)


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_at_start_it_is_closed_until_a_probe_succeeds(stage: Stage) -> None:
    assert stage.gate.closed_reason == str(StoreError(verb="probe", key="", reason="it has not been probed yet"))
    await stage.gate.wait_open()
    assert (stage.gate.closed_reason, stage.store.probes) == ("", 1)
    await stage.gate.wait_open()
    assert stage.store.probes == 1, "an open gate asks nobody"


async def test_a_copy_that_meets_an_error_closes_it_and_the_next_one_probes(stage: Stage) -> None:
    await stage.gate.wait_open()
    await stage.copy(AWAY)
    assert AWAY in stage.gate.closed_reason
    stage.store.trouble = DENIED
    with pytest.raises(StoreError, match=DENIED):
        await stage.gate.wait_open()
    assert DENIED in stage.gate.closed_reason, "the last reason"
    stage.store.trouble = ""
    await stage.gate.wait_open()
    assert stage.gate.closed_reason == ""


async def test_what_is_no_error_of_the_store_leaves_it_open(stage: Stage) -> None:
    await stage.gate.wait_open()
    with suppress(ValueError):
        async with stage.gate.watching():
            raise ValueError
    async with stage.gate.watching():
        pass
    assert stage.gate.closed_reason == ""


async def test_an_error_is_the_copys_own_too(stage: Stage) -> None:
    with pytest.raises(ObjectNotFoundError):
        async with stage.gate.watching():
            raise ObjectNotFoundError(verb="put", key="k", reason="no such bucket")


async def test_one_probes_for_all_who_wait(stage: Stage) -> None:
    stage.store.held = asyncio.Event()
    waiting = [asyncio.create_task(stage.gate.wait_open()) for _ in range(5)]
    await settle()
    stage.store.held.set()
    await asyncio.gather(*waiting)
    assert stage.store.probes == 1


async def test_all_who_wait_take_the_result_of_one_probe_that_fails(stage: Stage) -> None:
    stage.store.held, stage.store.trouble = asyncio.Event(), AWAY
    waiting = [asyncio.create_task(stage.gate.wait_open()) for _ in range(5)]
    await settle()
    stage.store.held.set()
    met = await asyncio.gather(*waiting, return_exceptions=True)
    assert [AWAY in str(error) for error in met] == [True] * 5
    assert stage.store.probes == 1, "probed one after another, a store that hangs would keep the last one for minutes"
    with pytest.raises(StoreError, match=AWAY):
        await stage.gate.wait_open()
    assert stage.store.probes == 2


async def test_a_probe_that_is_cancelled_is_no_result(stage: Stage) -> None:
    stage.store.held = asyncio.Event()
    probing, waiting = (asyncio.create_task(stage.gate.wait_open()) for _ in range(2))
    await settle()
    probing.cancel()
    await settle()
    stage.store.held.set()
    await waiting
    assert stage.store.probes == 2


async def test_each_reason_is_told_once(stage: Stage) -> None:
    with capture_logs() as told:
        for trouble in (AWAY, AWAY, AWAY, DENIED, ""):
            stage.store.trouble = trouble
            with suppress(StoreError):
                await stage.gate.wait_open()
        await stage.copy(AWAY)
        await stage.copy(DENIED)
    assert [(one["event"], one["log_level"]) for one in told] == [
        ("store.not_writable", "warning"),
        ("store.not_writable", "warning"),
        ("store.writable", "info"),
        ("store.away", "warning"),
    ]
    assert {one["store"] for one in told} == {"memory"}
    assert AWAY in told[0]["error"]
    assert DENIED in told[1]["error"]
    assert AWAY in told[3]["error"], "the first copy that met it; the next one finds the gate closed"


async def test_an_outage_is_counted_and_told_at_its_end(stage: Stage) -> None:
    assert stage.telemetry.value(STORE_WRITABLE) is None, "nobody has asked yet"
    await stage.gate.wait_open()
    assert stage.telemetry.value(STORE_WRITABLE) == 1
    error = StoreError(verb="put", key="k", reason=AWAY)
    assert not stage.gate.has_logged(error), "a store error while the gate is open is the caller's to tell"
    await stage.copy(AWAY)
    assert stage.telemetry.value(STORE_WRITABLE) == 0
    assert [stage.gate.has_logged(error) for _ in range(7)] == [True] * 7
    assert not stage.gate.has_logged(CorruptDataError(where="f", position=7, reason="bad CRC"))
    await stage.clock.advance(90)
    with capture_logs() as told:
        await stage.gate.wait_open()
    assert [(one["event"], one["failures"], one["away_ms"]) for one in told] == [("store.writable", 7, 90_000)]
    assert stage.telemetry.value(STORE_WRITABLE) == 1


async def test_it_opens_without_a_copys_asking(stage: Stage) -> None:
    stage.store.trouble = AWAY
    probing = asyncio.create_task(stage.gate.keep_probing(10))
    await stage.clock.advance(25)
    assert (stage.store.probes, AWAY in stage.gate.closed_reason) == (3, True)
    stage.store.trouble = ""
    await stage.clock.advance(5)
    assert stage.gate.closed_reason == ""
    await stage.clock.advance(60)
    assert stage.store.probes == 4, "while it is open nobody probes"
    probing.cancel()
    with suppress(asyncio.CancelledError):
        await probing
