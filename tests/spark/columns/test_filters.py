"""What filters say of what need not be read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import datasource as spark_filters

from tiersidecar.spark.datasource.filters import PushedBounds, bounds_of

NOON = datetime(2026, 1, 1, 12, 0, 0, 1500, tzinfo=UTC)
NOON_MS = 1_767_268_800_001


def said(kind: str, column: str, value: Any) -> Any:
    return getattr(spark_filters, kind)((column,), value)


ROWS: dict[str, tuple[list[Any], PushedBounds]] = {
    "nothing": ([], PushedBounds()),
    "a topic": ([said("EqualTo", "topic", "a")], PushedBounds(topics=frozenset({"a"}))),
    "topics that exclude each other": (
        [said("In", "topic", ("a", "b")), said("EqualTo", "topic", "c")],
        PushedBounds(topics=frozenset()),
    ),
    "partitions": (
        [said("In", "partition", (0, 1, 2)), said("In", "partition", (2, 3))],
        PushedBounds(partitions=frozenset({2})),
    ),
    "offsets, inclusive": (
        [said("GreaterThanOrEqual", "offset", 5), said("LessThanOrEqual", "offset", 9)],
        PushedBounds(min_offset=5, stop_offset=10),
    ),
    "offsets, exclusive": (
        [said("GreaterThan", "offset", 5), said("LessThan", "offset", 9)],
        PushedBounds(min_offset=6, stop_offset=9),
    ),
    "one offset": ([said("EqualTo", "offset", 7)], PushedBounds(min_offset=7, stop_offset=8)),
    "some offsets": ([said("In", "offset", (7, 3))], PushedBounds(min_offset=3, stop_offset=8)),
    "a least timestamp": ([said("GreaterThanOrEqual", "timestamp", NOON)], PushedBounds(min_timestamp_ms=NOON_MS)),
    "the later of two least timestamps": (
        [said("GreaterThan", "timestamp", NOON), said("EqualTo", "timestamp", datetime(2025, 1, 1, tzinfo=UTC))],
        PushedBounds(min_timestamp_ms=NOON_MS),
    ),
    "a greatest timestamp says nothing: earlier records may follow": (
        [said("LessThan", "timestamp", NOON)],
        PushedBounds(),
    ),
    "a negation": ([spark_filters.Not(said("EqualTo", "partition", 1))], PushedBounds()),
    "no partition at all, which equals nothing": ([said("EqualTo", "partition", None)], PushedBounds()),
    "part of a text": ([said("StringStartsWith", "topic", "a")], PushedBounds()),
    "is there": ([spark_filters.IsNotNull(("offset",))], PushedBounds()),
    "another column": ([said("EqualTo", "key", b"k")], PushedBounds()),
}


@pytest.mark.parametrize(("filters", "bounds"), ROWS.values(), ids=ROWS.keys())
def test_bounds(filters: list[Any], bounds: PushedBounds) -> None:
    assert bounds_of(filters) == bounds
