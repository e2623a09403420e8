"""What a leader has said of its epochs is not forgotten with the broker's file: what an unclean election cut off stays away.

No leader of these worlds takes over a log that is empty above a start that has moved: its file begins with its own epoch, and
nothing tells which of two histories was before (docs/design/0002, what remains).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.metadata_events import FINISHED, ORDERS, added, updated
from tiersidecar.decide.expiry_standing import standings
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.lineage import LineageKeeper
from tiersidecar.tasks.remembered_epochs import RememberedEpochs


@dataclass(frozen=True, kw_only=True)
class Log:
    """The leader epoch of each record that there ever was; those before ``start`` have left the broker's disk."""

    epochs: Sequence[int] = ()
    start: int = 0

    @property
    def file(self) -> tuple[EpochEntry, ...]:
        """The leader-epoch-checkpoint."""
        left = self.epochs[self.start :]
        return tuple(
            EpochEntry(LeaderEpoch(epoch), Offset(self.start + left.index(epoch))) for epoch in sorted(set(left))
        )


@dataclass(frozen=True, kw_only=True)
class Reign:
    """One leader: which former log it begins with, and how much of that it has; whether its sidecar says its epochs; what it
    copies; where its log begins afterwards."""

    former: int
    kept: int
    written: int
    says: bool
    copies: Sequence[tuple[int, int]]
    start: int


reigns = st.builds(
    Reign,
    former=st.integers(0, 9),
    kept=st.one_of(st.just(1000), st.integers(0, 30)),
    written=st.integers(1, 8),
    says=st.booleans(),
    copies=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=2),
    start=st.integers(0, 40),
)


@dataclass
class World:
    """Metadata and blobs of what was copied, and the state topic; ``log`` is the last leader's."""

    is_remembered: bool
    logs: list[Log] = field(default_factory=lambda: [Log()])
    state: PartitionState = field(default_factory=PartitionState)
    metadata: MemoryMetadataLog = field(default_factory=MemoryMetadataLog)
    blobs: dict[RemoteLogSegmentId, Sequence[EpochEntry]] = field(default_factory=dict)

    @property
    def log(self) -> Log:
        return self.logs[-1]

    def leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        return self.log.file

    def pinned_leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        return ()

    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        return self.state if self.is_remembered else PartitionState()

    async def read_leader_epochs(self, metadata: RemoteLogSegmentMetadata) -> Sequence[EpochEntry]:
        return self.blobs[metadata.remote_log_segment_id]

    async def lineage(self) -> Lineage:
        """As a process tells it that has just started."""
        keeper = LineageKeeper(
            metadata=self.metadata,
            epochs=self,
            live=RememberedEpochs(live=self, state=self),
            blocking=InlineBlocking(),
            clock=ManualClock(),
        )
        return await keeper.lineage(ORDERS)

    async def reign(self, epoch: int, one: Reign, *, says: bool) -> None:
        former = self.logs[one.former % len(self.logs)]
        least = former.start + 1 if former.start else 0
        kept = min(max(one.kept, least), len(former.epochs))
        epochs = [*former.epochs[:kept], *[epoch] * one.written]
        self.logs.append(Log(epochs=epochs, start=former.start))
        if says:
            self.state = self.state.merged_with(PartitionState().with_epochs(await self.lineage()))
        for number, (start, length) in enumerate(one.copies):
            start = former.start + start % (len(epochs) - former.start)
            await self.copy(10 * epoch + number, start, min(start + length, len(epochs) - 1))
        gone = min(max(one.start, former.start), len(epochs) - 1)
        self.logs[-1] = Log(epochs=epochs, start=gone)

    async def copy(self, number: int, start: int, end: int) -> None:
        lineage = await self.lineage()
        own = {int(entry.epoch): int(entry.start_offset) for entry in lineage.entries_in_range(start, end + 1)}
        event = added(number, start, end, own)
        self.blobs[event.remote_log_segment_id] = lineage.entries_below(end + 1)
        await self.metadata.publish(event)
        await self.metadata.publish(updated(number, FINISHED))

    async def served(self) -> Mapping[int, bool]:
        """Offsets that readers find, by whether what they find is of the last leader's log."""
        found: dict[int, bool] = {}
        for standing in standings(list(self.metadata.list_remote_log_segments(ORDERS)), await self.lineage()):
            for start, stop in standing.served:
                for offset in range(start, stop):
                    own = max(e.epoch for e in standing.segment.segment_leader_epochs if e.start_offset <= offset)
                    is_right = offset < len(self.log.epochs) and self.log.epochs[offset] == own
                    found[offset] = found.get(offset, True) and is_right
        return found


async def lived(history: Sequence[Reign], *, is_remembered: bool, all_say: bool) -> World:
    world = World(is_remembered=is_remembered)
    await world.metadata.assign([ORDERS])
    for epoch, one in enumerate(history):
        await world.reign(epoch, one, says=one.says or all_say)
    return world


@given(st.lists(reigns, min_size=1, max_size=5))
def test_where_each_leader_has_said_its_epochs_nothing_of_another_history_is_found(history: list[Reign]) -> None:
    """Each has the log of the one before it, cut anywhere.  Of a history that was left and is come back to nobody may have said
    the epochs last."""

    async def main() -> None:
        cut = [replace(reign, former=-1) for reign in history]
        world = await lived(cut, is_remembered=True, all_say=True)
        assert all((await world.served()).values())

    asyncio.run(main())


@given(st.lists(reigns, min_size=1, max_size=5))
def test_what_some_leaders_have_said_hides_nothing(history: list[Reign]) -> None:
    """A sidecar may have been away, or may delete nothing, and said nothing then."""

    async def main() -> None:
        found = await (await lived(history, is_remembered=True, all_say=False)).served()
        without = await (await lived(history, is_remembered=False, all_say=False)).served()
        assert {offset for offset, right in without.items() if right} <= {o for o, right in found.items() if right}

    asyncio.run(main())
