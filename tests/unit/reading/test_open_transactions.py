"""How far transactions are decided where an unclean election has cut a remote segment (simulation, cluster seed 925)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.simulation.records import Batch, Marker, data_batch, marker_batch
from tests.support.faulty_store import FaultyStore, flip_bit
from tests.support.local_batches import LocalBatch
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import open_run
from tests.unit.reading.test_histories import between
from tests.unit.reading.test_lineage import FixedLog
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import ByteRange, Offset
from tiersidecar.formats.kafka.producer_state import ProducerState
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.reading.remote_objects import recorded_keys

ONE, IDLE = 7, -1


async def built(*segments: tuple[int, int, int | None]) -> RemoteBuilder:
    """Start, stop, and the first offset of the transaction that is open at the end: None without any producer."""
    builder = RemoteBuilder()
    for start, stop, first in segments:
        producers = [] if first is None else [ProducerState(producer_id=ONE, current_transaction_first_offset=first)]
        await builder.add(
            SegmentSource(batches=between(start, stop), start_offset=start, end_offset=stop - 1, producers=producers)
        )
    return builder


async def lose_log(builder: RemoteBuilder, offset: int) -> None:
    """Of the segment that holds ``offset``."""
    listed = builder.run.metadata.list_remote_log_segments(builder.partition)
    victim = next(one for one in listed if one.start_offset <= offset < one.next_offset)
    await builder.run.store.delete_objects([recorded_keys(victim).log])


@pytest.mark.parametrize(
    ("segments", "cut_at", "stable", "without_batches"),
    [
        pytest.param([(0, 35, IDLE), (35, 70, 60)], 70, 60, 60, id="whole: its snapshot tells"),
        pytest.param([(0, 35, IDLE), (35, 70, IDLE)], 70, 70, 70, id="whole, and nothing is open"),
        pytest.param([(0, 35, IDLE), (35, 70, IDLE)], 50, 50, 35, id="cut, and its batches open nothing"),
        pytest.param([(0, 35, 20), (35, 70, IDLE)], 50, 20, 20, id="cut, and one was open where it begins"),
        pytest.param([(0, 35, 20), (35, 70, 60), (70, 105, IDLE)], 50, 20, 20, id="the one behind it is no history at all"),
        pytest.param([(0, 35, IDLE), (35, 70, None)], 50, 50, 35, id="cut, and nobody writes with a producer id"),
        pytest.param([(35, 70, IDLE)], 50, 50, 35, id="cut, and nothing before it is remote"),
        pytest.param([(35, 70, 20)], 50, 20, 35, id="cut, nothing before it is remote, and one is open all through it"),
    ],
)  # fmt: skip
async def test_below_the_last_stable_offset_each_transaction_has_ended_in_the_history_that_counts(
    segments: list[tuple[int, int, int | None]], cut_at: int, stable: int, without_batches: int
) -> None:
    builder = await built(*segments)
    live = FixedLog({0: 0, 1: cut_at})
    async with open_run(builder.run, live=live) as path:
        assert await path.reader.last_stable_offset(builder.partition) == stable
    await lose_log(builder, cut_at - 1)
    async with open_run(builder.run, live=live) as path:
        assert await path.reader.last_stable_offset(builder.partition) == without_batches


async def test_before_a_hole_what_an_election_has_cut_may_have_any_end_where_its_batches_are_lost() -> None:
    builder = await built((0, 35, IDLE), (35, 70, IDLE))
    await builder.add(SegmentSource(batches=between(105, 140), start_offset=105, end_offset=139, epochs={0: 0, 1: 50}))
    for undecided in ([], [(-1, 35)]):
        async with open_run(builder.run, live=FixedLog({0: 0, 1: 50})) as path:
            found = await path.undecided.above(builder.partition, 0)
        assert [(one.producer_id, one.first_offset) for one in found] == undecided
        await lose_log(builder, 49)


def transactional(*batches: Batch) -> list[LocalBatch]:
    return [LocalBatch(read_batch_header(batch.data), batch.data) for batch in batches]


def data(offset: int, producer_id: int) -> Batch:
    return data_batch(offset, [(1_000 + offset, b"value")], leader_epoch=0, producer_id=producer_id)


def marker(offset: int, kind: Marker, producer_id: int) -> Batch:
    return marker_batch(offset, kind, leader_epoch=0, timestamp_ms=1_000 + offset, producer_id=producer_id)


async def one_committed_behind_the_cut(chunk_size: int = 4096) -> RemoteBuilder:
    """Two transactions begin before offset 4.  One is aborted before it, the other committed behind."""
    builder = RemoteBuilder(chunk_size=chunk_size)
    written: Sequence[Batch] = (
        data(0, -1), data(1, ONE), data(2, 2), marker(3, Marker.ABORT, 2), data(4, ONE), marker(5, Marker.COMMIT, ONE),
        *(data(offset, -1) for offset in range(6, 40)),
    )  # fmt: skip
    await builder.add(
        SegmentSource(
            batches=transactional(*written),
            start_offset=0,
            end_offset=39,
            producers=[ProducerState(producer_id=ONE), ProducerState(producer_id=2)],
        )
    )
    return builder


@pytest.mark.parametrize("chunk_size", [50, 200, 4096])
async def test_one_that_was_committed_behind_the_cut_is_open_there(chunk_size: int) -> None:
    """No more is read than tells it, once for all who ask."""
    builder = await one_committed_behind_the_cut(chunk_size)
    (segment,) = builder.run.metadata.list_remote_log_segments(builder.partition)
    store = FaultyStore(builder.run.store)
    async with open_run(builder.run, store=store, live=FixedLog({0: 0, 1: 4})) as path:
        asked = [path.reader.open_at(builder.partition, Offset(4)) for _ in range(3)]
        assert await asyncio.gather(*asked) == [frozenset({(ONE, 1)})] * 3
        assert await path.reader.last_stable_offset(builder.partition) == 1
    fetched = [fetch for _, fetch in store.log_fetches() if fetch is not None]
    assert len(fetched) == len(set(fetched))
    assert sum(map(len, fetched)) <= max(segment.segment_size_in_bytes // 4, 4096)


async def test_a_walk_goes_on_when_a_reader_has_left() -> None:
    builder = await one_committed_behind_the_cut()
    store = FaultyStore(builder.run.store)
    async with open_run(builder.run, store=store, live=FixedLog({0: 0, 1: 4})) as path:
        store.gate.clear()
        hasty = asyncio.create_task(path.reader.open_at(builder.partition, Offset(4)))
        await store.log_fetch_begun.wait()
        hasty.cancel()
        await asyncio.gather(hasty, return_exceptions=True)
        store.gate.set()
        assert await path.reader.open_at(builder.partition, Offset(4)) == {(ONE, 1)}
    assert len(store.log_fetches()) == 1


class FlipOnce:
    """One bit of all that is fetched of .log objects, counted on from fetch to fetch."""

    def __init__(self, bit: int) -> None:
        self.left = bit

    def __call__(self, key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        if not key.endswith(".log"):
            return data
        self.left, bit = self.left - 8 * len(data), self.left
        return flip_bit(data, bit) if 0 <= bit < 8 * len(data) else data


async def test_no_bit_that_comes_damaged_once_changes_what_is_told() -> None:
    builder = await one_committed_behind_the_cut(chunk_size=200)
    for bit in range(0, 3 * 200 * 8, 5):
        damage, live = FlipOnce(bit), FixedLog({0: 0, 1: 4})
        async with open_run(builder.run, store=FaultyStore(builder.run.store, damage), live=live) as path:
            assert await path.reader.open_at(builder.partition, Offset(4)) == {(ONE, 1)}, bit
        assert damage.left < 0, "it was damaged"


async def test_of_batches_that_stay_damaged_nothing_is_told() -> None:
    builder = await one_committed_behind_the_cut()

    def bend(key: str, byte_range: ByteRange | None, data: bytes) -> bytes:
        return flip_bit(data, 800) if key.endswith(".log") else data

    live = FixedLog({0: 0, 1: 4})
    async with open_run(builder.run, store=FaultyStore(builder.run.store, bend), live=live) as path:
        with pytest.raises(CorruptDataError):
            await path.reader.open_at(builder.partition, Offset(4))
        assert await path.reader.last_stable_offset(builder.partition) == 0
