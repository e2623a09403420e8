"""Histories with unclean elections and transactions over each cut, beside brokers that lose their producers' state, against a
plain model: what is uploaded and what is read is what the history that counts says (rule 14, docs/design/0011)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.records import (
    Batch,
    Marker,
    aborted_transactions,
    data_batch,
    marker_batch,
    open_transactions,
    visible_offsets,
)
from tests.support.deep_checks import deep_findings
from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import LocalBatch
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import open_run
from tests.unit.reading.test_lineage import FixedLog
from tests.unit.reading.test_remote_log_reader import committed
from tiersidecar.decide.reconcile_findings import FindingKind
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import (
    ProducerState,
    TransactionWalk,
    complete_index,
    complete_snapshot,
    merge_open,
)
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.reading.carried_transactions import CarriedTransactions, OpenAtCuts
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import ManifestCache

PRODUCERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Of ``producer`` (-1: none), or with ``marker`` the end of its transaction, where it has one."""

    producer: int
    records: int
    marker: Marker | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a leader writes and copies before ``cut``, the part of its batches since the last election that the next one has,
    in hundredths.  ``copies`` are the borders of its segments likewise, ``overlap`` batches of the first are remote already;
    ``late`` copies end after the election; its broker ``loses`` its producers' state before, or not; ``former``: its sidecar is
    of a release that took what the broker's files had."""

    writes: tuple[Write, ...]
    copies: tuple[int, ...]
    overlap: int
    cut: int
    late: bool
    loses: bool
    former: bool = False


WRITES = st.builds(
    Write,
    producer=st.integers(-1, PRODUCERS - 1),
    records=st.integers(1, 2),
    marker=st.one_of(st.none(), st.sampled_from(Marker)),
)
ROUNDS = st.builds(
    Round,
    writes=st.lists(WRITES, min_size=1, max_size=8).map(tuple),
    copies=st.lists(st.integers(0, 100), max_size=3).map(lambda borders: tuple(sorted(borders))),
    overlap=st.integers(0, 4),
    cut=st.integers(0, 100),
    late=st.booleans(),
    loses=st.booleans(),
)


@dataclass(slots=True, kw_only=True)
class Leader:
    """Its log from the beginning, its epochs, and from where on its broker knows of producers."""

    batches: list[Batch] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=lambda: {0: 0})
    knows_from: int = 0

    @property
    def epoch(self) -> int:
        return max(self.epochs)

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    @property
    def lineage(self) -> Lineage:
        return Lineage.of(sorted(self.epochs.items()))

    def write(self, write: Write) -> None:
        offset, producer = self.next_offset, write.producer
        if write.marker is None or producer not in open_transactions(self.batches, offset):
            records = [(1_000 + offset, b"value")] * write.records
            batch = data_batch(offset, records, leader_epoch=self.epoch, producer_id=producer)
        else:
            batch = marker_batch(
                offset, write.marker, leader_epoch=self.epoch, timestamp_ms=1_000 + offset, producer_id=producer
            )
        self.batches.append(batch)

    def successor(self, kept: int, *, loses: bool) -> Leader:
        """Who has the first ``kept`` batches, and is elected."""
        batches = self.batches[:kept]
        start = batches[-1].next_offset if batches else 0
        epochs = {epoch: first for epoch, first in self.epochs.items() if first < start}
        return Leader(batches=batches, epochs=epochs | {self.epoch + 1: start}, knows_from=start if loses else 0)

    def known(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.base_offset >= self.knows_from]

    def states_at(self, offset: int) -> list[ProducerState]:
        """The broker's own snapshot, as far as transactions go."""
        return [
            ProducerState(producer_id=producer_id, current_transaction_first_offset=first)
            for producer_id, first in sorted(open_transactions(self.known(), offset).items())
        ]

    def index_of(self, start: int, stop: int) -> list[AbortedTransaction]:
        """The broker's own entries of a segment."""
        found = []
        for producer_id, first, last in aborted_transactions(self.known()):
            if start <= last < stop:
                stable = min([last + 1, *open_transactions(self.known(), last + 1).values()])
                found.append(AbortedTransaction(producer_id, Offset(first), Offset(last), Offset(stable)))
        return found


