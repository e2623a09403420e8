"""Runs one cell of the table: the client through the gateway, and the same client directly on the untiered copy."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from tests.support.gateway_clients import CLIENTS
from tests.support.gateway_table import Cell
from tests.support.reading import Client, Reading, Seen
from tests.support.tiered_world import MOVING, ORDERS, PARTITIONS, TieredWorld
from tests.support.twin_topics import Twins

_LIMITS: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "small": {"max_partition_bytes": 2_000, "fetch_max_bytes": 20_000},
    "impatient": {"max_wait_ms": 10},
}
_COUNT = 12
_numbers = itertools.count()


def twins_of(cell: Cell) -> Twins:
    """Return what the cell reads."""
    return MOVING if cell.start in ("latest", "hops") else ORDERS


def run_cell(world: TieredWorld, cell: Cell) -> tuple[list[Seen], list[Seen]]:
    """Return what the client sees through the gateway, and what it sees of the copy, directly."""
    client, twins = _client(world, cell.client), twins_of(cell)
    reading = _reading(world, cell)
    known_end = world.moving.end_offset
    seen = client(world.access(cell.login), reading)
    copy = replace(reading, topic=twins.copy, group=f"{reading.group}-copy")
    if cell.start == "latest":
        assert seen[0][1] >= known_end, "it did not begin at the end"
        copy = replace(copy, start="hops", membership="assigned", hops=(seen[0][1],))
    return seen, client(world.access(cell.login, through=False), copy)


def _client(world: TieredWorld, name: str) -> Client:
    return {**CLIENTS, "java-console": world.java.console, "java-perf": world.java.performance}[name]


def _reading(world: TieredWorld, cell: Cell) -> Reading:
    twins, group = twins_of(cell), f"cell-{next(_numbers)}"
    partitions = PARTITIONS if twins is ORDERS else (0,)
    if cell.client == "java-console" and cell.membership == "assigned":
        partitions = (0,)  # it takes one
    visible = world.visible(cell.isolation)
    reading = Reading(
        topic=twins.topic,
        ends={partition: world.ends[partition] for partition in partitions},
        start=cell.start,  # type: ignore[arg-type]
        membership=cell.membership,  # type: ignore[arg-type]
        group="" if cell.membership == "assigned" else group,
        count=_COUNT,
        visible={partition: visible[partition] for partition in partitions},
        isolation=cell.isolation,
        **_LIMITS[cell.limits],
    )
    match cell.start:
        case "committed":
            committed = {0: 100, 1: world.local_starts[1] - 1}
            asyncio.run(_commit(world, {f"{group}-copy": ORDERS.copy, group: ORDERS.topic}, committed))
            return replace(reading, committed=committed)
        case "timestamp":
            return replace(reading, since_ms=_timestamp_within(world))
        case "hops":
            return replace(reading, hops=_hops(world))
    return reading


async def _commit(world: TieredWorld, topics: Mapping[str, str], offsets: Mapping[int, int]) -> None:
    """Commit by group; through the gateway for the one that is read through it."""
    for group, topic in topics.items():
        settings: Any = world.access(through=topic == ORDERS.topic).python_settings
        async with AIOKafkaConsumer(**settings, group_id=group, enable_auto_commit=False) as consumer:
            wanted = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
            consumer.assign(list(wanted))
            await consumer.commit({one: OffsetAndMetadata(offset, "") for one, offset in wanted.items()})


def _timestamp_within(world: TieredWorld) -> int:
    """Return the time of a record a third from the start, past the first few of its batch: a marker, whose time is the
    broker's, is none of the first that are not before it."""
    of_first = [one for one in world.produced if one.partition == 0]
    return of_first[len(of_first) // 3].timestamp_ms + 5


def _hops(world: TieredWorld) -> tuple[int, ...]:
    """Return offsets to and fro over the border where it is now; it moves on meanwhile."""
    world.moving.wait_for_end(200)
    world.wait_until_moved()
    border, end = world.border(MOVING.topic, 0), world.moving.end_offset
    near = (border - 3, 0, border, border // 2, border - 20, border + 5, 1, border - 1)
    last = end - 3 * _COUNT  # of three transactions one may be aborted
    return tuple(max(min(one, last), 0) for one in near)
