"""A round of ``tiersidecar compact`` on Spark: executors read, rewrite and put segments up; the driver publishes.

Executors open store and keys from the configuration file on their machine, as those of reconcile do.  In this order: every
segment is scanned; every one is cleaned and measured, and nothing of it is kept; then, some at a time and ascending, the driver
publishes COPY_SEGMENT_STARTED, executors clean the segments once more, to the same bytes, put them up and read them back, and
the driver publishes COPY_SEGMENT_FINISHED and retires the old ones.  An object never comes before its STARTED, whose sizes are
those that were measured.

Only one attempt ever writes under one id (:mod:`~tiersidecar.app.compact_attempts`).  One that fails, or finds that another may
write, answers with its reason; the driver finishes what was put up before it, and begins that segment anew, under another id.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tiersidecar.adapters.clock import SystemClock
from tiersidecar.app.compact_attempts import ATTEMPT_BEGINS_WITHIN_MS, drop_old_attempts
from tiersidecar.app.compact_executor import ExecutorWorker, NotPut, unpickled
from tiersidecar.app.compact_layout import Layout
from tiersidecar.app.rewriting_parts import RewritingParts
from tiersidecar.domain.errors import SparkJobError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.compaction.cleaning import CleaningTerms
from tiersidecar.formats.compaction.transactions import CarriedTransactions
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.spark.compaction_job import CompactionJob
from tiersidecar.tasks.clean import CleanSettings
from tiersidecar.tasks.clean_engine import Chunk, CleanEngine, MappedChunk, Progress, SegmentDone, not_swapped
from tiersidecar.tasks.clean_rights import ChunkSwapper
from tiersidecar.tasks.clean_shards import Carrying, CleanedShare, CleanShare, clean_shares, scan_shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_NO_BOUND_BYTES = 1 << 62
_SAY_EACH_S = 5.0
_MOST_ATTEMPTS = 3
_OF_SPARK = (PySparkException, Py4JError, OSError, EOFError)
"""The latter two where the driver's JVM is gone."""


@contextmanager
def _as_job_errors() -> Iterator[None]:
    """Raise SparkJobError in the place of Spark's errors."""
    try:
        yield
    except _OF_SPARK as error:
        raise SparkJobError(job="compact", reason=str(error) or type(error).__name__) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEngines:
    """Opens the engine of a command about ``topic``; ``config_file`` is the file's path on each executor's machine, and
    ``layout`` what it says here."""

    spark: SparkSession
    config_file: Path
    topic: str
    layout: Layout

    def __call__(
        self, parts: RewritingParts, settings: CleanSettings, failpoints: Failpoints, progress: Progress
    ) -> CleanEngine:
        worker = ExecutorWorker(
            config_file=str(self.config_file.absolute()),
            kafka_version=parts.kafka_version,
            topic=self.topic,
            layout=self.layout,
        )
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

    async def at_once(self) -> int:
        """Return how many segments are begun together: enough for all executors, and finished long before the copy grace."""
        with _as_job_errors():
            return 2 * await asyncio.to_thread(lambda: self._spark.sparkContext.defaultParallelism)

    async def free_bytes(self) -> int:
        return _NO_BOUND_BYTES

    async def read_dirty(self, chunk: Chunk) -> MappedChunk:
        await drop_old_attempts(self._parts.store, self._parts.key_prefix, SystemClock().now_ms())
        end = chunk.dirty[-1].next_offset
        segments = [one for one in chunk.chain if one.start_offset < end]
        carried = await self.run("scanning", lambda: self._scan(segments, chunk))
        return SparkChunk(self, chunk, segments, carried)

    def _scan(self, segments: Sequence[RemoteLogSegmentMetadata], chunk: Chunk) -> list[CarriedTransactions]:
        """Return the state of transactions where each segment begins."""
        shares = {
            number: pickle.dumps(share)
            for number, share in enumerate(scan_shares(segments, chunk.first_dirty, chunk.aborted))
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
            with _as_job_errors():
                while not running.done():
                    await asyncio.wait([running], timeout=_SAY_EACH_S)
                    self.progress(f"{step} on Spark: {await asyncio.to_thread(self._tasks)}")
                return await running
        except asyncio.CancelledError:
            # The loop's end waits for the thread, and the thread for the job.
            with suppress(*_OF_SPARK):
                self._spark.sparkContext.cancelAllJobs()
            raise

    def _tasks(self) -> str:
        tracker = self._spark.sparkContext.statusTracker()
        stages = [stage for one in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(one)) is not None]
        return ", ".join(f"{one.numCompletedTasks} of {one.numTasks} tasks" for one in stages) or "between tasks"


