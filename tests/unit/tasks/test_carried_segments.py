"""A round reads no clean segment that has none of its keys (S-253, S-254): what is left is the same."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import CleanWorld, KilledError, live
from tests.support.compacted_logs import ABORT, COMMIT, LogSegment, all_records, committed_records, table
from tests.support.faulty_store import FaultyStore
from tiersidecar.formats.compaction import key_filter
from tiersidecar.formats.compaction.key_filter import KeyFilter
from tiersidecar.tasks import clean_passes

SEGMENTS = 10
RETENTION_S = 1.0


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    return CleanWorld(scratch=tmp_path / "cleaned")


def puts(base_offset: int, *records: tuple[bytes, bytes | None], producer_id: int = -1) -> LogSegment:
    log = Writing(offset=base_offset)
    for record in records:
        one: list[tuple[bytes | None, bytes | None]] = [record]
        log.data(one, 0, producer_id)
    return segment_of(log.batches)


async def clean_log(world: CleanWorld) -> None:
    """Ten clean segments, of three keys each."""
    await world.add(*(puts(3 * n, *((b"%d-%d" % (n, key), b"1") for key in range(3))) for n in range(SEGMENTS)))
    await world.clean_all()


def counted(world: CleanWorld) -> FaultyStore:
    """Put a store before the world's that knows what was fetched from now on."""
    store = FaultyStore(world.builder.run.store)
    world.builder.run = replace(world.builder.run, store=store)  # type: ignore[arg-type]
    return store


def logs_read(store: FaultyStore) -> int:
    return len({key for key, _ in store.log_fetches()})


