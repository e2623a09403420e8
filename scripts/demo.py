"""``make demo``: the main job on a real broker, from records to records, in about a minute.

Starts a broker, produces real records of every kind, starts the daemon as its own process, waits until sealed segments are
tiered and the broker's local copies are trimmed, reads the lost offsets back through the read service, and compares them
record for record.  Exit code 0 only if all of them match.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.build_cache import MissingProgramError
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_broker import forget_running_brokers
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ProducedRecord, produce_mix
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState

TOPIC, PARTITIONS = "orders", 3
PRODUCED_BYTES, SEGMENT_BYTES, LOCAL_BYTES = 96 * 1024 * 1024, 4 * 1024 * 1024, 8 * 1024 * 1024
METADATA_TOPIC = "__remote_log_metadata"

console = Console()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the summary shows."""

    segments: list[RemoteLogSegmentMetadata]
    objects: int
    tiering_s: float
    remote_only: int
    compared: int
    read_s: float
    mismatches: list[str]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--keep", action="store_true", help="leave broker and daemon running, and say how to end them")
    keep = options.parse_args().keep
    directory = Path(tempfile.mkdtemp(prefix="tiersidecar-demo-"))
    cluster = KafkaCluster(directory / "kafka")
    daemon: Daemon | None = None
    kept = False
    try:
        with console.status("starting a Kafka broker (the first time fetches its jars)"):
            cluster.start()
        daemon = _daemon(directory, cluster)
        outcome = _run(cluster, daemon)
        _show(outcome, daemon)
        kept = keep
        if keep:
            _leave_running(directory, cluster, daemon)
        return 1 if outcome.mismatches else 0
    except MissingProgramError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    finally:
        if not kept:
            if daemon is not None:
                daemon.kill9()
            cluster.close()
            shutil.rmtree(directory, ignore_errors=True)


def _daemon(directory: Path, cluster: KafkaCluster) -> Daemon:
    settings = daemon_settings(
        directory / "tiersidecar",
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster.brokers[0].log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": LOCAL_BYTES}],
    )
    return Daemon(directory / "tiersidecar", settings)


def _run(cluster: KafkaCluster, daemon: Daemon) -> Outcome:
    cluster.create_topic(
        TOPIC,
        partitions=PARTITIONS,
        segment_bytes=SEGMENT_BYTES,
        configs={"retention.ms": "-1", "retention.bytes": "-1"},
    )
    with _progress() as progress:
        produced = _produce(cluster, progress)
        daemon.start()
        daemon.wait_until_ready()
        began_s = time.monotonic()
        _wait_until_tiered(cluster, daemon, progress)
        tiering_s = time.monotonic() - began_s
        starts = _local_starts(cluster)
        began_s = time.monotonic()
        lost = [record for record in produced if record.offset < starts[record.partition]]
        mismatches = _compare(daemon, lost, starts, progress)
        read_s = time.monotonic() - began_s
    segments = in_state(
        fold(read_events(cluster.client_settings, METADATA_TOPIC)), RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    )
    return Outcome(
        segments=segments,
        objects=len(object_keys_in(daemon.store_root)),
        tiering_s=tiering_s,
        remote_only=sum(starts.values()),
        compared=len(lost),
        read_s=read_s,
        mismatches=mismatches,
    )


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description:<34}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    )


def _produce(cluster: KafkaCluster, progress: Progress) -> list[ProducedRecord]:
    task = progress.add_task("produce: 4 codecs, idempotent, aborted", total=PRODUCED_BYTES)
    produced = asyncio.run(
        produce_mix(
            cluster.client_settings,
            TOPIC,
            partitions=PARTITIONS,
            total_bytes=PRODUCED_BYTES,
            batch_bytes=128 * 1024,
            on_progress=lambda sent: progress.update(task, completed=min(sent, PRODUCED_BYTES)),
        )
    )
    progress.update(task, completed=PRODUCED_BYTES)
    return produced


