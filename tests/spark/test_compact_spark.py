"""A backlog cleaned on Spark leaves byte for byte what the lane leaves, and an attempt that ends anywhere loses nothing
(issue 23, S-250, S-255, S-258, S-259, S-261, S-276)."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
from collections.abc import Callable, Mapping
from hashlib import md5
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.clean_world import CleanWorld, KilledError, live
from tests.support.compacted_logs import LogSegment, committed_records, table
from tests.support.scripted import ScriptedFailpoints
from tests.unit.app.test_compact_run import NOTHING_LEFT, Actions, Beside, beside
from tests.unit.tasks.test_clean import puts, random_log
from tests.unit.tasks.test_clean_undeleted import begins_at
from tiersidecar.app.compact_layout import layout_of
from tiersidecar.app.compact_run import Compacting, Compactor, PartitionCompacted
from tiersidecar.app.compact_spark import SparkChunk, SparkEngine, SparkEngines
from tiersidecar.domain.errors import SparkJobError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.own_objects import ATTEMPTS
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.compaction.cleaning import CleaningTerms, LastRecord
from tiersidecar.formats.compaction.segments import SegmentTally
from tiersidecar.formats.compaction.transactions import CarriedTransactions
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.tasks.clean_engine import Chunk
from tiersidecar.tasks.clean_shards import CleanedShare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["beside"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PLACES = ("mapped", "rewritten", "started", "proven", "finishing", "finished", "trashed", "published")


def compactor(there: Beside, spark: SparkSession, tmp_path: Path, actions: Actions | None = None) -> Compactor:
    wanted = Compacting(
        topic=there.world.owner.topic, partition=None, scratch=there.scratch, dedupe_buffer_bytes=24 * 10_000
    )
    engines = SparkEngines(
        spark=spark,
        config_file=tmp_path / "t.yaml",
        topic=wanted.topic,
        layout=layout_of(there.session.config, wanted.topic),
    )
    return Compactor(there.session, wanted, engine_of=engines, failpoints=ScriptedFailpoints(actions))


async def on_spark(
    there: Beside, spark: SparkSession, tmp_path: Path, actions: Actions | None = None
) -> PartitionCompacted:
    (done,) = await compactor(there, spark, tmp_path, actions).apply()
    return done


def described(segments: list[RemoteLogSegmentMetadata]) -> list[object]:
    """Return what their events say of them, without ids and times."""
    return [
        (
            one.start_offset,
            one.end_offset,
            one.segment_size_in_bytes,
            one.max_timestamp_ms,
            one.segment_leader_epochs,
            one.txn_index_empty,
        )
        for one in segments
    ]


def more(seed: int, after: list[LogSegment]) -> list[LogSegment]:
    """A log that goes on where another one ends: puts and tombstones of the same keys."""
    draw, offset = random.Random(seed), after[-1].next_base_offset
    segments = []
    for _ in range(3):
        records = [(b"key-%d" % draw.randrange(12), draw.choice([None, b"%d" % offset])) for _ in range(6)]
        segments.append(puts(offset, *records))
        offset = segments[-1].next_base_offset
    return segments


@pytest.mark.parametrize("seed", range(5))
async def test_it_leaves_byte_for_byte_what_rounds_of_the_lane_leave(
    beside: Beside, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Three rounds: of all codecs, tombstones and overlapping transactions; then of what they have left and more of it."""
    lane = CleanWorld(scratch=tmp_path / "lane", takes_all=True)
    log = random_log(seed, steps=80)
    for number in range(3):
        added = log if number == 0 else more(seed + number, log)
        log = log if number == 0 else [*log, *added]
        await lane.add(*added)
        await beside.world.add(*added)
        round_of_lane = await lane.clean()
        done = await on_spark(beside, spark, tmp_path)
        assert (done.left, done.stopped) == ("", NOTHING_LEFT)
        assert done.cleaner_offset == round_of_lane.cleaner_offset == log[-1].next_base_offset
        assert [one.log for one in await beside.world.read()] == [one.log for one in await lane.read()]
        assert described([_given(beside.world, one) for one in log]) == described([_given(lane, one) for one in log])
        for segment in log:
            ours, theirs = await _aborted(beside.world, segment), await _aborted(lane, segment)
            assert ours == theirs
        beside.world.clock.jump(4 * 86_400)
        lane.clock.jump(4 * 86_400)
    assert live(await beside.world.table_read()) == live(table(committed_records(log)))


def _given(world: CleanWorld, segment: LogSegment) -> RemoteLogSegmentMetadata:
    given = world.given(segment.base_offset)
    assert given is not None
    return given


async def _aborted(world: CleanWorld, segment: LogSegment) -> list[AbortedTransaction]:
    return await world.aborted_in(_given(world, segment))


