"""One segment's share of ``tiersidecar compact --spark``, on an executor, which opens store and keys from its own file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.compact_attempts import claim_attempt
from tiersidecar.app.compact_layout import Layout, require_same_layout
from tiersidecar.app.config.config import Config
from tiersidecar.app.reconcile_run import executor_config
from tiersidecar.app.rewriting_parts import open_swap_store
from tiersidecar.app.scratch import COMPACT_PREFIX, open_scratch, unwound_by_signals
from tiersidecar.domain.errors import SparkJobError, TiersidecarError
from tiersidecar.formats.compaction.cleaning import CleaningTerms
from tiersidecar.formats.compaction.offset_map import OffsetMap
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.tasks.clean_passes import CleanPasses
from tiersidecar.tasks.clean_shards import (
    CleanedShare,
    CleanShare,
    ScannedSegment,
    ScanShare,
    measure_segment,
    put_share,
    scan_segment,
)


@dataclass(frozen=True, slots=True)
class NotPut:
    """The answer of an attempt to put a segment up that came to nothing, or to nothing that may be used."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorWorker:
    """A :class:`~tiersidecar.spark.compaction_job.Worker`; ``config_file`` is the file's path on each executor's machine, and
    ``layout`` what the driver's file says."""

    config_file: str
    kafka_version: tuple[int, int]
    topic: str
    layout: Layout

    def scan(self, share: bytes) -> ScannedSegment:
        return run_to_end(self._scan(unpickled(share)))

    def clean(self, share: bytes, terms: bytes, offset_map: OffsetMap) -> bytes:
        todo: CleanShare = unpickled(share)
        if todo.started is None:
            return pickle.dumps(self._cleaned(todo, unpickled(terms), offset_map))
        try:
            return pickle.dumps(self._cleaned(todo, unpickled(terms), offset_map))
        except TiersidecarError as error:
            # An error would make Spark run the task again, under an id that is claimed by now; and end the others' tasks.
            reason = error.reason if isinstance(error, SparkJobError) else f"{type(error).__name__}: {error}"
            return pickle.dumps(NotPut(reason))

    def _cleaned(self, share: CleanShare, terms: CleaningTerms, offset_map: OffsetMap) -> CleanedShare:
        with unwound_by_signals():  # as Spark's daemon ends its workers when their JVM has gone
            return run_to_end(self._clean(share, terms, offset_map))

    async def _scan(self, share: ScanShare) -> ScannedSegment:
        async with open_swap_store(
            self._config(), self.kafka_version, SystemClock(), SystemIds(), NO_FAILPOINTS, name="compact"
        ) as (_, store, _):
            return await scan_segment(share, store)

    async def _clean(self, share: CleanShare, terms: CleaningTerms, offset_map: OffsetMap) -> CleanedShare:
        config, clock, ids = self._config(), SystemClock(), SystemIds()
        # Plain text, which a task that was killed leaves: the next one on this machine removes it.
        with open_scratch(None, COMPACT_PREFIX) as scratch:
            async with open_swap_store(config, self.kafka_version, clock, ids, NO_FAILPOINTS, name="compact") as opened:
                objects, store, blocking = opened
                passes = CleanPasses(
                    store=store, blocking=blocking, scratch=scratch, dedupe_buffer_bytes=offset_map.size_bytes
                )
                if share.started is None:
                    return await measure_segment(share, terms, offset_map, passes)
                uuid = share.started.remote_log_segment_id.uuid
                await claim_attempt(objects, config.store.key_prefix, uuid, share.begun_ms, clock, ids)
                return await put_share(share, terms, offset_map, passes, store)

    def _config(self) -> Config:
        config = executor_config(self.config_file)
        require_same_layout(self.layout, config, self.topic)
        return config


def unpickled(data: bytes) -> Any:
    """Return what our own driver or executors have sent."""
    return pickle.loads(data)