class SparkChunk:
    """A :class:`~tiersidecar.tasks.clean_engine.MappedChunk`; ``carried`` is the state of transactions where each segment
    begins."""

    def __init__(
        self,
        engine: SparkEngine,
        chunk: Chunk,
        segments: Sequence[RemoteLogSegmentMetadata],
        carried: Sequence[CarriedTransactions],
    ) -> None:
        self._engine, self._chunk, self._segments, self._carried = engine, chunk, segments, carried
        self._terms = b""

    @property
    def end(self) -> Offset:
        return self._chunk.dirty[-1].next_offset

    async def clean(self, terms: CleaningTerms, swapper: ChunkSwapper) -> AsyncGenerator[SegmentDone]:
        try:
            shares, self._terms = await asyncio.to_thread(self._shares, terms)
            measured = await self._measured(shares)
            changed = [number for number, one in measured.items() if one.facts is not None]
            await self._engine.failpoints.reach("clean.rewritten")
            for number, one in sorted(measured.items()):
                if one.facts is None:
                    yield SegmentDone(old=self._segments[number], tally=one.tally)
            changed.sort()
            at_once = await self._engine.at_once()
            for start in range(0, len(changed), at_once):
                wave = {number: shares[number] for number in changed[start : start + at_once]}
                async for done in self._swap(wave, measured, swapper):
                    yield done
                    if done.left:
                        return
        finally:
            with suppress(*_OF_SPARK):  # what is gone needs no cleaning up, and what has ended the chunk is said
                await asyncio.to_thread(self._engine.job.close)

    async def _swap(
        self, wave: dict[int, CleanShare], measured: dict[int, CleanedShare], swapper: ChunkSwapper
    ) -> AsyncGenerator[SegmentDone]:
        """Swap the segments of ``wave``, ascending: what was put up waits until all before it are there as well."""
        left, stored = dict(wave), dict[int, _Stored]()
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            begun = dict[int, CleanShare]()
            stored = {number: one for number, one in stored.items() if one.is_fresh}
            for number, share in tuple(left.items()):
                if number in stored:
                    continue
                one = await self._begin(share, measured[number], swapper)
                if isinstance(one, str):
                    yield (done := not_swapped(share.segment, one, swapper))
                    if done.left:
                        return
                    del left[number]
                    continue
                begun[number] = one
            put, failed = await self._put(begun)
            stored |= put
            while left and (number := next(iter(left))) in stored:
                one_stored = stored.pop(number)
                done = await self._end(left.pop(number), one_stored, swapper)
                yield done
                if done.left:
                    return
            if not left:
                return
            if attempt == _MOST_ATTEMPTS:
                raise SparkJobError(job="compact", reason=failed)
            said = failed.partition("\n")[0]
            self._engine.progress(f"{len(left) - len(stored)} segments begin anew, under other ids: {said}")

    async def _put(self, begun: dict[int, CleanShare]) -> tuple[dict[int, _Stored], str]:
        """Return what was put up of ``begun``, and why the first of the others was not."""
        put, failed = dict[int, _Stored](), ""
        try:
            answers = await self._do(f"putting up: {len(begun)} segments from offset {_first(begun)}", begun)
        except SparkJobError as error:
            return put, error.reason
        for number, share in begun.items():
            answer = answers[number]
            if isinstance(answer, NotPut):
                failed = failed or answer.reason
                continue
            assert share.started is not None, "it was begun before it was put up"
            put[number] = _Stored(share.started, answer, share.begun_ms)
        return put, failed

    async def _end(self, share: CleanShare, stored: _Stored, swapper: ChunkSwapper) -> SegmentDone:
        put, old = stored.put, share.segment
        new = await self._engine.swap.end([old], stored.started, put.custom_metadata, swapper)
        if isinstance(new, str):
            return not_swapped(old, new, swapper)
        return SegmentDone(old=old, new=new, tally=put.tally)

    async def _begin(self, share: CleanShare, measured: CleanedShare, swapper: ChunkSwapper) -> CleanShare | str:
        facts = measured.facts
        assert facts is not None, "only what has changed is put up"
        started = await self._engine.swap.begin([share.segment], facts, swapper, broker_id=swapper.broker_id)
        if isinstance(started, str):
            return started
        return replace(share, measured=facts, started=started, begun_ms=SystemClock().now_ms())

    async def finish(self, given: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Do nothing: there is no filter."""

    def _shares(self, terms: CleaningTerms) -> tuple[dict[int, CleanShare], bytes]:
        """Return the share of each segment, and the terms as all tasks get them."""
        shares = clean_shares(self._segments, int(self.end) - 1, self._carried, self._chunk.aborted)
        return dict(enumerate(shares)), pickle.dumps(terms)

    async def _measured(self, shares: dict[int, CleanShare]) -> dict[int, CleanedShare]:
        found = dict[int, CleanedShare]()
        for number, answer in (await self._do("measuring", shares)).items():
            assert isinstance(answer, CleanedShare), "an error of a measuring task is the job's"
            found[number] = answer
        return found

    async def _do(self, step: str, shares: dict[int, CleanShare]) -> dict[int, CleanedShare | NotPut]:
        return await self._engine.run(step, lambda: self._answers(shares))

    def _answers(self, shares: dict[int, CleanShare]) -> dict[int, CleanedShare | NotPut]:
        pickled = {number: pickle.dumps(share) for number, share in shares.items()}
        answers = self._engine.job.clean(pickled, self._terms)
        return {number: unpickled(answer) for number, answer in answers.items()}


@dataclass(frozen=True, slots=True)
class _Stored:
    """A segment that was put up and read back, and not finished yet."""

    started: RemoteLogSegmentMetadata
    put: CleanedShare
    begun_ms: int

    @property
    def is_fresh(self) -> bool:
        """Return whether it may wait for further attempts of others: the leader's sidecar deletes what is begun and not
        finished within the copy grace."""
        return SystemClock().now_ms() < self.begun_ms + ATTEMPT_BEGINS_WITHIN_MS


def _first(shares: dict[int, CleanShare]) -> Offset:
    return next(iter(shares.values())).segment.start_offset
