"""Each place has a gate of its own, and copies to one leave a slot to the others (S-293)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

import pytest

from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.unit.tasks.test_store_gate import Store
from tiersidecar.decide.backfill import BackfillOrder
from tiersidecar.decide.quota import RateQuota
from tiersidecar.domain.errors import StoreError, UnknownPlaceError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.ports.metrics.copying import COPY_ERRORS, COPY_REQUESTS
from tiersidecar.ports.metrics.process import PLACE_WRITABLE, STORE_WRITABLE
from tiersidecar.tasks.copy_admission import LIVE, Backfill, CopyAdmission, CopyLagReport, CopyQuota, CopySlots
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.store_gates import StoreGates


def place_of_topic(topic: str) -> str:
    return "cold" if topic.startswith("cold") else ""


class Stage:
    def __init__(self) -> None:
        self.clock, self.telemetry = ManualClock(), RecordedTelemetry()
        self.stores = {"": Store(self.clock), "cold": Store(self.clock)}
        self.gates = StoreGates(self.stores, place_of_topic, clock=self.clock, telemetry=self.telemetry)

    async def meet(self, error: Exception) -> None:
        """A copy meets ``error``."""
        with suppress(type(error)):
            async with self.gates.watching():
                raise error

    @property
    def is_open(self) -> dict[str, bool]:
        return {topic: not self.gates.of_topic(topic).closed_reason for topic in ("hot", "cold")}


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    for topic in ("hot", "cold"):
        await stage.gates.of_topic(topic).wait_open()
    return stage


def refused(key: str) -> StoreError:
    return StoreError(verb="put", key=key, reason="connection refused")


@pytest.mark.parametrize(
    ("error", "is_open"),
    [
        pytest.param(refused("@cold/a"), {"hot": True, "cold": False}, id="of a place"),
        pytest.param(refused("a"), {"hot": False, "cold": True}, id="of the default one"),
        pytest.param(
            UnknownPlaceError(verb="fetch", key="@gone/a", place="gone"),
            {"hot": True, "cold": True},
            id="of a place that is not configured: no store is away",
        ),
        pytest.param(ValueError(), {"hot": True, "cold": True}, id="of no store"),
    ],
)
async def test_an_error_closes_the_gate_of_the_place_that_it_is_about(
    stage: Stage, error: Exception, is_open: dict[str, bool]
) -> None:
    """Whichever topic's copy meets it: a partition that has moved reads its former segments where they are."""
    await stage.meet(error)
    assert stage.is_open == is_open


async def test_each_has_a_probe_and_a_metric_of_its_own(stage: Stage) -> None:
    await stage.meet(refused("@cold/a"))
    assert stage.telemetry.value(PLACE_WRITABLE, place="cold") == 0
    assert stage.telemetry.value(STORE_WRITABLE) == 1
    assert "place cold: " in stage.gates.of_topic("cold").closed_reason
    probes = {place: store.probes for place, store in stage.stores.items()}
    await stage.gates.of_topic("cold").wait_open()
    assert {place: store.probes - probes[place] for place, store in stage.stores.items()} == {"": 0, "cold": 1}
    assert stage.telemetry.value(PLACE_WRITABLE, place="cold") == 1


async def test_a_store_that_hangs_closes_its_gate_before_any_copy_has_failed(stage: Stage) -> None:
    stage.gates.close("cold", "no answer within 10 s")
    assert stage.is_open == {"hot": True, "cold": False}
    assert stage.telemetry.value(PLACE_WRITABLE, place="cold") == 0
    assert "no answer within 10 s" in stage.gates.of_topic("cold").closed_reason
    await stage.gates.of_topic("cold").wait_open()
    assert stage.telemetry.value(PLACE_WRITABLE, place="cold") == 1


async def test_an_outage_is_told_once_by_the_gate_that_it_closed(stage: Stage) -> None:
    await stage.meet(refused("@cold/a"))
    assert stage.gates.has_logged(refused("@cold/b"))
    assert not stage.gates.has_logged(refused("b"))
    assert not stage.gates.has_logged(UnknownPlaceError(verb="fetch", key="@gone/a", place="gone"))


async def test_closed_gates_are_probed_side_by_side(stage: Stage) -> None:
    await stage.meet(refused("@cold/a"))
    await stage.meet(refused("a"))
    stage.stores[""].held = asyncio.Event()
    probing = asyncio.create_task(stage.gates.keep_probing(30))
    await settle()
    assert stage.is_open == {"hot": False, "cold": True}, "a store that hangs keeps no other from being found again"
    probing.cancel()
    await asyncio.wait([probing])


class Admission:
    """Topics with "back" in their names catch up.  A name begins with its place, "hot" with the default one."""

    def __init__(self, *, slots: int, places: Collection[str] = ("", "cold"), reserved: int = 0) -> None:
        clock, telemetry = ManualClock(), RecordedTelemetry()
        lags = CopyLagReport(table=PartitionTable(), metadata=MemoryMetadataLog(), clock=clock, telemetry=telemetry)
        self.slots = CopySlots(slots, reserved=reserved, places=places)
        self.clock, self.rate, self.backfill_rate = clock, CountedRate(), RateQuota()
        self.stores = {place: Store(clock) for place in {"", "cold", *places}}
        self.gates = StoreGates(
            self.stores,
            lambda topic: next((place for place in self.stores if place and topic.startswith(place)), ""),
            clock=clock,
            telemetry=telemetry,
        )
        self.telemetry, self.ended = telemetry, asyncio.Event()
        self.admission = CopyAdmission(
            slots=self.slots,
            quota=CopyQuota(quota=self.rate, clock=clock),
            backfill=Ranks(lags=lags, threshold=5, order=BackfillOrder.OLDEST, clock=clock, telemetry=telemetry),
            backfill_quota=CopyQuota(quota=self.backfill_rate, clock=clock),
            gates=self.gates,
        )
        self.admitted: list[str] = []
        self.copies: list[asyncio.Task[None]] = []

    async def copy(self, *topics: str) -> None:
        """Copies that never end: their store hangs."""
        self.copies += [asyncio.create_task(self._copy(topic)) for topic in topics]
        await settle(50)

    async def _copy(self, topic: str) -> None:
        partition = TopicIdPartition(topic_id=Uuid(topic.encode().ljust(16)), topic=topic, partition=0)
        with suppress(StoreError):
            async with self.admission.admitted(partition, 1):
                self.admitted.append(topic)
                await self.ended.wait()

    async def stop(self) -> None:
        for copy in self.copies:
            copy.cancel()
        await asyncio.wait(self.copies)


