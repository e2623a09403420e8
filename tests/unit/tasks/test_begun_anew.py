"""What a process knows of its partitions when it has the tier role again, after another process of the broker had it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tests.support.pin_shell import LOG_DIR, PinShell
from tests.support.pins import pin_of
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.tasks.partition_table import PartitionTable, PinTable

FOUND_BY_A_LOOK = {"local", "assignment", "topic_ids", "unseen", "watch_trouble"}


def ranges(shell: PinShell) -> list[tuple[int, int]]:
    local = shell.table.local_partition(TOPIC_ID_PARTITION)
    assert local is not None
    return [(one.base_offset, one.next_base_offset or -1) for one in local.segments if one.pinned]


async def test_what_another_process_has_pinned_and_the_broker_has_deleted_since_is_known_when_the_role_comes_back() -> (
    None
):
    """Else the copy begins behind it: a hole in the remote log, and pins that nobody drops."""
    shell = PinShell(pin_of(0, 50))
    await shell.open(0, 50, 100)
    shell.pins.pins += [pin_of(50, 100), pin_of(100, 150)]
    shell.see(150)
    await shell.keeper.keep()
    assert ranges(shell) == [(0, 50)], "while the role is held nobody else makes any"
    shell.table.begin_anew()
    assert not shell.table.pins.are_known(LOG_DIR), "nothing is copied before they are read"
    await shell.keeper.keep()
    assert shell.table.pins.are_known(LOG_DIR)
    assert ranges(shell) == [(0, 50), (50, 100), (100, 150)]


async def test_what_another_process_has_unpinned_is_not_taken_for_a_pin() -> None:
    shell = PinShell(pin_of(0, 50), pin_of(50, 100))
    await shell.open(100, 150)
    shell.table.pins.refuse(pin_of(100, 150))
    del shell.pins.pins[0]
    shell.table.begin_anew()
    assert (shell.known, shell.table.pins.refused_partitions) == ([], ())
    await shell.keeper.keep()
    assert shell.known == [(50, 100)]


def test_only_what_every_look_finds_is_kept_of_the_table() -> None:
    """Whatever is added to it is forgotten as well, unless it is named."""
    table, unknown = PartitionTable(), PartitionTable()
    table.record(TOPIC_ID_PARTITION).copied_offset = 99
    for one in fields(PartitionTable):
        if one.name not in ("records", "pins", "turns"):
            setattr(table, one.name, Marked(one.name))
    table.begin_anew()
    kept = {one.name for one in fields(table) if isinstance(getattr(table, one.name), Marked)}
    assert kept == FOUND_BY_A_LOOK | {"looks"}
    left: Any = {one.name: getattr(unknown, one.name) for one in fields(table) if one.name in kept}
    assert replace(table, **left, pins=unknown.pins, turns=0) == unknown
    assert table.record(TOPIC_ID_PARTITION).copied_offset is None


def test_those_who_hold_on_to_the_pins_see_them_forgotten() -> None:
    """The gateway asks the same table all its life."""
    table = PartitionTable()
    pins: PinTable = table.pins
    pins.add(pin_of(0, 50))
    pins.unread = frozenset()
    assert pins.epochs_of(TOPIC_ID_PARTITION)
    table.begin_anew()
    assert pins is table.pins
    assert not pins.are_known(LOG_DIR)
    assert not [*pins, *pins.epochs_of(TOPIC_ID_PARTITION)]


class Marked:
    def __init__(self, name: str) -> None:
        self.name = name
