"""What is known of the partitions that the broker answered OFFSET_OUT_OF_RANGE, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiersidecar.decide.gateway_fill import OutOfRange, TiersView, decide_out_of_range
from tiersidecar.domain.errors import MetadataNotReadyError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.wire.fetch_requests import FetchPartition, PartitionKey
from tiersidecar.ports.state_log import StateLog
from tiersidecar.reading.holes import Holes
from tiersidecar.reading.pending_copies import PendingCopies
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway.broker_offsets import BrokerOffsets, BrokerOffsetsCache
from tiersidecar.services.gateway.tiered_partitions import TieredPartitions, TieredView


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """``bounds`` and ``offsets`` are there for what is to be filled."""

    verdict: OutOfRange
    partition: TopicIdPartition | None = None
    bounds: OffsetBounds | None = None
    offsets: BrokerOffsets | None = None


STANDS, RETRY = Judged(verdict=OutOfRange.STANDS), Judged(verdict=OutOfRange.RETRY)


class OutOfRangeJudge:
    """Gathers both tiers' borders and lets ``decide`` judge."""

    def __init__(
        self,
        *,
        tiered: TieredPartitions,
        reader: RemoteLogReader,
        state: StateLog,
        offsets: BrokerOffsetsCache,
        pending: PendingCopies,
        holes: Holes,
    ) -> None:
        self._tiered, self._reader, self._state, self._offsets = tiered, reader, state, offsets
        self._pending, self._holes = pending, holes

    async def judge(self, asked: Mapping[PartitionKey, FetchPartition]) -> dict[PartitionKey, Judged]:
        """Each partition of ``asked``, for its fetch offset."""
        judged, views = dict[PartitionKey, Judged](), dict[PartitionKey, TieredView]()
        for key in asked:
            try:
                view = self._tiered.find(*key)
            except MetadataNotReadyError:
                judged[key] = RETRY
            else:
                if view is None:
                    judged[key] = STANDS
                else:
                    views[key] = view
        offsets = await self._offsets.recent([view.topic_id_partition for view in views.values()])
        judged |= await self._judge_all(asked, views, offsets, frozenset())
        # What was remembered is good enough to fill by, but not to send a client away.
        doubtful = {key: views[key] for key in views if judged[key].verdict is not OutOfRange.FILL}
        if doubtful:
            offsets = await self._offsets.current([view.topic_id_partition for view in doubtful.values()])
            # After the offsets: what a broker has deleted before it told them was pinned before.
            pinned = frozenset([key for key, view in doubtful.items() if await self._is_pending(view)])
            judged |= await self._judge_all(asked, doubtful, offsets, pinned)
        return judged

    async def _is_pending(self, view: TieredView) -> bool:
        return await self._pending.is_pending(view.topic_id_partition)

    async def _judge_all(
        self,
        asked: Mapping[PartitionKey, FetchPartition],
        views: Mapping[PartitionKey, TieredView],
        offsets: Mapping[TopicIdPartition, BrokerOffsets],
        pinned: frozenset[PartitionKey],
    ) -> dict[PartitionKey, Judged]:
        keys: Sequence[PartitionKey] = list(views)
        found = await asyncio.gather(
            *(
                self._judge_one(
                    asked[key].fetch_offset,
                    views[key],
                    offsets.get(views[key].topic_id_partition),
                    is_copy_pending=key in pinned,
                )
                for key in keys
            )
        )
        return dict(zip(keys, found, strict=True))

    async def _judge_one(
        self, offset: int, view: TieredView, offsets: BrokerOffsets | None, *, is_copy_pending: bool
    ) -> Judged:
        if offsets is None:
            return RETRY
        partition = view.topic_id_partition
        try:
            bounds = await self._reader.bounds(partition)
            trim_offset = self._state.partition_state(partition).trim_offset
        except TiersidecarError:
            return RETRY  # not replayed yet, or the store is away: nothing can be said of the offset
        tiers = TiersView(
            remote_start=max(bounds.start, bounds.log_start),
            remote_end=bounds.end,
            local_start=offsets.log_start_offset,
            high_watermark=offsets.high_watermark,
            trim_offset=trim_offset,
            is_copy_pending=is_copy_pending,
        )
        verdict = decide_out_of_range(offset, tiers)
        if verdict is OutOfRange.HOLE:
            self._holes.met(partition, offset, tiers.remote_end, tiers.local_start)
        return Judged(verdict=verdict, partition=partition, bounds=bounds, offsets=offsets)
