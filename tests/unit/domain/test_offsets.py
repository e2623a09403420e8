"""Byte ranges are half-open."""

from __future__ import annotations

import pytest

from tiersidecar.domain.offsets import ByteRange


@pytest.mark.parametrize(("start", "stop", "size"), [(0, 0, 0), (5, 5, 0), (5, 9, 4)])
def test_the_stop_is_not_in_the_range(start: int, stop: int, size: int) -> None:
    assert len(ByteRange(start, stop)) == size


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4)])
def test_a_range_neither_begins_below_zero_nor_ends_before_it_begins(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not a byte range"):
        ByteRange(start, stop)