class Tier:
    """Uploads as :class:`SegmentUploader` does, into a store in memory."""

    def __init__(self) -> None:
        self.builder = RemoteBuilder(chunk_size=100)
        self._copied: list[list[Batch]] = []
        self.is_former = False
        self.is_true: dict[RemoteLogSegmentId, bool] = {}

    def end_of(self, leader: Leader) -> int:
        """Up to where (exclusive) what is remote is of that leader's log."""
        end, own = 0, {id(one) for one in leader.batches}
        for segment in sorted(self._copied, key=lambda one: one[0].base_offset):
            if segment[0].base_offset > end:
                break
            for batch in segment:
                if id(batch) not in own:
                    break
                end = max(end, batch.next_offset)
        return end

    async def copy(self, leader: Leader, first: int, stop: int) -> None:
        """Batches ``first`` up to, not including, ``stop`` as a segment; what was uploaded is the truth."""
        segment = leader.batches[first:stop]
        start, end = segment[0].base_offset, segment[-1].next_offset
        carried = await self._carried().at(self.builder.partition, Offset(start), leader.lineage)
        walk = TransactionWalk(merge_open(carried, leader.states_at(start)))
        scanner = SegmentScanner(where="log", base_offset=start, transactions=walk)
        scanner.feed(b"".join(one.data for one in segment))
        scanner.finish()
        derived = walk.finish()
        entries: Sequence[AbortedTransaction] = leader.index_of(start, end)
        states: Sequence[ProducerState] = leader.states_at(end)
        if not self.is_former:
            entries, states = complete_index(entries, derived.aborted), complete_snapshot(states, derived.open_at_end)
        true_entries = [
            transaction for transaction in aborted_transactions(leader.batches) if start <= transaction[2] < end
        ]
        found = {state.producer_id: state.current_transaction_first_offset for state in states}
        is_true = [
            (entry.producer_id, entry.first_offset, entry.last_offset) for entry in entries
        ] == true_entries and found == open_transactions(leader.batches, end)
        assert is_true or self.is_former or not all(self.is_true.values()), "what is before it tells the truth"
        metadata = await self.builder.add(
            SegmentSource(
                batches=[LocalBatch(read_batch_header(one.data), one.data) for one in segment],
                start_offset=start,
                end_offset=end - 1,
                epochs={epoch: at for epoch, at in leader.epochs.items() if at < end},
                aborted_transactions=entries,
                producers=states,
            )
        )
        self._copied.append(segment)
        self.is_true[metadata.remote_log_segment_id] = is_true

    def _carried(self) -> CarriedTransactions:
        """Of another sidecar each time: what is known is in the store."""
        store, metadata, blocking = self.builder.run.store, self.builder.run.metadata, InlineBlocking()
        manifests = ManifestCache(store=store, blocking=blocking)
        blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests)
        cuts = OpenAtCuts(
            metadata=metadata,
            blobs=blobs,
            manifests=manifests,
            chunks=StoreChunkManager(store=store, blocking=blocking),
            blocking=blocking,
        )
        return CarriedTransactions(metadata=metadata, blobs=blobs, cuts=cuts)

    async def read(self, leader: Leader) -> None:
        """read_committed from the start shows what that leader's log says, and knows what is open at the end."""
        if not all(self.is_true.values()):
            return  # a former release's upload is to be repaired first
        partition, end = self.builder.partition, self.end_of(leader)
        async with open_run(self.builder.run, live=FixedLog(leader.epochs)) as path:
            assert (await path.reader.bounds(partition)).end == end
            still_open = open_transactions(leader.batches, end)
            assert await path.reader.open_at(partition, Offset(end)) == frozenset(still_open.items())
            stable = await path.reader.last_stable_offset(partition)
            assert stable == min([end, *still_open.values()])
            shown = list[int]()
            if end:
                async with aclosing(path.reader.stream_batches(partition, 0, read_committed=True)) as parts:
                    async for part in parts:
                        shown += [record.offset for record in committed(part)]
            assert shown == visible_offsets(leader.batches, 0, stable)

    async def check(self) -> list[bool]:
        """Whether the deep check finds fault with what lacks something: never with what is whole."""
        listed = list(self.builder.run.metadata.list_remote_log_segments(self.builder.partition))
        answers = []
        for one in listed:
            found = await deep_findings(self.builder.run.store, one, listed)
            assert {each.kind for each in found} <= {FindingKind.LACKING_TRANSACTIONS}
            if self.is_true[one.remote_log_segment_id]:
                assert found == []
            else:
                answers.append(bool(found))
        return answers


