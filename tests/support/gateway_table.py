"""The table of real clients through the gateway: forty cells, in which any two values that can meet do (issue 9, S-153)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import combinations

DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "client": ("java-console", "java-perf", "aiokafka", "confluent-kafka", "kafka-python", "franz-go"),
    "membership": ("assigned", "classic", "consumer"),
    "start": ("earliest", "latest", "timestamp", "committed", "hops"),
    "isolation": ("read_uncommitted", "read_committed"),
    "login": ("PLAIN", "SCRAM", "TLS"),
    "brokers": ("1", "3"),
    "limits": ("usual", "small", "impatient"),
}
"""``membership`` is partitions of the client's own choice, or which group protocol; ``hops`` are seeks to and fro over the
border of the tiers while it moves; ``TLS`` is SCRAM over TLS; with 3 brokers leaders change under way; ``small`` fetches are
smaller than some batches, ``impatient`` ones wait 10 ms.  Codecs are no dimension: each cell reads batches of all of them."""

_CAN_DO_LITTLE = {
    "aiokafka": {"membership": ("assigned", "classic")},
    "kafka-python": {"membership": ("assigned", "classic")},
    "java-perf": {"membership": ("classic", "consumer"), "start": ("earliest", "committed")},
}
"""Neither Python client knows the protocol of KIP-848, and the perf consumer is always in a group and never seeks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value of each dimension."""

    client: str
    membership: str
    start: str
    isolation: str
    login: str
    brokers: str
    limits: str

    def __str__(self) -> str:
        """Return a sentence."""
        member = {"assigned": "on its own", "classic": "in a classic group", "consumer": "in a group of KIP-848"}
        start = {
            "earliest": "from the earliest offset",
            "latest": "from the latest offset",
            "timestamp": "from a timestamp",
            "committed": "from what its group committed",
            "hops": "seeking to and fro over the moving border",
        }
        cluster = {"1": "a broker", "3": "3 brokers whose leaders change"}
        fetches = {"usual": "as usual", "small": "in small fetches", "impatient": "without patience"}
        return (
            f"{self.client} {member[self.membership]} {start[self.start]} {self.isolation} by {self.login}"
            f" of {cluster[self.brokers]} {fetches[self.limits]}"
        )

    def values(self) -> dict[str, str]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def can_meet(values: Mapping[str, str]) -> bool:
    """Return whether some client can do all of this at once."""
    limited = _CAN_DO_LITTLE.get(values.get("client", ""), {})
    if any(values[name] not in able for name, able in limited.items() if name in values):
        return False
    chosen = values.get("membership"), values.get("start")
    # What is committed belongs to a group; the console consumer can only seek, and finds timestamps by its group.
    if chosen == ("assigned", "committed"):
        return False
    if values.get("client") != "java-console":
        return True
    return (
        values.get("start") not in ("hops", "timestamp")
        or values.get("membership")
        in ({"hops": ("assigned", None), "timestamp": ("classic", "consumer", None)}[values["start"]])
    )


def all_pairs() -> frozenset[frozenset[tuple[str, str]]]:
    """Return each two values of different dimensions that can meet."""
    return frozenset(
        frozenset(pair)
        for one, other in combinations(DIMENSIONS, 2)
        for pair in ({(one, a), (other, b)} for a in DIMENSIONS[one] for b in DIMENSIONS[other])
        if can_meet(dict(pair))
    )


def pairs_of(cell: Cell) -> frozenset[frozenset[tuple[str, str]]]:
    """Return those that meet in one cell."""
    return frozenset(frozenset(pair) for pair in combinations(cell.values().items(), 2))


# fmt: off
TABLE = tuple(Cell(**dict(zip(DIMENSIONS, row, strict=True))) for row in (
    ("java-console", "assigned", "earliest", "read_committed", "TLS", "1", "impatient"),
    ("java-console", "assigned", "latest", "read_uncommitted", "SCRAM", "1", "small"),
    ("java-console", "classic", "timestamp", "read_committed", "PLAIN", "1", "usual"),
    ("java-perf", "classic", "committed", "read_uncommitted", "SCRAM", "1", "impatient"),
    ("java-perf", "consumer", "earliest", "read_committed", "TLS", "1", "usual"),
    ("java-perf", "consumer", "committed", "read_uncommitted", "PLAIN", "1", "small"),
    ("aiokafka", "assigned", "earliest", "read_uncommitted", "PLAIN", "1", "usual"),
    ("aiokafka", "assigned", "timestamp", "read_committed", "SCRAM", "1", "impatient"),
    ("aiokafka", "classic", "latest", "read_uncommitted", "TLS", "1", "usual"),
    ("confluent-kafka", "classic", "hops", "read_committed", "PLAIN", "1", "usual"),
    ("confluent-kafka", "consumer", "earliest", "read_committed", "SCRAM", "1", "small"),
    ("confluent-kafka", "consumer", "committed", "read_uncommitted", "TLS", "1", "small"),
    ("kafka-python", "assigned", "timestamp", "read_committed", "TLS", "1", "impatient"),
    ("kafka-python", "classic", "earliest", "read_committed", "SCRAM", "1", "small"),
    ("kafka-python", "classic", "hops", "read_uncommitted", "PLAIN", "1", "small"),
    ("franz-go", "assigned", "hops", "read_committed", "PLAIN", "1", "impatient"),
    ("franz-go", "classic", "committed", "read_committed", "TLS", "1", "small"),
    ("franz-go", "consumer", "earliest", "read_committed", "SCRAM", "1", "usual"),
    ("java-console", "consumer", "committed", "read_committed", "SCRAM", "1", "usual"),
    ("confluent-kafka", "consumer", "timestamp", "read_uncommitted", "PLAIN", "1", "impatient"),
    ("franz-go", "consumer", "hops", "read_uncommitted", "TLS", "1", "small"),
    ("java-console", "assigned", "hops", "read_committed", "SCRAM", "3", "usual"),
    ("java-console", "consumer", "earliest", "read_uncommitted", "SCRAM", "3", "small"),
    ("java-console", "classic", "committed", "read_committed", "PLAIN", "3", "impatient"),
    ("java-console", "consumer", "timestamp", "read_uncommitted", "TLS", "3", "small"),
    ("java-perf", "classic", "earliest", "read_uncommitted", "PLAIN", "3", "impatient"),
    ("java-perf", "classic", "committed", "read_committed", "SCRAM", "3", "impatient"),
    ("java-perf", "consumer", "committed", "read_committed", "TLS", "3", "small"),
    ("aiokafka", "assigned", "hops", "read_uncommitted", "SCRAM", "3", "small"),
    ("aiokafka", "classic", "committed", "read_committed", "PLAIN", "3", "impatient"),
    ("aiokafka", "classic", "hops", "read_uncommitted", "TLS", "3", "impatient"),
    ("confluent-kafka", "assigned", "latest", "read_committed", "PLAIN", "3", "usual"),
    ("confluent-kafka", "classic", "timestamp", "read_committed", "SCRAM", "3", "impatient"),
    ("confluent-kafka", "consumer", "hops", "read_uncommitted", "TLS", "3", "usual"),
    ("kafka-python", "classic", "latest", "read_committed", "PLAIN", "3", "impatient"),
    ("kafka-python", "classic", "timestamp", "read_committed", "TLS", "3", "small"),
    ("kafka-python", "classic", "committed", "read_committed", "SCRAM", "3", "usual"),
    ("franz-go", "assigned", "hops", "read_committed", "TLS", "3", "usual"),
    ("franz-go", "consumer", "latest", "read_uncommitted", "SCRAM", "3", "impatient"),
    ("franz-go", "consumer", "timestamp", "read_uncommitted", "PLAIN", "3", "usual"),
))
# fmt: on
"""Found by taking, again and again, what covers most of what is left of all pairs, and of all triples of client, login and
number of brokers, and a few more of the new group protocol.  tests/unit/support/test_gateway_table.py says whether it
still does."""
