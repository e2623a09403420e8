"""Options of the data source: names and meanings of Spark's Kafka source, read as a batch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.broker import OffsetSpec

SOURCE = "options of the tiersidecar data source"

DEFAULT_MAX_BYTES_PER_PARTITION = 128 * 1024 * 1024

SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""The first given option counts."""
_SIZES = {
    "kib": 1024,
    "k": 1024,
    "mib": 1024**2,
    "m": 1024**2,
    "gib": 1024**3,
    "g": 1024**3,
    "b": 1,
    "": 1,
}

LONG_MAX = 2**63 - 1


class Missing(Enum):
    """Meaning of a start timestamp later than all records (``startingOffsetsByTimestampStrategy``)."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset, or -2 for the first and -1 for the end, as in ``OffsetSpec``."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first offset whose record has this timestamp or a later one; milliseconds."""

    timestamp_ms: int


EARLIEST, LATEST = AtOffset(OffsetSpec.EARLIEST), AtOffset(OffsetSpec.LATEST)

Place = AtOffset | AtTimestamp
Places = Place | Mapping[tuple[str, int], Place]
"""One for all partitions, or by topic and partition: then every partition must be named."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Exactly one of: ``topics``, ``pattern`` (of whole names), ``assigned`` (topic to partitions)."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """``start`` is inclusive, ``end`` exclusive.  ``fail_on_data_loss``: offsets that the remote tier does not have are an
    error, rather than left out."""

    subscription: Subscription
    start: Places = EARLIEST
    end: Places = LATEST
    missing_start: Missing = Missing.ERROR
    include_headers: bool = False
    read_committed: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_bytes_per_partition: int = DEFAULT_MAX_BYTES_PER_PARTITION


KNOWN = frozenset(
    {
        *SUBSCRIPTIONS,
        *_STARTS,
        *_ENDS,
        "startingOffsetsByTimestampStrategy",
        "includeHeaders",
        "isolation.level",
        "kafka.isolation.level",
        "failOnDataLoss",
        "minPartitions",
        "maxBytesPerPartition",
    }
)
"""Options of the read; others say where the configuration is (``tiersidecar.app.data_source_config``)."""


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse; names are case insensitive.  Options that are not in :data:`KNOWN` are left to the caller.

    Raises:
        ConfigError: with every fault, each naming its option.
    """
    return _Parser({name.lower(): value for name, value in options.items()}).parse()


