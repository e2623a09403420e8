"""OffsetForLeaderEpoch from the lineage: the broker has forgotten the epochs of what left its disk (KIP-320).

For an epoch that it has forgotten it answers with its own log start, so that a consumer in the remote tier would not notice
that its log was truncated.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.domain.errors import RetriableError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.lineage import LineageSource
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten
from tiersidecar.services.gateway.messages import (
    MOST_LOOKUP_BYTES,
    RowKey,
    changed_row,
    in_turns,
    read_exchange,
    write_rows,
)
from tiersidecar.services.gateway.tiered_partitions import Asker, BothTiers, check_gap

_LEAST_REPLICA = 0
_UNDEFINED = LeaderEpoch(-1), Offset(-1)
"""A broker's answer for epochs above its latest (``LeaderEpochFileCache.endOffsetFor``)."""
_STORE_S = 10.0
"""How long the source and the store are waited for, of a partition that is mounted read-only: clients ask again."""
_BROKER_WAITS_S = 0.0
"""For nothing: it answers from memory."""


class OffsetForLeaderEpochRewrite(Rewrite):
    """``services.gateway.exchange.Rewrite`` of OffsetForLeaderEpoch."""

    reads_request = True
    most_request_bytes = MOST_LOOKUP_BYTES
    alone = True

    def __init__(
        self,
        *,
        tiers: BothTiers,
        lineages: LineageSource,
        blocking: Blocking,
        clock: Clock,
    ) -> None:
        self._tiered, self._reader, self._lineages = tiers.tiered, tiers.reader, lineages
        self._offsets, self._pending, self._blocking, self._clock = tiers.offsets, tiers.pending, blocking, clock

    def versions(self) -> range:
        """Return the API versions that it can rewrite; ApiVersions offers clients no others."""
        return range(2, 5)

    def prepare(self, exchange: Exchange) -> Rewritten:
        """Pass the request unchanged."""
        connection = exchange.connection
        connection.asker.asked_at, connection.asked_s = self._tiered.now(), self._clock.monotonic_s()
        return None

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """Return what the client gets instead of ``response``, a body that begins after the response header."""
        is_late = exchange.connection.is_late(self._clock.monotonic_s(), _BROKER_WAITS_S)
        opened = await read_exchange(exchange, response, self._blocking)
        asked = opened.asked
        if getattr(opened.request, "replica_id", -1) >= _LEAST_REPLICA and not self._offsets.has_mounts:
            return None
        rows = {
            key: row
            for key, row in opened.rows.items()
            if row.error_code is ErrorCode.none and asked[key].leader_epoch >= 0
        }
        asker = exchange.connection.asker

        async def one(key: RowKey, row: Any) -> Any:
            return await self._row(key, row, asked[key].leader_epoch, asker, is_late=is_late)

        changed = await in_turns(one, rows)
        return [await write_rows(opened.answered, changed, self._blocking)] if changed else None

    async def _row(self, key: RowKey, row: Any, leader_epoch: int, asker: Asker, *, is_late: bool) -> Any:
        """Return the row that the client gets.  A late answer is not used: its client may have lost its rights."""
        try:
            view = self._tiered.find(*key, asker)
            if view is None:
                return _unless_seeded(row)
            if is_late:
                return _not_known(row)
            end = await self._end(view.topic_id_partition, leader_epoch)
            self._tiered.find(*key, asker)  # still of the same topic
        except (TiersidecarError, TimeoutError):
            return _not_known(row)
        if end is None:
            return _unless_seeded(row)
        if end == (row.leader_epoch, row.end_offset):
            return row
        return changed_row(row, leader_epoch=end[0], end_offset=end[1])

    async def _end(self, partition: TopicIdPartition, leader_epoch: int) -> tuple[LeaderEpoch, Offset] | None:
        """Return the end.  It is between the tiers only where the broker's file begins: a process beside the role ``tier``
        knows the epochs below it that pins have kept, once they are remote (simulation, cluster seed 59).

        Raises:
            OffsetBetweenTiersError: it is one of those.
        """
        if self._offsets.is_mounted(partition):
            return await self._mounted_end(partition, leader_epoch)
        bounds = await self._reader.bounds(partition)  # first: what is finished after it may be missing in the lineage
        lineage = await self._lineages.lineage(partition)
        end = epoch_end(lineage, leader_epoch)
        if end is not None and end[1] > bounds.end:
            known = (await self._offsets.current([partition])).get(partition)
            if known is None or end[1] <= known.log_start_offset:
                await check_gap(partition, bounds, end[1], self._pending, self._reader)
        return end

    async def _mounted_end(self, partition: TopicIdPartition, leader_epoch: int) -> tuple[LeaderEpoch, Offset]:
        """Return the end of an epoch of a read-only mount, where the broker's own epochs are of an empty log.

        The end of the latest epoch sends clients back, and an epoch above it sends them away: neither before all is known that
        the source has published, which another gateway may have served already.  While the source is away the end of its latest
        epoch is unknown: the answer is above all offsets, so that each client stays where it is.
        """
        async with asyncio.timeout(_STORE_S):
            bounds, lineage = await self._reader.bounds(partition), await self._lineages.lineage(partition)
            if not lineage or leader_epoch >= lineage.latest_epoch:
                try:
                    bounds = await self._reader.current_bounds(partition)
                    lineage = await self._lineages.lineage(partition)
                except RetriableError:
                    if lineage and leader_epoch > lineage.latest_epoch:
                        raise
                    return LeaderEpoch(leader_epoch), MOUNTED_START
        if not lineage:
            return LeaderEpoch(leader_epoch), bounds.log_end  # nothing is left that names epochs
        if leader_epoch > lineage.latest_epoch:
            return _UNDEFINED
        return epoch_end(lineage, leader_epoch) or (lineage.latest_epoch, bounds.log_end)


def _unless_seeded(row: Any) -> Any:
    """Return the row as it is, unless it is of a log seeded for a read-only mount of which nothing is known here."""
    return _not_known(row) if int(row.end_offset) >= MOUNTED_START else row


def _not_known(row: Any) -> Any:
    """Return an error for now: every client asks again."""
    unknown = {"leader_epoch": LeaderEpoch(-1), "end_offset": Offset(-1)}
    return changed_row(row, error_code=ErrorCode.not_leader_or_follower, **unknown)


def epoch_end(lineage: Lineage, leader_epoch: int) -> tuple[LeaderEpoch, Offset] | None:
    """Return the largest epoch of ``lineage`` up to ``leader_epoch``, and the end (exclusive) of what was written up to it
    (``LeaderEpochFileCache.endOffsetFor``); None from the latest epoch on, whose end the broker knows."""
    if leader_epoch >= lineage.latest_epoch:
        return None
    following = next(entry for entry in lineage.entries if entry.epoch > leader_epoch)
    before = [entry.epoch for entry in lineage.entries if entry.epoch <= leader_epoch]
    return (before[-1] if before else LeaderEpoch(leader_epoch)), following.start_offset
