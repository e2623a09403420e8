"""Which Kafka knows TxnIndexEmpty (FORMATS.md section 3)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.segments import knows_txn_index_empty


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
