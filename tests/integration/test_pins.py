"""Pins beside a real broker: it starts over them, and what it deletes while the store is away is not lost."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.test_daemon import (
    SEGMENT_BYTES,
    STRICT,
    active_base,
    assert_every_sealed_segment_once,
    finished,
    produce,
    started,
    wait_until_trimmed,
)
from tests.support.daemon import Daemon, wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord
from tests.support.read_service import fetch_records, shape_of
from tiersidecar.adapters.clock import SystemClock, ThreadBlocking
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.adapters.log_dirs_fs.segment_file import read_segment_artefacts
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.domain.segments import Pin

pytestmark = pytest.mark.broker

T = TypeVar("T")
RACE = {"retention.ms": "3000", "segment.ms": "600000", "file.delete.delay.ms": "2000"}


def link_nowhere_beside(source: str, target: str) -> None:
    """As where the log dir is the root of its mount."""
    if ".tiersidecar-pins/" in target:
        raise OSError(errno.EXDEV, "Invalid cross-device link", source, None, target)
    os.link(source, target)


def with_pins(
    log_dir: Path,
    link: Callable[[str, str], None],
    work: Callable[[FilesystemPins, FilesystemLogDirs], Coroutine[Any, Any, T]],
) -> T:
    async def run() -> T:
        async with ThreadBlocking(max_threads=4) as blocking:
            log_dirs = FilesystemLogDirs([str(log_dir)], blocking=blocking, clock=SystemClock())
            pins = FilesystemPins([str(log_dir)], blocking=blocking, link=link)
            assert await pins.prepare() == {}
            return await work(pins, log_dirs)

    return asyncio.run(run())


async def pin_everything(pins: FilesystemPins, log_dirs: FilesystemLogDirs) -> tuple[Pin, ...]:
    for local in (await log_dirs.scan()).partitions.values():
        for segment in local.sealed_segments:
            await pins.pin(local, segment)
    return (await pins.scan(sweep=True)).pins


async def read_pins(pins: FilesystemPins, log_dirs: FilesystemLogDirs) -> tuple[Pin, ...]:
    return (await pins.scan(sweep=True)).pins


def contents(pin: Pin) -> tuple[bytes, object]:
    return Path(pin.segment.log_path).read_bytes(), read_segment_artefacts(pin.segment)


@pytest.mark.parametrize("link", [pytest.param(os.link, id="beside"), pytest.param(link_nowhere_beside, id="inside")])
def test_a_broker_starts_over_pins_and_deletes_beside_them(
    kafka_cluster: Any, link: Callable[[str, str], None]
) -> None:
    """After a clean stop and after kill -9, with pins of live and of deleted segments."""
    cluster: KafkaCluster = kafka_cluster()
    broker, topic = cluster.brokers[0], "pinned"
    (log_dir,) = broker.log_dirs
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs={"retention.ms": "-1"})
    produce(cluster, topic, total_bytes=600_000)
    pins = with_pins(log_dir, link, pin_everything)
    expected = {pin.base_offset: contents(pin) for pin in pins}
    assert len(expected) > 5
    place = log_dir if link is link_nowhere_beside else Path(f"{log_dir}.tiersidecar-pins")
    assert {pin.segment.directory for pin in pins} == {str(place)}
    names = {path.name for path in place.glob("tiersidecar-pin.*")}

    broker.restart()
    broker.kill9()
    broker.start()
    wait_until(lambda: earliest_offset(cluster, topic) == 0, "the log is whole", timeout_s=30)
    produce(cluster, topic, total_bytes=100_000, seed=1)
    cluster.admin.alter_topic(topic, {"retention.ms": "1", "file.delete.delay.ms": "0"})
    wait_until(lambda: earliest_offset(cluster, topic) > max(expected), "retention deletes", timeout_s=30)
    broker.restart()
    broker.kill9()
    broker.start()

    assert {path.name for path in place.glob("tiersidecar-pin.*")} == names
    found = with_pins(log_dir, link, read_pins)
    assert {pin.base_offset: contents(pin) for pin in found} == expected
    log = broker.log_path.read_text()
    assert "tiersidecar" not in log, "the broker takes no notice"


def earliest_offset(cluster: KafkaCluster, topic: str) -> int:
    """-1 while the partition has no leader, as right after a start."""
    try:
        return cluster.admin.earliest_offset(topic, 0)
    except KafkaAdminError:
        return -1


def outage(daemon: Daemon) -> Callable[[], None]:
    """Take the store away; the answer brings it back."""
    root = daemon.store_root
    away = root.rename(root.with_name("away"))

    def bring_back() -> None:
        away.rename(root)

    return bring_back


def readable(daemon: Daemon, topic: str, produced: list[ProducedRecord], stop: int) -> bool:
    found = list(fetch_records(daemon.read_url, topic, 0, stop=stop))
    return found == [shape_of(record) for record in produced if record.offset < stop]


async def assert_waits_at_the_start(gateway: GatewayDaemon, topic: str) -> None:
    """U7: a reader of what only pins have is not sent away by a gateway in a process of its own."""
    start = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(**gateway.client_settings, auto_offset_reset="none") as consumer:
        consumer.assign([start])
        consumer.seek(start, 0)
        async with asyncio.timeout(patient_s(60)):
            while gateway.metric("tiersidecar_gateway_out_of_range_total", outcome="retry") < 2:
                assert await consumer.getmany(start, timeout_ms=300) == {}
    assert gateway.metric("tiersidecar_gateway_out_of_range_total", outcome="stands") == 0


def test_what_the_broker_deletes_while_the_store_is_away_is_not_lost(kafka_cluster: Any, tmp_path: Path) -> None:
    """Issue: pins hold in an outage, and after it every offset from the first is readable.

    In race mode the broker's own retention takes everything, the active segment too, which it rolls and renames in one
    step; the daemon is killed and started again meanwhile, and so is the broker."""
    cluster: KafkaCluster = kafka_cluster()
    broker, topic = cluster.brokers[0], "outage"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=RACE)
    rule = {"mode": "race", "local.retention.ms": 3000}
    daemon = started(tmp_path, cluster, topic, rule=rule)
    bring_back = outage(daemon)
    with daemon:
        wait_for(lambda: daemon.metric("tiersidecar_metadata_ready") == 1, "the metadata is ready", daemon)
        wait_for(lambda: daemon.events("store.not_writable"), "the store is away", daemon)
        produced = produce(cluster, topic, total_bytes=800_000)
        stop = produced[-1].offset + 1
        wait_for(lambda: active_base(cluster, topic) >= stop, "retention has taken everything", daemon)
        end = active_base(cluster, topic)
        wait_for(lambda: daemon.metric("tiersidecar_pins_bytes") > 500_000, "only pins keep it", daemon)
        assert finished(cluster, daemon) == []
        # Its own store is empty, as nothing is remote yet.
        with GatewayDaemon(tmp_path / "gateway", broker, topics=[{"name": topic, **rule}]) as gateway:
            gateway.wait_until_ready()
            asyncio.run(assert_waits_at_the_start(gateway, topic))

        daemon.kill9()
        broker.restart()
        daemon.start()
        wait_for(lambda: daemon.metric("tiersidecar_pins_bytes") > 500_000, "the pins are found again", daemon)

        bring_back()
        wait_for(
            lambda: (segments := finished(cluster, daemon)) and segments[-1].next_offset >= end, "all is copied", daemon
        )
        segments = finished(cluster, daemon)
        assert segments[0].start_offset == 0
        for before, after in pairwise(segments):
            assert after.start_offset == before.next_offset
        wait_for(lambda: readable(daemon, topic, produced, stop), "every offset from the first is readable", daemon)
        wait_for(lambda: daemon.metric("tiersidecar_pins_segments") == 0, "no pin is left", daemon)
        assert daemon.metric("tiersidecar_pins_dropped_total", reason="remote") > 0
        assert list(Path(f"{broker.log_dirs[0]}.tiersidecar-pins").iterdir()) == []


def test_followers_pin_and_the_next_leader_copies(kafka_cluster: Any, tmp_path: Path) -> None:
    """The old leader dies with the only pins of its own; its follower's hold the same offsets (S-049, S-053)."""
    pinned = Pinned(kafka_cluster(brokers=3), tmp_path)
    with pinned.daemon:
        pinned.produce()
        pinned.delete_by_retention()
        pinned.lead_and_copy()


