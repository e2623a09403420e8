"""The data that a real client is to read, where and as which user it connects, and what it saw: the same for every client
library."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Seen = tuple[Any, ...]
"""A record as a client shows it, partition and offset first; what follows differs between clients."""

Start = Literal["earliest", "latest", "timestamp", "committed", "hops"]
Membership = Literal["assigned", "classic", "consumer"]

DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a client connects to, and as which user: none without a ``mechanism``, and in clear without an ``authority``, which
    is the PEM file to trust."""

    servers: str
    mechanism: str = ""
    username: str = ""
    password: str = ""
    authority: str = ""

    @property
    def protocol(self) -> str:
        """Return ``security.protocol``."""
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.authority else "PLAINTEXT")

    @property
    def python_settings(self) -> dict[str, Any]:
        """Return the settings for aiokafka and kafka-python."""
        found: dict[str, Any] = {"bootstrap_servers": self.servers.split(","), "security_protocol": self.protocol}
        if self.authority:
            found["ssl_context"] = ssl.create_default_context(cafile=self.authority)
        if self.mechanism:
            found |= {"sasl_plain_username": self.username, "sasl_plain_password": self.password}
            found["sasl_mechanism"] = self.mechanism
        return found

    @property
    def librdkafka_settings(self) -> dict[str, Any]:
        found = {"bootstrap.servers": self.servers, "security.protocol": self.protocol}
        if self.authority:
            found["ssl.ca.location"] = self.authority
        if self.mechanism:
            found |= {"sasl.username": self.username, "sasl.password": self.password}
            found["sasl.mechanism"] = self.mechanism
        return found

    @property
    def java_settings(self) -> dict[str, str]:
        """Return them without the bootstrap servers, which Kafka's tools take as an option."""
        found = {"security.protocol": self.protocol}
        if self.authority:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority}
        if self.mechanism:
            modules = "org.apache.kafka.common.security"
            module = f"{modules}.plain.PlainLoginModule"
            if self.mechanism.startswith("SCRAM"):
                module = f"{modules}.scram.ScramLoginModule"
            found["sasl.mechanism"] = self.mechanism
            found["sasl.jaas.config"] = f'{module} required username="{self.username}" password="{self.password}";'
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Partitions from ``start`` up to ``ends`` (exclusive); but of the latest, ``count`` records, and of hops, ``count``
    records from each of those offsets of partition 0, one after another by one consumer.

    ``since_ms`` belongs to the start "timestamp", ``committed`` is what the group has committed for the start of that name.
    ``beside`` is a topic of as many partitions that is read along, and not shown.  ``visible`` are the offsets of records that
    the isolation level lets through, for clients that stop by number.
    """

    topic: str
    ends: Mapping[int, int]
    beside: str = ""
    start: Start = "earliest"
    membership: Membership = "assigned"
    group: str = ""
    since_ms: int = -1
    committed: Mapping[int, int] = field(default_factory=dict)
    hops: tuple[int, ...] = ()
    count: int = 0
    visible: Mapping[int, Sequence[int]] = field(default_factory=dict)
    isolation: str = "read_uncommitted"
    rack: str = ""
    max_partition_bytes: int = 1024 * 1024
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_wait_ms: int = 500
    commits: bool = False
    """True for a group that reads to ``ends``: it commits there, as far as it got, with the records' leader epochs where the
    client library has that."""

    @property
    def is_by_count(self) -> bool:
        """Return whether it ends by the number of records, not at the partitions' ends."""
        return self.start in ("latest", "hops")

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.topic, self.beside) if self.beside else (self.topic,)

    @property
    def reset(self) -> str:
        """Return ``auto.offset.reset``."""
        return "latest" if self.start == "latest" else "earliest"

    def visible_from(self, starts: Mapping[int, int]) -> int:
        """Return how many records are to be seen from these offsets on."""
        return sum(one >= starts.get(partition, 0) for partition, known in self.visible.items() for one in known)


Client = Callable[[Access, Reading], list[Seen]]


class Deadline:
    """When a client has taken too long."""

    def __init__(self) -> None:
        self._at_s = time.monotonic() + DEADLINE_S

    def check(self, what: str, *details: object) -> None:
        """Raises:
        AssertionError: it has.
        """
        assert time.monotonic() < self._at_s, f"{what} was not read in time: {details}"


class Progress:
    """Which partitions have come to their ends."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self._ends, self._deadline = ends, Deadline()

    def goes_on(self, positions: Mapping[int, int]) -> bool:
        """Return whether some partition is not at its end by these positions.

        Raises:
            AssertionError: it took too long.
        """
        left = {one: (positions.get(one), end) for one, end in self._ends.items() if (positions.get(one) or 0) < end}
        if left:
            self._deadline.check("a partition (its position and end)", left)
        return bool(left)


def in_order(seen: Sequence[Seen], reading: Reading) -> list[Seen]:
    """Return by partition, in each as they came; without what lies past the ends, or past the number."""
    if reading.start == "hops":
        return list(seen)
    if reading.is_by_count:
        return list(seen[: reading.count])
    return sorted((one for one in seen if one[1] < reading.ends[one[0]]), key=lambda one: one[0])
