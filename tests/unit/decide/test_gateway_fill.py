"""Out of range or not, and how many bytes: tables of what clients may be told (U7, S-136, S-146, S-147)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.decide.gateway_fill import (
    OutOfRange,
    Patience,
    TiersView,
    decide_grace,
    decide_grants,
    decide_out_of_range,
    decide_patience,
    decide_returned,
)
from tiersidecar.domain.offsets import Offset

FILL, STANDS, RETRY, HOLE = OutOfRange.FILL, OutOfRange.STANDS, OutOfRange.RETRY, OutOfRange.HOLE
AT_END = OutOfRange.AT_END


def mounted(remote: tuple[int, int], end: int) -> TiersView:
    return replace(view(remote, (end, end)), is_mounted=True)


def view(remote: tuple[int, int], local: tuple[int, int], *, held: int = -1, pending: bool = False) -> TiersView:
    return TiersView(
        remote_start=Offset(remote[0]),
        remote_end=Offset(remote[1]),
        local_start=Offset(local[0]),
        high_watermark=Offset(local[1]),
        held_offset=held,
        is_copy_pending=pending,
    )


@pytest.mark.parametrize(
    ("offset", "tiers", "expected"),
    [
        pytest.param(10, view((10, 50), (40, 90)), FILL, id="the remote log start itself is filled"),
        pytest.param(39, view((10, 50), (40, 90)), FILL, id="the last offset below the local start is filled"),
        pytest.param(9, view((10, 50), (40, 90)), STANDS, id="below the remote log start it is out of range"),
        pytest.param(91, view((10, 50), (40, 90)), STANDS, id="past the high watermark it is out of range"),
        pytest.param(90, view((10, 50), (40, 90)), RETRY, id="the end of the log is no error"),
        pytest.param(45, view((10, 50), (40, 90)), RETRY, id="the broker has it again: its start fell back"),
        pytest.param(55, view((10, 50), (60, 90)), HOLE, id="between the tiers, and nobody has it"),
        pytest.param(55, view((10, 50), (60, 90), held=60), RETRY, id="between the tiers, trimmed by us: metadata lag"),
        pytest.param(55, view((10, 50), (60, 90), pending=True), RETRY, id="between the tiers, and pinned"),
        pytest.param(5, view((0, 0), (60, 90)), STANDS, id="nothing was ever remote, old data is gone"),
        pytest.param(5, view((0, 0), (60, 90), held=60), RETRY, id="trimmed by us, so it is remote: metadata lags"),
        pytest.param(60, view((0, 0), (70, 90), held=60), STANDS, id="above our trim, nothing remote"),
        pytest.param(5, view((0, 0), (60, 90), pending=True), RETRY, id="pinned, about to be copied"),
        pytest.param(5, view((20, 20), (60, 90), held=60), STANDS, id="a user deleted below 20, all has expired"),
        pytest.param(20, view((20, 20), (60, 90), held=60), RETRY, id="from 20 on it may be remote"),
        pytest.param(10, mounted((10, 50), 50), FILL, id="mounted: the remote log start"),
        pytest.param(49, mounted((10, 50), 50), FILL, id="mounted: the last offset"),
        pytest.param(50, mounted((10, 50), 50), AT_END, id="mounted: a client waits at the end"),
        pytest.param(51, mounted((10, 50), 50), STANDS, id="mounted: beyond the end"),
        pytest.param(9, mounted((10, 50), 50), STANDS, id="mounted: below the remote log start"),
        pytest.param(0, mounted((0, 0), 0), AT_END, id="mounted: nothing has been copied yet"),
        pytest.param(70, mounted((70, 50), 70), AT_END, id="mounted: users have deleted all that is remote"),
        pytest.param(60, mounted((70, 50), 70), STANDS, id="mounted: below that"),
    ],
)
def test_out_of_range(offset: int, tiers: TiersView, expected: OutOfRange) -> None:
    assert decide_out_of_range(offset, tiers) is expected


@given(
    offset=st.integers(0, 100),
    borders=st.lists(st.integers(0, 100), min_size=4, max_size=4).map(sorted),
    trim=st.integers(-1, 100),
    pending=st.booleans(),
)
def test_no_offset_from_the_remote_log_start_to_the_high_watermark_is_ever_out_of_range(
    offset: int, borders: list[int], trim: int, pending: bool
) -> None:
    remote_start, one, other, high_watermark = borders
    for remote_end, local_start in ((one, other), (other, one)):
        tiers = view((remote_start, remote_end), (local_start, high_watermark), held=trim, pending=pending)
        verdict = decide_out_of_range(offset, tiers)
        if remote_start < remote_end and remote_start <= offset <= high_watermark:
            assert verdict is not STANDS
        if verdict is FILL:
            assert remote_start <= offset < min(remote_end, local_start)


@pytest.mark.parametrize(
    ("limits", "max_bytes", "local_bytes", "expected"),
    [
        pytest.param([10, 10], 100, 0, (10, 10), id="each its own limit"),
        pytest.param([10, 10], 15, 0, (10, 5), id="those before are served first"),
        pytest.param([10, 10], 15, 8, (7, 0), id="what the broker returned is taken off"),
        pytest.param([10], 15, 20, (0,), id="the broker returned one large batch: nothing is left"),
        pytest.param([-1], 15, 0, (0,), id="a limit below zero is none at all"),
    ],
)
def test_grants(limits: list[int], max_bytes: int, local_bytes: int, expected: tuple[int, ...]) -> None:
    assert decide_grants(limits, max_bytes, local_bytes) == expected


@pytest.mark.parametrize(
    ("sizes", "grants", "local_bytes", "expected"),
    [
        pytest.param([5, 5], [10, 10], 0, (True, True), id="what fits is returned"),
        pytest.param([50, 5], [10, 10], 0, (True, True), id="a large first batch is returned"),
        pytest.param([10], [10], 1, (True,), id="what fits exactly is returned beside local data"),
        pytest.param([11], [10], 1, (False,), id="a byte more is not"),
        pytest.param([50, 5], [10, 10], 1, (False, True), id="not beside local data"),
        pytest.param([5, 50], [10, 10], 0, (True, False), id="not as the second one"),
        pytest.param([0, 50], [10, 0], 0, (False, True), id="but where the first has nothing"),
        pytest.param([5, 0, 50], [10, 10, 10], 0, (True, False, False), id="nor behind one that has nothing"),
        pytest.param([1], [0], 0, (True,), id="a single byte is something"),
        pytest.param([1], [1], 1, (True,), id="and fits where one is granted"),
    ],
)
def test_returned(sizes: list[int], grants: list[int], local_bytes: int, expected: tuple[bool, ...]) -> None:
    assert decide_returned(sizes, grants, local_bytes) == expected


@pytest.mark.parametrize(
    ("max_wait_ms", "min_bytes", "local_bytes", "expected"),
    [
        pytest.param(2000, 1, 0, Patience(for_first=2.0, hold=2.0), id="nothing local: the client's time"),
        pytest.param(2000, 1, 10, Patience(for_first=0.5, hold=0.0), id="local data waits for remote a little"),
        pytest.param(0, 1, 10, Patience(for_first=0.5, hold=0.0), id="also of a client that waits for nothing"),
        pytest.param(100, 50, 10, Patience(for_first=0.5, hold=0.1), id="fewer than min_bytes are held"),
        pytest.param(100, 1, 1, Patience(for_first=0.5, hold=0.0), id="a single byte is enough where one is asked for"),
        pytest.param(100, 10, 10, Patience(for_first=0.5, hold=0.0), id="exactly min_bytes are enough"),
        pytest.param(100, 0, 0, Patience(for_first=0.5, hold=0.1), id="min_bytes of 0 must not make clients spin"),
        pytest.param(-1, 0, 0, Patience(for_first=0.5, hold=0.0), id="a negative wait is none"),
    ],
)
def test_patience(max_wait_ms: int, min_bytes: int, local_bytes: int, expected: Patience) -> None:
    found = decide_patience(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, local_bytes=local_bytes, remote_max_wait_ms=500
    )
    assert found == expected


def test_the_others_get_as_long_again_as_the_first_took() -> None:
    assert decide_grace(0.2) == 0.2
    assert decide_grace(0.0) == 0.01
