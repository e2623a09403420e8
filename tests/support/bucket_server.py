"""``tiersidecar serve`` as a process of its own, over a directory of objects."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon
from tests.support.golden import read_json_lines
from tests.support.loopback_ports import free_port
from tests.support.reading import Access, Seen

USERS = {"auditor": "auditor-password", "narrow": "narrow-password"}
"""``narrow`` may read topics whose names begin with ``plain`` alone."""

Shown = tuple[int, int, int, int, str, int]
"""Partition, offset, timestamp, bytes of the value, the beginning of its SHA-256, headers."""


class BucketServer(Daemon):
    """Each test that waits for the bucket to be listed again waits for 0.2 s."""

    def __init__(self, directory: Path, root: Path, *, users: bool = False, **settings: Any) -> None:
        known: list[dict[str, Any]] = [{"name": name, "password": password} for name, password in USERS.items()]
        known[1]["topic.prefixes"] = ["plain"]
        super().__init__(
            directory,
            {
                "store": {"type": "filesystem", "root": str(root), **settings.pop("store", {})},
                "refresh.ms": 200,
                "kafka": {"listen": f"127.0.0.1:{free_port()}"},
                "http": {"listen": f"127.0.0.1:{free_port()}"},
                "status": {"listen": f"127.0.0.1:{free_port()}"},
                "logging": {"format": "json"},
                **({"users": known} if users else {}),
                **settings,
            },
        )

    @property
    def command(self) -> list[str]:
        """Return how it is started."""
        return [sys.executable, "-m", "tiersidecar", "serve", "--config", str(self.config_path)]

    @property
    def http_url(self) -> str:
        """Return the read service."""
        return f"http://{self.settings['http']['listen']}"

    def access(self, user: str = "", mechanism: str = "SCRAM-SHA-512") -> Access:
        """Return how a Kafka client connects; anonymously without a user."""
        servers = str(self.settings["kafka"]["listen"])
        if not user:
            return Access(servers=servers)
        return Access(servers=servers, mechanism=mechanism, username=user, password=USERS[user])

    def looks(self) -> float:
        """Return how often the bucket has been listed."""
        return self.metric("tiersidecar_bucket_looks_total")


def tiered_ends(root: Path) -> dict[str, dict[int, int]]:
    """Return the ends (exclusive) of what a bucket holds, by topic and partition, as its manifests say."""
    ends: dict[str, dict[int, int]] = {}
    for path in root.rglob("*.rsm-manifest"):
        segment = json.loads(path.read_bytes())["remoteLogSegmentMetadata"]
        place = segment["remoteLogSegmentId"]["topicIdPartition"]["topicPartition"]
        of_topic = ends.setdefault(place["topic"], {})
        of_topic[place["partition"]] = max(of_topic.get(place["partition"], 0), segment["endOffset"] + 1)
    return ends


def golden_records(topic: str, isolation: str, *, below: Mapping[int, int]) -> list[Shown]:
    """Return what Kafka itself read of a topic of the golden log dirs, by partition, up to the offsets that were tiered.

    It was asked for read_committed only where there were transactions: elsewhere both levels see the same.
    """
    isolation = isolation if topic == "transactions" else "read_uncommitted"
    found = [
        (int(partition), row["offset"], row["ts"], row["len"], row["sha256_16"], row["headers"])
        for row in read_json_lines("log-dirs", "expected", "records.jsonl")
        for name, _, partition in [row["tp"].rpartition("-")]
        if name == topic and row["iso"] == isolation
    ]
    return sorted(one for one in found if one[1] < below.get(one[0], 0))


def shown(seen: Sequence[Seen]) -> Iterator[Shown]:
    """Yield records as a client saw them, in the golden form."""
    for partition, offset, timestamp_ms, _, value, headers in seen:
        content = value or b""
        digest = hashlib.sha256(content).hexdigest()[:16]
        yield partition, offset, timestamp_ms, len(content), digest, len(headers)
