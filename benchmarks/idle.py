"""What a sidecar costs while nothing happens, and how soon it sees that something does.

``benchmarks/idle.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  The daemon is the real one, with its
roles tier and read and default intervals, beside a real broker that has 4,000 partitions; their 80,000 segments are files in a
log dir that the broker does not know (benchmarks/support/idle_cluster.py says why).  ``--quick`` takes 400 partitions and
watches for 12 seconds: its share of a core says little.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.support.idle_cluster import (  # noqa: E402
    METADATA_PARTITIONS,
    PROPERTIES,
    SEGMENTS,
    IdleCluster,
)
from benchmarks.support.process_cpu import cpu_s  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.daemon import Daemon  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.loopback_ports import free_port  # noqa: E402

MOST_SHARE, MOST_MIB, MOST_NOTICED_S, MOST_READY_S, MOST_STATUS_S = 0.03, 250.0, 2.0, 10.0, 2.0
_SETTLED_SHARE = 1.5
"""Of the goal: what the first rounds after a start take is not what an idle daemon takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``watched_s`` of the idle daemon, of which the rounds of expiry (30 s) are a part."""

    partitions: int
    watched_s: float
    settling_s: float


FULL = Scale(partitions=4_000, watched_s=90.0, settling_s=180.0)
QUICK = Scale(partitions=400, watched_s=12.0, settling_s=8.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="400 partitions: under 45 seconds on a quiet machine")
    scale = QUICK if parser.parse_args().quick else FULL
    report = Report()
    print(f"an idle daemon beside {scale.partitions:,} partitions of {SEGMENTS} segments", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        kafka = KafkaCluster(Path(scratch) / "kafka", brokers=1, properties=PROPERTIES)
        kafka[1].jvm_options = ("-Xmx1g",)
        with kafka:
            cluster = IdleCluster(
                kafka=kafka, log_dir=Path(scratch) / "logs", store=Path(scratch) / "store", partitions=scale.partitions
            )
            asyncio.run(cluster.fill())
            _measure(Path(scratch), cluster, scale, report)
    return report.end()


def _measure(scratch: Path, cluster: IdleCluster, scale: Scale, report: Report) -> None:
    with Daemon(scratch / "daemon", _settings(scratch / "daemon", cluster)) as daemon:
        daemon.wait_until_ready(timeout_s=120)
        _settle(daemon, scale.settling_s)
        daemon.stop()
        ready_s = _seconds(lambda: _start(daemon))
        report.line(f"{'started again, until ready':44}{ready_s:8.2f} s")
        _settle(daemon, scale.settling_s)
        share = _share_of_a_core(daemon, scale.watched_s)
        rss_mib = daemon.rss_bytes() / 1024**2
        report.line(f"{f'idle for {scale.watched_s:g} s, share of a core':44}{share:8.2%}")
        report.line(f"{'resident memory':44}{rss_mib:8.0f} MiB (peak {daemon.peak_rss_bytes() / 1024**2:.0f})")
        noticed_s = _seconds(lambda: _roll(daemon, cluster))
        report.line(f"{'a segment was sealed, until it is remote':44}{noticed_s:8.2f} s")
        status_s = _seconds(lambda: _status(daemon))
        report.line(f"{'tiersidecar status':44}{status_s:8.2f} s")
        with Daemon(scratch / "stopped", _settings(scratch / "stopped", cluster), roles="read") as other:
            other.wait_until_ready(timeout_s=60)
            other.send_signal(signal.SIGSTOP)
            stopped_s = _seconds(lambda: _status(daemon, other))
            other.send_signal(signal.SIGCONT)
        report.line(f"{'with another process stopped by SIGSTOP':44}{stopped_s:8.2f} s")
    report.goals += [
        Goal(name="idle_share_of_a_core", figure=share, most=MOST_SHARE),
        Goal(name="idle_rss_mib", figure=rss_mib, most=MOST_MIB),
        Goal(name="sealed_to_remote_s", figure=noticed_s, most=MOST_NOTICED_S),
        Goal(name="start_to_ready_s", figure=ready_s, most=MOST_READY_S),
        Goal(name="status_s", figure=status_s, most=MOST_STATUS_S),
        Goal(name="status_one_stopped_s", figure=stopped_s, most=MOST_STATUS_S),
    ]


def _settings(directory: Path, cluster: IdleCluster) -> dict[str, object]:
    return {
        "log.dirs": [str(cluster.log_dir)],
        "state.dir": str(directory / "state"),
        "broker": {"bootstrap.servers": cluster.kafka.bootstrap_servers},
        "store": {"type": "filesystem", "root": str(cluster.store)},
        "topics": [{"pattern": "idle-.*"}],
        "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
        "remote.log.metadata.topic.replication.factor": 1,
        "remote.log.metadata.topic.min.isr": 1,
        "read": {"listen": f"127.0.0.1:{free_port()}"},
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "logging": {"level": "info", "format": "json"},
    }


def _start(daemon: Daemon) -> None:
    daemon.start()
    daemon.wait_until_ready(timeout_s=120)


def _settle(daemon: Daemon, at_most_s: float) -> None:
    """Until a second takes little, or it has been waited for long enough: then what follows shows it."""
    end_s = time.monotonic() + at_most_s
    while time.monotonic() < end_s:
        if max(_share_of_a_core(daemon, 1.0) for _ in range(3)) <= MOST_SHARE * _SETTLED_SHARE:
            return


def _share_of_a_core(daemon: Daemon, seconds: float) -> float:
    begun_s, begun_cpu_s = time.monotonic(), cpu_s(daemon.pid)
    time.sleep(seconds)
    return (cpu_s(daemon.pid) - begun_cpu_s) / (time.monotonic() - begun_s)


def _roll(daemon: Daemon, cluster: IdleCluster) -> None:
    """Until the segment is remote, which comes after it was noticed."""
    cluster.roll(cluster.owners[0])
    end_s = time.monotonic() + 60
    while not daemon.metric("kafka_remote_copy_bytes_total"):
        if time.monotonic() > end_s:
            raise RuntimeError(f"nothing was copied; the log ends:\n{daemon.log_tail()}")
        time.sleep(0.02)


def _status(*daemons: Daemon) -> None:
    """It was shown, whether somebody has to look at it (3) or not."""
    asked = [part for one in daemons for part in ("--sidecar", one.settings["status"]["listen"])]
    command = [sys.executable, "-m", "tiersidecar", "status", "--json", "--config", str(daemons[0].config_path), *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"status ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    json.loads(done.stdout)


def _seconds(action: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    action()
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    sys.exit(main())
