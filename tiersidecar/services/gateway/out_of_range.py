"""Facts about the partitions that the broker answered OFFSET_OUT_OF_RANGE, and what follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tiersidecar.decide.gateway_fill import OutOfRange, TiersView, decide_out_of_range
from tiersidecar.domain.errors import MetadataNotReadyError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.wire.fetch import FetchPartition, PartitionKey
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.pins import PendingCopies
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.reading.holes import Holes
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway.tiered_partitions import (
    ANYBODY,
    Asker,
    BrokerOffsets,
    BrokerOffsetsCache,
    Moment,
    TieredPartitions,
    TieredView,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """``bounds`` and ``offsets`` are there for what is to be filled, and at the end."""

    verdict: OutOfRange
    partition: TopicIdPartition | None = None
    bounds: OffsetBounds | None = None
    offsets: BrokerOffsets | None = None


_REMEMBERED_S = 1.0
"""The greatest age of the broker's offsets beside them, and of the lineage under them."""
_MOST_KNOWN = 100_000
_STORE_S = 5.0
"""The most that a Fetch waits for the store and the source, of all its partitions that are mounted read-only together."""
_LEAST_STORE_S = 1.0
"""The least, of a client that does not wait: what is looked up meanwhile is known when it asks again."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The bounds of a partition's remote tier, and what they held for."""

    bounds: OffsetBounds
    state: PartitionState
    leader_epoch: int
    since_s: float


ANSWERED = frozenset({OutOfRange.FILL, OutOfRange.AT_END})
"""Verdicts by which the partition is answered without an error."""

STANDS, RETRY = Classified(verdict=OutOfRange.STANDS), Classified(verdict=OutOfRange.RETRY)


