"""The cleaner lane of the role ``tier``, where ``compaction.enabled`` is set."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.parts import Parts
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.clean import CleanSettings, CleanTask, local_engine
from tiersidecar.tasks.clean_lane import CleanLane
from tiersidecar.tasks.clean_rights import LeadersRights
from tiersidecar.tasks.segment_put import SwapStore
from tiersidecar.tasks.segment_swap import SegmentSwap
from tiersidecar.tasks.segment_upload import CopyTarget

_FILTERS = "filters"


def drop_key_filters(state_dir: Path) -> None:
    """Drop those of a time when compacted topics were tiered."""
    shutil.rmtree(state_dir / _FILTERS, ignore_errors=True)


def build_clean(parts: Parts, role: TierParts, *, target: CopyTarget) -> CleanLane:
    """Build it by plain constructor calls.  What a killed process left of its work on this disk goes."""
    config = parts.config
    scratch = Path(config.state_dir) / "cleaned"
    shutil.rmtree(scratch, ignore_errors=True)
    store = SwapStore(
        objects=target.objects,
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
        open_file=parts.log_dirs.open_segment,
        most_custom_metadata_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
    )
    swap = SegmentSwap(
        metadata=parts.metadata,
        store=store,
        clock=parts.clock,
        ids=parts.ids,
        failpoints=parts.failpoints,
        place="clean",
    )
    settings = CleanSettings(
        dedupe_buffer_bytes=config.compaction_dedupe_buffer_size,
        scratch=scratch,
        filters=Path(config.state_dir) / _FILTERS,
        delays=TrashDelays(retention_ms=config.delete_delay, user_ms=config.user_delete_delay),
    )
    rights = LeadersRights(parts.sources, role.actor, target.in_flight, parts.clock)
    engine = local_engine(
        settings,
        store,
        swap,
        blocking=parts.blocking,
        failpoints=parts.failpoints,
        cleaned_here=rights.cleaned_here,
    )
    task = CleanTask(
        sources=parts.sources,
        clock=parts.clock,
        failpoints=parts.failpoints,
        rights=rights,
        engine=engine,
        blobs=store.blobs,
        settings=settings,
    )
    return CleanLane(
        task=task,
        table=parts.table,
        metadata=parts.metadata,
        clock=parts.clock,
        slots=asyncio.Semaphore(1),
        interval_s=config.compaction_interval_ms / 1000,
    )
