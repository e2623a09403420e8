"""Observe a partition for expiry: all that its decision needs, from memory or with the broker's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tiersidecar.decide.expire import ExpiryPlan, QuietRound, decide_expiry, quiet_round
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.domain.segments import gone_below
from tiersidecar.formats.aiven.keys import stored_bytes
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.state_log import Hold
from tiersidecar.ports.state_records import segments_of
from tiersidecar.reading.lineage import pictured_segments
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.ownership import InFlight

_DECIDED_AT_ONCE = 256
"""Of partitions with more of them the segments are made in a thread, and other lanes run meanwhile."""
_SEGMENTS_ON_THE_LOOP = 1000
"""About 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySettings:
    """``interval_s``: how often each partition has a round, unless something was left over.  ``has_failed`` says whether the
    last run of the partition's lane failed."""

    limits: ExpiryLimits
    delays: TrashDelays
    interval_s: float
    has_failed: Callable[[TopicIdPartition], bool] = lambda topic_id_partition: False


class ExpiryLook:
    """Views of partitions, and the decisions on them.  Nothing is published or deleted here.

    ``quiet`` are the rounds of the partitions whose last one found nothing to do, ``stored_bytes`` the bytes of the segments
    that a round last decided anew.  ``by`` names this sidecar in what it decides.
    """

    def __init__(
        self, *, sources: Sources, edges: Edges, settings: ExpirySettings, in_flight: InFlight, by: str
    ) -> None:
        self._table, self._broker, self._metadata = sources.table, sources.broker, sources.metadata
        self._state, self._in_flight, self._by = sources.state, in_flight, by
        self._blocking, self._trash_clock = edges.blocking, edges.trash_clock
        self._limits, self._delays = settings.limits, settings.delays
        self.quiet: dict[TopicIdPartition, QuietRound] = {}
        self.stored_bytes: dict[TopicIdPartition, int] = {}

    async def asked_view(self, partition: TieredPartition, lineage: Lineage) -> ExpiryView:
        """Return the partition as the decision sees it once the broker has been asked.

        Raises:
            BrokerRefusedError: another broker leads it by now.
        """
        log_start_offset = await self.ask(partition, OffsetSpec.EARLIEST)
        high_watermark = await self.ask(partition, OffsetSpec.LATEST)
        return await self.view(partition, lineage, log_start_offset, high_watermark)

    async def from_memory(self, partition: TieredPartition, lineage: Lineage) -> tuple[ExpiryView, ExpiryPlan]:
        """Return the partition by what is known without asking, and the decision on it: the last decision, where there was
        nothing to do, and nothing has changed that could change that."""
        topic_id_partition = partition.view.topic_id_partition
        bare, picture = self._bare_view(partition, lineage)
        mark, known = picture.mark, self.quiet.get(topic_id_partition)
        if known is not None and known.holds_for(bare, mark):
            return bare, known.plan
        if len(picture) > _DECIDED_AT_ONCE:
            return await self._large(topic_id_partition, bare, picture, mark)
        view = replace(bare, remote_segments=picture.segments())
        self.stored_bytes[topic_id_partition] = await self._sum_stored(view)
        plan = decide_expiry(view)
        self._remember(topic_id_partition, quiet_round(view, mark, plan))
        return view, plan

    async def _large(
        self, topic_id_partition: TopicIdPartition, bare: ExpiryView, picture: SegmentPicture, mark: int
    ) -> tuple[ExpiryView, ExpiryPlan]:
        """Decide on the picture in a thread, and remember it for the next round.

        The plan returned is not the one remembered: what it was decided by may be another by now, so that no round may rest on
        it (``RestingRounds.note``) before one has found all of it unchanged.
        """
        view = replace(bare, remote_segments=await pictured_segments(picture, self._blocking))
        self.stored_bytes[topic_id_partition] = await self._sum_stored(view)
        plan = await self.decide(view)
        self._remember(topic_id_partition, await self._blocking.run(quiet_round, view, mark, replace(plan)))
        return view, plan

    def _remember(self, topic_id_partition: TopicIdPartition, quiet: QuietRound | None) -> None:
        if quiet is None:
            self.quiet.pop(topic_id_partition, None)
        else:
            self.quiet[topic_id_partition] = quiet

    async def view(
        self,
        partition: TieredPartition,
        lineage: Lineage,
        log_start_offset: Offset | None = None,
        high_watermark: Offset | None = None,
    ) -> ExpiryView:
        """Return the view, all of one moment, but for the time that it takes to make the segments of it."""
        view, picture = self._bare_view(partition, lineage, log_start_offset, high_watermark)
        return replace(view, remote_segments=await pictured_segments(picture, self._blocking))

    def _bare_view(
        self,
        partition: TieredPartition,
        lineage: Lineage,
        log_start_offset: Offset | None = None,
        high_watermark: Offset | None = None,
    ) -> tuple[ExpiryView, SegmentPicture]:
        """Return the view without the remote segments, and the picture of those at the same moment."""
        topic_id_partition = partition.view.topic_id_partition
        state, local = self._state.partition_state(topic_id_partition), self._table.local_partition(topic_id_partition)
        picture, time = self._metadata.picture(topic_id_partition), self._trash_clock.now()
        segments, start_offset = () if local is None else local.segments, state.start_in(lineage)
        if start_offset < 0 and log_start_offset is not None:  # it is to be said where the log begins
            segments = gone_below(log_start_offset, segments, self._table.pins.of(topic_id_partition))
        view = ExpiryView(
            policy=self._table.policy_of(partition),
            lineage=lineage,
            remote_segments=(),
            local_segments=segments,
            now_ms=time.now_ms,
            remote_log_start_offset=start_offset,
            trim_offset=lineage.as_of(state.trim_offset, state.trim_epoch),
            held_offset=state.held_in(lineage),
            accepted_loss_epoch=state.accepted_loss_epoch,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            in_flight=frozenset(self._in_flight.ids),
            begun=frozenset(self._in_flight.begun),
            clock_doubt=time.doubt,
            unseen=time.unseen,
            seen_ms=time.seen_ms,
            broker_expires=partition.policy.mode is RetentionMode.RACE
            or topic_id_partition.topic in self._table.untrimmable_topics,
            guard_stop=state.guard_stop,
            leader_epoch=partition.view.leader_epoch,
            start_generation=state.start_generation,
            trash=tuple(self._state.trash(topic_id_partition)),
            user_deletes=state.user_deletes,
            delays=self._delays,
            damaged=segments_of(self._state.recopies(topic_id_partition)),
            hold=_said(state.hold_in(lineage)),
            by=self._by,
            limits=self._limits,
        )
        return view, picture

    async def decide(self, view: ExpiryView) -> ExpiryPlan:
        """Decide in a thread where there are so many segments that the loop would stand still."""
        if len(view.remote_segments) <= _SEGMENTS_ON_THE_LOOP:
            return decide_expiry(view)
        return await self._blocking.run(decide_expiry, view)

    async def _sum_stored(self, view: ExpiryView) -> int:
        """Add up in a thread for the same reason."""
        if len(view.remote_segments) <= _SEGMENTS_ON_THE_LOOP:
            return stored_bytes(view.remote_segments)
        return await self._blocking.run(stored_bytes, view.remote_segments)

    async def ask(self, partition: TieredPartition, spec: OffsetSpec) -> Offset:
        """Ask the broker, fenced by our leader epoch: a deposed leader is refused here."""
        topic_id_partition = partition.view.topic_id_partition
        answer = (await self._broker.list_offsets({topic_id_partition: partition.view.leader_epoch}, spec))[
            topic_id_partition
        ]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        if spec is OffsetSpec.EARLIEST:
            self._table.record(topic_id_partition).log_start_offset = answer.offset
        return answer.offset


def _said(hold: Hold | None) -> str:
    if hold is None:
        return ""
    return f"{hold.by or 'an operator'} holds it ({hold.reason}); `tiersidecar release` ends that"
