"""The work of one round over the bytes of a chunk, apart from what decides and claims: in this process, or on another engine.

:class:`LocalEngine` streams everything past this process, one segment after the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tiersidecar.domain.errors import ObjectNotFoundError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.cleaning import Cleaner, CleaningTerms
from tiersidecar.formats.compaction.offset_map import OffsetMap
from tiersidecar.formats.compaction.segments import SegmentTally
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.tasks.clean_passes import CleanPasses
from tiersidecar.tasks.clean_rights import ChunkSwapper
from tiersidecar.tasks.key_filters import KeyFilters
from tiersidecar.tasks.segment_swap import SegmentSwap

log = structlog.get_logger(__name__)

Progress = Callable[[str], None]


def quiet(_text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """``chain`` are all segments of the chain, ``dirty`` those that the map is built of; ``aborted`` are the whole chain's."""

    chain: Sequence[RemoteLogSegmentMetadata]
    dirty: Sequence[RemoteLogSegmentMetadata]
    first_dirty: Offset
    aborted: Sequence[AbortedTransaction]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDone:
    """What became of one segment: swapped for ``new``; or as it was, read or (``is_carried``) not; or (``is_given_up``) below
    the remote log start by now; or, because of ``left``, none of it, and the chunk ends there."""

    old: RemoteLogSegmentMetadata
    new: RemoteLogSegmentMetadata | None = None
    tally: SegmentTally | None = None
    is_carried: bool = False
    is_given_up: bool = False
    left: str = ""

    def log_swapped(self, new: RemoteLogSegmentMetadata) -> None:
        """Log that ``new`` is in its place."""
        tally, owner = self.tally, new.topic_id_partition
        assert tally is not None, "a segment that was swapped was read"
        log.info(
            "segment.cleaned",
            topic=owner.topic,
            partition=owner.partition,
            segment_id=str(self.old.remote_log_segment_id),
            new_segment_id=str(new.remote_log_segment_id),
            records=tally.records_read,
            records_kept=tally.records_kept,
            bytes=tally.bytes_read,
            bytes_kept=tally.bytes_kept,
        )

    def log_left(self) -> None:
        """Log why it was left."""
        log.info(
            "segment.clean.left",
            topic=self.old.topic_id_partition.topic,
            partition=self.old.topic_id_partition.partition,
            segment_id=str(self.old.remote_log_segment_id),
            reason=self.left,
        )


def not_swapped(old: RemoteLogSegmentMetadata, reason: str, swapper: ChunkSwapper) -> SegmentDone:
    """Return what became of ``old``, which was left for ``reason``.  A round may take longer than retention does to the next
    segment: what it gives up meanwhile is in nobody's way."""
    if swapper.is_given_up(old):
        return SegmentDone(old=old, is_given_up=True)
    return SegmentDone(old=old, left=reason)


class MappedChunk(Protocol):
    """A chunk whose first pass is done."""

    @property
    def end(self) -> Offset:
        """Return up to where the map reaches (exclusive)."""
        ...

    def clean(self, terms: CleaningTerms, swapper: ChunkSwapper) -> AsyncGenerator[SegmentDone]:
        """Clean the segments below :attr:`end`, ascending, each swapped before the next is yielded.

        Raises:
            TiersidecarError: the chunk ends.
        """
        ...

    async def finish(self, given: Iterable[RemoteLogSegmentMetadata]) -> None:
        """End the round, after the claim: ``given`` are the segments of the chain as they are now."""


class CleanEngine(Protocol):
    async def free_bytes(self) -> int:
        """Return how much disk there is for new segments on their way."""
        ...

    async def read_dirty(self, chunk: Chunk) -> MappedChunk:
        """Do the first pass.

        Raises:
            TiersidecarError: the chunk ends.
        """
        ...


class LocalEngine:
    """Both passes in this process.  ``cleaned_here`` returns the partitions whose key filters are kept."""

    def __init__(
        self,
        *,
        passes: CleanPasses,
        filters: KeyFilters,
        swap: SegmentSwap,
        failpoints: Failpoints,
        cleaned_here: Callable[[TopicIdPartition], Iterable[TopicIdPartition]],
        progress: Progress = quiet,
    ) -> None:
        self.passes, self.filters, self.swap, self.failpoints = passes, filters, swap, failpoints
        self.cleaned_here, self.progress = cleaned_here, progress

    async def free_bytes(self) -> int:
        return await self.passes.free_bytes()

    async def read_dirty(self, chunk: Chunk) -> MappedChunk:
        done = await self.passes.offset_map(chunk.dirty, chunk.first_dirty, chunk.aborted, self.progress)
        return _LocalChunk(self, chunk, done)


class _LocalChunk:
    def __init__(self, engine: LocalEngine, chunk: Chunk, offset_map: OffsetMap) -> None:
        self._engine, self._chunk, self._map = engine, chunk, offset_map

    @property
    def end(self) -> Offset:
        return Offset(self._map.latest_offset + 1)

    async def clean(self, terms: CleaningTerms, swapper: ChunkSwapper) -> AsyncGenerator[SegmentDone]:
        engine, first_dirty, end = self._engine, self._chunk.first_dirty, self.end
        cleaner = Cleaner(self._map, terms, self._chunk.aborted)
        for segment in self._chunk.chain:
            if segment.start_offset >= end:
                break
            is_clean = segment.end_offset < first_dirty
            if is_clean and await engine.filters.rule_out(segment, self._map, now_ms=terms.due_ms):
                yield SegmentDone(old=segment, is_carried=True)
                continue
            engine.progress(f"cleaning: offsets {segment.start_offset} to {segment.end_offset} of {end}")
            try:
                done = await self._clean_one(segment, cleaner, swapper)
            except ObjectNotFoundError:  # for no other reason: what is still there may be undeleted
                if not await swapper.reason_to_leave([segment]) or not swapper.is_given_up(segment):
                    raise
                done = SegmentDone(old=segment, is_given_up=True)
                # Markers in it were not seen.  All before it is given up as well: what is open from there on begins anew.
                later = [one for one in self._chunk.aborted if one.last_offset > segment.end_offset]
                cleaner = Cleaner(self._map, terms, later)
            yield done

    async def _clean_one(
        self, segment: RemoteLogSegmentMetadata, cleaner: Cleaner, swapper: ChunkSwapper
    ) -> SegmentDone:
        engine = self._engine
        async with engine.passes.cleaned(segment, cleaner, is_whole=segment.end_offset < self.end) as cleaned:
            if cleaned.is_unchanged:
                await engine.filters.keep(segment, cleaned.key_filter)
                return SegmentDone(old=segment, tally=cleaned.tally)
            await engine.failpoints.reach("clean.rewritten")
            new = await engine.swap.replace([segment], cleaned.new, swapper, broker_id=swapper.broker_id)
        if isinstance(new, str):
            return not_swapped(segment, new, swapper)
        await engine.filters.keep(new, cleaned.key_filter)
        return SegmentDone(old=segment, new=new, tally=cleaned.tally)

    async def finish(self, given: Iterable[RemoteLogSegmentMetadata]) -> None:
        owner = self._chunk.chain[0].topic_id_partition
        await self._engine.filters.drop_others(given, self._engine.cleaned_here(owner))
