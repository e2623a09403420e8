"""A round that gives each segment to another process leaves byte for byte what one that goes from segment to segment leaves
(issue 23, S-255, S-258)."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import CleanWorld
from tests.support.compacted_logs import ABORT, COMMIT, LogSegment
from tests.support.inline_blocking import InlineBlocking
from tests.unit.tasks.test_clean import puts, random_log
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.cleaning import CleaningTerms, last_records
from tiersidecar.formats.compaction.offset_map import OffsetMap, bytes_for
from tiersidecar.formats.compaction.transactions import CarriedTransactions
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.tasks import clean_shards
from tiersidecar.tasks.clean import LONGEST_ROUND_MS
from tiersidecar.tasks.clean_passes import CleanPasses, aborted_of
from tiersidecar.tasks.clean_shards import (
    Carrying,
    CleanShare,
    ScannedSegment,
    clean_share,
    measure_segment,
    near_aborted,
    put_share,
    scan_segment,
    scan_share,
)


class Shares:
    """One round over the dirty part of a world, segment by segment, each from what was pickled alone."""

    def __init__(self, world: CleanWorld, segments: list[RemoteLogSegmentMetadata], first_dirty: int) -> None:
        self.world, self.segments, self.first_dirty = world, segments, Offset(first_dirty)
        self.store = world.swap_store()
        self.scanned: list[ScannedSegment] = []
        self.shares: list[CleanShare] = []
        self.terms: CleaningTerms

    async def scan(self) -> None:
        aborted, segments = await aborted_of(self.store.blobs, self.segments), self.segments
        for segment, near in zip(segments, near_aborted(segments, aborted), strict=True):
            share = pickle.loads(pickle.dumps(scan_share(segment, self.first_dirty, near)))
            self.scanned.append(await scan_segment(share, self.store))
        self.terms = CleaningTerms(
            now_ms=self.world.clock.now_ms(),
            delete_retention_ms=1000 + LONGEST_ROUND_MS,
            upper_bound_offset=NO_OFFSET,
            first_dirty_offset=self.first_dirty,
            last_records=last_records(await self.store.blobs.read_producer_snapshot(segments[-1])),
        )
        carrying = Carrying(aborted)
        near_each = near_aborted(segments, aborted)
        for segment, scanned, near in zip(segments, self.scanned, near_each, strict=True):
            share = clean_share(segment, segments[-1].end_offset, carrying.carried, near)
            self.shares.append(pickle.loads(pickle.dumps(share)))
            carrying.go_past(segment, scanned.events)

    def map_of(self, number: int) -> OffsetMap:
        """Return the round's entries of the keys of one segment."""
        lasts: dict[bytes, int] = {}
        for scanned in self.scanned:
            for digest, offset in entries(scanned).items():
                if offset >= self.first_dirty:
                    lasts[digest] = max(lasts.get(digest, NO_OFFSET), offset)
        own = entries(self.scanned[number]).keys() & lasts.keys()
        offset_map = OffsetMap(bytes_for(len(own)))
        for digest in own:
            offset_map.put_digest(digest, lasts[digest])
        return offset_map

    @property
    def passes(self) -> CleanPasses:
        return CleanPasses(
            store=self.store, blocking=InlineBlocking(), scratch=self.world.scratch, dedupe_buffer_bytes=24_000
        )

    async def digests(self) -> list[str]:
        """Return the SHA-256 of each .log as the round leaves it."""
        found = []
        for number, share in enumerate(self.shares):
            measured = await measure_segment(share, self.terms, self.map_of(number), self.passes)
            log = await self.world.log_of(share.segment)
            found.append(hashlib.sha256(log).hexdigest() if measured.facts is None else measured.facts.digest)
        return found


def entries(scanned: ScannedSegment) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for one in scanned.maps:
        digests, offsets = one.slots
        for slot, offset in enumerate(offsets):
            if offset:
                digest = bytes(digests[slot * 16 : slot * 16 + 16])
                found[digest] = max(found.get(digest, NO_OFFSET), offset - 1)
    return found


