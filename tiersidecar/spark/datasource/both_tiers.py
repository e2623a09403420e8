"""Split a partition between the tiers: remote as far as the remote tier reaches, the broker's log from there on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.errors import BrokerRefusedError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH
from tiersidecar.ports.broker import ListOffsets, OffsetSpec
from tiersidecar.spark.datasource.offset_ranges import LogBounds, OffsetRange, wanted_range
from tiersidecar.spark.datasource.options import ReadOptions

Cut = Mapping[TopicIdPartition, OffsetRange]
"""Offsets to read of each partition that has any."""


class RemoteLog(Protocol):
    """:class:`~tiersidecar.spark.datasource.planning.RemoteTier`."""

    async def bounds(self, partition: TopicIdPartition) -> LogBounds: ...

    async def find_offset(self, topic_id_partition: TopicIdPartition, timestamp_ms: int) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """One read, split at the border of each partition: no offset is in both, and none between them."""

    remote: Cut
    local: Cut


class BothTiers:
    """Splits reads.  Offsets of both tiers are read from the remote one: it costs the broker nothing."""

    def __init__(self, remote: RemoteLog, broker: ListOffsets, options: ReadOptions) -> None:
        self._remote, self._broker, self._options = remote, broker, options

    async def part(self, partitions: tuple[TopicIdPartition, ...]) -> Parted:
        """Return the wanted offsets of each partition, by tier.

        Raises:
            OffsetOutOfRangeError, ConfigError: as :func:`wanted_range`.
            BrokerRefusedError: the broker does not report its offsets.
        """
        earliest = await self._local_offsets(partitions, OffsetSpec.EARLIEST)
        latest = await self._local_offsets(partitions, OffsetSpec.LATEST)
        remote: dict[TopicIdPartition, OffsetRange] = {}
        local: dict[TopicIdPartition, OffsetRange] = {}
        for partition in partitions:
            there = await self._remote.bounds(partition)
            # After a crash the broker's log start is that of a minute ago: it may have offsets that a user has deleted since.
            log_start = min(there.log_start, latest[partition])
            # Nothing is remote: the broker's log is all there is.
            is_tiered = there.end > there.start
            border = there.end if is_tiered else max(earliest[partition], log_start)
            start = there.start if is_tiered else border
            bounds = LogBounds(start=start, end=max(border, latest[partition]))
            find = _FindInBoth(self._remote, self._broker, border, log_start)
            wanted = await wanted_range(partition, self._options, bounds, find)
            if wanted.start < min(wanted.end, border):
                remote[partition] = OffsetRange(start=wanted.start, end=min(wanted.end, border))
            begin = max(wanted.start, border)
            if begin < min(wanted.end, earliest[partition]):
                # A hole: the broker has trimmed what was never remote.
                if self._options.fail_on_data_loss:
                    raise OffsetOutOfRangeError(
                        subject=f"{partition} (a hole between the tiers)",
                        offset=begin,
                        start=earliest[partition],
                        stop=latest[partition],
                    )
                begin = earliest[partition]
            if begin < wanted.end:
                local[partition] = OffsetRange(start=begin, end=wanted.end)
        return Parted(remote=remote, local=local)

    async def _local_offsets(
        self, partitions: tuple[TopicIdPartition, ...], spec: OffsetSpec
    ) -> dict[TopicIdPartition, int]:
        answers = await self._broker.list_offsets(
            dict.fromkeys(partitions, NO_EPOCH), spec, read_committed=self._options.read_committed
        )
        for one, answer in answers.items():
            if answer.error is not None:
                raise BrokerRefusedError(api="ListOffsets", subject=str(one), error=answer.error)
        return {one: answer.offset for one, answer in answers.items()}


@dataclass(frozen=True, slots=True)
class _FindInBoth:
    """Search the remote tier first; ``border`` is where the broker's part begins, ``log_start`` where the log does."""

    remote: RemoteLog
    broker: ListOffsets
    border: int
    log_start: int

    async def find_offset(self, topic_id_partition: TopicIdPartition, timestamp_ms: int) -> int | None:
        found = await self.remote.find_offset(topic_id_partition, timestamp_ms)
        if found is not None:
            return found
        answer = (await self.broker.list_offsets({topic_id_partition: NO_EPOCH}, timestamp_ms))[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        if 0 <= answer.offset < self.log_start:
            # The broker cannot find the next of its other records until it knows again what was deleted.
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error="OFFSET_NOT_AVAILABLE")
        return max(answer.offset, self.border) if answer.offset >= 0 else None