class _Parser:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options, self._faults = options, list[str]()

    def parse(self) -> ReadOptions:
        subscription = self._subscription()
        parsed = ReadOptions(
            subscription=subscription,
            start=self._places(_STARTS, EARLIEST),
            end=self._places(_ENDS, LATEST),
            missing_start=self._strategy(),
            include_headers=self._truth("includeHeaders", default=False),
            read_committed=self._is_committed(),
            fail_on_data_loss=self._truth("failOnDataLoss", default=True),
            min_partitions=self._count("minPartitions"),
            max_bytes_per_partition=self._size("maxBytesPerPartition"),
        )
        if self._faults:
            raise ConfigError(source=SOURCE, faults=tuple(self._faults))
        return parsed

    def _get(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def _fault(self, name: str, message: str) -> None:
        self._faults.append(f"{name}: {message}")

    # -- which partitions

    def _subscription(self) -> Subscription:
        given = [name for name in SUBSCRIPTIONS if self._get(name) is not None]
        if len(given) != 1:
            names = ", ".join(SUBSCRIPTIONS)
            self._fault(" and ".join(given) or names, f"exactly one of {names} must be given")
            return Subscription()
        text = (self._get(given[0]) or "").strip()
        match given[0]:
            case "subscribe":
                topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
                if not topics:
                    self._fault("subscribe", "names no topic")
                return Subscription(topics=topics)
            case "subscribePattern":
                try:
                    return Subscription(pattern=re.compile(text))
                except re.error as error:
                    self._fault("subscribePattern", f"{text!r} is not a regular expression: {error}")
                    return Subscription()
            case _:
                return Subscription(assigned=self._assigned(text))

    def _assigned(self, text: str) -> dict[str, tuple[int, ...]]:
        document = self._document("assign", text)
        form = 'expected {"topic": [0, 1], ...}'
        assigned: dict[str, tuple[int, ...]] = {}
        for topic, partitions in document.items():
            if not isinstance(partitions, list) or not all(
                _is_number(partition) and partition >= 0 for partition in partitions
            ):
                self._fault("assign", f"{topic}: {form}")
            else:
                assigned[topic] = tuple(sorted(set(partitions)))
        if not any(assigned.values()) and not self._faults:
            self._fault("assign", f"names no partition; {form}")
        return assigned

    # -- from where to where

    def _places(self, names: tuple[str, str, str], default: AtOffset) -> Places:
        timestamp, by_timestamp, offsets = names
        if (text := self._get(timestamp)) is not None:
            value = self._number(timestamp, text)
            return AtTimestamp(value) if value is not None else default
        if (text := self._get(by_timestamp)) is not None:
            return {key: AtTimestamp(value) for key, value in self._by_partition(by_timestamp, text, least=0).items()}
        text = (self._get(offsets) or "").strip()
        is_start = default == EARLIEST
        wrong, word = (LATEST, "latest") if is_start else (EARLIEST, "earliest")
        if text.lower() in ("", "earliest", "latest"):
            place = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower(), default)
            if place == wrong:
                self._fault(offsets, f"{word} is not allowed in a batch read")
            return place
        found = self._by_partition(offsets, text, least=int(OffsetSpec.EARLIEST))
        for (topic, partition), offset in found.items():
            if offset == wrong.offset:
                self._fault(offsets, f"{topic}-{partition}: {offset} ({word}) is not allowed in a batch read")
        return {key: AtOffset(offset) for key, offset in found.items()}

    def _by_partition(self, name: str, text: str, *, least: int) -> dict[tuple[str, int], int]:
        form = 'expected {"topic": {"0": 23, "1": -2}, ...}'
        found: dict[tuple[str, int], int] = {}
        for topic, partitions in self._document(name, text).items():
            if not isinstance(partitions, dict):
                self._fault(name, f"{topic}: {form}")
                continue
            for partition, value in partitions.items():
                if not partition.isascii() or not partition.isdigit() or not _is_number(value):
                    self._fault(name, f"{topic}: {form}")
                elif not least <= value <= LONG_MAX:
                    self._fault(name, f"{topic}-{partition}: {value} is below {least} or too large")
                else:
                    found[topic, int(partition)] = value
        return found

    def _strategy(self) -> Missing:
        name = "startingOffsetsByTimestampStrategy"
        text = (self._get(name) or Missing.ERROR.value).strip().lower()
        try:
            return Missing(text)
        except ValueError:
            self._fault(name, f"{text!r} is none of error, latest")
            return Missing.ERROR

    # -- the rest

    def _is_committed(self) -> bool:
        given = {name: self._get(name) for name in ("isolation.level", "kafka.isolation.level")}
        values = {value.strip().lower() for value in given.values() if value is not None}
        name = next((name for name, value in given.items() if value is not None), "isolation.level")
        if len(values) > 1:
            self._fault(name, "kafka.isolation.level says otherwise")
        if unknown := values - {"read_committed", "read_uncommitted"}:
            self._fault(name, f"{min(unknown)!r} is none of read_committed, read_uncommitted")
        return values == {"read_committed"}

    def _truth(self, name: str, *, default: bool) -> bool:
        text = (self._get(name) or str(default)).strip().lower()
        if text not in ("true", "false"):
            self._fault(name, f"{text!r} is none of true, false")
        return text == "true"

    def _count(self, name: str) -> int | None:
        text = self._get(name)
        value = self._number(name, text) if text is not None else None
        if value == 0:
            self._fault(name, "must be 1 or more")
        return value

    def _size(self, name: str) -> int:
        text = self._get(name)
        if text is None:
            return DEFAULT_MAX_BYTES_PER_PARTITION
        match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", text)
        factor = _SIZES.get(match[2].lower()) if match else None
        if match is None or factor is None or int(match[1]) == 0:
            self._fault(name, f"{text!r} is no size such as 134217728, 128m or 1g")
            return DEFAULT_MAX_BYTES_PER_PARTITION
        return int(match[1]) * factor

    def _number(self, name: str, text: str) -> int | None:
        text = text.strip()
        if not text.isascii() or not text.isdigit() or int(text) > LONG_MAX:
            self._fault(name, f"{text!r} is not a number of 0 or more")
            return None
        return int(text)

    def _document(self, name: str, text: str) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except ValueError as error:
            self._fault(name, f"not JSON: {error}")
            return {}
        if not isinstance(document, dict):
            self._fault(name, "expected a JSON object")
            return {}
        return document


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
