"""Which budget a reader has: Kafka's order of precedence (ClientQuotaManager; U38)."""

from __future__ import annotations

import pytest

from tiersidecar.decide.reader_quotas import DEFAULT, ColdReader, ReaderQuotaRule, find_budget

Place = tuple[str | None, str | None]
BY_PRECEDENCE: list[Place] = [
    ("alice", "app"),
    ("alice", DEFAULT),
    ("alice", None),
    (DEFAULT, "app"),
    (DEFAULT, DEFAULT),
    (DEFAULT, None),
    (None, "app"),
    (None, DEFAULT),
]


def rules(places: list[Place]) -> list[ReaderQuotaRule]:
    return [
        ReaderQuotaRule(user=user, client_id=client_id, bytes_per_s=number)
        for number, (user, client_id) in enumerate(places, 1)
    ]


@pytest.mark.parametrize("first", range(len(BY_PRECEDENCE)))
def test_the_first_place_with_a_rule_counts_in_whatever_order_they_are_written(first: int) -> None:
    left = BY_PRECEDENCE[first:]
    budget = find_budget(reversed(rules(left)), ColdReader(principal="User:alice", client_id="app"))
    assert budget is not None
    assert budget.bytes_per_s == 1


@pytest.mark.parametrize(
    ("place", "reader", "key"),
    [
        pytest.param(
            ("alice", None), ("User:alice", "one"), ("alice", None), id="a user's is one for all of its client ids"
        ),
        pytest.param((DEFAULT, None), ("User:bob", "one"), ("bob", None), id="the default is one for each user"),
        pytest.param(
            ("alice", DEFAULT), ("User:alice", "one"), ("alice", "one"), id="each client id of a user has its own"
        ),
        pytest.param((None, DEFAULT), ("User:bob", "one"), (None, "one"), id="a client id's is one for all users"),
        pytest.param((None, "app"), ("User:bob", "app"), (None, "app"), id="a client id that is named"),
    ],
)
def test_who_shares_a_budget(place: Place, reader: tuple[str, str], key: Place) -> None:
    budget = find_budget(rules([place]), ColdReader(principal=reader[0], client_id=reader[1]))
    assert budget is not None
    assert budget.key == key


@pytest.mark.parametrize("place", [("alice", None), (None, "app"), ("bob", "app")])
def test_whom_no_rule_matches_has_none(place: Place) -> None:
    assert find_budget(rules([place]), ColdReader(principal="User:bob", client_id="other")) is None
