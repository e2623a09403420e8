"""An offset said in one leader epoch, seen from a later history (T-04's cap, for the remote log start)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.epochs import Lineage


@pytest.mark.parametrize(
    ("entries", "offset", "epoch", "expected"),
    [
        pytest.param([(0, 0), (2, 50)], 100, 2, 100, id="said by the present leader"),
        pytest.param([(0, 0), (2, 50)], 100, 0, 50, id="said by a leader whose tail an unclean election cut off"),
        pytest.param([(0, 0), (2, 50)], 100, 1, 50, id="said in an epoch that this history does not know"),
        pytest.param([(0, 0), (2, 50)], 40, 0, 40, id="of what both histories share"),
        pytest.param([(4, 0)], 100, 0, 0, id="the log began anew"),
        pytest.param([], 100, 0, 100, id="no history is known"),
        pytest.param([(0, 0)], -1, -1, -1, id="nothing was said"),
    ],
)
def test_as_of(entries: list[tuple[int, int]], offset: int, epoch: int, expected: int) -> None:
    assert Lineage.of(entries).as_of(offset, epoch) == expected
