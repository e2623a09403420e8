"""Erase records by key from the remote log of a topic: read every segment, rewrite those that have one, prove it, publish.

For each segment, in this order: the new one is written to this disk; COPY_SEGMENT_STARTED; its objects; they are read back;
COPY_SEGMENT_FINISHED, from which on readers have the new one; and only then the old one goes into the trash, whence the
leader's sidecar deletes it when that is due, if the new one is whole then.  A process that ends anywhere leaves the old
segment as it is, or both, of which the new one is read; the command done again goes on from what is published.

One erasure or repair acts at a time: both hold the lease ``repair``.  The cleaner of a compacted topic waits for that lease,
but may finish a swap that it had begun before; so such a topic is looked at once more when that time is over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tiersidecar.adapters.clock import SystemIds
from tiersidecar.app.commands.session import Session
from tiersidecar.app.deletion_doubts import reason_not_ours
from tiersidecar.app.erase_partition import ErasedSegment, ErasureTools, PartitionEraser, PartitionErasure, seen_now
from tiersidecar.app.erase_segment import SegmentEraser
from tiersidecar.app.held_lease import HeldLease, claimed_lease, kept_renewed
from tiersidecar.app.repair_run import LEASE
from tiersidecar.app.rewriting_parts import open_rewriting, topic_owners
from tiersidecar.decide.erasure import (
    Erasing,
    ErasureStep,
    decide_erasure,
    reason_to_leave_behind,
    segments_to_read,
    unreadable_segments,
)
from tiersidecar.decide.topics import is_compacted
from tiersidecar.domain.errors import (
    CorruptDataError,
    CustomMetadataTooLargeError,
    ErasureError,
    ObjectNotFoundError,
    TiersidecarError,
)
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.reading.remote_objects import SegmentPresence

_RENEW_WITHIN_S = 10.0

_OF_ONE_SEGMENT = (CorruptDataError, CustomMetadataTooLargeError, ObjectNotFoundError)
"""Errors that say nothing of the segments behind it."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """``found`` is what the last look saw.  ``left`` were to be done and are not, with the reason: the partition had
    changed, or an error stood in the way."""

    found: Sequence[PartitionErasure]
    erased: Sequence[ErasedSegment]
    left: Sequence[tuple[ErasureStep, str]]


class Eraser:
    """Looks, and acts.  Every step may be abandoned and done again."""

    def __init__(
        self,
        session: Session,
        keys: Set[bytes],
        scratch: Path,
        *,
        progress: Progress = lambda text: None,
        failpoints: Failpoints = NO_FAILPOINTS,
        settle_s: float = 0.0,
    ) -> None:
        self._session, self._keys, self._scratch = session, keys, scratch
        self._progress, self._failpoints, self._ids = progress, failpoints, SystemIds()
        self._settle_s, self._looked_s = settle_s, self._session.clock.monotonic_s()
        self.found_keys: set[bytes] = set()
        """Keys that some record has of those that were read."""

    async def look(self, topic: str) -> list[PartitionErasure]:
        """Read every finished segment of the topic, and decide.

        Raises:
            BrokerRefusedError: there is no such topic.
            MetadataNotReadyError: the metadata topic could not be replayed.
            StoreError: the store is away.
            ErasureError: the topic's data are not this cluster's.
        """
        async with self._open_tools() as tools:
            views = await self._session.partitions(topic)
            for view in views:
                owner = view.topic_id_partition
                if reason := await reason_not_ours(self._session, tools.store, owner, lives_here=True):
                    raise ErasureError(subject=topic, reason=reason)
            configs = (await self._session.broker.describe_topic_configs([topic])).get(topic, {})
            compacts = is_compacted(configs)
            return [await self._look_at(view, tools, is_compacted=compacts) for view in views]

    async def apply(self, found: Sequence[PartitionErasure]) -> ErasureResult:
        """Do what :meth:`look` decided, as far as it is still right; each segment is looked at again right before.

        Raises:
            LeaseHeldError: another erasure or a repair acts.
            NotOwnedError, OwnerMissingError: the place of the new segments is not this cluster's, or not the one that it was.
            TiersidecarError: the first that stood in the way, where nothing was done; else it is a reason in ``left``.
        """
        erased: list[ErasedSegment] = []
        left: list[tuple[ErasureStep, str]] = []
        failed: TiersidecarError | None = None
        goes_on = True
        rewriting = [partition.owner for partition in found if partition.of(Erasing.REWRITE)]
        if rewriting and not _is_compacted(found):
            await self._settle()
        async with (
            self._open_tools() as tools,
            claimed_lease(self._session, self._ids, LEASE, self._progress) as lease,
            kept_renewed(lease, self._session.clock),
        ):
            if rewriting:
                owners = await topic_owners(self._session, tools.store, incarnation="erase")
                await owners.claim(rewriting[0], anew=True)
            if _is_compacted(found):
                found = await self._look_behind_the_cleaner(found, tools, lease)
            for partition in found:
                worker = PartitionEraser(self._session, partition, tools, lease, self._failpoints)
                stands: ErasureStep | None = None  # the first one left, in a compacted topic
                for step in partition.of(Erasing.REWRITE, Erasing.RETIRE):
                    if not goes_on:
                        left.append((step, f"not tried after an error: {failed}"))
                        continue
                    if stands is not None:
                        left.append((step, reason_to_leave_behind(stands.segment)))
                        continue
                    self._progress(f"{step.erasing}: {step.segment.remote_log_segment_id}")
                    try:
                        done = await worker.carry_out(step)
                    except TiersidecarError as error:
                        failed, goes_on = error, isinstance(error, _OF_ONE_SEGMENT)
                        done = f"it failed: {error}"
                    if isinstance(done, str):
                        left.append((step, done))
                        stands = step if partition.seen.is_compacted else None
                    else:
                        erased.append(done)
        if failed is not None and not erased:
            raise failed
        return ErasureResult(found=found, erased=erased, left=left)

    async def _look_behind_the_cleaner(
        self, found: Sequence[PartitionErasure], tools: ErasureTools, lease: HeldLease
    ) -> list[PartitionErasure]:
        """Look again, with the lease held, once the last swap has come that the cleaner began without it; only segments that
        are new since the first look are read."""
        until_s = self._session.clock.monotonic_s() + self._settle_s
        if self._settle_s > 0:
            self._progress(f"waiting {self._settle_s:.0f} s, until the cleaner has ended what it had begun")
        while (left_s := until_s - self._session.clock.monotonic_s()) > 0:
            await self._session.clock.sleep(min(left_s, _RENEW_WITHIN_S))
            await lease.renew()
        return [
            await self._look_at(one.view, tools, is_compacted=True, known=one.records, renew=lease.renew)
            for one in found
        ]

    async def _settle(self) -> None:
        """Wait until each broker has written its log start to its disk: a killed one comes back with the last one written."""
        left_s = self._settle_s - (self._session.clock.monotonic_s() - self._looked_s)
        if left_s > 0:
            self._progress(f"waiting {left_s:.0f} s, until brokers have written where their logs start")
            await self._session.clock.sleep(left_s)

    async def _look_at(
        self,
        view: LeaderView,
        tools: ErasureTools,
        *,
        is_compacted: bool,
        known: Mapping[Uuid, int] | None = None,
        renew: Callable[[], Awaitable[None]] | None = None,
    ) -> PartitionErasure:
        """Read what is not in ``known``, the records of segments that were read already; ``renew`` is called before each."""
        seen = await seen_now(self._session, view, is_compacted=is_compacted)
        self._looked_s = self._session.clock.monotonic_s()
        finished = segments_to_read(seen)
        there = {one.remote_log_segment_id.uuid for one in finished}
        records = {uuid: count for uuid, count in (known or {}).items() if uuid in there}
        unread = unreadable_segments(seen)
        for segment in finished:
            if segment.remote_log_segment_id.uuid in records:
                continue
            if renew is not None:
                await renew()
            self._progress(f"reading: {segment.remote_log_segment_id}")
            try:
                records[segment.remote_log_segment_id.uuid] = await tools.eraser.count(segment)
            except (CorruptDataError, ObjectNotFoundError) as error:
                unread.append((segment, f"it cannot be read: {error}"))
        self.found_keys |= tools.eraser.found_keys
        dirty = {uuid for uuid, count in records.items() if count}
        steps = decide_erasure(seen, dirty, records.keys() - dirty, there - records.keys())
        return PartitionErasure(view=view, seen=seen, records=records, unread=unread, steps=steps)

    @asynccontextmanager
    async def _open_tools(self) -> AsyncIterator[ErasureTools]:
        async with open_rewriting(self._session, self._ids, self._failpoints, place="erase") as opened:
            eraser = SegmentEraser(
                keys=self._keys,
                scratch=self._scratch,
                stream=opened.swap_store.stream,
                blobs=opened.swap_store.blobs,
                pace=opened.swap_store.pace,
                blocking=opened.blocking,
            )
            presence = SegmentPresence(opened.store, self._session.config.store.key_prefix)
            yield ErasureTools(store=opened.store, eraser=eraser, swap=opened.swap, presence=presence)


def _is_compacted(found: Sequence[PartitionErasure]) -> bool:
    return any(one.seen.is_compacted for one in found)
