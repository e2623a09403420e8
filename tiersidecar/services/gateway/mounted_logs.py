"""Partitions that are mounted read-only: another cluster copies their history, and the broker's own logs of them stay empty.

Such a log begins at :data:`~tiersidecar.domain.mounts.MOUNTED_START`, above every offset there is, so that the broker answers
each Fetch OFFSET_OUT_OF_RANGE if the client may read, and with another error if it may not.  Clients are to see the remote log
and nothing else: for all rewrites the broker's log is an empty one that begins where the remote log ends.

Once a record is in the broker's log, by whatever way, the origin of that log is unknown: the mount of that partition
halts.  A log that begins at 0 and has never had a record, as a broker makes it on a new disk, spoils nothing: the partition
halts only until its node has been seeded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from tiersidecar.domain.errors import MetadataNotReadyError, RetriableError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import NO_EPOCH, Offset
from tiersidecar.ports.broker import ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway.tiered_partitions import BrokerOffsets
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs

log = structlog.get_logger(__name__)

_STORE_S = 5.0
"""How long to wait for the store, which knows the open transactions: a Fetch of other partitions may wait with it."""
_STORE_AGAIN_S = 0.5
"""The same where an answer of a moment ago is known."""


@dataclass(frozen=True, slots=True)
class _Halt:
    """``is_for_good``: whatever becomes of the broker's log, until the process is started anew."""

    reason: str
    is_for_good: bool


class Source(Protocol):
    """The source of a mount."""

    def fault(self, partition: TopicIdPartition) -> str:
        """Return why it has nothing of the partition that could be served; empty where it has."""
        ...

    def unknown(self, partition: TopicIdPartition) -> str:
        """Return why that is not known yet; empty where it is.  No operator has to act on it: it is not reported as halted."""
        ...


class _SoundSource:
    def fault(self, partition: TopicIdPartition) -> str:
        return ""

    def unknown(self, partition: TopicIdPartition) -> str:
        return ""


