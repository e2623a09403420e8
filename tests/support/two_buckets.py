"""Two S3 servers with a bucket each: that of section store, and that of the place cold."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.daemon import daemon_settings
from tests.support.kafka_cluster import KafkaCluster
from tests.support.remote_events import object_keys_in
from tests.support.s3_server import S3Server, running_s3_server, s3_store_section

HOT, COLD = "hot", "archive"
COLD_PREFIX = "cluster-1/"
IMPATIENT_MS = {
    "upload.stall.timeout": 1_000,
    "request.timeout": 1_500,
    "s3.api.call.attempt.timeout": 1_000,
    "s3.max.attempts": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoBuckets:
    """``hot`` has section store, ``cold`` the place of that name."""

    hot: S3Server
    cold: S3Server

    def settings(self, directory: Path, kafka: KafkaCluster, topics: Sequence[dict[str, Any]]) -> dict[str, Any]:
        name = str(topics[0]["name"])
        return daemon_settings(
            directory,
            bootstrap_servers=kafka.bootstrap_servers,
            log_dirs=list(kafka.brokers[0].log_dirs),
            topics=[{"local.retention.bytes": 1, **topic} for topic in topics],
            **self.shared(name),
        )

    def shared(self, name: str) -> dict[str, Any]:
        """Return the settings that sidecar and gateway have in common; ``name`` is of their topics."""
        return {
            "remote.log.metadata.topic.name": f"__rlm_{name}",
            "state.topic.name": f"__state_{name}",
            "store": {**s3_store_section(self.hot.url, HOT), **IMPATIENT_MS},
            "places": {
                "cold": {
                    "s3.endpoint.url": self.cold.url,
                    "s3.bucket.name": COLD,
                    "key.prefix": COLD_PREFIX,
                    "s3.storage.class": "STANDARD_IA",
                }
            },
        }

    def objects_in(self, place: str) -> set[str]:
        """Return keys as the sidecar has them above its stores."""
        if not place:
            return object_keys_in(self.hot.directory / HOT)
        keys = object_keys_in(self.cold.directory / COLD)
        assert all(key.startswith(COLD_PREFIX) for key in keys)
        return {f"@cold/{key.removeprefix(COLD_PREFIX)}" for key in keys}


@contextmanager
def running_two_buckets(directory: Path) -> Iterator[TwoBuckets]:
    """Both, until the end of the block."""
    with ExitStack() as stack:
        hot, cold = (stack.enter_context(running_s3_server(directory / name)) for name in (HOT, COLD))
        (hot.directory / HOT).mkdir()
        (cold.directory / COLD).mkdir()
        yield TwoBuckets(hot=hot, cold=cold)


@contextmanager
def standing_still(server: S3Server) -> Iterator[None]:
    """Have the server stand still: it takes connections, and answers nothing."""
    os.kill(server.process_id, signal.SIGSTOP)
    try:
        while not _has_stopped(server.process_id):  # on a busy machine it answers once more
            time.sleep(0.01)
        yield
    finally:
        os.kill(server.process_id, signal.SIGCONT)


def _has_stopped(process_id: int) -> bool:
    """Return whether each of its threads has."""
    stats = Path(f"/proc/{process_id}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)
