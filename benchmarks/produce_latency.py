"""What a sidecar costs the broker's clients: produce latency with it copying under quota, stopped, killed, and without any.

``benchmarks/produce_latency.py [--quick] [--json FILE]``: a table and the goal; exit code 1 if missed.  One real broker and one
real sidecar, with the share of the CPU that its systemd unit gives it, on one machine and one disk.

The goal's figure comes from pairs of windows in a row, in one of which the sidecar copies and in the other stands still
(SIGSTOP): the median over pairs of the ratio of their p99.  The same of windows without copying to that of the pair before is
the noise: identical windows give 0.85 to 1.14.  The figure is the one divided by the other.  That a sidecar which stands still
is like none shows in the table of the full run, whose p99 are over all requests of a condition.  The full run measures the
broker's own tiering, at the same rate, as the peer.
"""

from __future__ import annotations

import os
import sys

# Not this directory: a module of it has the name of one of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib is not there yet

import argparse  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from contextlib import contextmanager, suppress  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from enum import StrEnum  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

from benchmarks.support.foreign_cpu import ForeignCpu  # noqa: E402
from benchmarks.support.latency_windows import LatencyPair, LatencyPairs, LatencyWindows  # noqa: E402
from benchmarks.support.measure import MIB  # noqa: E402
from benchmarks.support.native_tiering import TOPIC_CONFIGS, Turns, measure_native, native_properties  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from benchmarks.support.steady_load import SteadyLoad  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
from tests.support.kafka_broker import KafkaBroker  # noqa: E402
from tests.support.kafka_cluster import KafkaCluster  # noqa: E402

TOPIC = "orders"
PARTITIONS = 4
REQUESTS_PER_S = 2000
VALUE = os.urandom(512) + bytes(512)
SEGMENT_BYTES = 16 * MIB
QUOTA_BYTES_PER_S = 16 * MIB
FILL_VALUE = os.urandom(64 * 1024)
BROKER_JVM = ("-Xms1g", "-Xmx1g", "-Xmn768m")
"""With the small heap of tests one request in a hundred waits for a collection, and p99 stands on that edge."""
BROKER_PROPERTIES = {"log.retention.check.interval.ms": "300000", "log.segment.delete.delay.ms": "60000"}
"""Kafka's defaults again, and below the sidecar's own: what is short for tests would be work for nothing here."""
SIDECAR_SETTINGS = {
    "remote.log.manager.task.interval.ms": 30_000,
    "remote.log.manager.copy.max.bytes.per.second": QUOTA_BYTES_PER_S,
}
UNIT = Path(__file__).parents[1] / "deploy" / "systemd" / "tiersidecar.service"
WARM_UP_S = 3.0
FIRST_LIFE_S = 2.0
WINDOW_S = 0.5
LEAD_IN_S = 0.1
"""After each change, and not counted: waking up is not copying."""
START_UP_S = 3.0
"""What a sidecar may have copied before its first window."""
BROKER_NICE = -10
"""Before whatever else the machine does, where that is ours to say; the sidecar keeps its distance from the broker."""


class Mode(StrEnum):
    """What is beside the broker during a window."""

    ABSENT = "no sidecar"
    COPYING = "sidecar copying under quota"
    STOPPED = "sidecar stopped (SIGSTOP)"
    KILLED = "sidecar killed a moment ago"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """So many rounds: windows without a sidecar, pairs of windows with one that stops and goes on, windows after its death."""

    rounds: int
    pairs: int
    alone: int

    @property
    def bytes_to_copy(self) -> int:
        """More than the sidecar copies in the run, which reads back with a part of the quota."""
        copying_s = START_UP_S + self.pairs * (WINDOW_S + LEAD_IN_S)
        return int(QUOTA_BYTES_PER_S * (copying_s * self.rounds + FIRST_LIFE_S + START_UP_S) * 0.8)


NATIVE = Turns(pairs=8, windows=8, window_s=WINDOW_S)
FULL = Scale(rounds=6, pairs=16, alone=8)
QUICK = Scale(rounds=1, pairs=18, alone=0)