@pytest.mark.parametrize("place", PLACES)
async def test_a_driver_killed_anywhere_loses_nothing_and_the_next_run_goes_on(
    beside: Beside, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    log = random_log(3, steps=60)
    await beside.world.add(*log)
    expected = table(committed_records(log))

    async def kill() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        await on_spark(beside, spark, tmp_path, {f"clean.{place}": kill})
    assert await beside.world.table_read() == expected
    done = await on_spark(beside, spark, tmp_path)
    assert (done.left, done.stopped) == ("", NOTHING_LEFT)
    assert await beside.world.table_read() == expected
    given = {_given(beside.world, one).remote_log_segment_id.uuid for one in log}
    finished = {one.remote_log_segment_id.uuid for one in beside.world.segments(State.COPY_SEGMENT_FINISHED)}
    assert finished - given == beside.world.in_trash()


@pytest.mark.parametrize("place", ["rewritten", "started", "proven"])
async def test_what_retention_gives_up_meanwhile_does_not_end_it(
    beside: Beside, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """Nor does a round that takes longer than retention does to the next segment begin anew."""
    log = [puts(2 * n, (b"a-%d" % n, None), (b"b-%d" % n, b"1")) for n in range(6)]
    await beside.world.add(*log)
    start = log[3].base_offset

    async def move() -> None:
        await begins_at(beside.world, start)

    done = await on_spark(beside, spark, tmp_path, {f"clean.{place}": move})
    assert (done.left, done.stopped, done.cleaner_offset) == ("", NOTHING_LEFT, log[-1].next_base_offset)
    assert [one.start_offset for one in done.rounds[0].swapped] == [one.base_offset for one in log[3:]]
    beside.world.clock.jump(0.001)
    assert (await beside.world.clean()).reason == NOTHING_LEFT


async def test_where_an_attempt_may_still_write_others_begin_under_other_ids(
    beside: Beside, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = random_log(3, steps=60)
    await beside.world.add(*log)
    run, refused = SparkEngine.run, list[str]()

    async def run_twice(self: SparkEngine, step: str, doing: Callable[[], Any]) -> Any:
        """As if Spark ran all tasks of the first wave, lost the answers, and ran them again."""
        done = await run(self, step, doing)
        if refused or not step.startswith("putting up"):
            return done
        again = await run(self, step, doing)
        refused.extend(one.reason for one in again.values())
        return again

    monkeypatch.setattr(SparkEngine, "run", run_twice)
    done = await on_spark(beside, spark, tmp_path)
    assert set(refused) == {"another attempt may still write under the same id"}
    assert (done.left, done.stopped) == ("", NOTHING_LEFT)
    assert await beside.world.table_read() == table(committed_records(log))
    left = beside.world.segments(State.COPY_SEGMENT_STARTED)
    assert len(left) == len(refused), "of the first ids; the leader's sidecar deletes them after the copy grace"
    names = [path.name for path in (beside.root / ATTEMPTS).iterdir()]
    assert len(names) == len(left) + len(done.rounds[0].swapped)


async def test_an_attempt_that_fails_is_begun_anew_alone(
    beside: Beside, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was put up before it is finished at once, and what was put up after it when it is there: swaps ascend."""
    log = random_log(3, steps=60)
    await beside.world.add(*log)
    run, steps, begun = SparkEngine.run, list[str](), 0

    async def note(self: SparkEngine, step: str, doing: Callable[[], Any]) -> Any:
        finished = len(beside.world.segments(State.COPY_SEGMENT_FINISHED)) - len(log)
        steps.append(f"{step}, and {finished} are finished")
        return await run(self, step, doing)

    async def claim_the_second() -> None:
        nonlocal begun
        begun += 1
        if begun == 2:
            started = beside.world.segments(State.COPY_SEGMENT_STARTED)
            second = max(started, key=lambda one: one.start_offset)
            (directory := beside.root / ATTEMPTS).mkdir(parents=True, exist_ok=True)
            (directory / format_uuid(second.remote_log_segment_id.uuid)).write_bytes(b"of another attempt")

    monkeypatch.setattr(SparkEngine, "run", note)
    done = await on_spark(beside, spark, tmp_path, {"clean.started": claim_the_second})
    assert (done.left, done.stopped) == ("", NOTHING_LEFT)
    swapped = [one.start_offset for one in done.rounds[0].swapped]
    assert swapped == sorted(swapped)
    assert len(beside.world.segments(State.COPY_SEGMENT_STARTED)) == 1
    _, first, second, *_ = [one for one in steps if not one.startswith("scanning")]
    assert first == f"putting up: 4 segments from offset {swapped[0]}, and 0 are finished"
    assert second == f"putting up: 1 segments from offset {swapped[1]}, and 1 are finished"
    assert await beside.world.table_read() == table(committed_records(log))


@pytest.mark.parametrize("failures", [1, 3], ids=["once", "three times"])
async def test_a_job_that_fails_begins_anew_as_a_whole_and_the_third_time_ends_it(
    beside: Beside, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Of a job that failed nobody knows which attempts write."""
    log = random_log(3, steps=60)
    await beside.world.add(*log)
    run, left = SparkEngine.run, failures

    async def fail(self: SparkEngine, step: str, doing: Callable[[], Any]) -> Any:
        nonlocal left
        if left and step.startswith("putting up"):
            left -= 1
            raise SparkJobError(job="compact", reason="an executor is gone")
        return await run(self, step, doing)

    monkeypatch.setattr(SparkEngine, "run", fail)
    if failures == 3:
        with pytest.raises(SparkJobError, match="an executor is gone"):
            await on_spark(beside, spark, tmp_path)
    else:
        assert (await on_spark(beside, spark, tmp_path)).left == ""
    assert len(beside.world.segments(State.COPY_SEGMENT_STARTED)) == 4 * failures
    assert await beside.world.table_read() == table(committed_records(log))


async def test_keys_are_not_to_be_found_in_what_spark_leaves_on_disks(
    beside: Beside, spark: SparkSession, tmp_path: Path
) -> None:
    """Not even their MD5, which tells who guesses a key whether it is there."""
    await beside.world.add(*random_log(3))
    digests = [md5(b"key-%d" % number, usedforsecurity=False).digest() for number in range(12)]
    looked = list[int]()

    async def look() -> None:
        place = spark.sparkContext.getConf().get("spark.local.dir")
        assert place is not None
        contents = [path.read_bytes() for path in Path(place).rglob("*") if path.is_file()]
        looked.append(sum(map(len, contents)))
        assert not any(digest in content for content in contents for digest in digests)

    await on_spark(beside, spark, tmp_path, {"clean.rewritten": look})
    assert looked[0] > 0


class Answering:
    """A job that notes how large its shares are, and leaves each segment as it is."""

    def __init__(self) -> None:
        self.largest, self.terms = 0, 0

    def clean(self, shares: Mapping[int, bytes], terms: bytes) -> dict[int, bytes]:
        self.largest, self.terms = max(map(len, shares.values())), len(terms)
        return {number: pickle.dumps(CleanedShare(tally=SegmentTally(), facts=None)) for number in shares}

    def close(self) -> None:
        return None


async def test_shares_are_no_larger_where_there_are_many_producers(beside: Beside, spark: SparkSession) -> None:
    """The round's terms name the last record of each, and go up once for all tasks."""
    chain = await beside.world.add(*random_log(3))
    chunk = Chunk(chain=chain, dirty=chain, first_dirty=chain[0].start_offset, aborted=[])
    largest = set[int]()
    for producers in (1, 10_000):
        lasts = {number: LastRecord(data_offset=number, epoch=0) for number in range(producers)}
        terms = CleaningTerms(now_ms=0, delete_retention_ms=0, upper_bound_offset=-1, last_records=lasts)
        job: Any = Answering()
        parts, nobody = SimpleNamespace(swap=None), SimpleNamespace()
        engine = SparkEngine(spark, job, cast("Any", parts), ScriptedFailpoints(), lambda text: None)
        mapped = SparkChunk(engine, chunk, chain, [CarriedTransactions()] * len(chain))
        assert len([done async for done in mapped.clean(terms, cast("Any", nobody))]) == len(chain)
        largest.add(job.largest)
        assert (job.terms > 100_000) == (producers > 1)
    assert len(largest) == 1


async def test_a_segment_that_cannot_be_read_ends_it_and_nothing_is_published(
    beside: Beside, spark: SparkSession, tmp_path: Path
) -> None:
    first, *_ = await beside.world.add(*random_log(2))
    next(beside.root.rglob(f"{first.start_offset:020d}-*.log")).unlink()
    before = beside.world.segments()
    with pytest.raises(SparkJobError):
        await on_spark(beside, spark, tmp_path)
    assert beside.world.segments() == before
    assert beside.world.state.cleaner_claims(beside.world.owner) == ()


async def test_a_command_that_is_ended_ends_its_jobs(spark: SparkSession) -> None:
    """Or the end of its loop would wait for the thread, and the thread for the job."""
    parts: Any = SimpleNamespace(swap=None)
    job: Any = None
    engine = SparkEngine(spark, job, parts, ScriptedFailpoints(), lambda text: None)
    ended = threading.Event()

    def wait() -> None:
        try:
            spark.sparkContext.parallelize([0], 1).foreach(_wait_long)
        finally:
            ended.set()

    running = asyncio.create_task(engine.run("waiting", wait))
    await asyncio.to_thread(_until_active, spark)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(ended.wait, 20)


def _until_active(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getActiveJobsIds():
        threading.Event().wait(0.05)


def _wait_long(_row: int) -> None:
    threading.Event().wait(120)
