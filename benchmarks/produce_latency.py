"""What a sidecar costs the broker's clients: produce latency with it copying under quota, stopped, killed, and without any.

``benchmarks/produce_latency.py [--quick] [--nice N]``: a table and the goal; exit code 1 if missed.  One real broker and
one real sidecar, as nice as its systemd unit makes it, share this machine with the producer.  One run on one broker is cut into
short windows that take turns, so that what else the machine does meets all modes; each window gives its own p99, each mode the
median of these.  Latency counts from when a record was due: one that waits for its turn waits, too.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import asyncio  # noqa: E402
import signal  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from contextlib import ExitStack  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from enum import StrEnum  # noqa: E402
from itertools import pairwise  # noqa: E402
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
FILL_BYTES = 8 * MIB
UNIT_NICE = 5
"""As ``deploy/systemd/tiersidecar.service`` has it."""
LEAD_IN_S = 0.3
"""After each change, and not counted: waking up is not copying."""
START_UP_S = 4.0
"""What a sidecar may have copied before its first window."""


class Mode(StrEnum):
    """What is beside the broker during a window."""

    ABSENT = "no sidecar"
    COPYING = "sidecar copying under quota"
    STOPPED = "sidecar stopped (SIGSTOP)"
    KILLED = "sidecar killed a moment ago"


ROUND = (Mode.ABSENT, Mode.COPYING, Mode.STOPPED, Mode.COPYING, Mode.STOPPED, Mode.COPYING, Mode.KILLED)
"""One sidecar's life, so that each mode has its turns early and late in the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """So many rounds of windows of so many seconds, with so many records a second."""

    rounds: int
    window_s: float
    records_per_s: int = 250

    @property
    def bytes_to_copy(self) -> int:
        """More than the sidecar copies in the run, which reads back with half of the quota."""
        copying_s = START_UP_S + ROUND.count(Mode.COPYING) * self.window_s
        return int(QUOTA_BYTES_PER_S * copying_s * self.rounds * 0.8)


FULL = Scale(rounds=6, window_s=4)
QUICK = Scale(rounds=2, window_s=1.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Latencies in ms."""

    p50: float
    p99: float
    worst: float


class Bench:
    """The broker, its sidecar, and per mode what the windows gave."""

    def __init__(self, cluster: KafkaCluster, scratch: Path, scale: Scale, nice: int, report: Report) -> None:
        self._cluster, self._scale, self._report = cluster, scale, report
        self._windows: dict[Mode, list[Window]] = {mode: [] for mode in Mode}
        self._daemon = _sidecar(cluster, scratch)
        self._copied, self._nice = 0.0, nice

    async def run(self) -> None:
        async with AIOKafkaProducer(**self._cluster.client_settings, linger_ms=0, acks="all") as producer:
            await self._fill(producer, self._scale.bytes_to_copy)
            await asyncio.to_thread(os.sync)  # else the first windows pay for it
            await self._measured(producer, 1.0)  # whatever the first records alone cost
            try:
                for _ in range(self._scale.rounds):
                    for before, mode in pairwise((Mode.KILLED, *ROUND)):
                        await self._change(before, mode)
                        await self._measured(producer, LEAD_IN_S)
                        self._windows[mode].append(await self._window(producer, mode))
            finally:
                self._daemon.kill9()
        self._tell()

    async def _change(self, before: Mode, mode: Mode) -> None:
        match before, mode:
            case _, Mode.KILLED:
                self._daemon.kill9()
            case _, Mode.STOPPED:
                self._daemon.send_signal(signal.SIGSTOP)
            case Mode.STOPPED, Mode.COPYING:
                self._daemon.send_signal(signal.SIGCONT)
            case _, Mode.COPYING:
                self._daemon.start()
                os.setpriority(os.PRIO_PROCESS, self._daemon.pid, self._nice)
                await asyncio.to_thread(wait_for, lambda: self._copied_bytes() > 0, "the sidecar copies", self._daemon)

    async def _window(self, producer: AIOKafkaProducer, mode: Mode) -> Window:
        before = await asyncio.to_thread(self._copied_bytes) if mode is Mode.COPYING else 0
        found = await self._measured(producer, self._scale.window_s)
        if mode is Mode.COPYING:
            self._copied += await asyncio.to_thread(self._copied_bytes) - before
        return Window(p50=_percentile(found, 0.5), p99=_percentile(found, 0.99), worst=max(found))

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
        """Something to copy."""
        for _ in range(0, size_bytes, FILL_BYTES):
            sent = [await producer.send(TOPIC, VALUE, partition=0) for _ in range(FILL_BYTES // len(VALUE))]
            await asyncio.gather(*sent)

    def _copied_bytes(self) -> float:
        return self._daemon.metric("kafka_remote_copy_bytes_total", topic=TOPIC)

    def _tell(self) -> None:
        copying_s = len(self._windows[Mode.COPYING]) * self._scale.window_s
        rate = self._copied / copying_s / MIB
        self._report.line(
            f"copied at {rate:.2f} MiB/s; what is read back before a trim has the other half of the quota"
        )
        assert rate >= QUOTA_BYTES_PER_S / MIB / 4, "too little was copied meanwhile: this measures nothing"
        self._report.line("medians of the windows' own figures; p99 also from the lowest window to the highest")
        head = f"{'windows':>9}{'p50 ms':>8}{'p99 ms':>8}{'lowest to highest':>19}{'worst':>8}{'p99 ratio':>11}"
        self._report.line(f"{'':32}{head}")
        base = self._p99(Mode.ABSENT)
        for mode, windows in self._windows.items():
            p99, p99s = self._p99(mode), [window.p99 for window in windows]
            p50, worst = (statistics.median(of) for of in zip(*((one.p50, one.worst) for one in windows), strict=True))
            spread = f"{min(p99s):.2f} to {max(p99s):.2f}"
            self._report.line(
                f"{mode:32}{len(windows):9}{p50:8.2f}{p99:8.2f}{spread:>19}{worst:8.2f}{p99 / base:11.3f}"
            )
        ratio = self._p99(Mode.COPYING) / base
        self._report.goals.append(Goal(name="produce_p99_ratio", figure=ratio, most=1.05))

    def _p99(self, mode: Mode) -> float:
        return statistics.median(window.p99 for window in self._windows[mode])


def _sidecar(cluster: KafkaCluster, scratch: Path) -> Daemon:
    """A real one, of the real broker; killed and started again, it goes on where it was."""
    (broker,) = cluster.brokers
    home = scratch / "sidecar"
    settings = daemon_settings(
        home,
        bootstrap_servers=broker.bootstrap_server,
        log_dirs=list(broker.log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 2 * SEGMENT_BYTES}],
        **{"remote.log.manager.copy.max.bytes.per.second": QUOTA_BYTES_PER_S},
    )
    return Daemon(home, settings, roles="tier")


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--nice", type=int, default=UNIT_NICE, help="of the sidecar; 0 gives it as much of the CPU as the broker"
    )
    asked = parser.parse_args()
    scale = QUICK if asked.quick else FULL
    report = Report()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiersidecar-produce-latency-")))
        cluster = stack.enter_context(KafkaCluster(scratch / "kafka"))
        configs = {"retention.ms": "-1", "retention.bytes": "-1"}
        cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=configs)
        asyncio.run(Bench(cluster, scratch, scale, asked.nice, report).run())
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
