"""Define the rows of the data source: the columns of Spark's Kafka source, as DDL and as an Arrow schema."""

from __future__ import annotations

import pyarrow as pa

_FIXED = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = "headers array<struct<key: string, value: binary>>"

NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1
"""``timestampType`` (Kafka's TimestampType ids); the first is that of message format 0."""

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
"""A record without headers has null, as with Spark's Kafka source."""

_COLUMNS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]


def row_ddl(*, include_headers: bool) -> str:
    """Return the schema for Spark."""
    return f"{_FIXED}, {_HEADERS}" if include_headers else _FIXED


def row_schema(*, include_headers: bool) -> pa.Schema:
    """Return the schema of the Arrow batches."""
    return pa.schema([*_COLUMNS, ("headers", HEADERS)] if include_headers else _COLUMNS)
