"""What a sidecar costs the broker's clients: produce latency with it copying under quota, stopped, killed, and without any.

``benchmarks/produce_latency.py [--quick] [--json FILE]``: a table and the goal; exit code 1 if missed.  One real broker and one
real sidecar, with the share of the CPU that its systemd unit gives it, on one machine and one disk.  The run is cut into short
windows; no sidecar and a copying one take turns, so that what else the machine does meets both.  p99 is over all requests of a
condition, and its ratio comes with an interval; what the same sum gives for two halves of the windows without a sidecar is the
noise below which nothing can be told.
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
from contextlib import ExitStack, suppress  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from enum import StrEnum  # noqa: E402
from pathlib import Path  # noqa: E402

from benchmarks.support.latency_windows import LatencyWindows  # noqa: E402
from benchmarks.support.measure import MIB  # noqa: E402
from benchmarks.support.report import Goal, Report  # noqa: E402
from benchmarks.support.steady_load import SteadyLoad  # noqa: E402
from tests.support.daemon import Daemon, daemon_settings, wait_for  # noqa: E402
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
LEAD_IN_S = 0.3
"""After each change, and not counted: waking up is not copying."""
START_UP_S = 3.0
"""What a sidecar may have copied before its first window."""


class Mode(StrEnum):
    """What is beside the broker during a window."""

    ABSENT = "no sidecar"
    COPYING = "sidecar copying under quota"
    STOPPED = "sidecar stopped (SIGSTOP)"
    KILLED = "sidecar killed a moment ago"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """So many rounds, each of so many windows of a mode in a row."""

    rounds: int
    windows: tuple[tuple[Mode, int], ...]

    @property
    def bytes_to_copy(self) -> int:
        """More than the sidecar copies in the run, which reads back with a part of the quota."""
        copying_s = START_UP_S + dict(self.windows)[Mode.COPYING] * WINDOW_S
        return int(QUOTA_BYTES_PER_S * copying_s * (self.rounds + 1) * 0.8)


FULL = Scale(rounds=10, windows=((Mode.ABSENT, 8), (Mode.COPYING, 8), (Mode.STOPPED, 3), (Mode.KILLED, 3)))
QUICK = Scale(rounds=3, windows=((Mode.ABSENT, 6), (Mode.COPYING, 6)))


class Bench:
    """The broker, its sidecar, and per mode what the windows gave."""

    def __init__(self, cluster: KafkaCluster, scratch: Path, scale: Scale, report: Report) -> None:
        (self._broker,) = cluster.brokers
        self._scale, self._report = scale, report
        self._found = {mode: LatencyWindows() for mode, _ in scale.windows}
        self._daemon = _sidecar(cluster, scratch)
        self._copied_bytes = 0

    def run(self) -> None:
        self._fill(self._scale.bytes_to_copy)
        with self._load(VALUE, REQUESTS_PER_S) as load:
            load.run(WARM_UP_S)
            try:
                self._change(Mode.COPYING)  # what the broker has never been asked before costs more the first time
                load.run(FIRST_LIFE_S)
                self._daemon.kill9()
                for _ in range(self._scale.rounds):
                    for mode, windows in self._scale.windows:
                        self._change(mode)
                        load.run(LEAD_IN_S)
                        before_bytes = self._written_bytes(mode)
                        for _ in range(windows):
                            self._found[mode].windows.append(load.run(WINDOW_S))
                        self._copied_bytes += self._written_bytes(mode) - before_bytes
                    self._daemon.kill9()
            finally:
                self._daemon.kill9()
        self._tell()

    def _change(self, mode: Mode) -> None:
        match mode:
            case Mode.ABSENT:
                pass
            case Mode.COPYING:
                self._daemon.start()
                wait_for(lambda: self._written_bytes(mode) > SEGMENT_BYTES, "the sidecar copies", self._daemon)
                _give_weight_of_the_unit(self._daemon.pid)
            case Mode.STOPPED:
                self._daemon.send_signal(signal.SIGSTOP)
            case Mode.KILLED:
                self._daemon.kill9()

    def _written_bytes(self, mode: Mode) -> int:
        """What the sidecar has sent to the disk; its own metrics count whole segments."""
        if mode is not Mode.COPYING:
            return 0
        lines = Path(f"/proc/{self._daemon.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["write_bytes"])

    def _load(self, value: bytes, requests_per_s: int) -> SteadyLoad:
        port = int(self._broker.bootstrap_server.rpartition(":")[2])
        return SteadyLoad(port, TOPIC, partitions=PARTITIONS, value=value, requests_per_s=requests_per_s)

    def _fill(self, size_bytes: int) -> None:
        """Something to copy; written out, else the first windows pay for it."""
        requests_per_s = 100_000  # as fast as they are taken
        with self._load(FILL_VALUE, requests_per_s) as load:
            load.run(size_bytes / len(FILL_VALUE) / requests_per_s)
        os.sync()

    def _tell(self) -> None:
        copying, absent = self._found[Mode.COPYING], self._found[Mode.ABSENT]
        rate = self._copied_bytes / len(copying.windows) / WINDOW_S / MIB
        self._report.line(f"copied at {rate:.1f} MiB/s; what is read back before a trim has the rest of the quota")
        assert rate >= QUOTA_BYTES_PER_S / MIB / 4, "too little was copied meanwhile: this measures nothing"
        head = f"{'windows':>9}{'p50 ms':>8}{'p90 ms':>8}{'p99 ms':>8}{'p99.9 ms':>10}{'p99 ratio':>11}  nine of ten"
        self._report.line(f"{'':32}{head}")
        for mode, found in self._found.items():
            figures = "".join(f"{found.percentile(share):{width}.2f}" for share, width in _COLUMNS)
            ratio, likely = found.ratio(absent, 0.99), found.likely_ratio(absent, 0.99)
            self._report.line(f"{mode:32}{len(found.windows):9}{figures}{ratio:11.3f}  {likely}")
        odd, even = absent.halves()
        noise = odd.likely_ratio(even, 0.99)
        self._report.line(f"noise: no sidecar against no sidecar {odd.ratio(even, 0.99):.3f}, nine of ten {noise}")
        ratio = copying.ratio(absent, 0.99)
        self._report.goals.append(Goal(name="produce_p99_ratio", figure=ratio, most=1.05))

    def latencies(self) -> dict[str, list[list[float]]]:
        """By mode and window, in ms."""
        return {mode: [list(window) for window in found.windows] for mode, found in self._found.items()}


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


def _give_weight_of_the_unit(pid: int) -> None:
    """Its Nice, which is its CPUWeight in other words.  Where the kernel makes a group of each session, nice counts only within
    it, and the group has a nice of its own."""
    nice = int(next(line for line in UNIT.read_text().splitlines() if line.startswith("Nice=")).removeprefix("Nice="))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
    with suppress(FileNotFoundError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _go_first() -> None:
    """The clients stand for other machines: neither the broker nor the sidecar takes the CPU from them, where that is ours to
    say.  Not inherited."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, and only what the goal needs: under 45 seconds"
    )
    parser.add_argument("--json", type=Path, help="write all latencies to this file")
    asked = parser.parse_args()
    report = Report()
    gc.disable()  # nothing here makes cycles, and a collection would be a latency
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiersidecar-produce-latency-")))
        cluster = KafkaCluster(scratch / "kafka", properties=BROKER_PROPERTIES)
        cluster[1].jvm_options = BROKER_JVM
        stack.enter_context(cluster)
        configs = {"retention.ms": "-1", "retention.bytes": "-1"}
        cluster.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs=configs)
        bench = Bench(cluster, scratch, QUICK if asked.quick else FULL, report)
        _go_first()
        bench.run()
        if asked.json is not None:
            asked.json.write_text(json.dumps(bench.latencies()))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
