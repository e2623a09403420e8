"""The copy lane of the role ``tier``."""

from __future__ import annotations

from pathlib import Path

from tiersidecar.app.builders.store import layout_settings
from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.config.config import Config
from tiersidecar.app.parts import Parts
from tiersidecar.reading.carried_transactions import CarriedTransactions, OpenAtCuts
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.batch_epochs import BatchEpochs
from tiersidecar.tasks.copy import CopyTask
from tiersidecar.tasks.copy_admission import Backfill, CopyAdmission, CopyLagReport, CopyQuota
from tiersidecar.tasks.lanes import Backoff
from tiersidecar.tasks.ownership import InFlight
from tiersidecar.tasks.recopy import FetchedSegments, RecopyTask
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.segment_objects import SegmentObjects
from tiersidecar.tasks.segment_upload import CopyTarget, SegmentUploader, UploadSettings
from tiersidecar.tasks.store_gates import StoreGates
from tiersidecar.tasks.tail_cuts import CuttingUploader, TailCuts
from tiersidecar.tasks.transaction_waits import TransactionWaits


def task_backoff(config: Config) -> Backoff:
    """Return the backoff between attempts at one step, in lanes as within them."""
    return Backoff(
        initial_s=config.remote_log_manager_task_retry_backoff_ms / 1000,
        maximum_s=config.remote_log_manager_task_retry_backoff_max_ms / 1000,
        jitter=config.remote_log_manager_task_retry_jitter,
    )


def build_copy_target(parts: Parts, *, gates: StoreGates, remover: SegmentRemover) -> CopyTarget:
    """Build it by plain constructor calls."""
    return CopyTarget(
        objects=SegmentObjects(
            settings=layout_settings(parts.config, parts.key_ring, parts.kafka_version),
            store=parts.store,
            blocking=parts.blocking,
            ids=parts.ids,
            failpoints=parts.failpoints,
        ),
        gates=gates,
        remover=remover,
        in_flight=InFlight(clock=parts.clock, telemetry=parts.telemetry, journal=parts.journal),
    )


def build_uploader(
    parts: Parts,
    role: TierParts,
    *,
    target: CopyTarget,
    waits: TransactionWaits,
) -> SegmentUploader:
    """Build it by plain constructor calls."""
    config = parts.config
    blobs = IndexBlobReader(
        store=parts.store, blocking=parts.blocking, manifests=parts.manifests, telemetry=parts.telemetry
    )
    return SegmentUploader(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        target=target,
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
        log_dirs=parts.log_dirs,
        waits=waits,
        settings=UploadSettings(
            custom_metadata_max_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
            backoff=task_backoff(config),
        ),
    )


def build_transaction_waits(parts: Parts) -> TransactionWaits:
    """Build the waits for open transactions."""
    return TransactionWaits(
        table=parts.table,
        broker=parts.broker,
        broker_id=parts.identity.broker_id,
        log_dirs=parts.log_dirs,
        clock=parts.clock,
        telemetry=parts.telemetry,
    )


def build_admission(parts: Parts, *, gates: StoreGates, quota: CopyQuota, backfill: Backfill) -> CopyAdmission:
    """Build the admission of copies."""
    return CopyAdmission(
        slots=parts.tuning.copy_slots,
        quota=quota,
        backfill=backfill,
        backfill_quota=CopyQuota(quota=parts.tuning.backfill_quota, clock=parts.clock, telemetry=parts.telemetry),
        gates=gates,
    )


def build_recopy(
    parts: Parts, role: TierParts, *, target: CopyTarget, uploader: SegmentUploader, admission: CopyAdmission
) -> RecopyTask:
    """Build it by plain constructor calls."""
    return RecopyTask(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        target=target,
        presence=SegmentPresence(parts.store, parts.config.store.key_prefix),
        uploader=uploader,
        fetched=_fetched_segments(parts),
        admission=admission,
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
    role: TierParts,
    *,
    uploader: SegmentUploader,
    admission: CopyAdmission,
    lag: CopyLagReport,
    waits: TransactionWaits,
) -> CopyTask:
    """Build it by plain constructor calls."""
    return CopyTask(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        uploader=CuttingUploader(
            uploader=uploader,
            table=parts.table,
            cuts=TailCuts(scratch=Path(parts.config.state_dir) / "cut", blocking=parts.blocking),
        ),
        admission=admission,
        lag=lag,
        waits=waits,
        batch_epochs=BatchEpochs(table=parts.table, log_dirs=parts.log_dirs),
    )