class MountedLogs:
    """The :class:`~tiersidecar.services.gateway.tiered_partitions.Mounts` of a gateway.

    ``planned`` are the mounted topics, by name; ``topic_id`` is what a name is the topic of now, None where that is not known;
    ``led`` are the tiered partitions that the broker leads.  ``unplanned`` knows what of all that the plan does not have.
    What its ``source`` does not have, or may not have, is not served.
    """

    are_any = True

    def __init__(
        self,
        *,
        planned: Mapping[str, Uuid],
        unplanned: UnplannedLogs,
        topic_id: Callable[[str], Uuid | None],
        led: Callable[[], Iterable[TopicIdPartition]],
        reader: RemoteLogReader,
        clock: Clock,
        telemetry: Telemetry,
        source: Source | None = None,
    ) -> None:
        self._planned, self._topic_id, self._led, self._source = planned, topic_id, led, source or _SoundSource()
        self._reader, self._clock, self._telemetry = reader, clock, telemetry
        self._ids, self.unplanned = frozenset(planned.values()), unplanned
        self._halted: dict[TopicIdPartition, _Halt] = {}
        self._stable: dict[TopicIdPartition, Offset] = {}  # the last answer, for each partition that has been read
        self._ends: dict[TopicIdPartition, Offset] = {}  # as above
        self._shown = frozenset[TopicIdPartition]()
        self._faults = dict[TopicIdPartition, str]()  # of the source, as logged last

    def is_mounted(self, partition: TopicIdPartition) -> bool:
        """Return whether a plan mounts the partition."""
        return self.unplanned.is_planned(partition)

    def is_mounted_topic(self, topic: str | bytes) -> bool:
        """Return whether nothing may be written to a topic of this name, or of these 16 bytes of an id: one that was seeded by
        another plan is spoilt as easily."""
        if isinstance(topic, bytes):
            return topic in self._ids or self.unplanned.has_topic_id(topic)
        known, now = {self._planned.get(topic), self.unplanned.topic_id(topic)} - {None}, self._topic_id(topic)
        return bool(known) and (now is None or now in known)

    def halted(self, partition: TopicIdPartition) -> str:
        """Return why the partition is halted; empty where it is not."""
        halt = self._halted.get(partition)
        if halt is not None:
            return halt.reason
        if reason := self.unplanned.halted(partition):
            return reason
        if not self.is_mounted(partition):
            return ""
        return self._source.fault(partition) or self._source.unknown(partition)

    def halts(self) -> Sequence[str]:
        """Return what an operator has to look at, one sentence for each halted partition of the plan that the broker leads."""
        led = [partition for partition in self._led() if self.is_mounted(partition)]
        return [reason for partition in led if (reason := self.halted(partition))]

    def reason_not_ready(self) -> str:
        """Return why nothing that is mounted can be read here.  One of several that is halted is no reason to keep clients away
        from the others."""
        halts = self.halts()
        if not halts or len(halts) < sum(self.is_mounted(partition) for partition in self._led()):
            return ""
        return f"{halts[0]} (and {len(halts) - 1:,} more)" if len(halts) > 1 else halts[0]

    async def seen(self, partition: TopicIdPartition, offsets: BrokerOffsets) -> BrokerOffsets | None:
        """Return offsets at the end of the remote log; the last stable one is where the first transaction open there begins."""
        if not self.is_mounted(partition):
            return offsets
        self.check(partition, offsets.log_start_offset, offsets.high_watermark)
        if self.halted(partition):
            return None
        until_s = asyncio.get_running_loop().time() + _STORE_S
        try:
            async with asyncio.timeout_at(until_s):
                bounds = await self._reader.bounds(partition)
            self._check_end(partition, bounds)
            stable = await self._last_stable_offset(partition, until_s)
        except (TiersidecarError, TimeoutError):
            return None
        self._ends[partition] = bounds.log_end
        return replace(
            offsets,
            log_start_offset=bounds.log_end,
            high_watermark=bounds.log_end,
            # Of a log whose segments have all expired there is no snapshot, and no transaction either.
            last_stable_offset=min(stable, bounds.log_end) if bounds.start < bounds.end else bounds.log_end,
            is_mounted=True,
        )

    def _check_end(self, partition: TopicIdPartition, bounds: OffsetBounds) -> None:
        """Check that the log does not end earlier than before.  An empty log ends where the source let it begin.  If it would
        end earlier, its segments go although its start has not moved: its topic is being deleted, and clients would go to 0.

        Raises:
            MetadataNotReadyError: it would.
        """
        if bounds.start >= bounds.end and bounds.log_end < self._ends.get(partition, 0):
            raise MetadataNotReadyError(subject=str(partition))

    async def _last_stable_offset(self, partition: TopicIdPartition, until_s: float) -> Offset:
        """Return the last stable offset; the last one known while the store does not say what is open in a new segment."""
        try:
            async with asyncio.timeout_at(until_s):
                stable = self._stable[partition] = await self._reader.last_stable_offset(partition)
        except (TiersidecarError, TimeoutError):
            if partition not in self._stable:
                raise
            stable = self._stable[partition]
        return stable

    async def seen_at(self, partition: TopicIdPartition, known: BrokerOffsets, bounds: OffsetBounds) -> BrokerOffsets:
        """Return the offsets at ``bounds``.  While the store does not say which transactions are open, the last known count.

        Raises:
            MetadataNotReadyError: its segments are going, with its topic.
        """
        self._check_end(partition, bounds)
        self._ends[partition] = bounds.log_end
        stable = min(known.last_stable_offset, bounds.log_end)
        if bounds.start < bounds.end:
            with suppress(TiersidecarError, TimeoutError):
                async with asyncio.timeout(_STORE_AGAIN_S):
                    stable = min(await self._reader.last_stable_offset(partition), bounds.log_end)
        else:
            stable = bounds.log_end
        return replace(known, log_start_offset=bounds.log_end, high_watermark=bounds.log_end, last_stable_offset=stable)

    def check(self, partition: TopicIdPartition, log_start: int, log_end: int) -> None:
        """Halt the mount of the partition unless the broker's log is as it was seeded."""
        known = self._halted.get(partition)
        if known is not None and known.is_for_good:
            return
        if {log_start, log_end} == {0, MOUNTED_START}:
            return  # two leaders' answers, one of which has lost its log: the next look shows which
        if (log_start, log_end) == (MOUNTED_START, MOUNTED_START):
            if known is not None:
                del self._halted[partition]
                log.info("gateway.mount.sound", topic=partition.topic, partition=partition.partition)
            return
        halt = _halt_of(partition, log_start, log_end)
        if halt != known:
            self._halted[partition] = halt
            log.warning(
                "gateway.mount.halted", topic=partition.topic, partition=partition.partition, reason=halt.reason
            )

    async def watch(self, broker: ListOffsets, interval_s: float) -> None:
        """Look at the logs of all that is mounted and led here, at every interval and until cancelled, whether or not clients
        read them; and at what is halted, wherever it is led."""
        while True:
            led = [partition for partition in self._led() if self.is_mounted(partition)]
            wanted = dict.fromkeys([*led, *self._halted], NO_EPOCH)
            try:
                starts = await broker.list_offsets(wanted, OffsetSpec.EARLIEST) if wanted else {}
                ends = await broker.list_offsets(wanted, OffsetSpec.LATEST) if wanted else {}
            except RetriableError:
                starts = ends = {}  # the roster says that the broker is away
            for partition, start in starts.items():
                if start.error is None and ends[partition].error is None:
                    self.check(partition, start.offset, ends[partition].offset)
            self._log_faults(led)
            self._show(frozenset(led))
            await self._clock.sleep(interval_s)

    def _log_faults(self, led: Iterable[TopicIdPartition]) -> None:
        """Log, once each, which partitions led here the source has lost, and which it has again."""
        faults = {one: fault for one in led if one not in self._halted and (fault := self._source.fault(one))}
        for partition, fault in faults.items():
            if self._faults.get(partition) != fault:
                log.warning("gateway.mount.halted", topic=partition.topic, partition=partition.partition, reason=fault)
        for partition in self._faults.keys() - faults.keys():
            if not self.halted(partition):
                log.info("gateway.mount.sound", topic=partition.topic, partition=partition.partition)
        self._faults = faults

    def _show(self, led: frozenset[TopicIdPartition]) -> None:
        """Report the halted partitions that are led here in the metrics."""
        halted = frozenset(partition for partition in led if partition in self._halted or partition in self._faults)
        for partition in self._shown | halted:
            labels = {"topic": partition.topic, "partition": str(partition.partition)}
            if partition in led:
                self._telemetry.gauge(HALTED_PARTITIONS, float(partition in halted), **labels)
            else:
                self._telemetry.forget(HALTED_PARTITIONS, **labels)
        self._shown = halted


def _halt_of(partition: TopicIdPartition, log_start: int, log_end: int) -> _Halt:
    """Return why a log that has the offsets from ``log_start`` up to, not including, ``log_end`` halts its partition."""
    if log_start == log_end == 0:
        reason = (
            f"{partition} is mounted read-only, and its log in this cluster is an empty one that begins at 0, as a broker "
            "makes it where the seeded one was lost. Nothing is spoilt: stop the broker, remove the partition's directory "
            f"{partition} from its log dirs, seed it again by the same plan, and start it"
        )
        return _Halt(reason, is_for_good=False)
    reason = (
        f"{partition} is mounted read-only, and has been written to in this cluster: its log has the offsets "
        f"[{log_start}, {log_end}). Take the right to write from its producers, set the cluster up anew, and seed "
        "it by a new plan"
    )
    return _Halt(reason, is_for_good=True)