@pytest.mark.parametrize("deletes", ["before", "after"])
def test_a_follower_that_is_built_anew_keeps_its_pins(kafka_cluster: Any, tmp_path: Path, deletes: str) -> None:
    """Its directory is lost.  The leader deletes before it has fetched anything, so that only the pins hold it; or after, and
    the pins are of its new files by then (simulation, losses seed 70021)."""
    pinned = Pinned(kafka_cluster(brokers=3), tmp_path)
    with pinned.daemon:
        pinned.produce()
        before = pinned.inodes()
        pinned.follower.stop()
        shutil.rmtree(pinned.follower.partition_dir(pinned.topic, 0))
        if deletes == "before":
            pinned.delete_by_retention()
            wait_until(lambda: pinned.leaders_start() >= pinned.sealed, "the leader has deleted it", timeout_s=30)
            pinned.wait_until_only_pins_keep_it()
            # Else the new log begins at 0 for a moment only, before the leader has said where its own begins.
            pinned.leader.sigstop()
            pinned.follower.start()
            wait_for(pinned.is_at_zero, "the sidecar has seen the new log", pinned.daemon)
            pinned.leader.sigcont()
        else:
            pinned.follower.start()
        wait_until(pinned.is_in_sync, "it is built anew", timeout_s=60)
        if deletes == "before":
            assert pinned.inodes() == before
        else:
            wait_for(pinned.are_of_new_files, "each pin is of a file that the broker has now", pinned.daemon)
            assert pinned.inodes().isdisjoint(before)
            pinned.delete_by_retention()
        assert pinned.daemon.metric("tiersidecar_pins_dropped_total", reason="truncated") == 0
        pinned.lead_and_copy()


