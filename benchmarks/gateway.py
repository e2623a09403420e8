"""What the gateway costs a client: throughput of Java clients and latency of small requests, direct and through it.

``benchmarks/gateway.py [--quick] [--kafka-proxy PROGRAM]``: a table, then the goals; exit code 1 if one is missed.  The gateway
is a process of its own; below the table a second one copies as well (roles ``tier`` and ``gateway`` in one process), and in the
full form clients reach it by TLS.

The peer is *toxiproxy*, a proxy in Go that knows no protocol and changes nothing, so it shows what a hop costs at all.  The
nearer peer is grepplabs/kafka-proxy, which rewrites addresses as the gateway does.  Where the Go module proxy does not serve it
(``go install`` ends with 403 Forbidden), it is built from its repository, which has all that it needs (``go build
-mod=vendor``); whoever has the binary names it by ``--kafka-proxy``, and it is measured in turn with the others, for goals of
its own.
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
from collections.abc import Iterator, Mapping, Sequence  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

from benchmarks.support.crowded_gateway import crowd  # noqa: E402
from benchmarks.support.kafka_proxy import running_kafka_proxy  # noqa: E402
from benchmarks.support.perf_clients import RECORD_BYTES, PerfClients  # noqa: E402
from benchmarks.support.process_cpu import cpu_s  # noqa: E402
from benchmarks.support.report import Goal, Report, spread  # noqa: E402
from benchmarks.support.round_trips import RoundTrips  # noqa: E402
from tests.support.certificates import CertificateAuthority  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings  # noqa: E402
from tests.support.gateway import GatewayDaemon  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.kafka_properties import INTERNAL, Listener  # noqa: E402
from tests.support.loopback_ports import free_port  # noqa: E402
from tests.support.toxiproxy import running_toxiproxy  # noqa: E402

PARTITIONS = 4
DIRECT, GATEWAY, COPYING, TLS = "direct", "gateway", "gateway-copying", "gateway-tls"
TOXIPROXY, KAFKA_PROXY = "toxiproxy", "kafka-proxy"
PRODUCE, CONSUME = "produce", "consume"
COPY_MIB_PER_S = 20
BLOCK = 250
"""Round trips of a p99: one pause of the machine hits one block on all ways, and the median of the blocks counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``rounds``: each way once per round, in another order each time, so that a slow second hits all; ``records``
    are of one such window."""

    records: int
    warm_up_records: int
    rounds: int
    round_trips: int
    copying_rounds: int
    tls_rounds: int
    idle: int


FULL = Scale(
    records=200_000, warm_up_records=600_000, rounds=12, round_trips=10_000, copying_rounds=6, tls_rounds=6, idle=1_000
)
QUICK = Scale(
    records=60_000, warm_up_records=150_000, rounds=6, round_trips=2_500, copying_rounds=3, tls_rounds=0, idle=1_000
)


@dataclass(slots=True)
class Way:
    """What was measured on one way to the broker."""

    mib_per_s: dict[str, list[float]] = field(default_factory=lambda: {PRODUCE: [], CONSUME: []})
    p50_ms: dict[str, float] = field(default_factory=dict)
    block_p99_ms: dict[str, list[float]] = field(default_factory=dict)
    p99_ms: dict[str, float] = field(default_factory=dict)


class Bench:
    """One run on one broker."""

    def __init__(self, cluster: KafkaCluster, clients: PerfClients, scale: Scale) -> None:
        self._cluster, self._clients, self._scale = cluster, clients, scale

    def prepare(self, names: Sequence[str]) -> None:
        """Warm clients and broker, and something to read."""
        for topic in ("written", "read"):
            self._cluster.create_topic(topic, partitions=PARTITIONS, configs={"file.delete.delay.ms": "1000"})
        for name in names:
            self._warm_up(name)

    def windows(self, names: Sequence[str], rounds: int) -> dict[str, Way]:
        ways = {name: Way() for name in names}
        for number in range(rounds):
            turn = number % len(names)
            for what in (PRODUCE, CONSUME):
                for name in (*names[turn:], *names[:turn]):
                    ways[name].mib_per_s[what].append(self._window(what, name, self._scale.records))
            self._trim()
        return ways

    def warm_up_way(self, name: str) -> None:
        """Connections, and what a new process has to warm up."""
        for what in (PRODUCE, CONSUME):
            self._window(what, name, self._scale.records)

    def _warm_up(self, name: str) -> None:
        self._clients.produce(name, "read", self._scale.warm_up_records)
        self._clients.consume(name, "read", self._scale.warm_up_records)

    def _window(self, what: str, name: str, records: int) -> float:
        if what == PRODUCE:
            return self._clients.produce(name, "written", records)
        return self._clients.consume(name, "read", records)

    def _trim(self) -> None:
        """Else the last window would write to a page cache that is full."""
        admin = self._cluster.admin
        for partition in range(PARTITIONS):
            admin.delete_records("written", partition, admin.latest_offset("written", partition))


def round_trips(ways: dict[str, Way], servers: Mapping[str, str], times: int) -> None:
    """One request at a time, the ways taking turns request by request."""
    with contextlib.ExitStack() as stack:
        clients = {name: stack.enter_context(RoundTrips(servers[name], f"small-{name}")) for name in ways}
        for client in clients.values():
            client.warm_up(times // 10)
        for _ in range(times):
            for client in clients.values():
                client.produce()
        for _ in range(times):
            for client in clients.values():
                client.fetch()
        for name, client in clients.items():
            way = ways[name]
            way.p50_ms = {"produce": client.produce_ms(50), "fetch": client.fetch_ms(50)}
            way.block_p99_ms = {what: client.p99_ms_of_blocks(what, BLOCK) for what in ("produce", "fetch")}
            way.p99_ms = {"produce": client.produce_ms(99), "fetch": client.fetch_ms(99)}


@contextlib.contextmanager
def ways_to(
    cluster: KafkaCluster, scratch: Path, kafka_proxy: Path | None
) -> Iterator[tuple[dict[str, str], GatewayDaemon]]:
    """The broker tells clients of its second listener that it is where toxiproxy listens."""
    broker = cluster[1]
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(running_toxiproxy(scratch, broker.bootstrap_server_of("PROXIED")))
        direct, proxied = broker.bootstrap_server, proxy.url.removeprefix("http://")
        broker.set_properties({"advertised.listeners": f"{INTERNAL}://{direct},PROXIED://{proxied}"})
        cluster.start()
        authority = CertificateAuthority(scratch / "certificates")
        issued = authority.issue("gateway")
        encrypted = {
            "name": "TLS",
            "listen": f"127.0.0.1:{free_port()}",
            "ssl.certificate.location": str(issued.certificate_path),
            "ssl.key.location": str(issued.key_path),
        }
        listeners = [{"name": "PLAINTEXT", "listen": f"127.0.0.1:{free_port()}"}, encrypted]
        gateway = stack.enter_context(GatewayDaemon(scratch / "gateway", broker, listeners=listeners))
        gateway.wait_until_ready()
        trust = f"ssl.truststore.type=PEM ssl.truststore.location={scratch / 'certificates' / 'ca.pem'}"
        tls = f"{encrypted['listen']} security.protocol=SSL {trust}"
        ways = {DIRECT: direct, GATEWAY: gateway.bootstrap_server, TOXIPROXY: proxied, TLS: tls}
        if kafka_proxy is not None:
            ways[KAFKA_PROXY] = stack.enter_context(running_kafka_proxy(kafka_proxy, scratch, direct))
        yield ways, gateway


def copying_daemon(scratch: Path, cluster: KafkaCluster, clients: PerfClients, records: int) -> Daemon:
    """Gateway and tier in one process, not started, with ``records`` to copy at a steady rate."""
    cluster.create_topic(
        "copied", segment_bytes=4 * 1024 * 1024, configs={"retention.ms": "-1", "retention.bytes": "-1"}
    )
    clients.produce(DIRECT, "copied", records)
    settings = daemon_settings(
        scratch / "copying",
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster[1].log_dirs),
        topics=[{"name": "copied"}],
        gateway={"listeners": [{"listen": f"127.0.0.1:{free_port()}"}]},
    )
    settings["remote.log.manager.copy.max.bytes.per.second"] = COPY_MIB_PER_S * 1024 * 1024
    return Daemon(scratch / "copying", settings, roles="tier,gateway")


def ratio(of: Way, to: Way, what: str) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(of.mib_per_s[what], to.mib_per_s[what], strict=True)]


def tell(ways: Mapping[str, Way], report: Report) -> None:
    report.line(
        f"{'':17}{'produce MiB/s (spread)':>27}{'consume MiB/s (spread)':>27}{'produce p50, p99 ms':>22}{'fetch':>14}"
    )
    for name, way in ways.items():
        speeds = "".join(f"{spread(way.mib_per_s[what], '.0f'):>27}" for what in (PRODUCE, CONSUME))
        times = "".join(f"{way.p50_ms[one]:14.2f}{way.p99_ms[one]:8.2f}" for one in way.p50_ms)
        report.line(f"{name:17}{speeds}{times}")


def judge(ways: Mapping[str, Way], report: Report) -> None:
    gateway, direct = ways[GATEWAY], ways[DIRECT]
    for what in (PRODUCE, CONSUME):
        for name, other in ways.items():
            if name == GATEWAY:
                continue
            of_other = ratio(gateway, other, what)
            report.line(f"{what}: gateway/{name} {spread(of_other, '.2f')}")
            least = 0.85 if name == DIRECT else 1.0
            goal = f"{what}_of_{name.replace('-', '_')}"
            report.goals.append(Goal(name=goal, figure=median(of_other), least=least))
    for what in ("produce", "fetch"):
        blocks = zip(gateway.block_p99_ms[what], direct.block_p99_ms[what], strict=True)
        added = [through - straight for through, straight in blocks]
        report.line(f"{what}: p99 of {BLOCK} round trips each, gateway less direct: {spread(added, '.2f')} ms")
        report.goals.append(Goal(name=f"{what}_added_p99_ms", figure=median(added), most=1.0))


def measure(cluster: KafkaCluster, scratch: Path, scale: Scale, report: Report, kafka_proxy: Path | None) -> None:
    with contextlib.ExitStack() as stack:
        servers, gateway = stack.enter_context(ways_to(cluster, scratch, kafka_proxy))
        names = [name for name in servers if name != TLS]
        clients = stack.enter_context(PerfClients(servers))
        bench = Bench(cluster, clients, scale)
        bench.prepare(names)
        began_s = cpu_s(gateway.pid)
        ways = bench.windows(names, scale.rounds)
        used_s = cpu_s(gateway.pid) - began_s
        for name in names:
            cluster.create_topic(f"small-{name}")
        round_trips(ways, servers, scale.round_trips)
        tell(ways, report)
        judge(ways, report)
        gib = 2 * scale.rounds * scale.records * RECORD_BYTES / 2**30
        report.line(f"the gateway's process took {used_s / gib:.2f} CPU s/GiB")
        measure_crowd(cluster, gateway, scale, report)
        if scale.tls_rounds:
            bench.warm_up_way(TLS)
            report.line("with TLS from the client to the gateway:")
            tell(bench.windows((GATEWAY, TLS), scale.tls_rounds), report)
        measure_copying(stack, bench, copying_daemon(scratch, cluster, clients, 250_000), clients, scale, report)


def measure_crowd(cluster: KafkaCluster, gateway: GatewayDaemon, scale: Scale, report: Report) -> None:
    topic_id = cluster.admin.describe_topic(f"small-{GATEWAY}").topic_id
    assert topic_id is not None
    found = crowd(
        gateway.bootstrap_server, topic_id.bytes, idle=scale.idle, busy=50, seconds=2, rss_bytes=gateway.rss_bytes
    )
    report.line(
        f"{found.idle} idle and {found.busy} busy connections: {found.bytes_per_connection / 1024:.0f} KiB each;"
        f" round trips in 2 s of a busy one: {found.median} ({found.least} to {found.most})"
    )


def measure_copying(
    stack: contextlib.ExitStack,
    bench: Bench,
    daemon: Daemon,
    clients: PerfClients,
    scale: Scale,
    report: Report,
) -> None:
    """No goal: the copying takes its share of the CPUs from either way."""
    stack.enter_context(daemon)
    daemon.wait_until_ready()
    clients.add_way(COPYING, daemon.settings["gateway"]["listeners"][0]["listen"])
    bench.warm_up_way(COPYING)
    before = daemon.metric("kafka_remote_copy_bytes_total")
    ways = bench.windows((DIRECT, COPYING), scale.copying_rounds)
    copied = daemon.metric("kafka_remote_copy_bytes_total") - before
    report.line(
        f"while {copied / 2**20:.0f} MiB are copied at up to {COPY_MIB_PER_S} MiB/s by the gateway's own process:"
    )
    tell(ways, report)


def main() -> int:
    parser = argparse.ArgumentParser(description="The gateway against no gateway.")
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds")
    parser.add_argument("--kafka-proxy", type=Path, metavar="PROGRAM", help="kafka-proxy's binary, to be measured too")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    report = Report()
    report.line(
        f"{scale.rounds} windows of {scale.records} records of {RECORD_BYTES} B on each way, {PARTITIONS} partitions,"
        f" {os.cpu_count()} CPUs for all; medians"
    )
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-gateway-"))
    cluster = KafkaCluster(scratch / "kafka", listeners=[Listener(name="PROXIED", security_protocol="PLAINTEXT")])
    try:
        measure(cluster, scratch, scale, report, arguments.kafka_proxy)
    finally:
        cluster.close()
        shutil.rmtree(scratch)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