async def play(tier: Tier, rounds: Sequence[Round]) -> None:
    leader = Leader()
    await tier.builder.run.metadata.assign([tier.builder.partition])
    for one in rounds:
        began, tier.is_former = len(leader.batches), one.former
        for write in one.writes:
            leader.write(write)
        count = len(leader.batches) - began
        copier, borders = leader, [began + count * border // 100 for border in one.copies]
        if not one.late:
            await copied(tier, copier, borders, one.overlap)
            await tier.read(copier)
        leader = leader.successor(began + count * one.cut // 100, loses=one.loses)
        if one.late:
            await copied(tier, copier, borders, one.overlap)
        await tier.read(leader)


async def copied(tier: Tier, leader: Leader, borders: Sequence[int], overlap: int) -> None:
    """Copy up to each border what is not remote yet; the first segment begins ``overlap`` batches before that."""
    for border in borders:
        end = tier.end_of(leader)
        first = next((at for at, batch in enumerate(leader.batches) if batch.base_offset >= end), len(leader.batches))
        if border > first:
            await tier.copy(leader, max(first - overlap, 0), border)
            overlap = 0


def with_a_last(rounds: Sequence[Round]) -> list[Round]:
    """All that is left is copied in the end."""
    writes = (*rounds[0].writes, *rounds[-1].writes)
    return [*rounds, Round(writes=writes, copies=(100,), overlap=0, cut=100, late=False, loses=False)]


@settings(max_examples=150, deadline=None)
@given(st.lists(ROUNDS, min_size=2, max_size=5))
def test_what_is_uploaded_and_read_is_what_the_history_that_counts_says(rounds: list[Round]) -> None:
    asyncio.run(play(Tier(), with_a_last(rounds)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ROUNDS, st.booleans()), min_size=2, max_size=5))
def test_the_deep_check_finds_no_fault_with_what_is_whole(rounds: list[tuple[Round, bool]]) -> None:
    """Whatever former releases have uploaded before it."""

    async def checked() -> None:
        tier = Tier()
        await play(tier, with_a_last([replace(one, former=is_former) for one, is_former in rounds]))
        await tier.check()

    asyncio.run(checked())


IDLE = Write(producer=-1, records=1, marker=None)
ONE = Write(producer=0, records=1, marker=None)
COMMITS, ABORTS = replace(ONE, marker=Marker.COMMIT), replace(ONE, marker=Marker.ABORT)
ENDS = Round(writes=(ABORTS, IDLE), copies=(100,), overlap=0, cut=100, late=False, loses=False, former=True)


@pytest.mark.parametrize(
    ("writes", "copies", "overlap"),
    [
        pytest.param((ONE, IDLE, COMMITS, IDLE), (100,), 0, id="in the segment that is cut"),
        pytest.param((ONE, IDLE, COMMITS, IDLE), (25, 100), 0, id="in the one before it"),
        pytest.param((IDLE, ONE, COMMITS, IDLE), (25, 100), 1, id="in one that overlaps the one before it"),
    ],
)
def test_the_deep_check_knows_what_was_open_where_an_election_has_cut(
    writes: tuple[Write, ...], copies: tuple[int, ...], overlap: int
) -> None:
    """A transaction began before the cut; one history commits it, the other aborts it."""

    async def checked() -> list[bool]:
        tier = Tier()
        first = Round(writes=writes, copies=copies, overlap=overlap, cut=50, late=False, loses=True)
        await play(tier, [first, ENDS])
        return await tier.check()

    assert asyncio.run(checked()) == [True]
