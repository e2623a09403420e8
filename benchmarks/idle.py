"""What a sidecar costs while nothing happens, how soon it sees that something does, and how long a look at the cluster takes.

``benchmarks/idle.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  The daemon is the real one, with its
roles tier and read and default intervals, beside a real broker that leads 4,000 partitions, one of three: several brokers
answer otherwise than one alone.  The partitions' 80,000 segments are files in a log dir that the broker does not know
(benchmarks/support/idle_cluster.py says why).  A daemon is idle once each partition has its first snapshot, for which it takes
five minutes.  Command and page ask it and a second process (role read, ``status.also.ask``), which is then stopped by SIGSTOP:
what they show has to say so.  The whole takes at most a quarter of an hour.  ``--quick`` takes 200 partitions, does not wait
for their snapshots, and watches for 12 seconds: its share of a core says little.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import urllib.request  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

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

BROKERS = 3
MOST_SHARE, MOST_MIB, MOST_NOTICED_S, MOST_READY_S, MOST_STATUS_S = 0.03, 250.0, 2.0, 10.0, 2.0
_SETTLED_SHARE = 1.5
"""Of the goal: what the first rounds after a start take is not what an idle daemon takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``watched_s`` of the idle daemon, of which the rounds of expiry (30 s) are a part, after ``settling_s`` at most."""

    partitions: int
    watched_s: float
    settling_s: float


FULL = Scale(partitions=4_000, watched_s=90.0, settling_s=360.0)
QUICK = Scale(partitions=200, watched_s=12.0, settling_s=4.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 partitions: under 45 seconds on a quiet machine")
    scale = QUICK if parser.parse_args().quick else FULL
    report = Report()
    print(f"an idle daemon beside {scale.partitions:,} partitions of {SEGMENTS} segments", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        kafka = KafkaCluster(Path(scratch) / "kafka", brokers=BROKERS, properties=PROPERTIES)
        kafka[1].jvm_options = ("-Xmx1g",)
        with kafka:
            cluster = IdleCluster(
                kafka=kafka, log_dir=Path(scratch) / "logs", store=Path(scratch) / "store", partitions=scale.partitions
            )
            filled_s = _seconds(lambda: asyncio.run(cluster.fill()))
            report.line(f"{'topics, records, files and events made':44}{filled_s:8.1f} s")
            _measure(Path(scratch), cluster, scale, report)
    return report.end()


def _measure(scratch: Path, cluster: IdleCluster, scale: Scale, report: Report) -> None:
    second = _settings(scratch / "second", cluster)
    first = _settings(scratch / "first", cluster)
    first["status"] = {"listen": f"127.0.0.1:{free_port()}", "also.ask": [second["status"]["listen"]]}
    with Daemon(scratch / "first", first) as daemon, Daemon(scratch / "second", second, roles="read") as other:
        daemon.wait_until_ready(timeout_s=120)
        other.wait_until_ready(timeout_s=120)
        daemon.stop()
        _measure_daemon(daemon, cluster, scale, report)
        _measure_looks(daemon, other, report)


def _measure_daemon(daemon: Daemon, cluster: IdleCluster, scale: Scale, report: Report) -> None:
    """Start it once more, with its state.dir, and leave it alone."""
    ready_s = _seconds(lambda: _start(daemon))
    report.line(f"{'started again, until ready':44}{ready_s:8.2f} s")
    settled_s = _seconds(lambda: _settle(daemon, scale))
    written = int(daemon.metric("tiersidecar_snapshots_total", outcome="written"))
    report.line(f"{f'settled, {written:,} first snapshots written':44}{settled_s:8.1f} s")
    time.sleep(1)
    share = _share_of_a_core(daemon, scale.watched_s)
    rss_mib = daemon.rss_bytes() / 1024**2
    report.line(f"{f'idle for {scale.watched_s:g} s, share of a core':44}{share:8.2%}")
    report.line(f"{'resident memory':44}{rss_mib:8.0f} MiB (peak {daemon.peak_rss_bytes() / 1024**2:.0f})")
    noticed_s = _seconds(lambda: _roll(daemon, cluster))
    report.line(f"{'a segment was sealed, until it is remote':44}{noticed_s:8.2f} s")
    report.goals += [
        Goal(name="idle_share_of_a_core", figure=share, most=MOST_SHARE),
        Goal(name="idle_rss_mib", figure=rss_mib, most=MOST_MIB),
        Goal(name="sealed_to_remote_s", figure=noticed_s, most=MOST_NOTICED_S),
        Goal(name="start_to_ready_s", figure=ready_s, most=MOST_READY_S),
    ]


def _measure_looks(daemon: Daemon, other: Daemon, report: Report) -> None:
    """By command and by page: all processes well, another one stopped, and, without a goal, the one stopped that the command
    asks first: then it reads the state topic itself, which takes a second more."""
    _measure_status(daemon, other, report, what="", stopped=None)
    _measure_page(daemon, other, report, what="", is_stopped=False)
    with _standing_still(other):
        _measure_status(daemon, other, report, what="other_stopped_", stopped=other)
        _measure_page(daemon, other, report, what="other_stopped_", is_stopped=True)
    with _standing_still(daemon):
        _measure_status(daemon, other, report, what="own_stopped_", stopped=daemon)


def _measure_status(daemon: Daemon, other: Daemon, report: Report, *, what: str, stopped: Daemon | None) -> None:
    """All have a row, and the stopped one's says so; whether somebody has to look (exit code 3) or not."""
    command = [sys.executable, "-m", "tiersidecar", "status", "--json", "--config", str(daemon.config_path)]
    begun_s = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    took_s = time.perf_counter() - begun_s
    if done.returncode not in (0, 3):
        raise RuntimeError(f"status ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    answers = {row["address"]: row["answers"] for row in json.loads(done.stdout)["brokers"]}
    for one in (daemon, other):
        answered = answers[one.settings["status"]["listen"]]
        if one is stopped and answered:
            raise RuntimeError(f"a process that stands still is said to answer: {answers}")
        if one is not stopped and not answered:
            took_s = math.inf  # on a machine that has too much to do: the goal is missed
    report.line(f"{f'{what}tiersidecar status':44}{took_s:8.2f} s")
    if stopped is not daemon:
        report.goals.append(Goal(name=f"{what}status_s", figure=took_s, most=MOST_STATUS_S))


def _measure_page(daemon: Daemon, other: Daemon, report: Report, *, what: str, is_stopped: bool) -> None:
    begun_s = time.perf_counter()
    with urllib.request.urlopen(f"{daemon.status_url}/", timeout=60) as response:
        page = response.read().decode()
    took_s = time.perf_counter() - begun_s
    is_missed = f"The sidecar of {other.settings['status']['listen']} does not answer" in page
    if is_stopped and not is_missed:
        raise RuntimeError("the page says of a process that stands still that it answers")
    if is_missed and not is_stopped:
        took_s = math.inf  # likewise
    report.line(f"{f'{what}page of the cluster':44}{took_s:8.2f} s")
    report.goals.append(Goal(name=f"{what}page_s", figure=took_s, most=MOST_STATUS_S))


@contextmanager
def _standing_still(daemon: Daemon) -> Iterator[None]:
    daemon.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.send_signal(signal.SIGCONT)


def _settings(directory: Path, cluster: IdleCluster) -> dict[str, Any]:
    return {
        "log.dirs": [str(cluster.log_dir)],
        "state.dir": str(directory / "state"),
        "broker": {"bootstrap.servers": cluster.kafka.bootstrap_servers},
        "store": {"type": "filesystem", "root": str(cluster.store)},
        "topics": [{"pattern": "idle-.*"}],
        "deletes.brokers.without.sidecar": list(range(2, BROKERS + 1)),
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


def _settle(daemon: Daemon, scale: Scale) -> None:
    """Until each partition has its snapshot and a second takes little, or it has been waited for long enough: then what follows
    shows it.  Metrics of thousands of partitions take the daemon most of a second, so they are asked for seldom."""
    end_s = time.monotonic() + scale.settling_s
    while time.monotonic() < end_s:
        time.sleep(min(10.0, scale.settling_s))
        if daemon.metric("tiersidecar_snapshots_total", outcome="written") < scale.partitions:
            continue
        time.sleep(1)
        if max(_share_of_a_core(daemon, 1.0) for _ in range(3)) <= MOST_SHARE * _SETTLED_SHARE:
            return


def _share_of_a_core(daemon: Daemon, seconds: float) -> float:
    begun_s, begun_cpu_s = time.monotonic(), cpu_s(daemon.pid)
    time.sleep(seconds)
    return (cpu_s(daemon.pid) - begun_cpu_s) / (time.monotonic() - begun_s)


def _roll(daemon: Daemon, cluster: IdleCluster) -> None:
    """Until the segment is remote, which comes after it was noticed.  The daemon is not asked: its metrics of thousands of
    partitions take longer than that."""
    cluster.roll(cluster.owners[0])
    end_s = time.monotonic() + 60
    while "segment.copy.finished" not in daemon.log_tail():
        if time.monotonic() > end_s:
            raise RuntimeError(f"nothing was copied; the log ends:\n{daemon.log_tail()}")
        time.sleep(0.02)


def _seconds(action: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    action()
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    sys.exit(main())
