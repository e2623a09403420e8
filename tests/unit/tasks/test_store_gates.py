"""Each place has a gate of its own, and copies to one leave a slot to the others (S-293)."""

from __future__ import annotations

import asyncio
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
from tiersidecar.ports.metrics.process import PLACE_WRITABLE, STORE_WRITABLE
from tiersidecar.tasks.copy_admission import Backfill, CopyAdmission, CopyLagReport, CopyQuota, CopySlots
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


async def test_an_outage_is_told_once_by_the_gate_that_it_closed(stage: Stage) -> None:
    await stage.meet(refused("@cold/a"))
    assert stage.gates.has_told(refused("@cold/b"))
    assert not stage.gates.has_told(refused("b"))
    assert not stage.gates.has_told(UnknownPlaceError(verb="fetch", key="@gone/a", place="gone"))


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
    def __init__(self, *, slots: int, has_places: bool = True) -> None:
        clock, telemetry = ManualClock(), RecordedTelemetry()
        lags = CopyLagReport(table=PartitionTable(), metadata=MemoryMetadataLog(), clock=clock, telemetry=telemetry)
        self.slots = CopySlots(slots)
        self.admission = CopyAdmission(
            slots=self.slots,
            quota=CopyQuota(quota=RateQuota(), clock=clock),
            backfill=Backfill(lags=lags, threshold=5, order=BackfillOrder.OLDEST, clock=clock, telemetry=telemetry),
            backfill_quota=CopyQuota(quota=RateQuota(), clock=clock),
            place_of_topic=place_of_topic if has_places else None,
        )
        self.admitted: list[str] = []

    def copy(self, topic: str) -> asyncio.Task[None]:
        """One that never ends: its store hangs."""
        return asyncio.create_task(self._copy(topic))

    async def _copy(self, topic: str) -> None:
        partition = TopicIdPartition(topic_id=Uuid(topic.encode().ljust(16)), topic=topic, partition=0)
        async with self.admission.admitted(partition, 1):
            self.admitted.append(topic)
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("slots", "has_places", "admitted"),
    [
        pytest.param(3, True, ["cold0", "cold1", "hot0"], id="copies to one place leave a slot"),
        pytest.param(3, False, ["cold0", "cold1", "cold2"], id="where there is one store, they take all"),
        pytest.param(1, True, ["cold0"], id="a single slot cannot be shared"),
    ],
)
async def test_a_place_that_hangs_does_not_take_every_slot(slots: int, has_places: bool, admitted: list[str]) -> None:
    stage = Admission(slots=slots, has_places=has_places)
    copies = [stage.copy(topic) for topic in ("cold0", "cold1", "cold2", "cold3", "hot0", "hot1")]
    await settle(50)
    assert stage.admitted == admitted
    for copy in copies:
        copy.cancel()
    await asyncio.wait(copies)


async def test_more_slots_are_more_for_each_place() -> None:
    stage = Admission(slots=2)
    copies = [stage.copy(f"cold{number}") for number in range(4)]
    await settle(50)
    stage.slots.size = 4
    copies.append(stage.copy("cold9"))
    await settle(50)
    assert len(stage.admitted) == 3
    for copy in copies:
        copy.cancel()
    await asyncio.wait(copies)
