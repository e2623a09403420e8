"""franz-go, by a small program of ours (franz_reader/main.go): one of the clients of :mod:`tests.support.gateway_clients`."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import asdict
from typing import Any

from scripts.go_tool import go_tool
from tests.support.reading import DEADLINE_S, Access, Reading, Seen, in_order


def read_with_franz(access: Access, reading: Reading) -> list[Seen]:
    """Read in either group protocol, or with partitions of its own choice."""
    task = {"access": asdict(access), "reading": {**asdict(reading), "deadline_s": DEADLINE_S}}
    done = subprocess.run(
        [go_tool("franz-reader")],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S + 30,
        check=False,
    )
    assert done.returncode == 0, f"franz-go: {done.stderr}"
    return in_order([_seen(json.loads(line)) for line in done.stdout.splitlines()], reading)


def _seen(row: Any) -> Seen:
    headers = tuple((one["name"], _bytes(one["content"])) for one in row["headers"])
    place = row["partition"], row["offset"], row["timestamp_ms"]
    return (*place, _bytes(row["key"]), _bytes(row["value"]), headers)


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)