_SEEN_AFTER_S = 6.0
"""More than a round of the pin keeper, and many looks."""


class Pinned:
    """A topic of two replicas, and a sidecar beside the one that follows, whose store is away."""

    topic = "followed"

    def __init__(self, cluster: KafkaCluster, directory: Path) -> None:
        self.cluster = cluster
        cluster.create_topic(
            self.topic, replication_factor=2, segment_bytes=SEGMENT_BYTES, configs={**RACE, "retention.ms": "-1"}
        )
        self.leader = cluster.leader_of(self.topic, 0)
        nodes = cluster.admin.describe_topic(self.topic).partitions[0].replica_nodes
        (self.follower,) = (cluster[node] for node in nodes if node != self.leader.node_id)
        settings = {"remote.log.metadata.topic.replication.factor": 3}
        self.daemon = started(
            directory, cluster, self.topic, rule={"mode": "race", "local.retention.ms": 3000}, **settings
        )
        self.daemon.settings["log.dirs"] = [str(self.follower.log_dirs[0])]
        self.daemon.settings["broker"] = {"bootstrap.servers": self.follower.bootstrap_server}
        self._bring_back = outage(self.daemon)
        self.produced: list[ProducedRecord] = []
        self.sealed = 0
        self._at_zero_since_s = math.inf

    def produce(self) -> None:
        wait_for(lambda: self.daemon.events("store.not_writable"), "the store is away", self.daemon)
        self.produced = produce(self.cluster, self.topic, total_bytes=1_000_000)
        self.sealed = max(int(log.stem) for log in self.follower.partition_dir(self.topic, 0).glob("*.log"))
        wait_for(
            lambda: are_pinned_below(self.follower, self.topic, self.sealed),
            "the follower pins all that is sealed, once the broker has written the high watermark down, and down again",
            self.daemon,
        )

    def delete_by_retention(self) -> None:
        self.cluster.admin.alter_topic(self.topic, {"retention.ms": RACE["retention.ms"]})

    def wait_until_only_pins_keep_it(self) -> None:
        wait_for(lambda: self.daemon.metric("tiersidecar_pins_bytes") > 500_000, "only pins keep it", self.daemon)

    def is_at_zero(self) -> bool:
        """Whether the sidecar has seen a directory that begins below the pins, which it looks at several times in a second; and
        counts them as all that keeps their bytes."""
        logs = [log.name for log in self.follower.partition_dir(self.topic, 0).glob("*.log")]
        if len(logs) != 1:
            self._at_zero_since_s = math.inf
            return False
        self._at_zero_since_s = min(self._at_zero_since_s, time.monotonic())
        is_seen = time.monotonic() - self._at_zero_since_s > _SEEN_AFTER_S
        return is_seen and self.daemon.metric("tiersidecar_pins_bytes") > 500_000

    def lead_and_copy(self) -> None:
        """All up to ``sealed`` is copied and read, though only the follower's pins keep it."""
        self.wait_until_only_pins_keep_it()
        self.leader.kill9()
        wait_until(lambda: self.cluster.leader_of(self.topic, 0) is self.follower, "the follower leads", timeout_s=30)
        self._bring_back()
        wait_for(lambda: copied_until(self.daemon) >= self.sealed, "all is copied, from the first offset", self.daemon)
        wait_for(
            lambda: readable(self.daemon, self.topic, self.produced, self.sealed),
            "every offset from the first is readable",
            self.daemon,
        )

    def leaders_start(self) -> int:
        return self.cluster.admin_of_leader(self.topic, 0).earliest_offset(self.topic, 0)

    def is_in_sync(self) -> bool:
        (partition,) = self.cluster.admin.describe_topic(self.topic).partitions
        return self.follower.node_id in partition.isr_nodes

    def inodes(self) -> set[int]:
        """Of the .log files that are pinned below ``sealed``."""
        pins = Path(f"{self.follower.log_dirs[0]}.tiersidecar-pins").glob("*.log")
        return {pin.stat().st_ino for pin in pins if int(pin.stem.rpartition(".")[2]) < self.sealed}

    def are_of_new_files(self) -> bool:
        logs = self.follower.partition_dir(self.topic, 0).glob("*.log")
        return self.inodes() == {log.stat().st_ino for log in logs if int(log.stem) < self.sealed}


