"""One size of benchmarks/scale.py: a broker, a log dir, a snapshot, and the daemon beside them."""

from __future__ import annotations

import asyncio
import math
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.idle_cluster import METADATA_PARTITIONS, PROPERTIES
from benchmarks.support.measure import MIB
from benchmarks.support.process_cpu import cpu_s
from benchmarks.support.scale_cluster import ScaleCluster, snapshot_of, written_and_loaded
from benchmarks.support.scale_looks import looks_at
from tests.support.daemon import Daemon
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port

_ROLES = "tier,read"
_SNAPSHOT = "remote-log-metadata.read-tier.sqlite"
_PARTS = 100
"""One of so many partitions is changed."""
_QUIET_SHARE, _QUIET_WINDOWS = 0.05, 4
_COPIED = '"segment.copy.finished"'
_MOST_READY_S, _MOST_COPYING_S = 300.0, 120.0
_BROKER = PROPERTIES | {"log.retention.check.interval.ms": "300000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """All partitions are led by the one broker."""

    partitions: int
    partitions_of_a_topic: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """``watched_s`` of the idle daemon, of which the rounds of 30 s are a part, after ``settling_s`` at most."""

    settling_s: float
    watched_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``figures`` by the names of benchmarks/scale.py."""

    figures: Mapping[str, float]
    made_s: float
    measured_s: float


def measured(scratch: Path, size: Size, watching: Watching) -> Run:
    """Make everything below ``scratch``, and measure it."""
    begun_s = time.monotonic()
    kafka = KafkaCluster(scratch / "kafka", brokers=1, properties=_BROKER)
    kafka[1].jvm_options = ("-Xmx2g",)
    with kafka:
        cluster = ScaleCluster(
            kafka=kafka,
            log_dir=scratch / "logs",
            store=scratch / "store",
            partitions=size.partitions,
            partitions_of_a_topic=size.partitions_of_a_topic,
        )
        asyncio.run(cluster.fill())
        snapshot_path = scratch / "daemon" / "state" / _SNAPSHOT
        loaded = written_and_loaded(snapshot_of(cluster, snapshot_path))
        made_s = time.monotonic() - begun_s
        figures = {
            "bytes_per_segment": loaded.bytes_per_segment,
            "load_s": loaded.load_s,
            "snapshot_mib": snapshot_path.stat().st_size / MIB,
        }
        figures |= _of_daemon(Daemon(scratch / "daemon", _settings(scratch, cluster), roles=_ROLES), cluster, watching)
    return Run(figures=figures, made_s=made_s, measured_s=time.monotonic() - begun_s - made_s)


def _of_daemon(daemon: Daemon, cluster: ScaleCluster, watching: Watching) -> dict[str, float]:
    with daemon:
        begun_s = time.perf_counter()
        daemon.wait_until_ready(timeout_s=_MOST_READY_S)
        figures = {"restart_s": time.perf_counter() - begun_s, "restart_cpu_s": cpu_s(daemon.pid)}
        _settle(daemon, watching.settling_s)
        figures["idle_share_of_a_core"] = _share_of_a_core(daemon, watching.watched_s)
        figures["rss_mib"] = daemon.rss_bytes() / MIB
        for name, path in (("status", "/status"), ("page", "/"), ("scrape", "/metrics")):
            figures[f"{name}_s"], figures[f"{name}_mib"] = _fetched(f"{daemon.status_url}{path}")
        return figures | _of_changes(daemon, cluster)


def _of_changes(daemon: Daemon, cluster: ScaleCluster) -> dict[str, float]:
    """Seal a segment of 1 % of the partitions, under this process's own looks and the daemon's."""
    changed, before = cluster.owners[::_PARTS], _copied(daemon)
    begun: list[float] = []

    def change() -> None:
        begun.extend((time.perf_counter(), cpu_s(daemon.pid)))
        for owner in changed:
            cluster.roll(owner)

    looks = asyncio.run(looks_at(cluster, change))
    end_s = time.perf_counter() + _MOST_COPYING_S
    while _copied(daemon) - before < len(changed) and time.perf_counter() < end_s:
        time.sleep(0.05)
    began_s, began_cpu_s = begun
    is_done = _copied(daemon) - before >= len(changed)
    return {
        # What is not done in time is a goal missed, and no reason to lose what was measured before.
        "sealed_to_remote_s": time.perf_counter() - began_s if is_done else math.inf,
        "sealed_to_remote_cpu_s": cpu_s(daemon.pid) - began_cpu_s,
        "look_cpu_s": looks.nothing_changed,
        "look_changed_cpu_s": looks.some_changed,
        "look_all_cpu_s": looks.of_everything,
    }


def _copied(daemon: Daemon) -> int:
    return daemon.log_path.read_text().count(_COPIED)


def _settings(scratch: Path, cluster: ScaleCluster) -> dict[str, Any]:
    return {
        "log.dirs": [str(cluster.log_dir)],
        "state.dir": str(scratch / "daemon" / "state"),
        "broker": {"bootstrap.servers": cluster.kafka.bootstrap_servers},
        "store": {"type": "filesystem", "root": str(cluster.store)},
        "topics": [{"pattern": "idle-.*"}],
        "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
        "remote.log.metadata.topic.replication.factor": 1,
        "remote.log.metadata.topic.min.isr": 1,
        "snapshots.interval.ms": 0,
        "snapshots.cluster.interval.ms": 0,
        "read": {"listen": f"127.0.0.1:{free_port()}"},
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "logging": {"level": "info", "format": "json"},
    }


def _settle(daemon: Daemon, most_s: float) -> None:
    """Until some windows have taken little, or it has been waited for long enough: then what follows shows it."""
    end_s = time.monotonic() + most_s
    quiet = 0
    while quiet < _QUIET_WINDOWS and time.monotonic() < end_s:
        quiet = quiet + 1 if _share_of_a_core(daemon, min(3.0, most_s / 20)) <= _QUIET_SHARE else 0


def _share_of_a_core(daemon: Daemon, seconds: float) -> float:
    begun_s, begun_cpu_s = time.monotonic(), cpu_s(daemon.pid)
    time.sleep(seconds)
    return (cpu_s(daemon.pid) - begun_cpu_s) / (time.monotonic() - begun_s)


def _fetched(url: str) -> tuple[float, float]:
    """Return seconds and MiB."""
    begun_s = time.perf_counter()
    with urllib.request.urlopen(url, timeout=120) as response:
        body = response.read()
    return time.perf_counter() - begun_s, len(body) / MIB
