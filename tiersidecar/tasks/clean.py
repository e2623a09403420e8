"""The cleaner of a compacted partition: one chunk of the remote log a round (docs/design/0017-remote-compaction.md).

The dirty segments of the chunk stream past and fill the offset map.  Then every segment from the log's start to the end of
what the map knows streams past again (:mod:`~tiersidecar.tasks.clean_engine`); what is left of one, if that is another .log,
takes the segment's place (:mod:`~tiersidecar.tasks.segment_swap`), in ascending order.  After the last one the cleaner offset
is published; before that, at intervals and where the chunk ends early, it is published up to where all segments are done.
Abandoned at any await, the next chunk begins from the cleaner offset that was published last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tiersidecar.decide.cleaning_chain import CleaningChain
from tiersidecar.decide.compaction import CleanableSegment, CompactionPlan, CompactionView, decide_compaction
from tiersidecar.decide.topics import CleanerSettings, TieredPartition, read_cleaner_settings
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError, CleanedByLostRecordsError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.lease import decision_ms
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats.compaction.cleaning import CleaningTerms, last_records
from tiersidecar.formats.kafka.producer_state import open_states
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.tasks.clean_claims import Claims
from tiersidecar.tasks.clean_engine import Chunk, CleanEngine, LocalEngine, Progress, SegmentDone, quiet
from tiersidecar.tasks.clean_look import CleanLook, CleanLooks
from tiersidecar.tasks.clean_passes import CleanPasses, aborted_of
from tiersidecar.tasks.clean_rights import ChunkSwapper, CleaningRights
from tiersidecar.tasks.edges import Sources
from tiersidecar.tasks.key_filters import KeyFilters
from tiersidecar.tasks.segment_put import SwapStore
from tiersidecar.tasks.segment_swap import SegmentSwap, SwapTrash


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSettings:
    """``dedupe_buffer_bytes`` bounds the offset map of a round (``dedupe.buffer.size``).  ``scratch`` is a directory of this
    process's alone for one segment at a time, ``filters`` one for key filters, which are kept; ``delays`` say how long what was
    replaced stays in the trash.  ``takes_all``: an operator has asked for all that may be cleaned, however little it is, and
    no chunk ends before the map is full."""

    dedupe_buffer_bytes: int
    scratch: Path
    filters: Path
    delays: TrashDelays
    takes_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedChunk:
    """Result of one round.  ``swapped`` are the new segments; ``carried`` is how many were left as they are without being
    read; ``cleanable_to`` is the first offset that could not be cleaned when the round was planned; ``left`` says why the chunk
    was not done: then ``cleaner_offset`` is the end of the part that was, -1 where none was claimed."""

    reason: str = ""
    swapped: tuple[RemoteLogSegmentMetadata, ...] = ()
    bytes_before: int = 0
    carried: int = 0
    cleanable_to: Offset = NO_OFFSET
    cleaner_offset: Offset = NO_OFFSET
    left: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRound:
    """What a round would do now.  ``cleaner_offset`` is the first offset that is not clean, None where nothing was cleaned;
    ``is_crossed`` as :class:`~tiersidecar.decide.compaction.CompactionView` has it, of an operator's round; ``parted_at`` as
    :attr:`CleanLook.parted_at`."""

    chain: CleaningChain
    plan: CompactionPlan
    cleaner_offset: Offset | None
    settings: CleanerSettings
    is_crossed: bool = False
    parted_at: Offset | None = None

    @property
    def reason(self) -> str:
        """Return why there is none; empty where there is one."""
        return "" if self.plan.chunks else "; ".join(filter(None, (self.plan.reason, self.chain.stopped)))

    def lost_records(self, owner: TopicIdPartition) -> CleanedByLostRecordsError | None:
        """Return what an operator must know of ``owner`` since an unclean election; None where it is all right."""
        if self.parted_at is None:
            return None
        reason = f"it was cleaned by records from offset {self.parted_at} on that an unclean election has cut off since"
        return CleanedByLostRecordsError(subject=str(owner), reason=reason)


LONGEST_ROUND_MS = 3 * 86_400_000
"""A round without a bound may take days.  It is given up after this time, by which its tombstones stay longer."""
_TOO_LONG = "the round has taken too long for the delete horizons that it sets; another one goes on from here"
_LANES_TURN = (
    "readers pass into the broker's log, and what is before it has to be cleaned in time: the sidecar's cleaner, which waits "
    "meanwhile, goes on from here"
)

_CLAIM_EACH_S = 60.0
"""A claim names every segment below it, so a claim for each segment would be much of a long log."""

_NOT_COMPACTED = "the topic is not compacted, or its settings are not known"


class CleanTask:
    """Cleans one partition at a time, by the ``rights`` of its process."""

    def __init__(
        self,
        *,
        sources: Sources,
        clock: Clock,
        failpoints: Failpoints,
        rights: CleaningRights,
        engine: CleanEngine,
        blobs: IndexBlobReader,
        settings: CleanSettings,
    ) -> None:
        self._broker, self._metadata = sources.broker, sources.metadata
        self._state, self._looks = sources.state, CleanLooks(sources)
        self._clock, self._failpoints = clock, failpoints
        self._rights, self._engine, self._blobs, self._settings = rights, engine, blobs, settings

    async def run(
        self, partition: TieredPartition, *, cut_short: Callable[[CleanedChunk], None] = lambda done: None
    ) -> CleanedChunk:
        """Clean one chunk, if one is due.  ``cut_short`` gets what was done of one that an error ends, before that is raised.

        Raises:
            BrokerRefusedError: another broker leads the partition by now.
            StoreError, CorruptDataError: a segment could not be read; the cleaner offset stays.
            OffsetMapTooSmallError: one batch has more keys than the map may hold.
            CleanedByLostRecordsError: nothing is due, and the remote log may lack keys since an unclean election.
            StateDirError: the disk is full, or the like.
        """
        if reason := self._rights.reason_not_to_begin(partition):
            return CleanedChunk(reason=reason)
        settings = await self._topic_settings(partition.view.topic_id_partition.topic)
        if isinstance(settings, str):
            return CleanedChunk(reason=settings)
        look = await self._looks.look(partition)
        swapper = self._swapper(partition)
        if look.chain.twins:  # a process ended between a swap and its entry
            if left := await self._reason_to_end(partition):
                return CleanedChunk(left=left)
            await swapper.retire(look.chain.twins, look.chain.segments[-1])
        planned = await self._planned(partition, look, settings)
        if left := await self._note_parting(partition, look):
            return CleanedChunk(left=left)
        if planned.reason:
            if lost := planned.lost_records(partition.view.topic_id_partition):
                raise lost  # and not before: what is new can still be cleaned
            return CleanedChunk(reason=planned.reason)
        return await self._clean(partition, look, planned, swapper, cut_short)

    async def planned(self, partition: TieredPartition) -> PlannedRound | str:
        """Return what a round would do now, by the same looks, or why none can be planned.

        Raises:
            BrokerRefusedError: another broker leads the partition by now.
            StoreError, CorruptDataError: a producer snapshot could not be read.
        """
        settings = await self._topic_settings(partition.view.topic_id_partition.topic)
        if isinstance(settings, str):
            return settings
        return await self._planned(partition, await self._looks.look(partition), settings)

    async def _note_parting(self, partition: TieredPartition, look: CleanLook) -> str:
        """Claim nothing new, but say where the history parts from what was cleaned: the next rounds, and the deletion of what
        was cut off, take away what shows it.  Return why that may not be said."""
        chain, clean_to = look.chain.segments, look.cleaner_offset
        if look.is_parting_noted(partition.view.leader_epoch):
            return ""
        if clean_to is None or not chain or chain[0].start_offset >= clean_to:
            return ""  # such a claim would name none
        if left := await self._reason_to_end(partition):
            return left
        self._rights.require()
        await Claims(self._state, partition.view, look.known, chain, parted_at=look.parted_at).publish(clean_to)
        return ""

    def _swapper(self, partition: TieredPartition) -> ChunkSwapper:
        trash = SwapTrash(
            self._state,
            partition.view,
            clock=self._clock,
            delays=self._settings.delays,
            by=self._rights.author_of(partition),
            kind=TrashKind.COMPACTION,
        )
        return ChunkSwapper(
            partition=partition,
            rights=self._rights,
            look_near=partial(self._looks.look_near, partition),
            reason_to_end=partial(self._reason_to_end, partition),
            trash=trash,
            clock=self._clock,
            decided_ms=self._decided_ms,
        )

    async def _reason_to_end(self, partition: TieredPartition) -> str:
        """Return why the chunk is given up: asked before each event, and of the broker whether the topic is still compacted,
        and whether we lead."""
        if reason := self._rights.reason_not_to_begin(partition):
            return reason
        settings = await self._topic_settings(partition.view.topic_id_partition.topic)
        if isinstance(settings, str):
            return settings
        await self._last_stable_offset(partition)
        return ""

    async def _topic_settings(self, topic: str) -> CleanerSettings | str:
        """Return them, or why nothing of the topic may be cleaned."""
        configs = (await self._broker.describe_topic_configs([topic])).get(topic, {})
        if configs.get("remote.storage.enable") == "true":
            return "the broker tiers the topic itself: its segments are its own"
        return read_cleaner_settings(configs) or _NOT_COMPACTED

    async def _planned(self, partition: TieredPartition, look: CleanLook, settings: CleanerSettings) -> PlannedRound:
        chain = look.chain.segments
        start = chain[0].start_offset if chain else Offset(0)
        free_bytes = await self._engine.free_bytes()
        is_crossed = self._settings.takes_all and bool(chain) and await self._is_crossed(partition, start)
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
            takes_all=self._settings.takes_all,
            is_crossed=is_crossed,
        )
        compaction = settings.remote_compaction
        # What is younger than the least lag is promised to readers: for a command whose clock is ahead, too.
        plan = decide_compaction(view, compaction, now_ms=self._rights.due_ms(self._clock.now_ms()))
        return PlannedRound(
            chain=look.chain,
            plan=plan,
            cleaner_offset=look.cleaner_offset,
            settings=settings,
            is_crossed=is_crossed,
            parted_at=look.parted_at,
        )

    def _sidecars_ms(self) -> int:
        """Return the time that the sidecars have seen, by whose clocks the lane would clean, or ours where none says."""
        return self._rights.due_ms(self._decided_ms())

    def _decided_ms(self) -> int:
        """Return the time of a decision: others carry it out, or judge it, by their own clocks."""
        return decision_ms(self._clock.now_ms(), self._state.known_leases())

    async def _is_crossed(self, partition: TieredPartition, start: Offset) -> bool:
        """Return whether the broker's log begins after ``start``, the remote one's first offset."""
        return await self._offset(partition, OffsetSpec.EARLIEST) > start

    async def _last_stable_offset(self, partition: TieredPartition) -> Offset:
        """Ask the broker, fenced by our leader epoch: a deposed leader is refused here."""
        return await self._offset(partition, OffsetSpec.LATEST)

    async def _offset(self, partition: TieredPartition, spec: OffsetSpec) -> Offset:
        topic_id_partition = partition.view.topic_id_partition
        asked, is_stable = {topic_id_partition: partition.view.leader_epoch}, spec is OffsetSpec.LATEST
        answer = (await self._broker.list_offsets(asked, spec, read_committed=is_stable))[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        return answer.offset

    async def _clean(
        self,
        partition: TieredPartition,
        look: CleanLook,
        planned: PlannedRound,
        swapper: ChunkSwapper,
        cut_short: Callable[[CleanedChunk], None],
    ) -> CleanedChunk:
        chain, plan = look.chain.segments, planned.plan
        starts = {one.start_offset for one in plan.chunks[0]}
        chunk = Chunk(
            chain=chain,
            dirty=[one for one in chain if one.start_offset in starts],
            first_dirty=plan.first_dirty_offset,
            aborted=await aborted_of(self._blobs, chain),
        )
        if lanes_ms := _left_of_lanes_time(planned, self._sidecars_ms()):
            swapper.give_up_after(lanes_ms // 2, _LANES_TURN)
        mapped = await self._engine.read_dirty(chunk)
        await self._failpoints.reach("clean.mapped")
        # Horizons count from here, and a reader may get an older value until the last swap of the round.
        longest_ms = LONGEST_ROUND_MS if self._settings.takes_all else 0
        if longest_ms:
            swapper.give_up_after(longest_ms, _TOO_LONG)
        now_ms = self._clock.now_ms()
        due_ms = self._rights.due_ms(now_ms)
        terms = CleaningTerms(
            # Others decide by their own clocks when what is set here is due.
            now_ms=self._decided_ms(),
            delete_retention_ms=planned.settings.delete_retention_ms + longest_ms,
            upper_bound_offset=NO_OFFSET,  # the last batch of every segment stays: see SegmentCleaner
            first_dirty_offset=plan.first_dirty_offset,
            due_by_ms=due_ms if look.due_by_ms is None else min(due_ms, look.due_by_ms),
            last_records=last_records(await self._blobs.read_producer_snapshot(chain[-1])),
        )
        swapper.sets_horizons(terms.delete_retention_ms)
        claims = Claims(self._state, partition.view, look.known, chain, reach=mapped.end, parted_at=look.parted_at)
        claim_done = partial(self._claim_done, partition, claims, plan.first_dirty_offset, mapped.end)
        result, claimed_s = CleanedChunk(cleanable_to=plan.first_uncleanable_offset), self._clock.monotonic_s()
        try:
            async with aclosing(mapped.clean(terms, swapper)) as cleaning:
                async for done in cleaning:
                    if done.left:
                        done.log_left()
                        result = replace(result, left=done.left)
                        break
                    if done.is_given_up:
                        claims.note_given_up(done.old)
                        continue
                    result = _with(result, done)
                    if done.new is not None:
                        done.log_swapped(done.new)
                        await self._failpoints.reach("clean.trashed")
                    claims.note_done(done.old, done.new)
                    if done.new is not None and done.old.start_offset < plan.first_dirty_offset:
                        self._rights.require()
                        await claims.publish(plan.first_dirty_offset)
                    if self._clock.monotonic_s() - claimed_s >= _CLAIM_EACH_S:
                        await claim_done()
                        claimed_s = self._clock.monotonic_s()
                    if claims.done_to(mapped.end) < mapped.end and (left := swapper.reason_to_give_up()):
                        result = replace(result, left=left)
                        break
        except TiersidecarError:
            with suppress(TiersidecarError):  # what has ended the chunk may stand in the way of this, too
                result = replace(result, cleaner_offset=await claim_done())
            cut_short(result)
            raise
        if result.left:
            return replace(result, cleaner_offset=await claim_done())
        if left := await self._reason_to_end(partition):
            return replace(result, left=left)
        self._rights.require()
        await claims.publish(mapped.end)
        await self._failpoints.reach("clean.published")
        await mapped.finish(claims.given.values())
        return replace(result, cleaner_offset=mapped.end)

    async def _claim_done(
        self, partition: TieredPartition, claims: Claims, clean_to: Offset, map_end: Offset
    ) -> Offset:
        """Claim what is done of a chunk, and return up to where; -1 where that is no more than was clean before it, or it may
        not be claimed."""
        done_to = claims.done_to(map_end)
        if done_to <= clean_to or await self._reason_to_end(partition):
            return NO_OFFSET
        self._rights.require()
        await claims.publish(done_to)
        return done_to


def _left_of_lanes_time(planned: PlannedRound, now_ms: int) -> int:
    """Return how much of the time is left in which the lane would have to clean what is dirty; 0 where it has no such time, or
    it is over: a backlog is cleaned no sooner by the lane."""
    if not planned.is_crossed:
        return 0
    dirty = (one for one in planned.chain.segments if one.end_offset >= planned.plan.first_dirty_offset)
    oldest_ms = min((one.event_timestamp_ms for one in dirty), default=now_ms)
    return max(oldest_ms + planned.settings.cleaners_share_ms - now_ms, 0)


def _with(result: CleanedChunk, done: SegmentDone) -> CleanedChunk:
    if done.new is None:
        return replace(result, carried=result.carried + done.is_carried)
    return replace(
        result,
        swapped=(*result.swapped, done.new),
        bytes_before=result.bytes_before + done.old.segment_size_in_bytes,
    )


def local_engine(
    settings: CleanSettings,
    store: SwapStore,
    swap: SegmentSwap,
    *,
    blocking: Blocking,
    failpoints: Failpoints,
    cleaned_here: Callable[[TopicIdPartition], Iterable[TopicIdPartition]],
    progress: Progress = quiet,
) -> LocalEngine:
    """Return the engine of this process."""
    passes = CleanPasses(
        store=store,
        blocking=blocking,
        scratch=settings.scratch,
        dedupe_buffer_bytes=settings.dedupe_buffer_bytes,
    )
    return LocalEngine(
        passes=passes,
        filters=KeyFilters(settings.filters, blocking),
        swap=swap,
        failpoints=failpoints,
        cleaned_here=cleaned_here,
        progress=progress,
    )


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
