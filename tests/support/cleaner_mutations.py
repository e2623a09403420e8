"""Faults planted in what cleans and copies compacted topics; :mod:`tests.support.mutations` has the seed that catches each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tiersidecar.decide import compaction as decide_compaction_module
from tiersidecar.decide.compaction import CompactionPlan, CompactionSettings, CompactionView, decide_compaction
from tiersidecar.domain.segments import LocalPartition, Pin, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats import native
from tiersidecar.formats.compaction.cleaning import Cleaner
from tiersidecar.formats.native import NativeCore
from tiersidecar.tasks import clean as clean_module
from tiersidecar.tasks import partition_table as partition_table_module
from tiersidecar.tasks.clean_passes import CleanedSegment, CleanPasses
from tiersidecar.tasks.segment_put import NewSegment
from tiersidecar.tasks.segment_swap import SegmentSwap, Swapper

Patches = list[Any]


def old_segments_are_marked_before_the_new_one_is_published() -> Patches:
    original = SegmentSwap._copy

    async def copy(
        self: SegmentSwap,
        old: Sequence[RemoteLogSegmentMetadata],
        started: RemoteLogSegmentMetadata,
        new: NewSegment,
        swapper: Swapper,
        *others: Any,
    ) -> Any:
        for one in old:
            await self._metadata.publish(
                RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=one.remote_log_segment_id,
                    broker_id=one.broker_id,
                    event_timestamp_ms=started.event_timestamp_ms,
                    state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
                    custom_metadata=one.custom_metadata,
                )
            )
        with patch.object(swapper, "reason_to_leave", _no_reason):
            return await original(self, old, started, new, swapper, *others)

    return [patch.object(SegmentSwap, "_copy", copy)]


async def _no_reason(old: Sequence[RemoteLogSegmentMetadata]) -> str:
    return ""


def tombstones_go_before_their_time() -> Patches:
    """The fault is Python's: the native core would go past it."""
    original = Cleaner._is_dirty
    return [
        patch.object(native, "core", NativeCore(walks=None, reason="the fault is Python's")),
        patch.object(Cleaner, "_keeps_tombstone", lambda self, header, newest_ms: original(self, header)),
    ]


def only_what_is_dirty_is_rewritten() -> Patches:
    """Older values of the clean part stay, whatever becomes of what has replaced them."""
    original = CleanPasses.cleaned

    @asynccontextmanager
    async def cleaned(
        self: CleanPasses, segment: RemoteLogSegmentMetadata, cleaner: Cleaner, *, is_whole: bool
    ) -> AsyncIterator[CleanedSegment]:
        async with original(self, segment, cleaner, is_whole=is_whole) as done:
            first_dirty = cleaner._terms.first_dirty_offset or 0
            tally = done.tally
            if segment.end_offset < first_dirty:
                tally = replace(tally, untouched_batches=tally.batches_read)
            yield replace(done, tally=tally)

    return [patch.object(CleanPasses, "cleaned", cleaned)]


def transactions_that_are_open_count_as_committed() -> Patches:
    return [patch.object(clean_module, "open_states", lambda states: ())]


def compaction_lag_is_ignored() -> Patches:
    def decide(view: CompactionView, settings: CompactionSettings, *, now_ms: int) -> CompactionPlan:
        return decide_compaction(view, replace(settings, min_compaction_lag_ms=0), now_ms=now_ms)

    return [patch.object(clean_module, "decide_compaction", decide)]


def cleaner_takes_the_whole_disk() -> Patches:
    return [patch.object(decide_compaction_module, "_SHARE_OF_DISK", 1)]


def copies_are_of_what_the_broker_has_by_now() -> Patches:
    """No picture: one segment after the other, while the broker's cleaner is at work."""

    def pictured(local: LocalPartition, pins: Sequence[Pin]) -> LocalPartition:
        return local

    return [patch.object(partition_table_module, "pictured", pictured)]
