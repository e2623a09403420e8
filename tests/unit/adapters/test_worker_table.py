"""The table that the processes of a gateway share: each row has one writer, and whatever is in another row can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiersidecar.adapters.worker_table import STARTER, RowShares, WorkerTable, places_for
from tiersidecar.domain.taken import NOTHING, Taken
from tiersidecar.ports.shares import Shared

WHOLE, KEYED = Shared.RESPONSE_BYTES, Shared.CONNECTIONS_OF_IP


@pytest.fixture
def table() -> Iterator[WorkerTable]:
    made = WorkerTable.create(workers=2, keys=100)
    yield made
    made.close()


def test_another_process_sees_it_by_the_descriptor(table: WorkerTable) -> None:
    RowShares(table, 1).show(WHOLE, Taken(7, 3))
    RowShares(table, 1).show(KEYED, Taken(2), "GATEWAY 10.0.0.1")
    other = WorkerTable(os.dup(table.fd))
    try:
        assert RowShares(other, 2).others(WHOLE) == [Taken(7, 3)]
        assert RowShares(other, 2).others(KEYED, "GATEWAY 10.0.0.1") == [Taken(2)]
        assert RowShares(other, 2).others(KEYED, "GATEWAY 10.0.0.2") == [NOTHING]
        assert RowShares(other, 2).workers == 2
    finally:
        other.close()


def test_the_process_that_started_the_workers_is_none_of_them(table: WorkerTable) -> None:
    RowShares(table, STARTER).show(Shared.FETCH_QUOTA, Taken(5, 1))
    RowShares(table, 2).show(Shared.FETCH_QUOTA, Taken(6, 2))
    assert RowShares(table, 1).others(Shared.FETCH_QUOTA) == [Taken(6, 2)]
    assert RowShares(table, 1).everywhere_else(Shared.FETCH_QUOTA) == [Taken(5, 1), Taken(6, 2)]
    assert RowShares(table, STARTER).everywhere_else(Shared.FETCH_QUOTA) == [NOTHING, Taken(6, 2)]


def test_what_a_dead_process_had_is_forgotten_and_nothing_else(table: WorkerTable) -> None:
    for row in (1, 2):
        RowShares(table, row).show(WHOLE, Taken(row))
        RowShares(table, row).show(KEYED, Taken(row), "a")
    table.clear(1)
    assert RowShares(table, STARTER).others(WHOLE) == [NOTHING, Taken(2)]
    assert RowShares(table, STARTER).others(KEYED, "a") == [NOTHING, Taken(2)]


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -float("inf"), -5.0])
def test_what_is_no_amount_counts_as_nothing(table: WorkerTable, amount: float) -> None:
    """A worker that is no longer ours, of which the others' sums would be none either."""
    RowShares(table, 1).show(WHOLE, Taken(amount))
    RowShares(table, 1).show(KEYED, Taken(amount), "a")
    assert RowShares(table, 2).others(WHOLE) == RowShares(table, 2).others(KEYED, "a") == [NOTHING]


def test_no_process_can_cut_the_memory_off(table: WorkerTable) -> None:
    """Each other one would be killed by the kernel when it looks at what is gone."""
    for size_bytes in (0, 10_000_000):
        with pytest.raises(PermissionError):
            os.truncate(table.fd, size_bytes)


def test_the_same_key_of_two_things_is_two(table: WorkerTable) -> None:
    shares = RowShares(table, 1)
    shares.show(Shared.CONNECTIONS_OF_IP, Taken(1), "a")
    shares.show(Shared.UNAUTHENTICATED_OF_IP, Taken(2), "a")
    assert RowShares(table, 2).others(Shared.CONNECTIONS_OF_IP, "a") == [Taken(1)]


def test_a_key_that_finds_no_place_is_not_seen_by_others() -> None:
    """More keys than there may be: the others count too little, and nothing else is wrong."""
    table = WorkerTable.create(workers=2, keys=1)
    shares = RowShares(table, 1)
    keys = [str(number) for number in range(3 * table.places)]
    for key in keys:
        shares.show(KEYED, Taken(1), key)
    seen = sum(one.amount for key in keys for one in RowShares(table, 2).others(KEYED, key))
    assert 0.9 * table.places < seen <= table.places
    for key in keys:
        shares.show(KEYED, NOTHING, key)
    assert not any(one.amount for key in keys for one in RowShares(table, 2).others(KEYED, key))
    table.close()


def test_as_many_keys_as_there_may_be_find_a_place() -> None:
    table = WorkerTable.create(workers=2, keys=20_000)
    shares = RowShares(table, 1)
    for number in range(20_000):
        shares.show(KEYED, Taken(1), str(number))
    seen = sum(one.amount for number in range(20_000) for one in RowShares(table, 2).others(KEYED, str(number)))
    table.close()
    assert seen == 20_000


@pytest.mark.parametrize(("keys", "places"), [(1, 1024), (513, 2048), (10_000, 32_768), (1_000_000, 1 << 20)])
def test_there_are_at_least_twice_as_many_places_as_keys(keys: int, places: int) -> None:
    assert places_for(keys) == places


Step = tuple[int, str, int]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.sampled_from("abcdef"), st.integers(0, 3)), max_size=60))
def test_it_is_a_dictionary_for_each_row(steps: list[Step]) -> None:
    """As a plain model has it; every tenth step clears the row instead."""
    table, model = WorkerTable.create(workers=2, keys=10), dict[tuple[int, str], int]()
    for number, (row, key, amount) in enumerate(steps):
        if number % 10 == 9:
            table.clear(row)
            model = {known: value for known, value in model.items() if known[0] != row}
            continue
        RowShares(table, row).show(KEYED, Taken(amount), key)
        model[row, key] = amount
    for key in "abcdef":
        found = [one.amount for one in RowShares(table, STARTER).others(KEYED, key)]
        assert found == [model.get((row, key), 0) for row in (1, 2)]
    table.close()
