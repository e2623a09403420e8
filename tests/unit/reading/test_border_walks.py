"""Transactions that are open at the border, by the broker's list and by the markers in its batches (rule 14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.simulation.records import Batch, Marker, data_batch, marker_batch
from tests.support.faulty_store import flip_bit
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.ports.broker import LocalBatches
from tiersidecar.reading.border_walks import BorderWalks
from tiersidecar.reading.segment_lookup import History

PARTITION = TopicIdPartition(topic_id=Uuid(b"border-topic-id0"), topic="border", partition=0)
BORDER = 100
HISTORY = History(Lineage((EpochEntry(LeaderEpoch(0), Offset(0)),)), Offset(BORDER))
ONE, OTHER = (1, Offset(10)), (2, Offset(20))


class Broker:
    """``lists`` is what it has as aborted; ``asked`` are the offsets of its Fetches, each answered by one batch."""

    def __init__(self, batches: Sequence[Batch], lists: Sequence[tuple[int, Offset]] = ()) -> None:
        self.batches, self.lists, self.asked = batches, tuple(lists), list[int]()
        self.asked_as = list[tuple[int, int, int]]()
        self.stable = batches[-1].next_offset

    async def fetch(self, offset: int, max_bytes: int, last_epoch: LeaderEpoch) -> LocalBatches:
        self.asked.append(offset)
        self.asked_as.append((offset, max_bytes, last_epoch))
        held = [batch for batch in self.batches if batch.last_offset >= offset and batch.base_offset < self.stable]
        stable = Offset(self.stable)
        return LocalBatches(
            records=held[0].data if held else b"", high_watermark=stable, last_stable_offset=stable, aborted=self.lists
        )


def log(*ends: tuple[int, Marker] | None) -> list[Batch]:
    """From the border on: a marker of a producer, or a record of nobody's."""
    return [
        data_batch(offset, [(1, b"value")], leader_epoch=0)
        if end is None
        else marker_batch(offset, end[1], leader_epoch=0, timestamp_ms=1, producer_id=end[0])
        for offset, end in enumerate(ends, BORDER)
    ]


ABORT_ONE, COMMIT_ONE, ABORT_OTHER = (1, Marker.ABORT), (1, Marker.COMMIT), (2, Marker.ABORT)


@pytest.mark.parametrize(
    ("batches", "lists", "open_at_end", "hidden", "asked"),
    [
        pytest.param(log(None, ABORT_ONE), [ONE], {ONE}, {ONE}, 1, id="the broker lists it"),
        pytest.param(log(None, None, ABORT_ONE), [], {ONE}, {ONE}, 3, id="the broker has lost it, the marker is an abort"),
        pytest.param(log(None, COMMIT_ONE), [], {ONE}, set(), 2, id="the broker lists none, the marker is a commit"),
        pytest.param(log(None, COMMIT_ONE, ABORT_ONE), [], {ONE}, set(), 2, id="the first marker counts"),
        pytest.param(log(None, None), [], {ONE}, None, 2, id="no marker below the last stable offset: undecided"),
        pytest.param(log(ABORT_OTHER, ABORT_ONE), [OTHER], {ONE, OTHER}, {ONE, OTHER}, 2, id="one is listed, one is lost"),
        pytest.param(log(None, ABORT_ONE), [(1, Offset(100))], {ONE}, {ONE, (1, 100)}, 2, id="a later batch is its first"),
        pytest.param(log(None, None), [ONE], set(), {ONE}, 1, id="the remote tier cannot name it: the broker's list counts"),
    ],
)  # fmt: skip
async def test_what_is_hidden(
    batches: list[Batch], lists: list[tuple[int, Offset]], open_at_end: set[tuple[int, int]], hidden: object, asked: int
) -> None:
    broker = Broker(batches, lists)
    found = await BorderWalks().aborted_beyond(PARTITION, HISTORY, frozenset(open_at_end), broker.fetch)
    told = None if found is None else {(one.producer_id, one.first_offset) for one in found}
    assert told == hidden
    assert len(broker.asked) == asked


async def test_what_was_looked_through_is_not_fetched_again_and_each_reader_asks_the_broker_itself() -> None:
    walks, broker = BorderWalks(), Broker(log(None, None, None, ABORT_ONE, None))
    broker.stable = BORDER + 2
    open_at_end = frozenset({ONE})
    assert await walks.aborted_beyond(PARTITION, HISTORY, open_at_end, broker.fetch) is None
    broker.stable = BORDER + 5
    for _ in range(2):
        found = await walks.aborted_beyond(PARTITION, HISTORY, open_at_end, broker.fetch)
        assert found is not None
        assert [(one.producer_id, one.first_offset, one.last_offset) for one in found] == [(1, 10, BORDER + 3)]
    assert broker.asked == [100, 101, 100, 102, 103, 100]


