"""Reading what is remote through the gateway, against reading the same from the broker's own disk.

``benchmarks/gateway_remote.py [--quick]``: a table, then the goal; exit code 1 if it is missed.  Two topics have the same
records: one is local, the other is in the store (a directory) and gone from the broker, all but its active segment.  A Java
consumer, warm, reads the first from the broker and the second through a gateway process of its own, by turns, window by window.
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
from collections.abc import Mapping  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

from benchmarks.support.perf_clients import RECORD_BYTES, PerfClients  # noqa: E402
from benchmarks.support.process_cpu import cpu_s  # noqa: E402
from benchmarks.support.report import Goal, Report, spread  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.loopback_ports import free_port  # noqa: E402

LOCAL, TIERED = "local", "tiered"
DIRECT, GATEWAY = "direct", "gateway"
SEGMENT_BYTES = 16 * 1024 * 1024
WAYS = ((DIRECT, LOCAL), (GATEWAY, LOCAL), (GATEWAY, TIERED))


@dataclass(slots=True)
class Row:
    """Of one way and topic: MiB/s of each round, and the CPU seconds of each process in all of them."""

    mib_per_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)


def measure(cluster: KafkaCluster, scratch: Path, records: int, rounds: int, report: Report) -> None:
    servers = f"127.0.0.1:{free_port()}"
    settings = daemon_settings(
        scratch / "sidecar",
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster[1].log_dirs),
        topics=[{"name": TIERED, "local.retention.bytes": 1}],
        gateway={"listeners": [{"listen": servers}]},
    )
    beside = {**settings, "status": {"listen": f"127.0.0.1:{free_port()}"}}
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(PerfClients({DIRECT: cluster.bootstrap_servers, GATEWAY: servers}))
        for topic in (LOCAL, TIERED):
            configs = {"retention.ms": "-1", "retention.bytes": "-1"}
            cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=configs)
            clients.produce(DIRECT, topic, records)
        tier = stack.enter_context(Daemon(scratch / "sidecar", settings, roles="tier"))
        tier.wait_until_ready()
        active = max(int(log.stem) for log in cluster[1].partition_dir(TIERED, 0).glob("*.log"))
        wait_for(lambda: cluster.admin.earliest_offset(TIERED, 0) == active, "trimmed", tier, timeout_s=300)
        gateway = stack.enter_context(Daemon(scratch / "gateway", beside, roles="gateway"))
        gateway.wait_until_ready()
        processes = {"gateway": gateway.pid, "broker": cluster[1].pid, "consumer": clients.pid}
        rows = windows(clients, processes, records, rounds)
        filled = gateway.metric("tiersidecar_gateway_filled_bytes_total")
    assert filled >= (rounds + 1) * active * RECORD_BYTES, "what was read was remote"
    tell(rows, rounds * records * RECORD_BYTES / 2**30, report)


def windows(
    clients: PerfClients, processes: Mapping[str, int], records: int, rounds: int
) -> dict[tuple[str, str], Row]:
    """By way and topic; the first round of all only warms up.  ``processes`` are their ids by name."""
    rows = {way: Row() for way in WAYS}
    for number in range(rounds + 1):
        turn = number % len(WAYS)
        for way in (*WAYS[turn:], *WAYS[:turn]):
            began = {name: cpu_s(pid) for name, pid in processes.items()}
            mib_per_s = clients.consume(*way, records)
            if number:
                row = rows[way]
                row.mib_per_s.append(mib_per_s)
                for name, pid in processes.items():
                    row.cpu_s[name] = row.cpu_s.get(name, 0.0) + cpu_s(pid) - began[name]
    return rows


def tell(rows: Mapping[tuple[str, str], Row], gib: float, report: Report) -> None:
    for (way, topic), row in rows.items():
        costs = ", ".join(f"{name} {used_s / gib:.2f}" for name, used_s in row.cpu_s.items())
        report.line(f"{topic + ', ' + way:18}{spread(row.mib_per_s, '.0f'):>20} MiB/s; CPU s/GiB: {costs}")
    remote, local = rows[GATEWAY, TIERED], rows[DIRECT, LOCAL]
    of_direct = [one / other for one, other in zip(remote.mib_per_s, local.mib_per_s, strict=True)]
    report.line(f"round by round, remote of local {spread(of_direct, '.2f')}")
    report.goals.append(Goal(name="remote_of_local_direct", figure=median(of_direct), least=0.9))
    report.goals.append(Goal(name="remote_cpu_s_per_gib", figure=sum(remote.cpu_s.values()) / gib, most=3.6))
    report.goals.append(Goal(name="remote_gateway_cpu_s_per_gib", figure=remote.cpu_s["gateway"] / gib, most=0.7))


def main() -> int:
    parser = argparse.ArgumentParser(description="Remote data through the gateway against local data directly.")
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds")
    records, rounds = (100_000, 6) if parser.parse_args().quick else (500_000, 9)
    report = Report()
    report.line(
        f"{rounds} windows of {records} records of {RECORD_BYTES} B each, one partition, segments of 16 MiB,"
        f" {os.cpu_count()} CPUs for all; medians (least to most)"
    )
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-gateway-remote-"))
    try:
        with KafkaCluster(scratch / "kafka") as cluster:
            measure(cluster, scratch, records, rounds, report)
    finally:
        shutil.rmtree(scratch)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