def _wait_until_tiered(cluster: KafkaCluster, daemon: Daemon, progress: Progress) -> None:
    """Until nothing waits to be copied, and every partition holds no more locally than it is meant to."""
    task = progress.add_task("tier: copy, read back, trim", total=None)

    def done() -> bool:
        copied = daemon.metric("kafka_remote_copy_bytes_total", topic=TOPIC)
        progress.update(task, completed=copied)
        if copied == 0 or daemon.metric("kafka_remote_copy_lag_segments", topic=TOPIC) > 0:
            return False
        starts = _local_starts(cluster)
        return all(start > 0 for start in starts.values()) and starts == _next_local_starts(cluster)

    wait_for(done, "all sealed segments are remote and trimmed", daemon, timeout_s=120)
    copied = daemon.metric("kafka_remote_copy_bytes_total", topic=TOPIC)
    progress.update(task, completed=copied, total=copied)


def _next_local_starts(cluster: KafkaCluster) -> dict[int, int]:
    """The local starts a moment later: trimming has come to rest when they are the same."""
    time.sleep(1.0)
    return _local_starts(cluster)


def _local_starts(cluster: KafkaCluster) -> dict[int, int]:
    return {p: cluster.admin.earliest_offset(TOPIC, p) for p in range(PARTITIONS)}


def _compare(daemon: Daemon, lost: list[ProducedRecord], starts: dict[int, int], progress: Progress) -> list[str]:
    """Each lost record against what the read service gives, in both isolation levels."""
    committed = [record for record in lost if not record.aborted]
    total = sum(len(record.value or b"") for record in (*lost, *committed))
    task = progress.add_task("read back and compare", total=total)
    mismatches: list[str] = []
    for isolation in ("read_uncommitted", "read_committed"):
        for partition, stop in starts.items():
            wanted = [
                record
                for record in lost
                if record.partition == partition and not (isolation == "read_committed" and record.aborted)
            ]
            found = iter(wanted)
            for got in fetch_records(daemon.read_url, TOPIC, partition, stop=stop, isolation=isolation):
                expected = next(found, None)
                if expected is None or shape_of(expected) != got:
                    mismatches.append(f"{isolation} {TOPIC}-{partition}: expected {expected}, got {got}")
                    break
                progress.advance(task, len(expected.value or b""))
            else:
                if (missing := next(found, None)) is not None:
                    mismatches.append(f"{isolation} {TOPIC}-{partition}: {missing} was not returned")
    return mismatches


def _show(outcome: Outcome, daemon: Daemon) -> None:
    size_bytes = sum(segment.segment_size_in_bytes for segment in outcome.segments)
    table = Table(title="tiersidecar demo", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("segments tiered", str(len(outcome.segments)))
    table.add_row("bytes tiered", f"{size_bytes / 1e6:.1f} MB")
    table.add_row(
        "copied, read back, trimmed in", f"{outcome.tiering_s:.1f} s ({size_bytes / 1e6 / outcome.tiering_s:.0f} MB/s)"
    )
    table.add_row("objects in the store", str(outcome.objects))
    table.add_row("offsets that only the store still has", str(outcome.remote_only))
    table.add_row(
        "records read back and compared", f"{outcome.compared} in both isolation levels, {outcome.read_s:.1f} s"
    )
    verdict = (
        "[green]all match[/green]"
        if not outcome.mismatches
        else f"[red]{len(outcome.mismatches)} partitions differ[/red]"
    )
    table.add_row("result", verdict)
    table.add_row("where to look next", "README.md, With your own cluster; make demo KEEP=1 to look around")
    console.print(table)
    for mismatch in outcome.mismatches:
        console.print(mismatch[:2000], style="red", markup=False)


def _leave_running(directory: Path, cluster: KafkaCluster, daemon: Daemon) -> None:
    forget_running_brokers()
    pids = " ".join(str(pid) for pid in (daemon.pid, *(broker.pid for broker in cluster.brokers)))
    console.print(
        f"broker        {cluster.bootstrap_servers}\n"
        f"read service  {daemon.read_url}/topics/{TOPIC}/partitions/0/records?offset=0&limit=3\n"
        f"status        {daemon.status_url}/\n"
        f"store         {daemon.store_root}\n"
        f"configuration {daemon.config_path}\n"
        f"look          .venv/bin/tiersidecar status --config {daemon.config_path}\n"
        f"              .venv/bin/tiersidecar explain {TOPIC}/0 --config {daemon.config_path}\n"
        f"end it with   kill {pids}; rm -r {directory}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
