"""The copy lane of the role ``tier``."""

from __future__ import annotations

from pathlib import Path

from tiersidecar.app.builders.store import layout_settings
from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.open_at_cuts import OpenAtCuts
from tiersidecar.reading.open_transactions import CarriedTransactions
from tiersidecar.reading.segment_presence import SegmentPresence
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.batch_epochs import BatchEpochs
from tiersidecar.tasks.copy import CopyTask, GapReport
from tiersidecar.tasks.copy_admission import Backfill, CopyAdmission, CopyQuota
from tiersidecar.tasks.copy_lag import CopyLagReport
from tiersidecar.tasks.delete_guard import MayDelete
from tiersidecar.tasks.first_start import FirstStart
from tiersidecar.tasks.in_flight import InFlight
from tiersidecar.tasks.lanes import Backoff
from tiersidecar.tasks.recopy import FetchedSegments, RecopyTask
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.segment_check import SegmentChecker
from tiersidecar.tasks.segment_objects import SegmentObjects
from tiersidecar.tasks.segment_upload import SegmentUploader
from tiersidecar.tasks.store_gate import StoreGate
from tiersidecar.tasks.transaction_waits import TransactionWaits


def task_backoff(config: Config) -> Backoff:
    """Between the attempts at one step, in lanes as within them."""
    return Backoff(
        initial_s=config.remote_log_manager_task_retry_backoff_ms / 1000,
        maximum_s=config.remote_log_manager_task_retry_backoff_max_ms / 1000,
        jitter=config.remote_log_manager_task_retry_jitter,
    )


def build_uploader(
    parts: Parts,
    role: TierParts,
    *,
    gate: StoreGate,
    in_flight: InFlight,
    remover: SegmentRemover,
    waits: TransactionWaits,
) -> SegmentUploader:
    """By plain constructor calls."""
    config = parts.config
    layout = layout_settings(config, parts.key_ring, parts.kafka_version)
    blobs = IndexBlobReader(
        store=parts.store, blocking=parts.blocking, manifests=parts.manifests, telemetry=parts.telemetry
    )
    return SegmentUploader(
        objects=SegmentObjects(
            settings=layout,
            store=parts.store,
            blocking=parts.blocking,
            ids=parts.ids,
            failpoints=parts.failpoints,
        ),
        checker=SegmentChecker(log_dirs=parts.log_dirs, clock=parts.clock),
        custom_metadata_max_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
        table=parts.table,
        log_dirs=parts.log_dirs,
        lineages=parts.lineages,
        carried=CarriedTransactions(
            metadata=parts.metadata,
            blobs=blobs,
            cuts=OpenAtCuts(
                metadata=parts.metadata,
                blobs=blobs,
                manifests=parts.manifests,
                chunks=StoreChunkManager(store=parts.store, blocking=parts.blocking, telemetry=parts.telemetry),
                blocking=parts.blocking,
                pace=parts.tuning.upload_pace,
            ),
        ),
        metadata_log=parts.metadata,
        gate=gate,
        remover=remover,
        in_flight=in_flight,
        blocking=parts.blocking,
        clock=parts.clock,
        ids=parts.ids,
        failpoints=parts.failpoints,
        telemetry=parts.telemetry,
        broker_id=parts.identity.broker_id,
        backoff=task_backoff(config),
        ownership=role.ownership,
        waits=waits,
    )


def build_transaction_waits(parts: Parts) -> TransactionWaits:
    """Likewise."""
    return TransactionWaits(
        table=parts.table,
        broker=parts.broker,
        broker_id=parts.identity.broker_id,
        log_dirs=parts.log_dirs,
        clock=parts.clock,
        telemetry=parts.telemetry,
    )


def build_admission(parts: Parts, *, quota: CopyQuota, backfill: Backfill) -> CopyAdmission:
    """Likewise."""
    return CopyAdmission(
        slots=parts.tuning.copy_slots,
        quota=quota,
        backfill=backfill,
        backfill_quota=CopyQuota(quota=parts.tuning.backfill_quota, clock=parts.clock, telemetry=parts.telemetry),
    )


def build_recopy(
    parts: Parts,
    *,
    uploader: SegmentUploader,
    admission: CopyAdmission,
    remover: SegmentRemover,
    in_flight: InFlight,
    guard: MayDelete,
) -> RecopyTask:
    """Likewise."""
    return RecopyTask(
        table=parts.table,
        metadata=parts.metadata,
        state=parts.state,
        lineages=parts.lineages,
        presence=SegmentPresence(parts.store, parts.config.store.key_prefix),
        uploader=uploader,
        fetched=_fetched_segments(parts),
        admission=admission,
        remover=remover,
        in_flight=in_flight,
        guard=guard,
        blocking=parts.blocking,
        failpoints=parts.failpoints,
        broker_id=parts.identity.broker_id,
        observe_only=parts.config.mode is Mode.OBSERVE,
    )


def _fetched_segments(parts: Parts) -> FetchedSegments:
    config = parts.config
    return FetchedSegments(
        directory=Path(config.state_dir) / "rewritten",
        stream=SegmentStream(
            store=parts.store,
            blocking=parts.blocking,
            key_prefix=config.store.key_prefix,
            key_ring=parts.key_ring,
            most_chunk_bytes=config.store.chunk_size,
            most_index_bytes=config.read.index_max_bytes,
        ),
        blobs=IndexBlobReader(
            store=parts.store, blocking=parts.blocking, manifests=parts.manifests, telemetry=parts.telemetry
        ),
        pace=parts.tuning.upload_pace,
        blocking=parts.blocking,
    )


def build_copy(
    parts: Parts,
    *,
    uploader: SegmentUploader,
    admission: CopyAdmission,
    lag: CopyLagReport,
    guard: MayDelete,
    waits: TransactionWaits,
) -> CopyTask:
    """Likewise."""
    return CopyTask(
        table=parts.table,
        broker=parts.broker,
        metadata=parts.metadata,
        state=parts.state,
        lineages=parts.lineages,
        uploader=uploader,
        admission=admission,
        blocking=parts.blocking,
        clock=parts.clock,
        lag=lag,
        gaps=GapReport(parts.telemetry),
        guard=guard,
        first_start=FirstStart(
            table=parts.table,
            broker=parts.broker,
            metadata=parts.metadata,
            state=parts.state,
            blocking=parts.blocking,
            failpoints=parts.failpoints,
        ),
        waits=waits,
        batch_epochs=BatchEpochs(table=parts.table, log_dirs=parts.log_dirs),
        observe_only=parts.config.mode is Mode.OBSERVE,
    )
