"""The deep check of segments that a cleaner has rewritten (issue 23; S-259)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import CleanWorld
from tests.support.compacted_logs import ABORT, COMMIT, LogSegment
from tests.support.deep_checks import deep_findings
from tests.support.local_batches import LocalBatch
from tests.support.remote_builder import SegmentSource
from tests.unit.tasks.test_clean import RETENTION_S, puts, random_log
from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.kafka.record_batches import iter_batch_headers


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    return CleanWorld(scratch=tmp_path)


def crossing(*, is_there: bool) -> list[LogSegment]:
    """A transaction that begins in the first segment and is aborted in the second one, where it has records if ``is_there``."""
    log = Writing()
    log.data([(b"a", b"1")], 0, -1)
    log.data([(b"b", b"aborted")], 0, 2)
    log.data([(b"c", b"1")], 0, -1)
    log.data([(b"c", b"2")], 0, -1)
    if is_there:
        log.data([(b"b", b"aborted")], 0, 2)
    log.end(2, ABORT)
    log.data([(b"d", b"1")], 0, -1)
    return [segment_of(log.batches[:2]), segment_of(log.batches[2:])]


async def findings(world: CleanWorld) -> list[Finding]:
    live = world.segments()
    return [one for segment in live for one in await deep_findings(world.builder.run.store, segment, live)]


async def grown(world: CleanWorld, rounds: int, *, has_filters: bool = True) -> None:
    """Clean again and again, each time with something new; where there are no filters every segment is read each time."""
    for number in range(rounds):
        if not has_filters:
            shutil.rmtree(world.filters, ignore_errors=True)
        end = world.segments()[-1].next_offset
        await world.add(puts(end, (b"new", b"%d" % number)))
        await world.clean_all()
        assert await findings(world) == []
        world.clock.jump(2 * RETENTION_S)


@pytest.mark.parametrize("seed", [0, 3, 4, 6, 21])
async def test_nothing_is_lacking_of_whatever_was_cleaned_however_often(world: CleanWorld, seed: int) -> None:
    """The marker of an abort outlives its records and its entry: by it the transaction was, and by the index it never was.  Not
    every segment has holes then: the last batch of a producer stays, and that of a segment, though they are empty (6, 21)."""
    await world.add(*random_log(seed))
    await grown(world, 4)


async def test_nothing_is_lacking_where_all_else_of_the_markers_segment_stays(world: CleanWorld) -> None:
    """It has no hole then, and every batch all of its records: that a cleaner was there shows by the marker's horizon alone."""
    log = Writing()
    log.data([(b"a", b"1")], 0, -1)
    log.data([(b"b", b"aborted")], 0, 2)
    log.data([(b"c", b"1")], 0, -1)
    log.data([(b"e", b"1")], 0, -1)
    log.end(2, ABORT)
    log.data([(b"d", b"1")], 0, 2)  # so that the producer's aborted batch need not stay
    log.end(2, COMMIT)
    await world.add(segment_of(log.batches[:3]), segment_of(log.batches[3:]))
    await grown(world, 4, has_filters=False)


async def uploaded(world: CleanWorld, segment: LogSegment, batches: list[LocalBatch]) -> RemoteLogSegmentMetadata:
    return await world.builder.add(
        SegmentSource(
            batches=batches,
            start_offset=segment.base_offset,
            end_offset=segment.next_base_offset - 1,
            epochs={0: 0},
        )
    )


@pytest.mark.parametrize(
    ("is_there", "has_hole", "kinds"),
    [
        pytest.param(True, True, [FindingKind.LACKING_TRANSACTIONS], id="records are left that nothing hides"),
        pytest.param(False, True, [], id="a cleaner has taken the records, and then the entry"),
        pytest.param(False, False, [FindingKind.LACKING_TRANSACTIONS], id="no cleaner was there: the index lost it"),
    ],
)
async def test_an_index_without_the_entry_of_an_abort_that_began_before(
    world: CleanWorld, is_there: bool, has_hole: bool, kinds: list[FindingKind]
) -> None:
    before, after = crossing(is_there=is_there)
    await world.add(before)
    batches = [
        LocalBatch(header, after.log[position : position + header.size_bytes])
        for position, header in iter_batch_headers(after.log)
    ]
    segment = await uploaded(world, after, batches[1:] if has_hole else batches)
    found = await deep_findings(world.builder.run.store, segment, world.segments())
    assert [one.kind for one in found] == kinds