class CountedRate(RateQuota):
    recorded = 0.0

    def record(self, amount_bytes: float, now_s: float) -> None:
        self.recorded += amount_bytes
        super().record(amount_bytes, now_s)


class Ranks(Backfill):
    def rank(self, partition: TopicIdPartition) -> int:
        return 0 if "back" in partition.topic else LIVE


@pytest.mark.parametrize(
    ("slots", "places", "admitted"),
    [
        pytest.param(3, ("", "cold"), ["cold0", "cold1", "hot0"], id="copies to one place leave a slot"),
        pytest.param(3, (), ["cold0", "cold1", "cold2"], id="where there is one store, they take all"),
        pytest.param(1, ("", "cold"), ["cold0"], id="a single slot cannot be shared"),
        pytest.param(
            2, ("", "cold", "far"), ["cold0", "hot0"], id="with fewer slots than places, first come first served"
        ),
    ],
)
async def test_a_place_that_hangs_does_not_take_every_slot(
    slots: int, places: tuple[str, ...], admitted: list[str]
) -> None:
    stage = Admission(slots=slots, places=places)
    await stage.copy("cold0", "cold1", "cold2", "cold3", "hot0", "hot1")
    assert stage.admitted == admitted
    await stage.stop()


async def test_two_places_that_hang_leave_a_slot_to_the_third() -> None:
    stage = Admission(slots=4, places=("", "cold", "far"))
    await stage.copy("cold0", "cold1", "cold2", "far0", "far1", "hot0")
    assert stage.admitted == ["cold0", "cold1", "far0", "hot0"]
    await stage.stop()


@pytest.mark.parametrize("place", ["hot", "cold"])
@pytest.mark.parametrize("is_rate_reached", [False, True])
async def test_a_backfill_of_a_place_leaves_a_slot_to_its_live_copies(place: str, is_rate_reached: bool) -> None:
    """S-171: as where there is one store."""
    stage = Admission(slots=4, reserved=1)
    if is_rate_reached:
        stage.backfill_rate.bytes_per_s = 1
        stage.backfill_rate.record(10**9, stage.clock.monotonic_s())
    await stage.copy(*(f"{place}-back{number}" for number in range(6)))
    assert len(stage.admitted) == (0 if is_rate_reached else 2)
    await stage.copy(f"{place}-live")
    assert stage.admitted[-1:] == [f"{place}-live"]
    await stage.stop()


async def test_what_waits_for_its_place_keeps_nobody_of_another_one_waiting() -> None:
    """Before it in the queue, and of a better rank."""
    stage = Admission(slots=3, places=("", "cold"), reserved=1)
    await stage.copy("cold0", "cold1", "cold2", "cold3", "hot-live")
    assert stage.admitted == ["cold0", "cold1", "hot-live"]
    await stage.stop()


@pytest.mark.parametrize("hot", ["hot-live", "hot-back"])
async def test_a_place_that_is_not_found_open_keeps_no_slot(hot: str) -> None:
    stage = Admission(slots=3, reserved=1)
    stage.stores["cold"].held = asyncio.Event()
    await stage.copy(*(f"cold{number}" for number in range(9)))
    await stage.copy(hot, hot)
    assert stage.admitted == [hot] * (2 if hot == "hot-live" else 1)
    stage.stores["cold"].trouble = "no answer"
    stage.stores["cold"].held.set()
    await settle(50)
    assert stage.stores["cold"].probes == 1
    assert [stage.telemetry.value(metric, topic="cold0") for metric in (COPY_REQUESTS, COPY_ERRORS)] == [1, 1]
    await stage.stop()


async def test_those_in_the_queue_when_the_gate_closes_take_neither_slot_nor_quota() -> None:
    stage = Admission(slots=3)
    await stage.copy("cold0", "cold1", "cold2", "cold3", "cold4")
    stage.gates.of_topic("cold").close_by(refused("@cold/a"))
    stage.ended.set()
    await settle(50)
    assert stage.admitted == ["cold0", "cold1"]
    assert all(copy.done() for copy in stage.copies)
    assert stage.rate.recorded == 2


@pytest.mark.parametrize("slots", [2, 3, 10])
async def test_a_place_that_hangs_leaves_a_slot_to_a_backfill_of_another_one(slots: int) -> None:
    """Else the topics of a sound place that have fallen behind are not copied at all, and fill the disks."""
    stage = Admission(slots=slots, reserved=1)
    await stage.copy(*(f"cold{number}" for number in range(12)))
    assert len(stage.admitted) == slots - 1
    await stage.copy("hot-back0", "hot-back1")
    assert stage.admitted[slots - 1 :] == ["hot-back0"]
    await stage.stop()


async def test_more_slots_are_more_for_each_place() -> None:
    stage = Admission(slots=2)
    await stage.copy(*(f"cold{number}" for number in range(4)))
    stage.slots.size = 4
    await stage.copy("cold9")
    assert len(stage.admitted) == 3
    await stage.stop()
