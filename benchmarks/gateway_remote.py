"""Reading what is remote through the gateway, against reading the same from the broker's own disk.

``benchmarks/gateway_remote.py [--quick]``: a table, then the goal; exit code 1 if it is missed.  Kafka's own perf consumer
reads one partition directly while all of it is local, then the same records through a gateway process of its own once
they are in the store (a directory) and gone from the broker, all but the active segment.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import shutil  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402
from tests.support.loopback_ports import free_port  # noqa: E402

TOPIC = "tiered"
RECORD_BYTES = 1024
SEGMENT_BYTES = 16 * 1024 * 1024


def produce(cluster: KafkaCluster, records: int) -> None:
    cluster.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", TOPIC, "--num-records", str(records), "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap_servers}", "acks=all", "batch.size=65536"),
        timeout_s=300,
    )


def consume_mb_per_s(cluster: KafkaCluster, servers: str, group: str, records: int) -> float:
    """MiB/s of fetching, without the joining of the group."""
    told = cluster.run_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", servers, "--topic", TOPIC, "--group", group),
        *("--num-records", str(records), "--timeout", "60000"),
        timeout_s=300,
    ).stdout
    return float(told.splitlines()[-1].split(", ")[8])


def measure(cluster: KafkaCluster, scratch: Path, records: int, rounds: int, report: Report) -> None:
    configs = {"retention.ms": "-1", "retention.bytes": "-1"}
    cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=configs)
    produce(cluster, records)
    local = [consume_mb_per_s(cluster, cluster.bootstrap_servers, f"local-{n}", records) for n in range(rounds)]
    port = free_port()
    settings = daemon_settings(
        scratch / "sidecar",
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster[1].log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 1}],
        gateway={"listeners": [{"listen": f"127.0.0.1:{port}"}]},
    )
    beside = {**settings, "status": {"listen": f"127.0.0.1:{free_port()}"}}
    with Daemon(scratch / "sidecar", settings, roles="tier") as tier:
        tier.wait_until_ready()
        active = max(int(log.stem) for log in cluster[1].partition_dir(TOPIC, 0).glob("*.log"))
        wait_for(lambda: cluster.admin.earliest_offset(TOPIC, 0) == active, "trimmed", tier, timeout_s=300)
        with Daemon(scratch / "gateway", beside, roles="gateway") as gateway:
            gateway.wait_until_ready()
            servers = f"127.0.0.1:{port}"
            remote = [consume_mb_per_s(cluster, servers, f"remote-{n}", records) for n in range(rounds)]
            filled = gateway.metric("tiersidecar_gateway_filled_bytes_total")
    assert filled >= rounds * active * RECORD_BYTES, "what was read was remote"
    report.line(f"local, direct            {median(local):8.0f} MiB/s")
    report.line(f"remote, by the gateway   {median(remote):8.0f} MiB/s")
    report.goals.append(Goal(name="remote_of_local_direct", figure=median(remote) / median(local), least=0.9))


def main() -> int:
    parser = argparse.ArgumentParser(description="Remote data through the gateway against local data directly.")
    parser.add_argument("--quick", action="store_true", help="less data, one round")
    records, rounds = (100_000, 1) if parser.parse_args().quick else (500_000, 3)
    report = Report()
    report.line(f"{records} records of {RECORD_BYTES} B, segments of 16 MiB, {os.cpu_count()} CPUs for all")
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-gateway-remote-"))
    try:
        with KafkaCluster(scratch / "kafka") as cluster:
            measure(cluster, scratch, records, rounds, report)
    finally:
        shutil.rmtree(scratch)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