async def test_nothing_is_told_while_the_broker_itself_is_undecided() -> None:
    broker = Broker(log(ABORT_ONE))
    broker.stable = BORDER
    assert await BorderWalks().aborted_beyond(PARTITION, HISTORY, frozenset({ONE}), broker.fetch) is None


async def test_nothing_is_told_by_a_broker_of_another_history() -> None:
    """It has the last stable offset behind the border and, asked with the epoch before it, no record there (KIP-595): that it
    lists no aborted transaction then says nothing."""
    broker = Broker(log(None, ABORT_ONE))
    epochs = list[int]()

    async def fetch(offset: int, max_bytes: int, last_epoch: LeaderEpoch) -> LocalBatches:
        epochs.append(last_epoch)
        return replace(await broker.fetch(offset, max_bytes, last_epoch), records=b"", aborted=())

    assert await BorderWalks().aborted_beyond(PARTITION, HISTORY, frozenset(), fetch) is None
    assert epochs == [0], "the epoch of the last remote record"


async def test_at_the_last_stable_offset_itself_nothing_is_decided() -> None:
    """The border is the first offset that is not stable: a record that is there all the same tells nothing of what is open."""
    broker = Broker(log(None, None))

    async def fetch(offset: int, max_bytes: int, last_epoch: LeaderEpoch) -> LocalBatches:
        return replace(await broker.fetch(offset, max_bytes, last_epoch), last_stable_offset=Offset(BORDER))

    assert await BorderWalks().aborted_beyond(PARTITION, HISTORY, frozenset(), fetch) is None


async def test_the_border_costs_one_small_fetch_and_the_batches_behind_it_steps_of_256_kib() -> None:
    """Each asks with the epoch of the record right before it, so that a broker of another history gives nothing."""
    border = History(Lineage.of([(LeaderEpoch(0), Offset(0)), (LeaderEpoch(3), Offset(BORDER - 1))]), Offset(BORDER))
    batches = [data_batch(BORDER + number, [(1, b"value")], leader_epoch=5) for number in range(2)]
    broker = Broker([*batches, marker_batch(BORDER + 2, Marker.COMMIT, leader_epoch=6, timestamp_ms=1, producer_id=1)])
    assert await BorderWalks().aborted_beyond(PARTITION, border, frozenset({ONE}), broker.fetch) == ()
    assert broker.asked_as == [(BORDER, 1, 3), (BORDER + 1, 256 * 1024, 5), (BORDER + 2, 256 * 1024, 5)]


async def test_where_the_history_does_not_know_who_wrote_the_border_the_broker_is_asked_without_an_epoch() -> None:
    broker = Broker(log(None))
    later = History(Lineage.of([(LeaderEpoch(2), Offset(BORDER))]), Offset(BORDER))
    assert await BorderWalks().aborted_beyond(PARTITION, later, frozenset(), broker.fetch) == ()
    assert broker.asked_as == [(BORDER, 1, -1)]


OTHER_PARTITION = replace(PARTITION, partition=1)
OTHER_HISTORY = History(Lineage.of([(LeaderEpoch(0), Offset(0)), (LeaderEpoch(1), Offset(50))]), Offset(BORDER))


@pytest.mark.parametrize(
    ("partition", "history", "open_at_end", "fetches"),
    [
        pytest.param(PARTITION, HISTORY, {ONE}, 1, id="the same border: all has been looked through"),
        pytest.param(OTHER_PARTITION, HISTORY, {ONE}, 3, id="another partition"),
        pytest.param(PARTITION, OTHER_HISTORY, {ONE}, 3, id="another history, after an unclean election"),
        pytest.param(PARTITION, HISTORY, {ONE, OTHER}, 5, id="other transactions are open"),
    ],
)
async def test_a_walk_goes_on_at_the_same_border_only(
    partition: TopicIdPartition, history: History, open_at_end: set[tuple[int, Offset]], fetches: int
) -> None:
    walks, broker = BorderWalks(), Broker(log(None, None, ABORT_ONE, None, ABORT_OTHER))
    await walks.aborted_beyond(PARTITION, HISTORY, frozenset({ONE}), broker.fetch)
    broker.asked.clear()
    found = await walks.aborted_beyond(partition, history, frozenset(open_at_end), broker.fetch)
    assert found is not None
    assert {(one.producer_id, one.first_offset) for one in found} == open_at_end
    assert len(broker.asked) == fetches


@pytest.mark.parametrize("which", [0, 1])
async def test_a_batch_behind_the_border_that_cannot_be_read_is_told_with_where_it_came_from(which: int) -> None:
    batches = [log(ABORT_ONE)[0], log(None, ABORT_OTHER)[1]]
    batches[which] = replace(batches[which], data=flip_bit(batches[which].data, 8 * 61 + 1))
    broker = Broker(batches)
    with pytest.raises(CorruptDataError, match=f"Fetch of {PARTITION}"):
        await BorderWalks().aborted_beyond(PARTITION, HISTORY, frozenset({ONE, OTHER}), broker.fetch)
    assert len(broker.asked) == which + 1
