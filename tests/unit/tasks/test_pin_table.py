"""What this process knows of its pins: noted with each that is made or dropped, and apart for each partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.pins import LOG_DIR, epochs_of, pin_of
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.domain.segments import Pin, PinnedPartition
from tiersidecar.tasks.partition_table import PinTable

OTHER = replace(TOPIC_ID_PARTITION, partition=9)
US, THEM = PinnedPartition.of(TOPIC_ID_PARTITION), PinnedPartition.of(OTHER)
FIRST, SECOND, THIRD = pin_of(0, 50), pin_of(50, 100, epochs=[(0, 0), (2, 60)]), pin_of(100, 150, epochs=[(2, 100)])
FOREIGN = pin_of(0, 70, topic_id_partition=OTHER, epochs=[(7, 0)])


def table_of(*pins: Pin) -> PinTable:
    table = PinTable()
    for pin in pins:
        table.add(pin)
    return table


def ranges(pins: tuple[Pin, ...]) -> list[tuple[int, int]]:
    return [(pin.base_offset, pin.next_base_offset) for pin in pins]


@pytest.mark.parametrize("at_once", [True, False], ids=["as at start", "one by one"])
def test_pins_of_a_partition_ascend_whenever_they_came(at_once: bool) -> None:
    table = table_of(SECOND)
    if at_once:
        table.add_all([FOREIGN, THIRD, FIRST])
    else:
        for one in (FOREIGN, THIRD, FIRST):
            table.add(one)
    assert ranges(table.of(TOPIC_ID_PARTITION)) == ranges(table.of_owner(US)) == [(0, 50), (50, 100), (100, 150)]
    assert ranges(table.of(OTHER)) == [(0, 70)]
    assert set(table.partitions) == {US, THEM}
    assert sorted(ranges(tuple(table))) == [(0, 50), (0, 70), (50, 100), (100, 150)]


@pytest.mark.parametrize("at_once", [True, False], ids=["as at start", "one by one"])
def test_a_pin_of_the_same_offsets_takes_the_place_of_the_former(at_once: bool) -> None:
    """A directory that moved between log dirs: the new link is the one that counts."""
    table, moved = table_of(FIRST, SECOND), pin_of(0, 50, log_dir="/logs2")
    if at_once:
        table.add_all([moved])
    else:
        table.add(moved)
    assert [(one.base_offset, one.log_dir) for one in table.of(TOPIC_ID_PARTITION)] == [(0, "/logs2"), (50, LOG_DIR)]


def test_a_pin_that_was_dropped_is_forgotten_and_with_the_last_the_partition() -> None:
    table = table_of(FIRST, SECOND, FOREIGN)
    table.remove(FIRST)
    table.remove(FIRST)
    assert ranges(table.of(TOPIC_ID_PARTITION)) == [(50, 100)]
    table.remove(SECOND)
    table.remove(THIRD)
    assert (table.of(TOPIC_ID_PARTITION), table.partitions) == ((), (THEM,))


def test_the_epochs_of_a_partition_follow_its_pins() -> None:
    table = table_of(FIRST, SECOND, FOREIGN)
    known = table.epochs_of(TOPIC_ID_PARTITION)
    assert known == epochs_of((0, 0), (2, 60))
    assert table.epochs_of(TOPIC_ID_PARTITION) is known, "each read asks for it"
    assert table.epochs_of(OTHER) == epochs_of((7, 0))
    table.add(pin_of(100, 150, epochs=[(0, 0), (2, 60), (5, 120)]))
    assert table.epochs_of(TOPIC_ID_PARTITION) == epochs_of((0, 0), (2, 60), (5, 120))
    for one in table.of(TOPIC_ID_PARTITION):
        table.remove(one)
    assert table.epochs_of(TOPIC_ID_PARTITION) == ()
    assert US not in table._epochs, "nothing is kept of a partition without pins"
    assert table.epochs_of(OTHER) == epochs_of((7, 0))


@pytest.mark.parametrize(
    ("unread", "is_known"),
    [
        pytest.param(None, False, id="before the first attempt"),
        pytest.param(frozenset({LOG_DIR}), False, id="not in this log dir"),
        pytest.param(frozenset({"/logs2"}), True, id="not in another"),
        pytest.param(frozenset(), True, id="all are"),
    ],
)
def test_whether_the_pins_of_a_log_dir_have_been_read(unread: frozenset[str] | None, is_known: bool) -> None:
    table = PinTable()
    table.unread = unread
    assert table.are_known(LOG_DIR) is is_known


def test_what_nobody_has_a_right_to_is_not_pinned_again_until_it_cannot_be() -> None:
    table = PinTable()
    for one in (FIRST, SECOND, THIRD, FOREIGN):
        table.refuse(one)
    assert table.refused_of(TOPIC_ID_PARTITION) == {(0, 50), (50, 100), (100, 150)}
    assert set(table.refused_partitions) == {US, THEM}
    table.forget_refused(US, 100)
    assert table.refused_of(TOPIC_ID_PARTITION) == {(100, 150)}
    assert table.refused_of(OTHER) == {(0, 70)}
    table.forget_refused(US, 150)
    table.forget_refused(US, 150)
    assert (table.refused_of(TOPIC_ID_PARTITION), table.refused_partitions) == (frozenset(), (THEM,))
