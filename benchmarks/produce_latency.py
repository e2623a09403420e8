"""What a sidecar costs the broker's clients: produce latency with it copying under quota, stopped, killed, and without any.

``benchmarks/produce_latency.py [--quick]``: a table, then the goal; exit code 1 if it is missed.  One real broker and one real
sidecar share this machine with the producer.  The modes take turns, so that what else the machine does meets all of them, and
latency counts from when a record was due: one that waits for its turn waits, too.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from contextlib import ExitStack, contextmanager  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from enum import StrEnum  # noqa: E402
from pathlib import Path  # noqa: E402

from aiokafka import AIOKafkaProducer  # noqa: E402

from benchmarks.support.measure import MIB  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402

TOPIC = "orders"
SEGMENT_BYTES = MIB
VALUE = os.urandom(2048) + bytes(2048)
QUOTA_BYTES_PER_S = 4 * MIB
COPYING_HEADROOM_S = 6.0
"""A round begins once the sidecar copies, and must not outlast what there is to copy."""


class Mode(StrEnum):
    """What is beside the broker during a round."""

    ABSENT = "no sidecar"
    COPYING = "sidecar copying under quota"
    STOPPED = "sidecar stopped (SIGSTOP)"
    KILLED = "sidecar killed a moment ago"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """``rounds`` of all ``modes``, each so long, with so many records a second."""

    rounds: int
    round_s: float
    records_per_s: int
    modes: tuple[Mode, ...]


FULL = Scale(rounds=5, round_s=10, records_per_s=250, modes=tuple(Mode))
QUICK = Scale(rounds=2, round_s=4, records_per_s=250, modes=(Mode.ABSENT, Mode.COPYING))


class Bench:
    """The broker, and per mode the latencies in ms of all its rounds."""

    def __init__(self, cluster: KafkaCluster, scratch: Path, scale: Scale, report: Report) -> None:
        self._cluster, self._scratch, self._scale, self._report = cluster, scratch, scale, report
        self._latencies_ms: dict[Mode, list[float]] = {mode: [] for mode in scale.modes}

    async def run(self) -> None:
        async with AIOKafkaProducer(**self._cluster.client_settings, linger_ms=0, acks="all") as producer:
            await self._measured(producer, 1.0)  # whatever the first records alone cost
            for number in range(self._scale.rounds):
                # Each mode is first in turn.
                for offset in range(len(self._scale.modes)):
                    mode = self._scale.modes[(number + offset) % len(self._scale.modes)]
                    await self._round(producer, mode)
        self._tell()

    async def _round(self, producer: AIOKafkaProducer, mode: Mode) -> None:
        topic_bytes = int(QUOTA_BYTES_PER_S * (self._scale.round_s + COPYING_HEADROOM_S))
        if mode is Mode.ABSENT:
            self._latencies_ms[mode] += await self._measured(producer, self._scale.round_s)
            return
        await self._fill(producer, topic_bytes)
        with self._sidecar() as daemon:
            await asyncio.to_thread(wait_for, lambda: _copied_bytes(daemon) > 0, "the sidecar copies", daemon)
            before = _copied_bytes(daemon)
            match mode:
                case Mode.STOPPED:
                    daemon.send_signal(signal.SIGSTOP)
                case Mode.KILLED:
                    daemon.kill9()
            found = await self._measured(producer, self._scale.round_s)
            if mode is Mode.COPYING:
                copied = _copied_bytes(daemon) - before
                least = QUOTA_BYTES_PER_S * self._scale.round_s / 2 - SEGMENT_BYTES
                assert copied >= least, f"only {copied} bytes were copied meanwhile: this measures nothing"
        self._latencies_ms[mode] += found

    async def _measured(self, producer: AIOKafkaProducer, seconds: float) -> list[float]:
        """Latencies in ms of records that are due at even intervals, whether earlier ones are acknowledged or not."""
        loop = asyncio.get_running_loop()
        count, began_s = int(seconds * self._scale.records_per_s), loop.time()
        found: list[float] = []

        async def one(due_s: float) -> None:
            await producer.send_and_wait(TOPIC, VALUE, partition=0)
            found.append((loop.time() - due_s) * 1000)

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                due_s = began_s + number / self._scale.records_per_s
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                tasks.create_task(one(due_s))
        return found

    async def _fill(self, producer: AIOKafkaProducer, size_bytes: int) -> None:
        """Something to copy; the next round's sidecar, another one, begins at what is there."""
        sent = [await producer.send(TOPIC, VALUE, partition=0) for _ in range(size_bytes // len(VALUE))]
        await asyncio.gather(*sent)

    @contextmanager
    def _sidecar(self) -> Iterator[Daemon]:
        """A real one, of the real broker; its state is that of the one before."""
        (broker,) = self._cluster.brokers
        home = self._scratch / "sidecar"
        settings = daemon_settings(
            home,
            bootstrap_servers=broker.bootstrap_server,
            log_dirs=list(broker.log_dirs),
            topics=[{"name": TOPIC, "local.retention.bytes": 2 * SEGMENT_BYTES}],
            **{"remote.log.manager.copy.max.bytes.per.second": QUOTA_BYTES_PER_S},
        )
        with Daemon(home, settings, roles="tier") as daemon:
            daemon.wait_until_ready()
            yield daemon

    def _tell(self) -> None:
        self._report.line(f"{'':32}{'records':>9}{'p50 ms':>9}{'p99 ms':>9}{'p99.9 ms':>10}{'p99 ratio':>11}")
        base = _percentile(self._latencies_ms[Mode.ABSENT], 0.99)
        for mode, found in self._latencies_ms.items():
            p50, p99, p999 = (_percentile(found, share) for share in (0.5, 0.99, 0.999))
            self._report.line(f"{mode:32}{len(found):9}{p50:9.2f}{p99:9.2f}{p999:10.2f}{p99 / base:11.3f}")
        ratio = _percentile(self._latencies_ms[Mode.COPYING], 0.99) / base
        self._report.goals.append(Goal(name="produce_p99_ratio", figure=ratio, most=1.05))


def _copied_bytes(daemon: Daemon) -> float:
    return daemon.metric("kafka_remote_copy_bytes_total", topic=TOPIC)


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    scale = QUICK if parser.parse_args().quick else FULL
    report = Report()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiersidecar-produce-latency-")))
        cluster = stack.enter_context(KafkaCluster(scratch / "kafka"))
        configs = {"retention.ms": "-1", "retention.bytes": "-1"}
        cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=configs)
        asyncio.run(Bench(cluster, scratch, scale, report).run())
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
