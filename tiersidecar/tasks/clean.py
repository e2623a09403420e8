"""The cleaner lane of a led compacted partition: one chunk of the remote log a round (docs/design/0017-remote-compaction.md).

The dirty segments of the chunk stream past and fill the offset map.  Then every segment from the log's start to the end of
what the map knows streams past again (:mod:`~tiersidecar.tasks.clean_passes`); what is left of one, if that is another .log,
takes the segment's place (:mod:`~tiersidecar.tasks.segment_swap`), in ascending order.  After the last one the cleaner offset
is published.  Abandoned at any await, the chunk begins again from the cleaner offset that was published last: what was swapped
is clean already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from tiersidecar.decide.compaction import CleanableSegment, CompactionPlan, CompactionView, decide_compaction
from tiersidecar.decide.topics import CleanerSettings, PartitionRole, TieredPartition, read_cleaner_settings
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.policy import PauseKind
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats.compaction.cleaning import Cleaner, CleaningTerms, last_records
from tiersidecar.formats.compaction.segments import SegmentTally
from tiersidecar.formats.kafka.producer_state import open_states
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Clock
from tiersidecar.tasks.clean_claims import Claims
from tiersidecar.tasks.clean_look import CleanLook, CleanLooks
from tiersidecar.tasks.clean_passes import CleanPasses
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.key_filters import KeyFilters
from tiersidecar.tasks.ownership import InFlight, Ownership
from tiersidecar.tasks.rewriting_commands import CLEANER_FINISHES_WITHIN_S, RewritingCommands
from tiersidecar.tasks.segment_swap import DigestAlone, Prover, SegmentSwap, SwapStore, SwapTrash

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSettings:
    """``dedupe_buffer_bytes`` bounds the offset map of a round (``dedupe.buffer.size``).  ``scratch`` is a directory of this
    process's alone for one segment at a time, ``filters`` one for key filters, which are kept; ``delays`` say how long what was
    replaced stays in the trash."""

    dedupe_buffer_bytes: int
    scratch: Path
    filters: Path
    delays: TrashDelays


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedChunk:
    """Result of one round.  ``swapped`` are the new segments; ``carried`` is how many were left as they are without being
    read; ``left`` says why the chunk was not done, and where it is not empty the cleaner offset did not move."""

    reason: str = ""
    swapped: tuple[RemoteLogSegmentMetadata, ...] = ()
    carried: int = 0
    cleaner_offset: Offset = NO_OFFSET
    left: str = ""


class CleanTask:
    """Cleans one led partition at a time."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        swap: SegmentSwap,
        store: SwapStore,
        in_flight: InFlight,
        settings: CleanSettings,
    ) -> None:
        self._table, self._broker, self._state = sources.table, sources.broker, sources.state
        self._looks = CleanLooks(sources)
        self._clock, self._failpoints = edges.clock, edges.failpoints
        self._broker_id, self._guard, self._ownership = actor.broker_id, actor.guard, actor.ownership
        self._observe_only = actor.observe_only
        self._commands = RewritingCommands(sources.state, edges.clock)
        self._swap, self._blobs, self._in_flight, self._settings = swap, store.blobs, in_flight, settings
        self._passes = CleanPasses(
            store=store,
            blocking=edges.blocking,
            scratch=settings.scratch,
            dedupe_buffer_bytes=settings.dedupe_buffer_bytes,
        )
        self._filters = KeyFilters(settings.filters, edges.blocking)

    async def run(self, partition: TieredPartition) -> CleanedChunk:
        """Clean one chunk, if one is due.

        Raises:
            BrokerRefusedError: another broker leads the partition by now.
            StoreError, CorruptDataError: a segment could not be read; the cleaner offset stays.
            OffsetMapTooSmallError: one batch has more keys than the map may hold.
            StateDirError: the disk is full, or the like.
        """
        topic_id_partition = partition.view.topic_id_partition
        if reason := self._reason_not_to_begin(partition):
            return CleanedChunk(reason=reason)
        settings = await self._topic_settings(topic_id_partition.topic)
        if settings is None:
            return CleanedChunk(reason="the topic is not compacted, or its settings are not known")
        look = await self._looks.look(partition)
        trash = SwapTrash(
            self._state,
            partition.view,
            clock=self._clock,
            delays=self._settings.delays,
            by=f"the cleaner beside broker {partition.view.leader_id}",
            kind=TrashKind.COMPACTION,
        )
        swapper = _ChunkSwapper(
            partition=partition,
            look_again=partial(self._looks.look, partition),
            reason_to_end=partial(self._reason_to_end, partition),
            trash=trash,
            ownership=self._ownership,
            in_flight=self._in_flight,
            clock=self._clock,
        )
        if look.chain.twins:  # a process ended between a swap and its entry
            if left := await self._reason_to_end(partition):
                return CleanedChunk(left=left)
            await swapper.retire(look.chain.twins, look.chain.segments[-1])
        plan = await self._plan(partition, look, settings)
        if not plan.chunks:
            return CleanedChunk(reason="; ".join(filter(None, (plan.reason, look.chain.stopped))))
        return await self._clean(partition, look, plan, settings, swapper)

    def _reason_not_to_begin(self, partition: TieredPartition) -> str:
        topic_id_partition = partition.view.topic_id_partition
        if partition.role is not PartitionRole.LEADER or not self._table.leads(
            topic_id_partition, partition.view.leader_epoch
        ):
            return "this broker does not lead it"
        if self._observe_only:
            return "mode is observe"
        return (
            self._table.refused_topics.get(topic_id_partition.topic, "")
            or self._state.why_paused(topic_id_partition.topic_id, PauseKind.COPIES)
            or self._guard.reason_not_to_delete_remote_of(topic_id_partition.topic_id)
            or self._commands.reason_to_wait()
        )

    async def _reason_to_end(self, partition: TieredPartition) -> str:
        """Return why the chunk is given up: asked before each event, and of the broker whether we lead."""
        if reason := self._reason_not_to_begin(partition):
            return reason
        await self._last_stable_offset(partition)
        return ""

    async def _topic_settings(self, topic: str) -> CleanerSettings | None:
        configs = (await self._broker.describe_topic_configs([topic])).get(topic)
        return None if configs is None else read_cleaner_settings(configs)

    async def _plan(self, partition: TieredPartition, look: CleanLook, settings: CleanerSettings) -> CompactionPlan:
        chain = look.chain.segments
        start = chain[0].start_offset if chain else Offset(0)
        free_bytes = await self._passes.free_bytes()
        # The segments end before the log does: of a transaction that is open there it is not known how it ended.
        stable = await self._last_stable_offset(partition)
        if chain:
            producers = await self._blobs.read_producer_snapshot(chain[-1])
            firsts = (state.current_transaction_first_offset for state in open_states(producers))
            stable = Offset(min([stable, *firsts]))
        view = CompactionView(
            segments=[_cleanable(segment) for segment in chain],
            cleaner_offset=look.cleaner_offset,
            remote_log_start_offset=start,
            last_stable_offset=stable,
            free_disk_bytes=free_bytes,
        )
        compaction = settings.remote_compaction
        return decide_compaction(view, compaction, now_ms=self._clock.now_ms())

    async def _last_stable_offset(self, partition: TieredPartition) -> Offset:
        """Ask the broker, fenced by our leader epoch: a deposed leader is refused here."""
        topic_id_partition = partition.view.topic_id_partition
        asked = {topic_id_partition: partition.view.leader_epoch}
        answer = (await self._broker.list_offsets(asked, OffsetSpec.LATEST, read_committed=True))[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        return answer.offset

    async def _clean(
        self,
        partition: TieredPartition,
        look: CleanLook,
        plan: CompactionPlan,
        settings: CleanerSettings,
        swapper: _ChunkSwapper,
    ) -> CleanedChunk:
        chain, first_dirty = look.chain.segments, plan.first_dirty_offset
        starts = {one.start_offset for one in plan.chunks[0]}
        aborted = await self._passes.aborted(chain)
        dirty = [one for one in chain if one.start_offset in starts]
        offset_map = await self._passes.offset_map(dirty, first_dirty, aborted)
        await self._failpoints.reach("clean.mapped")
        end = Offset(offset_map.latest_offset + 1)
        terms = CleaningTerms(
            now_ms=self._clock.now_ms(),
            delete_retention_ms=settings.delete_retention_ms,
            upper_bound_offset=NO_OFFSET,  # the last batch of every segment stays: see SegmentCleaner
            first_dirty_offset=first_dirty,
            due_by_ms=look.due_by_ms,
            last_records=last_records(await self._blobs.read_producer_snapshot(chain[-1])),
        )
        cleaner = Cleaner(offset_map, terms, aborted)
        swapped: list[RemoteLogSegmentMetadata] = []
        carried = 0
        claims = Claims(self._state, partition.view, look.known, chain)
        for segment in chain:
            if segment.start_offset >= end:
                break
            is_clean = segment.end_offset < first_dirty
            if is_clean and await self._filters.rule_out(segment, offset_map, now_ms=terms.due_ms):
                carried += 1
                continue
            async with self._passes.cleaned(segment, cleaner, is_whole=segment.end_offset < end) as cleaned:
                if cleaned.is_unchanged:
                    await self._filters.keep(segment, cleaned.key_filter)
                    continue
                await self._failpoints.reach("clean.rewritten")
                new = await self._swap.replace([segment], cleaned.new, swapper, broker_id=self._broker_id)
            if isinstance(new, str):
                self._log_left(segment, new)
                return CleanedChunk(swapped=tuple(swapped), left=new)
            self._log_swapped(segment, new, cleaned.tally)
            await self._filters.keep(new, cleaned.key_filter)
            swapped.append(new)
            await self._failpoints.reach("clean.trashed")
            claims.given[segment.start_offset] = new
            if look.cleaner_offset is not None and segment.start_offset < look.cleaner_offset:
                self._ownership.require_role()
                await claims.publish(look.cleaner_offset)
        if left := await self._reason_to_end(partition):
            return CleanedChunk(swapped=tuple(swapped), left=left)
        self._ownership.require_role()
        await claims.publish(end)
        await self._failpoints.reach("clean.published")
        await self._filters.drop_others(claims.given.values(), self._cleaned_here(partition))
        return CleanedChunk(swapped=tuple(swapped), carried=carried, cleaner_offset=end)

    def _cleaned_here(self, partition: TieredPartition) -> list[TopicIdPartition]:
        """Return this one, and every other one of a compacted topic that the broker has."""
        owner = partition.view.topic_id_partition
        others = (one.view.topic_id_partition for one in self._table.assignment.values())
        return [owner, *(one for one in others if one.topic in self._table.compacted_topics)]

    def _log_swapped(self, old: RemoteLogSegmentMetadata, new: RemoteLogSegmentMetadata, tally: SegmentTally) -> None:
        log.info(
            "segment.cleaned",
            topic=old.topic_id_partition.topic,
            partition=old.topic_id_partition.partition,
            segment_id=str(old.remote_log_segment_id),
            new_segment_id=str(new.remote_log_segment_id),
            records=tally.records_read,
            records_kept=tally.records_kept,
            bytes=tally.bytes_read,
            bytes_kept=tally.bytes_kept,
        )

    def _log_left(self, segment: RemoteLogSegmentMetadata, reason: str) -> None:
        log.info(
            "segment.clean.left",
            topic=segment.topic_id_partition.topic,
            partition=segment.topic_id_partition.partition,
            segment_id=str(segment.remote_log_segment_id),
            reason=reason,
        )


class _ChunkSwapper:
    """The :class:`~tiersidecar.tasks.segment_swap.Swapper` of one chunk: the leader's, while it leads in that epoch."""

    def __init__(
        self,
        *,
        partition: TieredPartition,
        look_again: Callable[[], Awaitable[CleanLook]],
        reason_to_end: Callable[[], Awaitable[str]],
        trash: SwapTrash,
        ownership: Ownership,
        in_flight: InFlight,
        clock: Clock,
    ) -> None:
        self._owner = partition.view.topic_id_partition
        self._look_again, self.reason_to_end, self._trash = look_again, reason_to_end, trash
        self._ownership, self._in_flight, self._clock = ownership, in_flight, clock
        self._near: Sequence[RemoteLogSegmentMetadata] = ()
        self._looked_s = 0.0

    async def reason_to_leave(self, old: Sequence[RemoteLogSegmentMetadata]) -> str:
        """Return why they are left: each must still be the one of its span that readers are given.  Both topics are read to
        their ends first: a command that has claimed its lease before that is seen."""
        await self._ownership.confirm(self._owner)
        self._looked_s = self._clock.monotonic_s()
        now = await self._look_again()
        if reason := await self.reason_to_end():
            return reason
        if self._left_ms() <= 0:
            return f"looking at it took more than {CLEANER_FINISHES_WITHIN_S} s: a command may have begun since"
        given = {one.remote_log_segment_id for one in now.chain.segments}
        if not all(one.remote_log_segment_id in given for one in old):
            return now.chain.stopped or "it was replaced or deleted meanwhile"
        first, last = old[0].start_offset, old[-1].end_offset
        self._near = [one for one in now.segments if one.start_offset <= last and one.end_offset >= first]
        return ""

    def after_ms(self) -> int:
        return max(one.event_timestamp_ms for one in self._near if one.state is State.COPY_SEGMENT_FINISHED)

    def copying(self, segment_id: RemoteLogSegmentId) -> AbstractAsyncContextManager[None]:
        return self._in_flight.copying(segment_id)

    def require(self) -> None:
        self._ownership.require_role()

    async def within_ms(self) -> int | None:
        """Return a time far below any ``delete.retention.ms``: what a deposed leader finishes later than that could bring a key
        back.  It counts from the last look, after which a command waits for that long before it acts."""
        return max(self._left_ms(), 1)

    def _left_ms(self) -> int:
        return round((self._looked_s + CLEANER_FINISHES_WITHIN_S - self._clock.monotonic_s()) * 1000)

    def prover(self, stored: RemoteLogSegmentMetadata) -> Prover:
        return DigestAlone()

    async def retire(self, old: Sequence[RemoteLogSegmentMetadata], new: RemoteLogSegmentMetadata) -> None:
        self._ownership.require_role()
        await self._trash.put(old)


def _cleanable(segment: RemoteLogSegmentMetadata) -> CleanableSegment:
    """Return it with the latest record's time for the first batch's, which no event has: ``max.compaction.lag.ms`` counts from
    that, or from the last event where a producer's clock was ahead of it: the segment is as old at least."""
    times = [ms for ms in (segment.max_timestamp_ms, segment.event_timestamp_ms) if ms > 0]
    return CleanableSegment(
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.segment_size_in_bytes,
        max_timestamp_ms=segment.max_timestamp_ms,
        first_timestamp_ms=min(times, default=-1),
    )
