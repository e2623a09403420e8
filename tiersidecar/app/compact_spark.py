"""A round of ``tiersidecar compact`` on Spark: executors read, rewrite and put segments up; the driver publishes.

Executors open store and keys from the configuration file on their machine, as those of reconcile do.  In this order: every
segment is scanned; every one is cleaned and measured, and nothing of it is kept; then, some at a time and ascending, the driver
publishes COPY_SEGMENT_STARTED, executors clean the segments once more, to the same bytes, put them up and read them back, and
the driver publishes COPY_SEGMENT_FINISHED and retires the old ones.  An object never comes before its STARTED, whose sizes are
those that were measured.

Only one attempt ever writes under one id: Spark may run a task again while an executor that it has given up still writes, and
each attempt has a data key of its own.  So each first puts an object of the id's name that must not be there yet.  Where it is
there, the attempt fails, and the driver begins those segments anew, under other ids.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.reconcile_run import executor_config
from tiersidecar.app.rewriting_parts import RewritingParts, open_swap_store
from tiersidecar.domain.errors import ObjectExistsError, SparkJobError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.own_objects import ATTEMPTS
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.cleaning import CleaningTerms
from tiersidecar.formats.compaction.offset_map import OffsetMap
from tiersidecar.formats.compaction.transactions import CarriedTransactions
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.ports.store import BytesBody, PutObject, Store
from tiersidecar.spark.compaction_job import CompactionJob
from tiersidecar.tasks.clean import CleanSettings
from tiersidecar.tasks.clean_engine import Chunk, CleanEngine, MappedChunk, Progress, SegmentDone
from tiersidecar.tasks.clean_passes import CleanPasses
from tiersidecar.tasks.clean_rights import ChunkSwapper
from tiersidecar.tasks.clean_shards import (
    Carrying,
    CleanedShare,
    CleanShare,
    ScannedSegment,
    ScanShare,
    clean_share,
    measure_segment,
    put_share,
    scan_segment,
    scan_share,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_NO_BOUND_BYTES = 1 << 62
_SAY_EACH_S = 5.0
_MOST_ATTEMPTS = 3
_ATTEMPT_BEGINS_WITHIN_MS = 3_600_000
_ATTEMPTS_KEPT_MS = 2 * 86_400_000


@dataclass(frozen=True, slots=True)
class ExecutorWorker:
    """A :class:`~tiersidecar.spark.compaction_job.Worker`."""

    config_file: str
    kafka_version: tuple[int, int]

    def scan(self, share: bytes) -> ScannedSegment:
        return run_to_end(self._scan(_unpickled(share)))

    def clean(self, share: bytes, offset_map: OffsetMap) -> bytes:
        return pickle.dumps(run_to_end(self._clean(_unpickled(share), offset_map)))

    async def _scan(self, share: ScanShare) -> ScannedSegment:
        config = executor_config(self.config_file)
        async with open_swap_store(
            config, self.kafka_version, SystemClock(), SystemIds(), NO_FAILPOINTS, name="compact"
        ) as (_, store, _):
            return await scan_segment(share, store)

    async def _clean(self, share: CleanShare, offset_map: OffsetMap) -> CleanedShare:
        config = executor_config(self.config_file)
        with TemporaryDirectory(prefix="tiersidecar-compact-") as scratch:
            async with open_swap_store(
                config, self.kafka_version, SystemClock(), SystemIds(), NO_FAILPOINTS, name="compact"
            ) as (objects, store, blocking):
                passes = CleanPasses(
                    store=store,
                    blocking=blocking,
                    scratch=Path(scratch),
                    dedupe_buffer_bytes=offset_map.size_bytes,
                )
                if share.started is None:
                    return await measure_segment(share, offset_map, passes)
                await _claim(objects, config.store.key_prefix, share)
                return await put_share(share, offset_map, passes, store)


def _unpickled(data: bytes) -> Any:
    """Return what our own driver or executors have sent."""
    return pickle.loads(data)


async def _claim(store: PutObject, key_prefix: str, share: CleanShare) -> None:
    """Return if no other attempt may have begun to write under the id of ``share``.

    Raises:
        SparkJobError: one may have.
    """
    assert share.started is not None, "only what was begun is put up"
    uuid = share.started.remote_log_segment_id.uuid
    if SystemClock().now_ms() > share.begun_ms + _ATTEMPT_BEGINS_WITHIN_MS:
        raise SparkJobError(job="compact", reason="the attempt begins too late")
    try:
        await store.put_object(f"{key_prefix}{ATTEMPTS}{format_uuid(uuid)}", BytesBody(b"attempt"), if_absent=True)
    except ObjectExistsError as error:
        raise SparkJobError(job="compact", reason="another attempt may still write under the same id") from error


async def drop_old_attempts(store: Store, key_prefix: str, now_ms: int) -> None:
    """Delete what attempts of earlier runs have put, long after any of them could begin."""
    found = [one async for one in store.list_objects(f"{key_prefix}{ATTEMPTS}")]
    old = [one.key for one in found if one.modified_ms < now_ms - _ATTEMPTS_KEPT_MS]
    if old:
        await store.delete_objects(old)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEngines:
    """Opens the engine of a command; ``config_file`` is the file's path on each executor's machine."""

    spark: SparkSession
    config_file: Path

    def __call__(
        self, parts: RewritingParts, settings: CleanSettings, failpoints: Failpoints, progress: Progress
    ) -> CleanEngine:
        worker = ExecutorWorker(str(self.config_file.absolute()), parts.kafka_version)
        return SparkEngine(self.spark, CompactionJob(self.spark, worker), parts, failpoints, progress)


class SparkEngine:
    """A :class:`~tiersidecar.tasks.clean_engine.CleanEngine`: no map of a whole chunk, and so no chunk that it bounds."""

    def __init__(
        self,
        spark: SparkSession,
        job: CompactionJob,
        parts: RewritingParts,
        failpoints: Failpoints,
        progress: Progress,
    ) -> None:
        self._spark, self.job, self._parts = spark, job, parts
        self.swap, self.failpoints, self.progress = parts.swap, failpoints, progress

    @property
    def at_once(self) -> int:
        """Return how many segments are begun together: enough for all executors, and finished long before the copy grace."""
        return 2 * self._spark.sparkContext.defaultParallelism

    async def free_bytes(self) -> int:
        return _NO_BOUND_BYTES

    async def read_dirty(self, chunk: Chunk) -> MappedChunk:
        await drop_old_attempts(self._parts.store, self._parts.key_prefix, SystemClock().now_ms())
        end = chunk.dirty[-1].next_offset
        segments = [one for one in chunk.chain if one.start_offset < end]
        carried = await self.run("scanning", lambda: self._scan(segments, chunk))
        return _SparkChunk(self, chunk, segments, carried)

    def _scan(self, segments: Sequence[RemoteLogSegmentMetadata], chunk: Chunk) -> list[CarriedTransactions]:
        """Return the state of transactions where each segment begins."""
        shares = {
            number: pickle.dumps(scan_share(segment, chunk.first_dirty, chunk.aborted))
            for number, segment in enumerate(segments)
        }
        carrying, found = Carrying(chunk.aborted), list[CarriedTransactions]()
        by_segment = groupby(self.job.scan(shares), key=itemgetter(0))
        number_of_next, events = next(by_segment, (-1, iter(())))
        for number, segment in enumerate(segments):
            found.append(carrying.carried)
            if number != number_of_next:
                carrying.go_past(segment, ())
                continue
            carrying.go_past(segment, (event for _, event in events))
            number_of_next, events = next(by_segment, (-1, iter(())))
        return found

    async def run(self, step: str, doing: Callable[[], T]) -> T:
        """Run jobs in a thread, and say how far their tasks are.

        Raises:
            SparkJobError: Spark failed, or a task did.
        """
        running = asyncio.ensure_future(asyncio.to_thread(doing))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=_SAY_EACH_S)
                self.progress(f"{step} on Spark: {self._tasks()}")
            return await running
        except asyncio.CancelledError:
            # The loop's end waits for the thread, and the thread for the job.
            self._spark.sparkContext.cancelAllJobs()
            raise
        except (PySparkException, Py4JError) as error:
            raise SparkJobError(job="compact", reason=str(error)) from error

    def _tasks(self) -> str:
        tracker = self._spark.sparkContext.statusTracker()
        stages = [stage for one in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(one)) is not None]
        return ", ".join(f"{one.numCompletedTasks} of {one.numTasks} tasks" for one in stages) or "between tasks"


class _SparkChunk:
    def __init__(
        self,
        engine: SparkEngine,
        chunk: Chunk,
        segments: Sequence[RemoteLogSegmentMetadata],
        carried: Sequence[CarriedTransactions],
    ) -> None:
        self._engine, self._chunk, self._segments, self._carried = engine, chunk, segments, carried

    @property
    def end(self) -> Offset:
        return self._chunk.dirty[-1].next_offset

    async def clean(self, terms: CleaningTerms, swapper: ChunkSwapper) -> AsyncGenerator[SegmentDone]:
        try:
            shares = dict(enumerate(self._shares(terms)))
            measured = await self._do("measuring", shares)
            changed = [number for number, one in measured.items() if one.facts is not None]
            await self._engine.failpoints.reach("clean.rewritten")
            for number, one in sorted(measured.items()):
                if one.facts is None:
                    yield SegmentDone(old=self._segments[number], tally=one.tally)
            changed.sort()
            for start in range(0, len(changed), self._engine.at_once):
                wave = {number: shares[number] for number in changed[start : start + self._engine.at_once]}
                async for done in self._swap(wave, measured, swapper):
                    yield done
                    if done.left:
                        return
        finally:
            await asyncio.to_thread(self._engine.job.close)

    async def _swap(
        self, wave: dict[int, CleanShare], measured: dict[int, CleanedShare], swapper: ChunkSwapper
    ) -> AsyncGenerator[SegmentDone]:
        begun, stored = dict[int, CleanShare](), dict[int, CleanedShare]()
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            begun.clear()
            for number, share in wave.items():
                one = await self._begin(share, measured[number], swapper)
                if isinstance(one, str):
                    yield SegmentDone(old=share.segment, left=one)
                    return
                begun[number] = one
            try:
                stored = await self._do(f"putting up {len(begun)} segments from {_first(wave)} on", begun)
                break
            except SparkJobError:
                if attempt == _MOST_ATTEMPTS:
                    raise
                self._engine.progress("Spark failed: beginning the same segments under other ids")
        for number, share in begun.items():
            assert share.started is not None, "it was begun above"
            old, put = share.segment, stored[number]
            new = await self._engine.swap.end([old], share.started, put.custom_metadata, swapper)
            if isinstance(new, str):
                yield SegmentDone(old=old, left=new)
                return
            yield SegmentDone(old=old, new=new, tally=put.tally)

    async def _begin(self, share: CleanShare, measured: CleanedShare, swapper: ChunkSwapper) -> CleanShare | str:
        facts = measured.facts
        assert facts is not None, "only what has changed is put up"
        started = await self._engine.swap.begin([share.segment], facts, swapper, broker_id=swapper.broker_id)
        if isinstance(started, str):
            return started
        return replace(share, measured=facts, started=started, begun_ms=SystemClock().now_ms())

    async def finish(self, given: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Do nothing: there is no filter."""

    def _shares(self, terms: CleaningTerms) -> list[CleanShare]:
        latest, aborted = int(self.end) - 1, self._chunk.aborted
        return [
            clean_share(segment, terms, latest, carried, aborted)
            for segment, carried in zip(self._segments, self._carried, strict=True)
        ]

    async def _do(self, step: str, shares: dict[int, CleanShare]) -> dict[int, CleanedShare]:
        pickled = {number: pickle.dumps(share) for number, share in shares.items()}
        answers = await self._engine.run(step, lambda: self._engine.job.clean(pickled))
        return {number: _unpickled(answer) for number, answer in answers.items()}


def _first(wave: dict[int, CleanShare]) -> Offset:
    return next(iter(wave.values())).segment.start_offset
