"""Mount a bucket of 100,000 segments in a new cluster: seconds to the first read, from snapshots and from manifests alone.

``benchmarks/mount.py [--quick]``: a table, then the goal; exit code 1 if it is missed.  A real cluster is lost, a real one of
one broker takes over, by the commands that an operator gives.  ``publish`` has the eleven seconds in which the former cluster's
sidecars may believe that the data are theirs.  ``read`` is from the start of the sidecar to the first record over HTTP, of a
segment that was really copied; the others are small files, in partitions of 10,000.  ``CPU s`` is the processor time of the
commands alone.  ``--quick`` takes 10,000 segments; the goal stays.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import resource  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.support.local_bucket import WHEN_MS, segment_manifest, segment_of  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.command_line import program_environment  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
from tests.support.directory_store import DirectoryStore  # noqa: E402
from tests.support.inline_blocking import InlineBlocking  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.produce import produce_mix  # noqa: E402
from tests.support.read_service import fetch_records  # noqa: E402
from tiersidecar.adapters.snapshots.shelf import StoreShelf  # noqa: E402
from tiersidecar.domain.offsets import LeaderEpoch  # noqa: E402
from tiersidecar.domain.own_objects import SNAPSHOTS  # noqa: E402
from tiersidecar.domain.segments import RemoteLogSegmentMetadata  # noqa: E402
from tiersidecar.domain.states import RemoteLogSegmentState  # noqa: E402
from tiersidecar.formats.aiven.keys import planned_keys  # noqa: E402
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion  # noqa: E402
from tiersidecar.ports.state_log import PartitionState  # noqa: E402
from tiersidecar.tasks.topic_owners import TopicOwner, owner_key  # noqa: E402

FULL, QUICK = 100_000, 10_000
SEGMENTS_PER_PARTITION = 10_000
MOST_S = 60.0
TOPIC, MANY = "first", "orders"
STRICT = {"retention.ms": "-1", "retention.bytes": "-1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10,000 segments")
    segments = QUICK if parser.parse_args().quick else FULL
    report = Report()
    print("mount, from the plan to the first read; seconds")
    print(
        f"{'segments':>12}  {'by':<10}{'plan':>8}{'seed':>8}{'start':>8}{'publish':>9}{'read':>8}{'all':>8}{'CPU s':>8}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="tiersidecar-mount-") as scratch:
        for by in ("snapshots", "manifests"):
            directory = Path(scratch) / by
            directory.mkdir()
            took = _Drill(directory, segments, has_snapshots=by == "snapshots").run()
            figures = "".join(f"{took[name]:8.1f}" for name in ("plan", "seed", "start"))
            all_s = sum(took.values())
            report.line(
                f"{segments:12,}  {by:<10}{figures}{took['publish']:9.1f}{took['read']:8.1f}{all_s:8.1f}{took.cpu_s:8.1f}"
            )
            if by == "snapshots":
                report.goals.append(Goal(name="mount_to_first_read_s", figure=all_s, most=MOST_S))
    return report.end()


def _mounted(*arguments: str) -> None:
    command = [sys.executable, "-m", "tiersidecar", "mount", *arguments, "--json"]
    done = subprocess.run(command, env=program_environment(), capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}")


class _Took(dict[str, float]):
    """Wall seconds by step; ``cpu_s`` is the processor time of the commands, without broker and sidecar."""

    cpu_s = 0.0


def _cpu_of_commands_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Drill:
    """A cluster that is lost, and one that takes its bucket over."""

    def __init__(self, directory: Path, segments: int, *, has_snapshots: bool) -> None:
        self._directory, self._segments, self._has_snapshots = directory, segments, has_snapshots
        self._store = directory / "store"
        self._store.mkdir()

    def run(self) -> _Took:
        """Lose the one, and mount in the other."""
        with KafkaCluster(self._directory / "former") as former, self._beside(former, "former-sidecar") as daemon:
            former.create_topic(TOPIC, segment_bytes=65_536, configs=STRICT)
            daemon.wait_until_ready()
            asyncio.run(produce_mix(former.client_settings, TOPIC, total_bytes=400_000, batch_bytes=16_384))
            wait_for(lambda: former.admin.earliest_offset(TOPIC, 0) > 0, "segments are remote alone", daemon)
            daemon.kill9()
        self._fill(former.cluster_id)
        if not self._has_snapshots:
            for path in (self._store / SNAPSHOTS).rglob("*.snapshot"):
                path.unlink()
        return self._mount(KafkaCluster(self._directory / "new"))

    def _mount(self, cluster: KafkaCluster) -> _Took:
        sidecar, plan, took = self._beside(cluster, "new-sidecar"), self._directory / "mount.json", _Took()
        sidecar.write_config()
        config, properties = sidecar.config_path, cluster.brokers[0].directory / "server.properties"

        before_s = _cpu_of_commands_s()

        def timed(step: str, work: Callable[[], object]) -> None:
            begun_s = time.perf_counter()
            work()
            took[step] = time.perf_counter() - begun_s

        def read() -> None:
            sidecar.start()
            sidecar.wait_until_ready(600)
            assert list(fetch_records(sidecar.read_url, TOPIC, 0, stop=1))

        by = ("--config", str(config))
        timed("plan", lambda: _mounted("plan", "--brokers", "1", "--out", str(plan), *by))
        timed("seed", lambda: _mounted("seed", str(plan), "--server-properties", str(properties), "--carry-out"))
        try:
            timed("start", cluster.start)
            timed("publish", lambda: _mounted("publish", str(plan), "--former-cluster-is-gone", "--carry-out", *by))
            took.cpu_s = _cpu_of_commands_s() - before_s
            timed("read", read)
        finally:
            sidecar.kill9()
            cluster.close()
        return took

    def _beside(self, cluster: KafkaCluster, name: str) -> Daemon:
        directory = self._directory / name
        settings = daemon_settings(
            directory,
            bootstrap_servers=cluster.bootstrap_servers,
            log_dirs=list(cluster.brokers[0].log_dirs),
            topics=[{"name": topic, "local.retention.bytes": 1} for topic in (TOPIC, MANY)],
        )
        settings |= {"store": {"type": "filesystem", "root": str(self._store)}, "snapshots.interval.ms": 300}
        return Daemon(directory, settings | {"snapshots.cluster.interval.ms": 300, "lease.duration.ms": 3_000})

    def _fill(self, cluster_id: str) -> None:
        """What many more segments leave in a bucket."""
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        segments = [
            replace(segment_of(number, SEGMENTS_PER_PARTITION), state=finished) for number in range(self._segments)
        ]
        for segment in segments:
            keys = planned_keys(segment)
            for key in (keys.log, keys.indexes, keys.manifest):
                path = self._store / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(segment_manifest(segment) if key == keys.manifest else bytes(58))
        topic_id = segments[0].remote_log_segment_id.topic_id_partition.topic_id
        owner = TopicOwner(cluster_id=cluster_id, topic=MANY, claimed_ms=0, broker_id=1, incarnation="")
        (self._store / owner_key("", topic_id)).write_bytes(owner.write(topic_id))
        for first in range(0, self._segments, SEGMENTS_PER_PARTITION):
            of_one = segments[first : first + SEGMENTS_PER_PARTITION]
            asyncio.run(self._snapshot(cluster_id, tuple(of_one)))

    async def _snapshot(self, cluster_id: str, segments: tuple[RemoteLogSegmentMetadata, ...]) -> None:
        async with DirectoryStore(str(self._store))() as store:
            last = segments[-1]
            await StoreShelf(store, "", InlineBlocking()).put(
                PartitionSnapshot(
                    cluster_id=cluster_id,
                    topic_id_partition=last.remote_log_segment_id.topic_id_partition,
                    version=SnapshotVersion(leader_epoch=LeaderEpoch(3), serial=1),
                    written_ms=WHEN_MS + 1000,
                    broker_id=1,
                    incarnation="",
                    segments=segments,
                    highest_offsets={3: last.end_offset},
                    state=PartitionState(),
                )
            )


if __name__ == "__main__":
    sys.exit(main())
