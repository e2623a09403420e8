"""Remote data through one gateway process, and through two workers of one, each held to a quarter of a core.

``benchmarks/gateway_workers.py [--quick]``: figures, then the goals; exit code 1 if one is missed.  A topic is in the store (a
directory), all but its active segment.  Raw clients fetch it, through a gateway with ``gateway.workers: 1`` and one with 2, by
turns: what each of the processes that serve may use of a core is held by a control group, so that two cores are enough for
clients, broker and both.  CPU counts that of the process that starts the workers, too.

Below the table is what each worker takes of memory.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import contextlib  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

from benchmarks.support.held_cpu import held_to  # noqa: E402
from benchmarks.support.perf_clients import RECORD_BYTES, PerfClients  # noqa: E402
from benchmarks.support.process_cpu import cpu_s  # noqa: E402
from benchmarks.support.raw_fetches import RawFetches  # noqa: E402
from benchmarks.support.report import Goal, Report, spread  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
from tests.support.gateway_workers import worker_pids  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.loopback_ports import free_port  # noqa: E402

TOPIC, DIRECT = "tiered", "direct"
SEGMENT_BYTES = 16 * 1024 * 1024
CORES = 0.25
FETCH_BYTES = 1024 * 1024
CLIENTS = 24
"""So that each of two workers has enough to do, however the system distributes them."""
WARM_UP_S = 2.0


@dataclass(slots=True)
class Way:
    """A gateway: its processes that serve, all of them, and what was measured in each window."""

    servers: str
    serving: Sequence[int]
    processes: Sequence[int]
    mib_per_s: list[float] = field(default_factory=list)
    cpu_s_per_gib: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)


def measure(cluster: KafkaCluster, scratch: Path, records: int, rounds: int, seconds: float, report: Report) -> None:
    settings = daemon_settings(
        scratch / "sidecar",
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster[1].log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 1}],
    )
    with contextlib.ExitStack() as stack:
        configs = {"retention.ms": "-1", "retention.bytes": "-1"}
        cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=configs)
        with PerfClients({DIRECT: cluster.bootstrap_servers}) as producer:
            producer.produce(DIRECT, TOPIC, records)
        tier = stack.enter_context(Daemon(scratch / "sidecar", settings, roles="tier"))
        tier.wait_until_ready()
        active = max(int(log.stem) for log in cluster[1].partition_dir(TOPIC, 0).glob("*.log"))
        wait_for(lambda: cluster.admin.earliest_offset(TOPIC, 0) == active, "trimmed", tier, timeout_s=300)
        ways = {workers: _started(stack, scratch, settings, workers) for workers in (1, 2)}
        topic_id = cluster.admin.describe_topic(TOPIC).topic_id
        assert topic_id is not None
        for _ in range(rounds):
            for way in ways.values():
                window(way, topic_id.bytes, active, seconds)
        tell(ways, report)


def _started(stack: contextlib.ExitStack, scratch: Path, settings: Mapping[str, object], workers: int) -> Way:
    servers = f"127.0.0.1:{free_port()}"
    beside = {
        **settings,
        "state.dir": str(scratch / f"gateway-{workers}" / "state"),
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "gateway": {"workers": workers, "listeners": [{"listen": servers}]},
    }
    gateway = stack.enter_context(Daemon(scratch / f"gateway-{workers}", beside, roles="gateway"))
    gateway.wait_until_ready()
    serving = worker_pids(gateway) if workers > 1 else [gateway.pid]
    for pid in serving:
        stack.enter_context(held_to(pid, CORES))
    return Way(servers=servers, serving=serving, processes=sorted({gateway.pid, *serving}))


def window(way: Way, topic_id: bytes, stop: int, seconds: float) -> None:
    """Measure one window, after a while for the connections to be made."""
    clients = RawFetches(
        servers=way.servers,
        topic_id=topic_id,
        stop=stop,
        clients=CLIENTS,
        step=FETCH_BYTES // RECORD_BYTES,
        max_bytes=FETCH_BYTES,
    )
    with clients:
        time.sleep(WARM_UP_S)
        before = {pid: cpu_s(pid) for pid in way.processes}
        began_bytes, began_s = clients.size_bytes, time.perf_counter()
        time.sleep(seconds)
        size_bytes, passed_s = clients.size_bytes - began_bytes, time.perf_counter() - began_s
        used = {pid: cpu_s(pid) - before[pid] for pid in way.processes}
    assert not clients.faults, clients.faults
    way.mib_per_s.append(size_bytes / 2**20 / passed_s)
    way.cpu_s_per_gib.append(sum(used.values()) / (size_bytes / 2**30))
    way.shares.append([used[pid] / passed_s / CORES for pid in way.serving])


def tell(ways: Mapping[int, Way], report: Report) -> None:
    for workers, way in ways.items():
        shares = ", ".join(f"{median(of_one):.0%}" for of_one in zip(*way.shares, strict=True))
        report.line(
            f"{workers} process{'es' if workers > 1 else '':2} {spread(way.mib_per_s, '.0f'):>20} MiB/s;"
            f" CPU s/GiB {spread(way.cpu_s_per_gib, '.2f')}; of what each may use {shares}"
        )
    for workers, way in ways.items():
        memory = ", ".join(f"{_resident_mib(pid):.0f}" for pid in way.processes)
        report.line(f"resident memory with gateway.workers {workers}: {memory} MiB")
    one, two = ways[1], ways[2]
    faster = [second / first for first, second in zip(one.mib_per_s, two.mib_per_s, strict=True)]
    dearer = [second / first for first, second in zip(one.cpu_s_per_gib, two.cpu_s_per_gib, strict=True)]
    report.line(f"round by round: throughput of two to one {spread(faster, '.2f')}, CPU s/GiB {spread(dearer, '.2f')}")
    report.goals.append(Goal(name="two_workers_of_one", figure=median(faster), least=1.7))
    report.goals.append(Goal(name="two_workers_cpu_of_one", figure=median(dearer), most=1.1))


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(
        description="One gateway process, and two workers, each held to a quarter of a core."
    )
    parser.add_argument("--quick", action="store_true", help="less data, fewer and shorter windows")
    records, rounds, seconds = (100_000, 3, 5.0) if parser.parse_args().quick else (300_000, 7, 10.0)
    report = Report()
    report.line(
        f"{rounds} windows of {seconds:.0f} s each, {CLIENTS} clients that fetch {FETCH_BYTES // 1024} KiB at a time,"
        f" segments of 16 MiB, {os.cpu_count()} CPUs for all; medians (least to most)"
    )
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-gateway-workers-"))
    try:
        with KafkaCluster(scratch / "kafka") as cluster:
            measure(cluster, scratch, records, rounds, seconds, report)
    finally:
        shutil.rmtree(scratch)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
