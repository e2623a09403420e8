"""Derive bounds on partitions, offsets and timestamps from Spark's filters.

Spark still applies each filter itself: here they only narrow what is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_ALL = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedBounds:
    """``topics`` and ``partitions``: None for all.  ``min_offset`` is inclusive, ``stop_offset`` exclusive; records before
    ``min_timestamp_ms`` are not wanted."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    min_offset: int = 0
    stop_offset: int = _ALL
    min_timestamp_ms: int | None = None

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether any record of the partition is wanted."""
        is_of_topic = self.topics is None or topic in self.topics
        return is_of_topic and (self.partitions is None or partition in self.partitions)


def bounds_of(filters: Iterable[Filter]) -> PushedBounds:
    """Return the bounds that ``filters`` imply, all of which must hold."""
    bounds = PushedBounds()
    for one in filters:
        bounds = _narrowed(bounds, type(one).__name__, getattr(one, "attribute", ()), getattr(one, "value", None))
    return bounds


def _narrowed(bounds: PushedBounds, kind: str, attribute: tuple[str, ...], value: Any) -> PushedBounds:
    # By name: the classes are pyspark's, and slow to import where nothing is filtered.
    values = value if kind == "In" else (value,)
    if len(attribute) != 1 or kind not in _KINDS or any(one is None for one in values):
        return bounds
    match attribute[0].lower():
        case "topic" if kind in _EQUAL:
            return replace(bounds, topics=_intersection(bounds.topics, values))
        case "partition" if kind in _EQUAL:
            return replace(bounds, partitions=_intersection(bounds.partitions, values))
        case "offset":
            least, stop = _range(kind, values)
            return replace(
                bounds, min_offset=max(bounds.min_offset, least), stop_offset=min(bounds.stop_offset, max(stop, 0))
            )
        case "timestamp" if kind in _EQUAL | {"GreaterThan", "GreaterThanOrEqual"}:
            least_ms = min(_milliseconds(one) for one in values)
            known = bounds.min_timestamp_ms
            return replace(bounds, min_timestamp_ms=least_ms if known is None else max(known, least_ms))
        case _:
            return bounds


_EQUAL = frozenset({"EqualTo", "EqualNullSafe", "In"})
_KINDS = _EQUAL | {"GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"}


def _intersection(known: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _range(kind: str, values: tuple[int, ...]) -> tuple[int, int]:
    """Return the least offset that fits, and the one after the greatest."""
    match kind:
        case "GreaterThan":
            return values[0] + 1, _ALL
        case "GreaterThanOrEqual":
            return values[0], _ALL
        case "LessThan":
            return 0, values[0]
        case "LessThanOrEqual":
            return 0, values[0] + 1
        case _:
            return min(values), max(values) + 1


def _milliseconds(value: datetime) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    seconds = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (seconds.days * 86_400 + seconds.seconds) * 1000 + seconds.microseconds // 1000