def aborted_at(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(
        producer_id=producer_id,
        first_offset=Offset(first),
        last_offset=Offset(last),
        last_stable_offset=Offset(first),
    )


@pytest.mark.parametrize("seed", range(20))
async def test_of_the_aborted_transactions_each_segment_gets_those_that_reach_into_it(
    tmp_path: Path, seed: int
) -> None:
    """Also of those that last for many segments, and of some that are named twice."""
    draw = random.Random(seed)
    world = CleanWorld(scratch=tmp_path)
    segments = await world.add(*(puts(2 * n, (b"a", b"1"), (b"b", b"1")) for n in range(8)))
    aborted = []
    for producer in range(draw.randrange(12)):
        first = draw.randrange(16)
        last = draw.randrange(first, 20)
        aborted += [aborted_at(producer, first, last)] * draw.randint(1, 2)
    draw.shuffle(aborted)
    for segment, near in zip(segments, near_aborted(segments, aborted), strict=True):
        for shared in (
            partial(scan_share, segment, Offset(0)),
            partial(clean_share, segment, 15, CarriedTransactions()),
        ):
            assert Counter(shared(near).aborted) == Counter(shared(aborted).aborted)


async def test_many_aborted_transactions_in_many_segments_are_not_gone_through_for_each(tmp_path: Path) -> None:
    world = CleanWorld(scratch=tmp_path)
    (first,) = await world.add(puts(0, (b"a", b"1")))
    segments = [replace(first, start_offset=Offset(20 * n), end_offset=Offset(20 * n + 19)) for n in range(2000)]
    aborted = [aborted_at(n, n, n + 1) for n in range(40_000)]
    assert max(len(near) for near in near_aborted(segments, aborted)) == 21


async def shares_of(world: CleanWorld, first_dirty: int = 0) -> Shares:
    segments = [one for one in world.segments() if one.remote_log_segment_id.uuid not in world.in_trash()]
    shares = Shares(world, sorted(segments, key=lambda one: one.start_offset), first_dirty)
    await shares.scan()
    return shares


async def lane_digests(world: CleanWorld) -> list[str]:
    await world.clean()
    return [hashlib.sha256(one.log).hexdigest() for one in await world.read()]


@pytest.mark.parametrize("seed", range(12))
async def test_all_shares_together_are_a_round_of_the_lane(tmp_path: Path, seed: int) -> None:
    """Two rounds: all is dirty, and then what is new."""
    world, log = CleanWorld(scratch=tmp_path / "cleaned", takes_all=True), random_log(seed, steps=80)
    await world.add(*log)
    assert await (await shares_of(world)).digests() == await lane_digests(world)
    world.clock.jump(LONGEST_ROUND_MS / 1000 + 2)
    end = log[-1].next_base_offset
    await world.add(puts(end, (b"key-1", b"new"), (b"key-2", None)), puts(end + 2, (b"key-3", b"new")))
    assert await (await shares_of(world, end)).digests() == await lane_digests(world)


def spread() -> list[LogSegment]:
    """Transactions over several segments: an aborted and a committed one of the same producer, and one of another."""
    log, segments = Writing(), []
    log.data([(b"a", b"kept")], 0, -1)
    log.data([(b"a", b"aborted")], 0, 3)
    for _ in range(2):
        segments.append(segment_of(log.batches))
        log.batches.clear()
        log.data([(b"a", b"aborted")], 0, 3)
        log.data([(b"b", b"committed")], 0, 2)
    log.end(3, ABORT)
    log.data([(b"c", b"committed")], 0, 3)
    segments.append(segment_of(log.batches))
    log.batches.clear()
    log.end(3, COMMIT)
    log.end(2, COMMIT)
    segments.append(segment_of(log.batches))
    return segments


async def test_a_segment_knows_of_the_transactions_that_began_before_it(tmp_path: Path) -> None:
    world = CleanWorld(scratch=tmp_path / "cleaned", takes_all=True)
    await world.add(*spread())
    shares = await shares_of(world)
    assert [len(one.carried.ongoing) for one in shares.shares] == [0, 1, 1, 0]
    assert [sorted(one.carried.committed) for one in shares.shares] == [[], [], [2], [2, 3]]
    assert await shares.digests() == await lane_digests(world)


async def test_a_segment_with_more_keys_than_the_first_map_takes_goes_on_in_larger_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_shards, "_FIRST_MAP_KEYS", 3)
    world = CleanWorld(scratch=tmp_path / "cleaned")
    batches = [puts(5 * one, *((b"key-%d" % key, b"") for key in range(5 * one, 5 * one + 5))) for one in range(10)]
    again = puts(50, (b"key-0", b"last"))
    log = b"".join(one.log for one in [*batches, again])
    await world.add(LogSegment(base_offset=Offset(0), next_base_offset=Offset(51), log=log))
    (scanned,) = (await shares_of(world)).scanned
    assert sorted(entries(scanned).values()) == list(range(1, 51))
    sizes = [one.size_bytes for one in scanned.maps]
    assert len(sizes) > 2
    assert sizes == sorted(sizes)


async def test_a_segment_of_few_records_that_spans_many_offsets_takes_little_memory(tmp_path: Path) -> None:
    """Earlier rounds have left little of it, and what is left is large: neither tells how many keys it has."""
    world = CleanWorld(scratch=tmp_path / "cleaned")
    log = puts(0, (b"a", bytes(8 << 20))).log + puts(50_000_000, (b"b", b"1")).log
    await world.add(LogSegment(base_offset=Offset(0), next_base_offset=Offset(50_000_001), log=log))
    (scanned,) = (await shares_of(world)).scanned
    assert sorted(entries(scanned).values()) == [0, 50_000_000]
    assert sum(one.size_bytes for one in scanned.maps) < 4 << 20


async def test_what_would_differ_from_what_was_measured_is_not_put_up(tmp_path: Path) -> None:
    world, log = CleanWorld(scratch=tmp_path / "cleaned"), random_log(1)
    first, *_ = await world.add(*log)
    shares = await shares_of(world)
    measured = await measure_segment(shares.shares[0], shares.terms, shares.map_of(0), shares.passes)
    assert measured.facts is not None
    other = OffsetMap(bytes_for(1))
    begun = CleanShare(
        **{name: getattr(shares.shares[0], name) for name in ("segment", "latest_offset", "carried", "aborted")},
        measured=measured.facts,
        started=first,
    )
    with pytest.raises(CorruptDataError, match="the same bytes again"):
        await put_share(begun, shares.terms, other, shares.passes, shares.store)