class Bench:
    """The broker, its sidecar, and per mode what the windows gave."""

    def __init__(self, cluster: KafkaCluster, scratch: Path, scale: Scale, report: Report) -> None:
        (self._broker,) = cluster.brokers
        self._scale, self._report = scale, report
        self._found = {mode: LatencyWindows() for mode in Mode}
        self._pairs = LatencyPairs()
        self._daemon = _sidecar(cluster, scratch)
        self._copied_bytes = 0

    def run(self) -> None:
        fill(self._broker, self._scale.bytes_to_copy)
        nice = _give_nice(self._broker.pid, BROKER_NICE)
        with load_of(self._broker, VALUE, REQUESTS_PER_S) as load:
            load.run(WARM_UP_S)
            try:
                self._start(nice)  # what the broker has never been asked before costs more the first time
                load.run(FIRST_LIFE_S)
                self._daemon.kill9()
                for _ in range(self._scale.rounds):
                    self._measure_alone(Mode.ABSENT, load)
                    self._start(nice)
                    self._measure_pairs(load)
                    self._daemon.kill9()
                    self._measure_alone(Mode.KILLED, load)
            finally:
                self._daemon.kill9()
        self._tell()

    def _start(self, broker_nice: int) -> None:
        self._daemon.start()
        wait_for(lambda: self._written_bytes() > SEGMENT_BYTES, "the sidecar copies", self._daemon)
        _give_nice(self._daemon.pid, broker_nice + _nice_of_the_unit())

    def _measure_alone(self, mode: Mode, load: SteadyLoad) -> None:
        if self._scale.alone:
            load.run(LEAD_IN_S)
        self._found[mode].windows += [load.run(WINDOW_S) for _ in range(self._scale.alone)]

    def _measure_pairs(self, load: SteadyLoad) -> None:
        foreign = ForeignCpu(lambda: (self._broker.pid, self._daemon.pid, os.getpid()))
        for number in range(self._scale.pairs):
            order = (Mode.STOPPED, Mode.COPYING) if number % 2 else (Mode.COPYING, Mode.STOPPED)
            foreign.since_last()
            pair = {mode: self._measure_paired(mode, load) for mode in order}
            base, other = pair[Mode.STOPPED], pair[Mode.COPYING]
            self._pairs.pairs.append(LatencyPair(base=base, other=other, foreign_cpus=foreign.since_last()))

    def _measure_paired(self, mode: Mode, load: SteadyLoad) -> list[float]:
        self._daemon.send_signal(signal.SIGSTOP if mode is Mode.STOPPED else signal.SIGCONT)
        load.run(LEAD_IN_S)
        before_bytes = self._written_bytes()
        window = load.run(WINDOW_S)
        if mode is Mode.COPYING:
            self._copied_bytes += self._written_bytes() - before_bytes
        self._found[mode].windows.append(window)
        return window

    def _written_bytes(self) -> int:
        """What the sidecar has sent to the disk; its own metrics count whole segments."""
        lines = Path(f"/proc/{self._daemon.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["write_bytes"])

    def _tell(self) -> None:
        copying = self._found[Mode.COPYING]
        rate = self._copied_bytes / len(copying.windows) / WINDOW_S / MIB
        self._report.line(f"copied at {rate:.1f} MiB/s; what is read back before a trim has the rest of the quota")
        assert rate >= QUOTA_BYTES_PER_S / MIB / 4, "too little was copied meanwhile: this measures nothing"
        base = self._found[Mode.ABSENT if self._scale.alone else Mode.STOPPED]
        head = f"{'windows':>9}{'p50 ms':>8}{'p90 ms':>8}{'p99 ms':>8}{'p99.9 ms':>10}{'p99 ratio':>11}  nine of ten"
        self._report.line(f"{'':32}{head}")
        for mode, found in self._found.items():
            if found.windows:
                figures = "".join(f"{found.percentile(share):{width}.2f}" for share, width in _COLUMNS)
                ratio, likely = found.ratio(base, 0.99), found.likely_ratio(base, 0.99)
                self._report.line(f"{mode:32}{len(found.windows):9}{figures}{ratio:11.3f}  {likely}")
        quieter = self._pairs.quieter_half()
        for name, pairs in (("all", self._pairs), ("quieter half", quieter)):
            foreign = median(pair.foreign_cpus for pair in pairs.pairs)
            noise, likely_noise = pairs.noise(0.99)
            self._report.line(
                f"pairs, {name}: {len(pairs.pairs)} with {foreign:.2f} CPUs used by others; p99 copying to stopped "
                f"{pairs.ratio(0.99):.3f}, nine of ten {pairs.likely_ratio(0.99)}; noise {noise:.3f}, {likely_noise}"
            )
        self.ratio = self._pairs.ratio(0.99)
        of_noise, likely = self._pairs.of_noise(0.99)
        self._report.line(f"p99 copying to stopped, of the noise of the same run: {of_noise:.3f}, nine of ten {likely}")
        self._report.goals.append(Goal(name="produce_p99_of_noise", figure=of_noise, most=1.10))

    def latencies(self) -> dict[str, list[list[float]]]:
        """By mode and window, in ms."""
        return {mode: [list(window) for window in found.windows] for mode, found in self._found.items()}


def load_of(broker: KafkaBroker, value: bytes, requests_per_s: int) -> SteadyLoad:
    """Return the load on ``broker``."""
    port = int(broker.bootstrap_server.rpartition(":")[2])
    return SteadyLoad(port, TOPIC, partitions=PARTITIONS, value=value, requests_per_s=requests_per_s)


def fill(broker: KafkaBroker, size_bytes: int) -> None:
    """Something to copy; written out, else the first windows pay for it."""
    requests_per_s = 100_000  # as fast as they are taken
    with load_of(broker, FILL_VALUE, requests_per_s) as load:
        load.run(size_bytes / len(FILL_VALUE) / requests_per_s)
    os.sync()


_COLUMNS = ((0.5, 8), (0.9, 8), (0.99, 8), (0.999, 10))


def _sidecar(cluster: KafkaCluster, scratch: Path) -> Daemon:
    """A real one, of the real broker; killed and started again, it goes on where it was."""
    (broker,) = cluster.brokers
    home = scratch / "sidecar"
    settings = daemon_settings(
        home,
        bootstrap_servers=broker.bootstrap_server,
        log_dirs=list(broker.log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 2 * SEGMENT_BYTES}],
        **SIDECAR_SETTINGS,
    )
    return Daemon(home, settings, roles="tier")