class OutOfRangeClassifier:
    """Gathers both tiers' borders and lets ``decide`` classify."""

    def __init__(
        self,
        *,
        tiered: TieredPartitions,
        reader: RemoteLogReader,
        state: StateLog,
        offsets: BrokerOffsetsCache,
        pending: PendingCopies,
        holes: Holes,
        clock: Clock,
    ) -> None:
        self._tiered, self._reader, self._state, self._offsets = tiered, reader, state, offsets
        self._pending, self._holes, self._clock = pending, holes, clock
        self._known: dict[TopicIdPartition, _Known] = {}

    def now(self) -> Moment:
        """Return what is known now, for what is asked now."""
        return self._tiered.now()

    def is_still_of(self, classified: Mapping[PartitionKey, Classified], asker: Asker = ANYBODY) -> bool:
        """Return whether names are still of the topics that were classified: what is asked for by its id always is."""
        return all(self._is_same(key, one, asker) for key, one in classified.items() if isinstance(key[0], str))

    def _is_same(self, key: PartitionKey, classified: Classified, asker: Asker) -> bool:
        try:
            view = self._tiered.find(*key, asker)
        except MetadataNotReadyError:
            return classified.partition is None
        return classified.partition is None or (view is not None and view.topic_id_partition == classified.partition)

    def classify_at_once(
        self, asked: Mapping[PartitionKey, FetchPartition], asker: Asker = ANYBODY
    ) -> dict[PartitionKey, Classified] | None:
        """Return each partition of ``asked`` to be filled, by what is remembered; None if any has to be looked at anew."""
        classified = dict[PartitionKey, Classified]()
        for key, wanted in asked.items():
            found = self._remembered(key, wanted.fetch_offset, asker)
            if found is None:
                return None
            classified[key] = found
        return classified

    def _remembered(self, key: PartitionKey, offset: int, asker: Asker) -> Classified | None:
        try:
            view = self._tiered.find(*key, asker)
            partition = None if view is None else view.topic_id_partition
            known = None if partition is None else self._known.get(partition)
            if view is None or partition is None or known is None:
                return None
            # A delete has published another state, an election has made another epoch: what was known no longer counts.
            is_same_log = known.leader_epoch == view.leader_epoch and known.state == self._state.partition_state(
                partition
            )
        except MetadataNotReadyError:
            return None
        if not is_same_log or self._clock.monotonic_s() - known.since_s >= _REMEMBERED_S:
            return None
        offsets = self._offsets.remembered(partition)
        if offsets is None or decide_out_of_range(offset, _tiers(known, offsets)) is not OutOfRange.FILL:
            return None
        return Classified(verdict=OutOfRange.FILL, partition=partition, bounds=known.bounds, offsets=offsets)

    async def has_any_grown(self, classified: Iterable[Classified], within_s: float) -> bool:
        """Return whether the remote end of any has changed by now; False where that is not known ``within_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for one in classified:
                    if one.partition is None or one.bounds is None:
                        continue
                    with suppress(TiersidecarError):  # of one whose blob cannot be read; the others go on
                        if await self._reader.end_offset(one.partition) != one.bounds.end:
                            return True
        return False

    async def classify(
        self, asked: Mapping[PartitionKey, FetchPartition], asker: Asker = ANYBODY, *, max_wait_s: float = 0.0
    ) -> dict[PartitionKey, Classified]:
        """Return each partition of ``asked``, for its fetch offset.

        Where partitions are mounted read-only, nothing but the store and the source knows of them, and either may hang.  So all
        is looked up within about the client's ``max_wait_s``; what is not known by then the client asks for again.
        """
        found = dict.fromkeys(asked, RETRY)
        if not self._offsets.has_mounts:
            await self._classify_into(found, asked, asker, None)
            return found
        budget_s = min(max(max_wait_s, _LEAST_STORE_S), _STORE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(budget_s):
                await self._classify_into(found, asked, asker, budget_s)
        return found

    async def _classify_into(
        self,
        found: dict[PartitionKey, Classified],
        asked: Mapping[PartitionKey, FetchPartition],
        asker: Asker,
        budget_s: float | None,
    ) -> None:
        """Put each verdict into ``found`` as soon as it stands: no partition waits for another.  What is not known at all is
        waited for half of ``budget_s``, so that what was known of it before still counts."""
        views = dict[PartitionKey, TieredView]()
        for key in asked:
            with suppress(MetadataNotReadyError):
                view = self._tiered.find(*key, asker)
                if view is None:
                    found[key] = STANDS
                else:
                    views[key] = view
        within_s = None if budget_s is None else budget_s / 2

        async def look(key: PartitionKey, view: TieredView) -> None:
            offset, partition = asked[key].fetch_offset, view.topic_id_partition
            known = (await self._offsets.recent([partition], within_s=within_s)).get(partition)
            one = await self._classify_one(offset, view, known, None)
            # What was remembered is good enough to fill by, and to have a client wait, but not to send it away.
            if one.verdict not in ANSWERED:
                offsets = (await self._offsets.current([partition])).get(partition)
                # After the offsets: what a broker has deleted before it reported them was pinned before.
                is_pinned = await self._pending.is_pending(partition)
                one = await self._classify_one(offset, view, offsets, is_pinned)
            found[key] = one

        await asyncio.gather(*(look(key, view) for key, view in views.items()))

    async def _classify_one(
        self, offset: int, view: TieredView, offsets: BrokerOffsets | None, is_copy_pending: bool | None
    ) -> Classified:
        """Classify one; ``is_copy_pending`` is for the last word; None: by what is known."""
        if offsets is None:
            return RETRY
        partition = view.topic_id_partition
        try:
            began_s = self._clock.monotonic_s()
            if is_copy_pending is not None:
                await self._reader.current_bounds(partition)
            state = self._state.partition_state(partition)
            bounds = await self._reader.bounds(partition)
            offsets = await self._offsets.as_of(partition, offsets, bounds)
        except TiersidecarError:
            return RETRY  # not replayed yet, or the store is away: nothing can be said of the offset
        known = _Known(bounds, state, view.leader_epoch, began_s)
        tiers = _tiers(known, offsets, is_copy_pending=bool(is_copy_pending))
        verdict = decide_out_of_range(offset, tiers)
        if verdict is OutOfRange.HOLE:
            self._holes.met(partition, offset, tiers.remote_end, tiers.local_start)
        elif verdict is OutOfRange.FILL:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[partition] = known
        return Classified(verdict=verdict, partition=partition, bounds=bounds, offsets=offsets)


def _tiers(known: _Known, offsets: BrokerOffsets, *, is_copy_pending: bool = False) -> TiersView:
    bounds = known.bounds
    return TiersView(
        remote_start=max(bounds.start, bounds.log_start),
        remote_end=bounds.end,
        # What is known of the remote log is newer than the broker's offsets beside it.
        local_start=bounds.log_end if offsets.is_mounted else offsets.log_start_offset,
        high_watermark=bounds.log_end if offsets.is_mounted else offsets.high_watermark,
        held_offset=bounds.held,
        is_copy_pending=is_copy_pending,
        is_mounted=offsets.is_mounted,
    )
