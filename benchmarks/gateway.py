"""What the gateway costs a client: throughput of Kafka's own perf tools and latency of small requests, direct and through it.

``benchmarks/gateway.py [--quick]``: a table, then the goals; exit code 1 if one is missed.  The gateway is a process of its
own; *toxiproxy* is a proxy in Go that knows no protocol and changes nothing, so it shows what a hop costs at all.
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
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

from benchmarks.support.report import Goal, Report  # noqa: E402
from benchmarks.support.round_trips import RoundTrips  # noqa: E402
from tests.support.gateway import GatewayDaemon  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.kafka_properties import INTERNAL, Listener  # noqa: E402
from tests.support.toxiproxy import running_toxiproxy  # noqa: E402

RECORD_BYTES = 1024
PARTITIONS = 4
WAYS = ("direct", "gateway", "toxiproxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``rounds``: each way once per round, so that a slow minute of the machine hits all; the median counts."""

    records: int
    rounds: int
    round_trips: int


FULL = Scale(records=600_000, rounds=5, round_trips=4_000)
QUICK = Scale(records=60_000, rounds=1, round_trips=500)


@dataclass(slots=True)
class Way:
    """How clients reach the broker, and what was measured on it."""

    servers: str
    produced_mb_per_s: list[float] = field(default_factory=list)
    consumed_mb_per_s: list[float] = field(default_factory=list)
    produce_p50_ms: list[float] = field(default_factory=list)
    produce_p99_ms: list[float] = field(default_factory=list)
    fetch_p50_ms: list[float] = field(default_factory=list)
    fetch_p99_ms: list[float] = field(default_factory=list)


class Bench:
    """One run on one broker."""

    def __init__(self, cluster: KafkaCluster, ways: dict[str, Way], scale: Scale, gateway: GatewayDaemon) -> None:
        self._cluster, self._ways, self._scale, self._gateway = cluster, ways, scale, gateway

    def run(self) -> None:
        self._cluster.create_topic("load", partitions=PARTITIONS, configs={"retention.bytes": str(2**28)})
        for name in self._ways:
            self._cluster.create_topic(f"small-{name}")
        for number in range(self._scale.rounds):
            for name, way in self._ways.items():
                way.produced_mb_per_s.append(self._produce(way))
                way.consumed_mb_per_s.append(self._consume(way, f"{name}-{number}"))
            self._round_trips()

    def cpu_s(self) -> float:
        """Of the gateway's process so far."""
        fields = Path(f"/proc/{self._gateway.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _produce(self, way: Way) -> float:
        told = self._cluster.run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "load", "--num-records", str(self._scale.records), "--record-size", str(RECORD_BYTES)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={way.servers}"),
            *("acks=all", "batch.size=65536", "linger.ms=5"),
            timeout_s=300,
        ).stdout
        # "… records/sec (46.15 MB/sec), …": its MB are MiB
        return float(told.splitlines()[-1].split("(")[1].split()[0])

    def _consume(self, way: Way, group: str) -> float:
        told = self._cluster.run_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", way.servers, "--topic", "load", "--group", group),
            *("--num-records", str(self._scale.records), "--timeout", "60000"),
            timeout_s=300,
        ).stdout
        # fetch.MB.sec, which leaves the rebalance out
        return float(told.splitlines()[-1].split(", ")[8])

    def _round_trips(self) -> None:
        """One request at a time, the ways taking turns request by request."""
        with contextlib.ExitStack() as stack:
            clients = {
                name: stack.enter_context(RoundTrips(way.servers, f"small-{name}")) for name, way in self._ways.items()
            }
            for client in clients.values():
                client.warm_up(self._scale.round_trips // 10)
            for _ in range(self._scale.round_trips):
                for client in clients.values():
                    client.produce()
            for _ in range(self._scale.round_trips):
                for client in clients.values():
                    client.fetch()
            for name, client in clients.items():
                way = self._ways[name]
                way.produce_p50_ms.append(client.produce_ms(50))
                way.produce_p99_ms.append(client.produce_ms(99))
                way.fetch_p50_ms.append(client.fetch_ms(50))
                way.fetch_p99_ms.append(client.fetch_ms(99))


@contextlib.contextmanager
def ways_to(cluster: KafkaCluster, scratch: Path) -> Iterator[tuple[dict[str, Way], GatewayDaemon]]:
    """The broker tells clients of its second listener that it is where toxiproxy listens."""
    broker = cluster[1]
    with running_toxiproxy(scratch, broker.bootstrap_server_of("PROXIED")) as proxy:
        direct, proxied = broker.bootstrap_server, proxy.url.removeprefix("http://")
        broker.set_properties({"advertised.listeners": f"{INTERNAL}://{direct},PROXIED://{proxied}"})
        cluster.start()
        with GatewayDaemon(scratch / "gateway", broker) as gateway:
            gateway.wait_until_ready()
            servers = {"direct": direct, "gateway": gateway.bootstrap_server, "toxiproxy": proxied}
            yield {name: Way(servers[name]) for name in WAYS}, gateway


def tell(ways: dict[str, Way], report: Report, cpu_s: float) -> None:
    report.line(
        f"{'':12}{'produce MiB/s':>15}{'consume MiB/s':>15}{'produce p50, p99 ms':>22}{'fetch p50, p99 ms':>20}"
    )
    for name, way in ways.items():
        report.line(
            f"{name:12}{median(way.produced_mb_per_s):15.0f}{median(way.consumed_mb_per_s):15.0f}"
            f"{median(way.produce_p50_ms):14.2f}{median(way.produce_p99_ms):8.2f}"
            f"{median(way.fetch_p50_ms):12.2f}{median(way.fetch_p99_ms):8.2f}"
        )
    report.line(f"the gateway's process took {cpu_s:.1f} CPU s")
    direct, gateway, hop = (ways[name] for name in WAYS)
    for what in ("produced", "consumed"):
        figure, of_direct, of_hop = (median(getattr(way, f"{what}_mb_per_s")) for way in (gateway, direct, hop))
        report.goals.append(Goal(name=f"{what}_of_direct", figure=figure / of_direct, least=0.85))
        report.goals.append(Goal(name=f"{what}_of_toxiproxy", figure=figure / of_hop, least=1.0))
    for what in ("produce", "fetch"):
        added = [
            through - straight
            for through, straight in zip(
                getattr(gateway, f"{what}_p99_ms"), getattr(direct, f"{what}_p99_ms"), strict=True
            )
        ]
        report.goals.append(Goal(name=f"{what}_added_p99_ms", figure=median(added), most=1.0))


def main() -> int:
    parser = argparse.ArgumentParser(description="The gateway against no gateway.")
    parser.add_argument("--quick", action="store_true", help="less data, one round")
    scale = QUICK if parser.parse_args().quick else FULL
    report = Report()
    report.line(f"{scale.records} records of {RECORD_BYTES} B, {PARTITIONS} partitions, {os.cpu_count()} CPUs for all")
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-gateway-"))
    cluster = KafkaCluster(scratch / "kafka", listeners=[Listener(name="PROXIED", security_protocol="PLAINTEXT")])
    try:
        with ways_to(cluster, scratch) as (ways, gateway):
            bench = Bench(cluster, ways, scale, gateway)
            began_s = bench.cpu_s()
            bench.run()
            tell(ways, report, bench.cpu_s() - began_s)
    finally:
        cluster.close()
        shutil.rmtree(scratch)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