@pytest.mark.parametrize("place", ["pin.made", "pin.dropped"])
def test_killed_between_pins(kafka_cluster: Any, tmp_path: Path, place: str) -> None:
    """kill -9 in the middle of pinning and of unpinning: everything is copied once, and no pin stays behind."""
    cluster: KafkaCluster = kafka_cluster()
    topic = "crash"
    cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = produce(cluster, topic, total_bytes=600_000)
    daemon = started(tmp_path, cluster, topic)
    daemon.failpoints = f"{place}=kill@3"
    with daemon:
        assert daemon.wait_for_exit() == -9, daemon.log_tail()
        daemon.failpoints = ""
        daemon.start()
        stop = wait_until_trimmed(cluster, daemon, topic)
        assert_every_sealed_segment_once(cluster, daemon, topic)
        wait_for(lambda: readable(daemon, topic, produced, stop), "all is readable", daemon)
        pins = Path(f"{cluster.brokers[0].log_dirs[0]}.tiersidecar-pins")
        wait_for(lambda: not list(pins.iterdir()), "no pin stays", daemon)


def are_pinned_below(broker: KafkaBroker, topic: str, offset: int) -> bool:
    """Whether every segment of the directory that begins below ``offset`` is pinned: a high watermark that the broker wrote
    down in the middle of the produce lets only some of them be pinned."""
    segments = {int(log.stem) for log in broker.partition_dir(topic, 0).glob("*.log")}
    pins = Path(f"{broker.log_dirs[0]}.tiersidecar-pins").glob("*.log")
    return {base for base in segments if base < offset} <= {int(log.stem.rpartition(".")[2]) for log in pins}


def copied_until(daemon: Daemon) -> int:
    """The offset after those that the daemon says it has copied from 0 on, without a hole."""
    next_offset = 0
    for event in daemon.events("segment.copy.finished"):
        assert event["start_offset"] == next_offset
        next_offset = event["end_offset"] + 1
    return next_offset
