"""A cluster for the page to show: several status services on loopback, each with what its sidecar would report."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.expiry import segments
from tests.support.inline_blocking import InlineBlocking
from tests.support.loopback_ports import free_port
from tests.unit.decide.test_explain import Given
from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.decide.explain import Explanation, Stops, explain
from tiersidecar.decide.segment_rows import PartitionView, SegmentRow, segment_rows
from tiersidecar.domain.errors import NotLedHereError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.metrics.copying import COPY_BYTES, COPY_LAG_BYTES
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS, GATEWAY_FILLED_BYTES, GATEWAY_UNMAPPED_BROKERS
from tiersidecar.ports.metrics.process import RECONCILE_AGE, RECONCILE_FINDINGS
from tiersidecar.ports.metrics.reading import FETCH_BYTES
from tiersidecar.reading.reader_limits import ColdReading
from tiersidecar.services.http_listener import HttpServer
from tiersidecar.services.status.access import Secrets
from tiersidecar.services.status.history import INTERVAL_MS, POINTS, History
from tiersidecar.services.status.server import serve_status
from tiersidecar.services.status.source import DiskStatus, PartitionStatus, SidecarStatus, StatusSummary, TierBytes

GIB = 1024**3
VERSION = "0.9.0"


@dataclass
class ShownSidecar:
    """Implements StatusSource with what it is given."""

    node_id: int
    summary_: StatusSummary
    rows: list[PartitionStatus] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    leases: list[SidecarStatus] = field(default_factory=list)
    view: PartitionView | None = None
    telemetry: PrometheusTelemetry = field(default_factory=lambda: PrometheusTelemetry(version=VERSION))
    asked: int = 0

    def ready_reasons(self) -> Sequence[str]:
        return self.reasons

    def partitions(self, topic: str | None = None) -> Iterator[PartitionStatus]:
        self.asked += 1
        return (row for row in self.rows if topic is None or row.topic_id_partition.topic == topic)

    def summary(self) -> StatusSummary:
        return self.summary_

    def sidecars(self) -> Sequence[SidecarStatus]:
        return self.leases

    async def segment_rows(self, topic: str, partition: int) -> Sequence[SegmentRow]:
        return segment_rows(self._view(topic, partition))

    async def explanation(self, topic: str, partition: int, offset: int | None) -> Explanation:
        return explain(self._view(topic, partition), Stops(), offset)

    def _view(self, topic: str, partition: int) -> PartitionView:
        if self.view is None:
            raise NotLedHereError(topic=topic, partition=partition, leader_id=-1)
        return self.view


def partition(topic: str, number: int, role: str = "leader", **values: Any) -> PartitionStatus:
    """Return a row; a follower has no lag."""
    topic_id_partition = TopicIdPartition(topic_id=Uuid(bytes(15) + b"\x07"), topic=topic, partition=number)
    if role != "leader":
        values |= {"copy_lag_bytes": None, "copy_lag_segments": None}
    return PartitionStatus(topic_id_partition=topic_id_partition, role=role, mode="strict", **values)


def sidecar(node_id: int, **values: Any) -> ShownSidecar:
    """Return one that is well; ``values`` are of its summary."""
    disk = DiskStatus(
        log_dirs=("/var/lib/kafka/data",),
        size_bytes=1800 * GIB,
        free_bytes=(500 + 90 * node_id) * GIB,
        seconds_to_full=None if node_id == 2 else 86_400 * 12 + node_id * 7000,
        state="ok",
    )
    summary = StatusSummary(
        version=VERSION,
        core="native 1",
        roles=("gateway", "read", "tier"),
        mode="enforce",
        deletes_enabled=True,
        store="s3 bucket tier-archive, prefix prod/, https://s3.eu-central-1.example",
        started_ms=1_790_000_000_000 + node_id * 100_000_000,
        cluster_id="J1yTu0WkQ8mHsaFjm2fQ0w",
        node_id=node_id,
        disks=[disk],
    )
    view = Given(remote=segments(40), local=(3000, *range(3100, 4300, 100)), log_start=3000).view
    return ShownSidecar(node_id=node_id, summary_=replace(summary, **values), view=view)


def empty_cluster() -> list[ShownSidecar]:
    """Return three sidecars without a topic."""
    return [sidecar(node_id) for node_id in (1, 2, 3)]


def busy_cluster(topics: int = 9, partitions: int = 12) -> list[ShownSidecar]:
    """Return topics of all kinds, and an hour of copying and reading."""
    cluster = [sidecar(node_id) for node_id in (1, 2, 3)]
    names = (
        "orders",
        "payments",
        "clickstream.web",
        "clickstream.app",
        "audit-log",
        "inventory",
        "shipments",
        "iot.telemetry",
    )
    for number in range(topics):
        topic = names[number] if number < len(names) else f"customer-profile-changelog.v{number}"
        for index in range(partitions):
            leader = (number + index) % 3
            for node, one in enumerate(cluster):
                one.rows.append(_busy_row(topic, number, index, leads=node == leader))
    for number, one in enumerate(cluster):
        reading = ColdReading(
            principal="User:reports",
            client_id=f"nightly-{number}",
            topic="audit-log",
            requests=412,
            size_bytes=21 * GIB,
        )
        one.summary_ = replace(one.summary_, cold_readers=[reading])
        one.telemetry.gauge(RECONCILE_AGE, 5 * 3600)
        one.telemetry.gauge(RECONCILE_FINDINGS, 0, kind="missing-object")
        one.telemetry.gauge(GATEWAY_CONNECTIONS, 180 + 37 * number, listener="public")
        one.telemetry.gauge(GATEWAY_UNMAPPED_BROKERS, 0, listener="public")
    return cluster


def broken_cluster() -> list[ShownSidecar]:
    """Return a cluster with as many kinds of trouble as there are; the address of the third leads nowhere."""
    first, second, third = busy_cluster()
    full = DiskStatus(
        log_dirs=("/data1", "/data2"),
        size_bytes=1800 * GIB,
        free_bytes=60 * GIB,
        seconds_to_full=5_400,
        state="below_reserve",
    )
    first.rows[0] = replace(
        first.rows[0],
        halted_reason="segment 00000000000004194304.log is corrupt: the batch at 4195102 has CRC 0x7d21, must be 0x11ae",
    )
    first.rows[12] = replace(
        first.rows[12], held_back_reason="group billing has read up to 1048576, which is before 2097152"
    )
    first.summary_ = replace(
        first.summary_,
        disks=[full],
        disk_troubles={
            "/data1, /data2": "less than disk.reserve (10 %) is free; full in 1h 30m at the rate of the last half hour"
        },
        refused_topics={"user-sessions": "cleanup.policy is compact: compacted topics are not tiered"},
        paused=["trimming of orders is paused by ada since 2026-11-24T09:12:00Z: disk is being replaced"],
        deletes_blocked="broker 3 has no sidecar of this version that has renewed its lease",
    )
    second.reasons = ["waiting for the broker at 10.0.0.2:9092", "the metadata topic has been read to 81 %"]
    second.summary_ = replace(
        second.summary_, version="0.8.2", untrimmable_topics={"payments": "retention.ms is 604800000, must be -1"}
    )
    second.telemetry.gauge(GATEWAY_UNMAPPED_BROKERS, 2, listener="public")
    for one in (first, second):
        one.telemetry.gauge(RECONCILE_AGE, 9 * 86_400)
        one.telemetry.gauge(RECONCILE_FINDINGS, 3, kind="missing-object")
        one.telemetry.gauge(RECONCILE_FINDINGS, 128, kind="orphan-object")
    return [first, second, third]


def _busy_row(topic: str, number: int, index: int, *, leads: bool) -> PartitionStatus:
    scale = GIB * (1 + (number * 7 + index * 3) % 11) // 4
    if not leads:
        return partition(topic, index, "follower", local_segments=9, local_size_bytes=scale)
    tiers = TierBytes(
        trash=scale * 2 if number in {1, 4} else 0,
        remote=scale * (30 - 3 * number),
        both=scale * (2 + number),
        pinned=scale // 2 if number == 6 else 0,
        local=scale * (index % 3) // 2 if number % 2 == 0 else 0,
        active=scale // 3,
    )
    copied = 4_194_304 * (index + 3)
    return partition(
        topic,
        index,
        leader_epoch=LeaderEpoch(7 + index),
        copied_offset=Offset(copied - 1),
        local_log_start_offset=Offset(copied - 1_048_576),
        remote_log_start_offset=Offset(1_048_576 if tiers.trash else 0),
        copy_lag_bytes=tiers.local + tiers.pinned,
        copy_lag_segments=(tiers.local + tiers.pinned) * 4 // GIB,
        local_segments=14,
        local_size_bytes=tiers.both + tiers.local + tiers.active,
        remote_segments=120 + 11 * index,
        remote_size_bytes=tiers.trash + tiers.remote + tiers.both,
        tiers=tiers,
    )


def hour_of(one: ShownSidecar) -> History:
    """Return an hour in which it has copied, and others have read from it what is cold."""
    history, now_ms = History(one.telemetry), time.time_ns() // 1_000_000
    if not one.rows:
        return history
    for step in range(POINTS + 1):
        wave = 1 + (step * 7 + one.node_id * 13) % 17
        one.telemetry.count(COPY_BYTES, wave * 90 * 1024**2, topic="orders")
        if 30 < step < 90:
            one.telemetry.count(FETCH_BYTES, wave * 40 * 1024**2, topic="audit-log")
            one.telemetry.count(FETCH_BYTES, wave * 9 * 1024**2, topic="payments")
            one.telemetry.count(GATEWAY_FILLED_BYTES, wave * 45 * 1024**2)
        lag = sum(row.copy_lag_bytes or 0 for row in one.rows)
        one.telemetry.gauge(COPY_LAG_BYTES, lag * (40 + step * 5 % 60) // 100, topic="orders", partition="0")
        history.take(now_ms - (POINTS - step) * INTERVAL_MS)
    return history


@asynccontextmanager
async def serving_cluster(
    cluster: Sequence[ShownSidecar],
    *,
    silent: Sequence[int] = (),
    secrets: Secrets | None = None,
    also_ask: Sequence[str] = (),
    host: str = "127.0.0.1",
    names: Sequence[str] = (),
) -> AsyncIterator[dict[int, HttpServer]]:
    """Run their status services by node id, all with leases that name them; of ``silent`` nothing listens at the address."""
    addresses = {one.node_id: f"127.0.0.1:{free_port()}" for one in cluster}
    leases = [
        SidecarStatus(node_id=node, address=address, host=f"kafka-{node}", version=VERSION, is_over=False)
        for node, address in addresses.items()
    ]
    servers: dict[int, HttpServer] = {}
    async with AsyncExitStack() as stack:
        for one in cluster:
            one.leases = leases
            if one.node_id in silent:
                continue
            servers[one.node_id] = await stack.enter_async_context(
                serve_status(
                    host=host,
                    port=int(addresses[one.node_id].rpartition(":")[2]),
                    source=one,
                    metrics=one.telemetry,
                    blocking=InlineBlocking(),
                    secrets=secrets,
                    also_ask=also_ask,
                    history=hour_of(one),
                    names=names,
                )
            )
        yield servers