@pytest.mark.parametrize("keys", ["few keys", "more keys than are held"])
async def test_the_segment_with_the_key_is_read_and_the_others_are_not(
    world: CleanWorld, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if keys != "few keys":
        monkeypatch.setattr(key_filter, "MOST_DIGESTS", 1)
        monkeypatch.setattr(clean_passes, "_SLICE_BYTES", 100)  # so that batches go on in the next slice
    await clean_log(world)
    await world.add(puts(30, (b"4-1", b"2"), (b"new", b"1")))
    store = counted(world)
    done = await world.clean()
    assert (done.carried, len(done.swapped), done.cleaner_offset) == (SEGMENTS - 1, 1, 32)
    assert logs_read(store) == 3, "the dirty one, the one with its key, and what was made of that, to compare"
    left = [one.key for segment in await world.read() for one in all_records(segment.log)]
    assert sorted(filter(None, left)) == sorted({*(b"%d-%d" % (n, key) for n in range(10) for key in range(3)), b"new"})


async def test_the_segments_that_a_round_made_or_left_have_filters_and_no_other_has(world: CleanWorld) -> None:
    await clean_log(world)
    await world.add(puts(30, (b"4-1", b"2")))
    await world.clean_all()
    (partition,) = world.filters.iterdir()
    given = [world.given(3 * n) for n in range(SEGMENTS + 1)]
    names = {str(one.remote_log_segment_id).rsplit(":", 1)[-1] for one in given if one is not None}
    assert len(names) == SEGMENTS + 1
    assert {path.name for path in partition.iterdir()} == names
    other = world.filters / "another-0"
    other.mkdir()
    await world.add(puts(31, (b"4-1", b"3")))
    await world.clean_all()
    assert list(world.filters.iterdir()) == [partition], "of a partition that this broker has no more"


async def test_a_tombstone_that_is_due_has_its_segment_read(world: CleanWorld) -> None:
    await clean_log(world)
    await world.add(puts(30, (b"4-1", None), (b"x", b"1")))
    await world.clean_all()
    world.clock.jump(RETENTION_S / 2)
    await world.add(puts(32, (b"y", b"1")))
    assert (await world.clean()).carried == SEGMENTS + 1
    assert b"4-1" in await world.table_read()
    world.clock.jump(RETENTION_S)
    await world.add(puts(33, (b"z", b"1")))
    done = await world.clean()
    assert (done.carried, len(done.swapped)) == (SEGMENTS + 1, 1)
    assert b"4-1" not in await world.table_read()


@pytest.mark.parametrize("damage", ["lost", "spoiled", "of another segment"])
async def test_without_its_filter_a_segment_is_read_and_gets_one(world: CleanWorld, damage: str) -> None:
    await clean_log(world)
    files = sorted(path for path in world.filters.rglob("*") if path.is_file())
    match damage:
        case "lost":
            shutil.rmtree(world.filters)
        case "spoiled":
            for path in files:
                path.write_bytes(path.read_bytes()[:-1])
        case _:
            bodies = [path.read_bytes() for path in files]
            for path, body in zip(files, bodies[1:] + bodies[:1], strict=True):
                path.write_bytes(body)
    await world.add(puts(30, (b"4-1", b"2")))
    store = counted(world)
    done = await world.clean()
    assert (done.carried, len(done.swapped)) == (0, 1)
    assert logs_read(store) == SEGMENTS + 2
    await world.add(puts(31, (b"new", b"1")))
    assert (await world.clean()).carried == SEGMENTS + 1


async def test_filters_that_cannot_be_written_are_done_without(world: CleanWorld) -> None:
    world.filters.write_text("a file where the directory is to be")
    await clean_log(world)
    await world.add(puts(30, (b"4-1", b"2")))
    done = await world.clean()
    assert (done.carried, len(done.swapped), done.left) == (0, 1, "")


@pytest.mark.parametrize("write", [2, 11], ids=["the first filters", "that of what a round made"])
@pytest.mark.parametrize("step", ["open", "replace"])
async def test_a_process_killed_within_a_write_leaves_no_filter_there_and_the_next_round_removes_the_rest(
    world: CleanWorld, monkeypatch: pytest.MonkeyPatch, step: str, write: int
) -> None:
    """``write`` counts from the first filter of a log of ten segments."""
    real, count = getattr(Path, step), 0

    def killed(path: Path, *what: Any, **options: Any) -> object:
        nonlocal count
        is_filter = path.parent.parent == world.filters and (step == "replace" or what == ("wb",))
        count += is_filter
        if count == write and is_filter:
            if step == "open":
                with real(path, *what) as file:
                    file.write(b"TSKF")
            raise KilledError
        return real(path, *what, **options)

    monkeypatch.setattr(Path, step, killed)

    async def two_rounds() -> None:
        await clean_log(world)
        await world.add(puts(30, (b"4-1", b"2")))
        await world.clean_all()

    with pytest.raises(KilledError):
        await two_rounds()
    left = [path for path in world.filters.rglob("*.new") if path.is_file()]
    assert len(left) == 1
    await world.clean_all()
    await world.add(puts(30 if world.given(30) is None else 31, (b"4-1", b"3")))
    assert (await world.clean()).carried >= SEGMENTS - 1
    assert not left[0].exists()
    (value,) = [one.value for segment in await world.read() for one in all_records(segment.log) if one.key == b"4-1"]
    assert value == b"3"


async def test_segments_with_transactions_are_always_read(world: CleanWorld) -> None:
    log = Writing()
    log.data([(b"a", b"1")], 0, 2)
    log.end(2, COMMIT)
    await world.add(segment_of(log.batches), puts(2, (b"b", b"1")))
    await world.clean_all()
    await world.add(puts(3, (b"c", b"1")))
    assert (await world.clean()).carried == 1


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_left_is_the_same_as_without_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw, log, segments = random.Random(seed), Writing(), list[LogSegment]()
    for _ in range(25):
        log.batches.clear()
        for _ in range(draw.randint(1, 3)):
            producer_id = draw.choice([-1, -1, -1, 0, 2])
            value = None if draw.random() < 0.3 else draw.randbytes(9)
            log.data([(b"%d" % draw.randrange(60), value)], draw.choice([0, 0, 4]), producer_id)
            if producer_id in log.open_now:
                log.end(producer_id, draw.choice([ABORT, COMMIT]))
        segments.append(segment_of(log.batches))
    found, carried = [], 0
    for uses_filters in (True, False):
        with monkeypatch.context() as patch:
            if not uses_filters:
                patch.setattr(KeyFilter, "rules_out", lambda self, offset_map, *, now_ms: False)
            world = CleanWorld(scratch=tmp_path / str(uses_filters))
            for number, segment in enumerate(segments):
                await world.add(segment)
                carried += sum(done.carried for done in await world.clean_all())
                world.clock.jump(0.3)
                assert live(await world.table_read()) == live(table(committed_records(segments[: number + 1])))
            records = all_records(b"".join([one.log for one in await world.read()]))
            found.append([(one.offset, one.key, one.value) for one in records if not one.is_control])
    assert found[0] == found[1]
    assert carried > 20