def _nice_of_the_unit() -> int:
    """Which is its CPUWeight in other words."""
    return int(next(line for line in UNIT.read_text().splitlines() if line.startswith("Nice=")).removeprefix("Nice="))


def _give_nice(pid: int, nice: int) -> int:
    """To all threads, and to the group: where the kernel makes a group of each session, nice counts only within it, and the
    group has a nice of its own.  Gives what it has become: 0 where less is not allowed."""
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        with suppress(FileNotFoundError):
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except PermissionError:
        return 0
    return nice


def _go_first() -> None:
    """The clients stand for other machines: neither the broker nor the sidecar takes the CPU from them, where that is ours to
    say.  Not inherited."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="fewer pairs, and only what the goal needs: under 45 seconds"
    )
    parser.add_argument("--json", type=Path, help="write all latencies to this file")
    asked = parser.parse_args()
    report = Report()
    gc.disable()  # nothing here makes cycles, and a collection would be a latency
    with tempfile.TemporaryDirectory(prefix="tiersidecar-produce-latency-") as directory:
        scratch = Path(directory)
        with _broker(scratch / "kafka", {}, {}) as cluster:
            bench = Bench(cluster, scratch, QUICK if asked.quick else FULL, report)
            _go_first()
            bench.run()
        if asked.json is not None:
            asked.json.write_text(json.dumps(bench.latencies()))
        if not asked.quick:
            _hold_against_native(scratch, bench.ratio, report)
    return report.end()


@contextmanager
def _broker(directory: Path, properties: Mapping[str, str], topic_configs: Mapping[str, str]) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(directory, properties={**BROKER_PROPERTIES, **properties})
    cluster[1].jvm_options = BROKER_JVM
    with cluster:
        configs = {"retention.ms": "-1", "retention.bytes": "-1", **topic_configs}
        cluster.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs=configs)
        yield cluster


def _hold_against_native(scratch: Path, ratio: float, report: Report) -> None:
    """The broker's own tiering at the same rate, in a run of its own: two brokers at once would be in each other's way."""
    storage = scratch / "native-storage"
    topic_configs = {**TOPIC_CONFIGS, "local.retention.bytes": str(2 * SEGMENT_BYTES)}
    with _broker(scratch / "native-kafka", native_properties(storage), topic_configs) as cluster:
        (broker,) = cluster.brokers
        fill(broker, int(QUOTA_BYTES_PER_S * NATIVE.copying_s * 1.5))
        _give_nice(broker.pid, BROKER_NICE)
        with load_of(broker, VALUE, REQUESTS_PER_S) as load:
            load.run(WARM_UP_S)
            found = measure_native(cluster, storage, load, NATIVE, QUOTA_BYTES_PER_S)
    native, likely = found.pairs.ratio(0.99), found.pairs.likely_ratio(0.99)
    report.line(
        f"the broker's own tiering, copied at {found.rate_mib_per_s:.1f} MiB/s: p99 copying to not {native:.3f}, "
        f"nine of ten {likely}; of its noise {found.pairs.of_noise(0.99)[0]:.3f}"
    )
    assert found.rate_mib_per_s >= QUOTA_BYTES_PER_S / MIB / 4, "too little was copied meanwhile: this measures nothing"
    report.goals.append(Goal(name="produce_p99_of_native", figure=ratio / native, most=1.0))


if __name__ == "__main__":
    sys.exit(main())
