"""The listed table of clients covers what it promises (issue 9)."""

from __future__ import annotations

from tests.support.gateway_table import DIMENSIONS, TABLE, all_pairs, can_meet, pairs_of
from tests.support.produce import ALL_STYLES


def test_any_two_values_that_can_meet_do() -> None:
    missing = all_pairs() - frozenset[frozenset[tuple[str, str]]]().union(*map(pairs_of, TABLE))
    assert not missing, sorted(map(sorted, missing))


def test_each_client_logs_in_each_way_to_one_broker_and_to_three() -> None:
    known = {(cell.client, cell.login, cell.brokers) for cell in TABLE}
    assert len(known) == len(DIMENSIONS["client"]) * len(DIMENSIONS["login"]) * len(DIMENSIONS["brokers"])


def test_each_cell_is_one_that_its_client_can_do_and_none_is_listed_twice() -> None:
    assert all(can_meet(cell.values()) for cell in TABLE)
    assert all(value in DIMENSIONS[name] for cell in TABLE for name, value in cell.values().items())
    assert len({str(cell) for cell in TABLE}) == len(TABLE)


def test_what_the_cells_read_has_batches_of_every_codec() -> None:
    assert {style.compression for style in ALL_STYLES} == {None, "gzip", "snappy", "lz4", "zstd"}
