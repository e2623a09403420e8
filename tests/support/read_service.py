"""The HTTP read service as a client sees it."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator

from tests.support.produce import ProducedRecord

Shape = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, timestamp, key, value, headers."""


def shape_of(record: ProducedRecord) -> Shape:
    """Return a produced record as the service gives it back."""
    return (record.offset, record.timestamp_ms, record.key, record.value, record.headers)


def fetch_records(
    read_url: str,
    topic: str,
    partition: int,
    *,
    offset: int = 0,
    stop: int,
    isolation: str = "read_uncommitted",
    tier: str = "all",
) -> Iterator[Shape]:
    """Yield records from ``offset`` up to, not including, ``stop``.

    Raises:
        http.client.IncompleteRead: the service broke off.
    """
    query = f"offset={offset}&stop_offset={stop}&limit=10000000&isolation={isolation}&tier={tier}"
    url = f"{read_url}/topics/{topic}/partitions/{partition}/records?{query}"
    with urllib.request.urlopen(url, timeout=60) as response:
        # Whole first: line by line, http.client takes a body that breaks off for one that ends.
        for line in response.read().splitlines():
            yield shape_of_line(line)


def shape_of_line(line: bytes | str) -> Shape:
    """Return a record as a line of JSON, from the service or from an export."""
    record = json.loads(line)
    headers = tuple((header["key"], _bytes(header["value"])) for header in record["headers"])
    return (record["offset"], record["timestamp_ms"], _bytes(record["key"]), _bytes(record["value"]), headers)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
