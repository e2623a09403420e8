"""What is open where a segment begins, as the remote segment before it tells."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import local_batches
from tests.support.remote_runs import RemoteRun, load_run, segments_of
from tests.unit.reading.test_undecided_transactions import BORDERS, without
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.formats.kafka.records import ControlKind, read_control_marker, read_records
from tiersidecar.reading.carried_transactions import CarriedTransactions, OpenAtCuts
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import ManifestCache, recorded_keys

NAME = "transactions-0"
LINEAGE = Lineage.of([(0, 0)])


def open_at(offset: int) -> set[tuple[int, int]]:
    """Producers and first offsets of the transactions whose marker lies at or above ``offset``, by the batches themselves."""
    opened: dict[int, int] = {}
    for batch in local_batches(NAME):
        if batch.header.base_offset >= offset:
            break
        if batch.header.is_control:
            opened.pop(batch.header.producer_id, None)
        elif batch.header.is_transactional:
            opened.setdefault(batch.header.producer_id, batch.header.base_offset)
    return set(opened.items())


def aborted_at(offset: int) -> set[tuple[int, int]]:
    """Those of them that have ended, by abort, in the segment that holds ``offset``: the only ones of those that it ended that
    are told."""
    stop = next(border for border in (*BORDERS, 10**6) if border > offset)
    found = set()
    for producer_id, first in open_at(offset):
        markers = [
            batch
            for batch in local_batches(NAME)
            if batch.header.is_control
            and batch.header.producer_id == producer_id
            and batch.header.base_offset >= max(first, offset)
        ]
        if markers and markers[0].header.base_offset < stop and is_abort(markers[0].data):
            found.add((producer_id, first))
    return found


def is_abort(data: bytes) -> bool:
    (record,) = read_records(data)
    marker = read_control_marker(record)
    return marker is not None and marker.kind is ControlKind.ABORT


def carried(run: RemoteRun) -> CarriedTransactions:
    manifests = ManifestCache(store=run.store, blocking=InlineBlocking())
    blocking = InlineBlocking()
    blobs = IndexBlobReader(store=run.store, blocking=blocking, manifests=manifests)
    cuts = OpenAtCuts(
        metadata=run.metadata,
        blobs=blobs,
        manifests=manifests,
        chunks=StoreChunkManager(store=run.store, blocking=blocking),
        blocking=blocking,
    )
    return CarriedTransactions(metadata=run.metadata, blobs=blobs, cuts=cuts)


async def told(reader: CarriedTransactions, run: RemoteRun, offset: int) -> set[tuple[int, int]]:
    states = await reader.at(run.partition(NAME), Offset(offset), LINEAGE)
    return {(state.producer_id, state.current_transaction_first_offset) for state in states}


@pytest.mark.parametrize("offset", BORDERS[1:])
async def test_at_the_end_of_a_segment_its_snapshot_tells_all_that_is_open(offset: int) -> None:
    run = await load_run("plain")
    assert await told(carried(run), run, offset) == open_at(offset)


async def test_within_a_segment_all_is_told_but_what_it_has_committed() -> None:
    """A leader that rolls elsewhere begins a segment there."""
    run = await load_run("plain")
    reader = carried(run)
    for offset in range(1, BORDERS[-1]):
        stop = next(border for border in BORDERS if border >= offset)
        still_open = {one for one in open_at(offset) if one in open_at(stop)}
        assert await told(reader, run, offset) == still_open | aborted_at(offset), offset


def elected_at(cut: int) -> Lineage:
    return Lineage.of([*(entry for entry in LINEAGE.entries if entry.start_offset < cut), (9, cut)])


async def test_a_segment_that_an_election_has_cut_tells_all_that_was_open_there() -> None:
    """It goes on in a history that has ended: what was open at the cut, and what it has committed since, has another end in the
    one that counts."""
    run = await load_run("plain")
    reader, committed_behind = carried(run), set[tuple[int, int]]()
    for cut in sorted({batch.header.base_offset for batch in local_batches(NAME)} - set(BORDERS)):
        if cut > BORDERS[-1]:
            continue
        states = await reader.at(run.partition(NAME), Offset(cut), elected_at(cut))
        assert {(state.producer_id, state.current_transaction_first_offset) for state in states} == open_at(cut), cut
        stop = next(border for border in BORDERS if border >= cut)
        committed_behind |= open_at(cut) - open_at(stop) - aborted_at(cut)
    assert committed_behind, "one that no file of the segment tells of"


async def test_of_another_history_nothing_is_told() -> None:
    run = await load_run("plain")
    assert await carried(run).at(run.partition(NAME), Offset(51), elected_at(50)) == ()


async def test_a_cut_segment_whose_batches_are_lost_tells_what_its_other_files_do() -> None:
    run, cut = await load_run("plain"), 60
    victim = next(
        segment for segment in segments_of(run, run.partition(NAME)) if segment.start_offset < cut < segment.next_offset
    )
    await run.store.delete_objects([recorded_keys(victim, run.key_prefix).log])
    with capture_logs() as logs:
        states = await carried(run).at(run.partition(NAME), Offset(cut), elected_at(cut))
    assert [one["event"] for one in logs] == ["segment.transactions.unknown"]
    stop = next(border for border in BORDERS if border >= cut)
    still_open = {one for one in open_at(cut) if one in open_at(stop)}
    assert {(state.producer_id, state.current_transaction_first_offset) for state in states} == still_open | aborted_at(
        cut
    )


async def test_nothing_is_told_where_nothing_is_remote_before_it() -> None:
    run = await load_run("plain")
    assert await told(carried(run), run, 0) == set()
    holed = await without(run, run.partition(NAME), 43)
    assert await told(carried(holed), holed, 86) == set()
    other_history = await carried(run).at(run.partition(NAME), Offset(86), Lineage.of([(7, 0)]))
    assert other_history == ()


async def test_what_this_process_wrote_itself_is_not_fetched() -> None:
    run = await load_run("plain")
    reader = carried(run)
    second = next(segment for segment in segments_of(run, run.partition(NAME)) if segment.start_offset == 43)
    reader.keep(second, ())
    assert await told(reader, run, 86) == set(), "as it was kept"
    assert open_at(86)


async def test_files_that_are_lost_tell_nothing() -> None:
    run = await load_run("plain")
    await run.store.delete_objects([one.key async for one in run.store.list_objects() if one.key.endswith(".indexes")])
    assert await told(carried(run), run, 86) == set()
