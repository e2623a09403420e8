"""Kafka's own console consumer and performance consumer, as clients of :mod:`tests.support.gateway_clients`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tests.support.kafka_tools import KafkaTools
from tests.support.reading import DEADLINE_S, Access, Reading, Seen, in_order

_BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"
_SHOWN = ("partition", "offset", "timestamp", "headers", "key")
_IDLE_MS = str(int(DEADLINE_S * 1000) - 30_000)


class JavaClients:
    """``directory`` gets the clients' configurations."""

    def __init__(self, tools: KafkaTools, directory: Path) -> None:
        self._tools, self._directory = tools, directory

    def console(self, access: Access, reading: Reading) -> list[Seen]:
        """Return each record as it is printed, behind its partition and offset."""
        if reading.start == "timestamp":
            starts = self._reset_to_time(access, reading)
            return in_order(self._console(access, reading, reading.visible_from(starts), ()), reading)
        if reading.start == "hops":
            hops = [self._console(access, reading, reading.count, ("--offset", str(one))) for one in reading.hops]
            return [one for hop in hops for one in hop]
        count = reading.count if reading.is_by_count else reading.visible_from(reading.committed)
        place = ("--offset", reading.start) if reading.membership == "assigned" else ()
        return in_order(self._console(access, reading, count, place), reading)

    def performance(self, access: Access, reading: Reading) -> list[Seen]:
        """Return the number of records and their megabytes, which is all it prints; of both topics where there are two."""
        printed = self._tools.run(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", access.servers, "--command-config", self.config(access, reading)),
            *(("--include", "|".join(reading.topics)) if reading.beside else ("--topic", reading.topic)),
            *("--group", reading.group),
            *("--fetch-size", str(reading.max_partition_bytes), "--timeout", _IDLE_MS),
            *("--num-records", str(len(reading.topics) * reading.visible_from(reading.committed))),
            *("--hide-header",),
        ).out
        figures = printed.splitlines()[-1].split(", ")
        return [(0, int(figures[4]), figures[2])]

    def config(self, access: Access, reading: Reading | None = None) -> str:
        """Return the path of a file with what a tool, or a consumer for ``reading``, has to know."""
        settings = dict(access.java_settings)
        if reading is not None:
            settings |= _consumer_settings(reading)
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        path = self._directory / f"client-{hashlib.sha256(text.encode()).hexdigest()[:12]}.properties"
        path.write_text(text)
        return str(path)

    def _console(self, access: Access, reading: Reading, count: int, place: tuple[str, ...]) -> list[Seen]:
        options = [
            *(f"print.{part}=true" for part in _SHOWN),
            *(f"{part}.deserializer={_BYTES}" for part in ("key", "value", "headers")),
        ]
        start: tuple[str, ...] = (
            ("--from-beginning",) if reading.reset == "earliest" and reading.membership != "assigned" else ()
        )
        if place:
            # It takes one partition: the others of the topic are not read.
            start = ("--partition", "0", *place)
        if reading.membership != "assigned":
            start = (*start, "--group", reading.group)
        printed = self._tools.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", access.servers, "--command-config", self.config(access, reading)),
            *("--topic", reading.topic, *start, "--max-messages", str(count), "--timeout-ms", _IDLE_MS),
            *("--isolation-level", reading.isolation),
            *(part for one in options for part in ("--formatter-property", one)),
        ).out
        return [_seen(line) for line in printed.splitlines()]

    def _reset_to_time(self, access: Access, reading: Reading) -> Mapping[int, int]:
        """Return the group's offsets, by kafka-consumer-groups."""
        printed = self._tools.run(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", access.servers, "--command-config", self.config(access)),
            *("--group", reading.group, "--topic", reading.topic),
            *("--reset-offsets", "--to-datetime", utc_datetime(reading.since_ms), "--execute"),
        ).out
        rows = [line.split() for line in printed.splitlines() if reading.topic in line]
        return {int(row[-2]): int(row[-1]) for row in rows}


def utc_datetime(at_ms: int) -> str:
    """Return the time as ``--to-datetime`` takes it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03}Z"


def _consumer_settings(reading: Reading) -> dict[str, str]:
    return {
        "group.protocol": "consumer" if reading.membership == "consumer" else "classic",
        "isolation.level": reading.isolation,
        "enable.auto.commit": str(reading.commits).lower(),  # at its end, of what it has printed
        "fetch.max.wait.ms": str(reading.max_wait_ms),
        "fetch.max.bytes": str(reading.fetch_max_bytes),
        "max.partition.fetch.bytes": str(reading.max_partition_bytes),
        **({"client.rack": reading.rack} if reading.rack else {}),
    }


def _seen(line: str) -> Seen:
    """``CreateTime:…\\tPartition:…\\tOffset:…\\t…``."""
    parts = line.split("\t", 3)
    return int(parts[1].removeprefix("Partition:")), int(parts[2].removeprefix("Offset:")), parts[0], parts[3]
