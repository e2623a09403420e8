"""Which Kafka knows TxnIndexEmpty.

A partition that reaches back as far as its pins do (docs/design/0004-pins.md).
"""

from __future__ import annotations

import pytest

from tests.support.pins import epochs_of, local_partition, pin_of
from tests.support.segments import local_segments
from tiersidecar.domain.segments import Pin, epochs_with_pins, knows_txn_index_empty, with_pins


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param((3, 8), False, id="3.8, the plugin's own storage API, does not"),
        pytest.param((3, 9), False, id="3.9 does not"),
        pytest.param((4, 0), True, id="4.0 is the first that does"),
        pytest.param((4, 3), True, id="4.3 does"),
    ],
)
def test_txn_index_empty_is_known_since_4_0(version: tuple[int, int], *, expected: bool) -> None:
    assert knows_txn_index_empty(version) is expected


LOCAL = local_partition(local_segments(100, 150, 200))


def test_pins_below_the_directory_come_first_and_the_active_segment_stays_last() -> None:
    merged = with_pins(LOCAL, [pin_of(0, 50), pin_of(50, 100), pin_of(100, 150)])
    assert [(segment.base_offset, segment.next_base_offset, segment.pinned) for segment in merged.segments] == [
        (0, 50, True),
        (50, 100, True),
        (100, 150, False),
        (150, 200, False),
        (200, None, False),
    ]


def test_without_older_pins_it_is_the_same_object() -> None:
    assert with_pins(LOCAL, [pin_of(100, 150)]) is LOCAL
    assert with_pins(LOCAL, []) is LOCAL


def test_files_of_a_pin_are_found_by_their_prefix() -> None:
    segment = pin_of(0, 50).segment
    assert segment.log_path == "/logs.tiersidecar-pins/pin-0-50.00000000000000000000.log"
    assert segment.path_of("00000000000000000050.snapshot").endswith("/pin-0-50.00000000000000000050.snapshot")


@pytest.mark.parametrize(
    ("live", "pins", "expected"),
    [
        pytest.param(((0, 0),), [], ((0, 0),), id="no pins"),
        pytest.param(((4, 200),), [pin_of(0, 50)], ((0, 0), (4, 200)), id="epochs that the broker has dropped"),
        pytest.param(((0, 200),), [pin_of(0, 50)], ((0, 0),), id="a start that the broker has raised"),
        pytest.param(
            ((5, 200),),
            [pin_of(0, 50), pin_of(50, 100, epochs=[(0, 0), (2, 60)]), pin_of(100, 150, epochs=[(2, 100), (3, 120)])],
            ((0, 0), (2, 60), (3, 120), (5, 200)),
            id="each pin knows a part",
        ),
        pytest.param(((1, 60),), [pin_of(0, 100, epochs=[(0, 0), (2, 70)])], ((0, 0), (1, 60)), id="never a union"),
        pytest.param((), [pin_of(0, 50)], ((0, 0),), id="no live file"),
        pytest.param(((0, 0),), [pin_of(0, 50, epochs=())], ((0, 0),), id="a pin without epochs"),
    ],
)
def test_epochs(live: tuple[tuple[int, int], ...], pins: list[Pin], expected: tuple[tuple[int, int], ...]) -> None:
    assert epochs_with_pins(epochs_of(*live), pins) == epochs_of(*expected)
