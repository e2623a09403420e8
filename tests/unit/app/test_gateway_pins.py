"""What the gateway knows of pins, beside the role tier and in a process of its own (U7: what a pin has is not out of range)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.pins import pin_of
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.app.gateway_pins import PinsInTable, ScannedPins
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.segments import Pin
from tiersidecar.ports.pins import PinsView
from tiersidecar.tasks.partition_table import PinTable

OTHER = TopicIdPartition(topic_id=Uuid(b"another-topic-id"), topic="other", partition=0)


class Disk:
    """``ReadPins``; counts how often it was read, and waits where told to."""

    def __init__(self, *pins: Pin) -> None:
        self.pins, self.faults = pins, dict[str, str]()
        self.reads = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def scan(self, *, sweep: bool) -> PinsView:
        assert not sweep, "what another process is making must not be swept"
        self.reads += 1
        found = self.pins
        await self.may_go_on.wait()
        return PinsView(pins=found, faults=self.faults)


async def test_of_a_log_dir_whose_pins_could_not_be_read_any_may_be_there() -> None:
    table = PinTable()
    pins = PinsInTable(table, ScannedPins(Disk(), ManualClock()))
    table.unread = frozenset({"/logs"})
    assert await pins.is_pending(TOPIC_ID_PARTITION)
    table.unread = frozenset()
    assert not await pins.is_pending(TOPIC_ID_PARTITION)
    table.add(pin_of(0, 10))
    assert await pins.is_pending(TOPIC_ID_PARTITION)
    assert await pins.is_pending(TOPIC_ID_PARTITION, below=1)
    assert not await pins.is_pending(TOPIC_ID_PARTITION, below=0)
    assert not await pins.is_pending(OTHER)


async def test_beside_a_tier_role_that_stands_by_the_pins_on_the_disks_count() -> None:
    """They are another process's, which makes new ones and drops those that this one knew."""
    table, disk = PinTable(), Disk()
    table.add(pin_of(0, 10))
    pins = PinsInTable(table, ScannedPins(disk, ManualClock()))
    table.begin_anew()
    assert not await pins.is_pending(TOPIC_ID_PARTITION)
    disk.pins = (pin_of(10, 20),)
    assert [await pins.is_pending(TOPIC_ID_PARTITION, below=offset) for offset in (10, 11)] == [False, True]


async def test_a_gateway_of_its_own_sees_the_pins_on_the_disks() -> None:
    disk = Disk()
    pins = ScannedPins(disk, ManualClock())
    assert not await pins.is_pending(TOPIC_ID_PARTITION)
    disk.pins = (pin_of(0, 10),)
    assert await pins.is_pending(TOPIC_ID_PARTITION), "a pin that was made since the last look"
    assert not await pins.is_pending(OTHER)
    disk.pins = (pin_of(10, 20), pin_of(30, 40))
    assert [
        await ScannedPins(disk, ManualClock()).is_pending(TOPIC_ID_PARTITION, below=offset) for offset in (10, 11, 35)
    ] == [
        False,
        True,
        True,
    ]


async def test_a_client_that_waits_for_a_pin_costs_no_look_each_time() -> None:
    disk, clock = Disk(pin_of(0, 10)), ManualClock()
    pins = ScannedPins(disk, clock)
    for _ in range(5):
        assert await pins.is_pending(TOPIC_ID_PARTITION)
    assert disk.reads == 1
    await clock.advance(2)
    disk.pins = ()
    assert not await pins.is_pending(TOPIC_ID_PARTITION)


async def test_a_look_that_began_before_the_question_is_no_answer() -> None:
    disk, clock = Disk(), ManualClock()
    pins = ScannedPins(disk, clock)
    disk.may_go_on.clear()
    first = asyncio.create_task(pins.is_pending(TOPIC_ID_PARTITION))
    await clock.advance(0.1)
    disk.pins = (pin_of(0, 10),)
    second = asyncio.create_task(pins.is_pending(TOPIC_ID_PARTITION))
    await clock.advance(0.1)
    disk.may_go_on.set()
    assert not await first
    assert await second


async def test_where_pins_cannot_be_read_any_may_be_there() -> None:
    disk = Disk()
    disk.faults = {"/logs": "permission denied"}
    assert await ScannedPins(disk, ManualClock()).is_pending(TOPIC_ID_PARTITION)


async def test_log_dirs_without_pins_have_none(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pins = FilesystemPins([str(tmp_path / "data")], blocking=InlineBlocking())
    assert not await ScannedPins(pins, ManualClock()).is_pending(TOPIC_ID_PARTITION)
