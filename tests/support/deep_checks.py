"""The deep check of one remote segment, with what the reconcile job would give it of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tiersidecar.decide.reconcile_findings import Finding
from tiersidecar.decide.reconcile_segments import KINDS, Listed, SegmentRow
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.manifest import read_manifest
from tiersidecar.ports.store import Store
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.reconcile.deep_check import DeepCheck, Preceding


async def deep_findings(
    store: Store, metadata: RemoteLogSegmentMetadata, others: Iterable[RemoteLogSegmentMetadata]
) -> list[Finding]:
    """Return the findings in the segment of ``metadata``; ``others`` are the live ones of its partition."""
    key = recorded_keys(metadata).manifest
    manifest = read_manifest(await store.fetch_object(key, max_bytes=2**30), where=key)
    row, preceding = await _row(store, metadata), preceding_of(metadata, list(others))
    return await DeepCheck(open_key_ring=lambda: None).check(store, row, manifest, 0, preceding)


def preceding_of(
    metadata: RemoteLogSegmentMetadata, others: Sequence[RemoteLogSegmentMetadata]
) -> tuple[Preceding, ...]:
    """Return the preceding segments as the job joins them."""
    start = metadata.start_offset
    ended = _ending_at(start, others)
    return ended or tuple(
        replace(_preceding(segment), before=_ending_at(segment.start_offset, others))
        for segment in others
        if segment.start_offset < start <= segment.end_offset
    )


def _ending_at(offset: int, others: Iterable[RemoteLogSegmentMetadata]) -> tuple[Preceding, ...]:
    return tuple(_preceding(segment) for segment in others if segment.next_offset == offset)


def _preceding(metadata: RemoteLogSegmentMetadata) -> Preceding:
    return Preceding(
        stem=recorded_keys(metadata).log.removesuffix(".log"),
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        epochs=metadata.segment_leader_epochs,
    )


async def _row(store: Store, metadata: RemoteLogSegmentMetadata) -> SegmentRow:
    owner = metadata.remote_log_segment_id.topic_id_partition
    keys = dict(zip(KINDS, recorded_keys(metadata).in_upload_order, strict=True))
    listed = {kind: await store.head_object(key) for kind, key in keys.items()}
    return SegmentRow(
        topic=owner.topic,
        topic_id=format_uuid(owner.topic_id),
        partition=owner.partition,
        segment_id=format_uuid(metadata.remote_log_segment_id.uuid),
        start_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        before=metadata.state,
        after=metadata.state,
        since_ms=0,
        segment_size_bytes=metadata.segment_size_in_bytes,
        keys=keys,
        objects={kind: Listed(key=one.key, size_bytes=one.size_bytes, modified_ms=0) for kind, one in listed.items()},
    )
