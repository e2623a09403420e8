"""Names of a pin's files say all that there is to know (docs/design/0004-pins.md)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.adapters.pins_fs.pin_directory import PROBE_NAME, PinName, parse_pin_file
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import PinnedPartition
from tiersidecar.formats.kafka.log_dir_files import parse_log_directory, parse_log_file

NAME = PinName(owner=PinnedPartition(Uuid(bytes(range(1, 17))), 3), base_offset=Offset(35), next_base_offset=Offset(70))
PREFIX = "tiersidecar-pin.AQIDBAUGBwgJCgsMDQ4PEA.3.00000000000000000035-00000000000000000070."


@st.composite
def pin_names(draw: st.DrawFn) -> PinName:
    base = draw(st.integers(0, 2**63 - 2))
    return PinName(
        owner=PinnedPartition(Uuid(draw(st.binary(min_size=16, max_size=16))), draw(st.integers(0, 2**31 - 1))),
        base_offset=Offset(base),
        next_base_offset=Offset(draw(st.integers(base + 1, 2**63 - 1))),
    )


def test_golden_names() -> None:
    assert [NAME.prefix + name for name in NAME.all_names] == [
        f"{PREFIX}leader-epoch-checkpoint",
        f"{PREFIX}00000000000000000035.snapshot",
        f"{PREFIX}00000000000000000035.index",
        f"{PREFIX}00000000000000000035.timeindex",
        f"{PREFIX}00000000000000000035.txnindex",
        f"{PREFIX}00000000000000000070.snapshot",
        f"{PREFIX}00000000000000000035.log",
    ]


@given(pin_names())
def test_every_name_parses_back_and_is_nothing_of_kafkas(name: PinName) -> None:
    """No name of ours may be taken for a partition or a segment."""
    for file in name.all_names:
        full = name.prefix + file
        assert parse_pin_file(full) == (name, file)
        assert parse_log_file(full) is None
        assert parse_log_directory(full) is None
        assert len(full) <= 255


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{PREFIX}00000000000000000036.log", id="another base offset than the pin's"),
        pytest.param(f"{PREFIX}00000000000000000036.snapshot", id="a snapshot within the segment"),
        pytest.param(f"{PREFIX}00000000000000000035.log.deleted", id="a file of the broker's that is no segment's"),
        pytest.param(PREFIX, id="no file"),
        pytest.param(
            PREFIX.replace(".3.", ".03.") + "00000000000000000035.log", id="another way to write the partition"
        ),
        pytest.param(PREFIX.replace("70.", "35.") + "00000000000000000035.log", id="no offsets"),
        pytest.param(PREFIX.replace("PEA", "PEB") + "00000000000000000035.log", id="another way to write the id"),
        pytest.param("00000000000000000035.log", id="a segment"),
        pytest.param("meta.properties", id="a file of the broker's"),
        pytest.param(PROBE_NAME, id="the probe"),
    ],
)
def test_other_files_are_left_alone(name: str) -> None:
    assert parse_pin_file(name) is None
