"""Follows a bucket by listing it: what is new is read and put into the picture, what is gone is taken out of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError, StoreError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import ANY_SEGMENT
from tiersidecar.formats.aiven.manifest import read_manifest
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metrics.bucket import (
    BUCKET_LOOK_FAILURES,
    BUCKET_LOOK_SECONDS,
    BUCKET_LOOKS,
    BUCKET_PARTITIONS,
    BUCKET_REFUSED,
    BUCKET_SEGMENTS,
)
from tiersidecar.ports.store import FetchRange, ListObjects, StoredObject
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.bucket.manifests import ListedManifest, ListingFold, segment_of
from tiersidecar.services.bucket.picture import BucketPicture

log = structlog.get_logger(__name__)

_FETCHED_AT_ONCE = 32
_BATCH = 2000
"""Manifests that are read before the listing goes on; a partition's are put into the picture together."""
_LOG_EVERY_S = 5.0
_NAMED = 20
"""Refused manifests that the log names at each look; all are counted."""


class ListableStore(FetchRange, ListObjects, Protocol):
    """The parts of a store that following uses."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a manifest was left out, and what the listing said of it and its neighbours: while that stays, so does this."""

    reason: str
    listed: ListedManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one listing."""

    objects: int
    added: int
    removed: int
    elapsed_s: float


@dataclass(slots=True)
class FollowState:
    """For people and probes: when the bucket was last listed to its end, and why not since; empty ``trouble`` is none.
    ``is_ready`` once it was, ``is_serving`` once readers can connect."""

    is_ready: bool = False
    is_serving: bool = False
    listed_ms: int = -1
    read: int = 0
    trouble: str = "the bucket has not been listed yet"
    refused: dict[str, Refused] = field(default_factory=dict)


_MOST_REASON = 300
"""Characters: a manifest's own words are in it, and all reasons stay in memory."""

_Outcome = RemoteLogSegmentMetadata | CorruptDataError | StoreError | None


class BucketFollower:
    """One loop: list, read what is new, change the picture, wait."""

    def __init__(
        self,
        *,
        store: ListableStore,
        key_prefix: str,
        picture: BucketPicture,
        blocking: Blocking,
        clock: Clock,
        telemetry: Telemetry,
        place: str,
    ) -> None:
        self._store, self._key_prefix, self._place = store, key_prefix, place
        self._picture, self._blocking = picture, blocking
        self._clock, self._telemetry = clock, telemetry
        self._changing = asyncio.Lock()
        self._came_meanwhile: set[RemoteLogSegmentId] = set()
        self.state = FollowState()

    async def follow(self, refresh_s: float) -> None:
        """Look again ``refresh_s`` after each look, until cancelled.  A store that is away changes nothing in the picture."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                self._telemetry.count(BUCKET_LOOK_FAILURES)
                self.state.trouble = str(error)
                log.warning("bucket.look.failed", store=self._place, reason=str(error))
            await self._clock.sleep(refresh_s)

    async def look(self) -> Look:
        """List the bucket once, to its end, and bring the picture up to date.

        Raises:
            StoreError: it could not be listed, or a manifest could not be fetched; what was read until then is kept.
        """
        begun_s = self._clock.monotonic_s()
        self._came_meanwhile.clear()
        fold, seen = ListingFold(self._key_prefix), defaultdict[TopicIdPartition, set[Uuid]](set)
        refused, added = dict[str, Refused](), 0
        async for batch in self._batches(fold):
            found, failure = await self._read(batch, seen, refused)
            added += len(await self._add(found))
            if failure is not None:
                raise failure
        async with self._changing:
            removed = self._gone(seen)
            await self._picture.change(removed=removed)
        look = Look(
            objects=fold.objects,
            added=added,
            removed=len(removed),
            elapsed_s=self._clock.monotonic_s() - begun_s,
        )
        self._note(look, refused)
        return look

    async def look_at(self, partition: TopicIdPartition, start_offset: int | None) -> set[Uuid]:
        """Look for segments that begin at one offset, or for all of the partition, put what is new into the picture, and return
        which have all their objects.  It may come amid :meth:`look`, which takes nothing of it out.

        Raises:
            StoreError: they could not be listed, or a manifest could not be fetched; what was read until then is kept.
        """
        fold, listed = ListingFold(self._key_prefix), list[ListedManifest]()
        of_offset = "" if start_offset is None else f"{start_offset:020d}-"
        async for stored in self._store.list_objects(f"{self._key_prefix}{partition.qualified}/{of_offset}"):
            if (one := fold.take(stored)) is not None:
                listed.append(one)
        found, failure = await self._read(listed, defaultdict(set), {})
        new = await self._add(found)
        self._came_meanwhile.update(one.remote_log_segment_id for one in new)
        if new:
            log.info("bucket.changed", added=len(new), removed=0, **self._measured())
        if failure is not None:
            raise failure
        return {one.segment_id.uuid for one in listed if not one.missing}

    async def _add(self, found: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Put in what is not there yet: the same segment may have come by the other way meanwhile."""
        async with self._changing:
            new = [one for one in found if not self._picture.has(one.remote_log_segment_id)]
            await self._picture.change(added=new)
        return new

    async def _batches(self, fold: ListingFold) -> AsyncIterator[list[ListedManifest]]:
        """Yield manifests in the order of their keys: a batch ends where a partition does, once it is large."""
        batch, logged_s = list[ListedManifest](), self._clock.monotonic_s()
        async for stored in self._listed():
            listed = fold.take(stored)
            if listed is None:
                continue
            if len(batch) >= _BATCH and _partition_of(listed) != _partition_of(batch[-1]):
                yield batch
                batch = []
            batch.append(listed)
            if not self.state.is_ready and self._clock.monotonic_s() - logged_s >= _LOG_EVERY_S:
                logged_s = self._clock.monotonic_s()
                log.info("bucket.reading", store=self._place, objects=fold.objects, manifests_read=self.state.read)
        yield batch

    def _listed(self) -> AsyncIterator[StoredObject]:
        return self._store.list_objects(self._key_prefix)

    async def _read(
        self, batch: list[ListedManifest], seen: dict[TopicIdPartition, set[Uuid]], refused: dict[str, Refused]
    ) -> tuple[list[RemoteLogSegmentMetadata], StoreError | None]:
        """Return the new segments of ``batch``, and what kept some from being read; note those that are there still, and
        those that cannot be taken."""
        new, claimed = list[ListedManifest](), set[RemoteLogSegmentId]()
        for listed in batch:
            before = self.state.refused.get(listed.key)
            if listed.segment_id in claimed:
                refused[listed.key] = Refused("another segment of that id is in the partition", listed)
                continue
            claimed.add(listed.segment_id)
            if before is not None and before.listed == listed:
                refused[listed.key] = before
            elif listed.missing or not self._picture.has(listed.segment_id):
                new.append(listed)
            else:
                seen[_partition_of(listed)].add(listed.segment_id.uuid)
        found, failure = list[RemoteLogSegmentMetadata](), None
        for listed, outcome in zip(new, await self._read_all(new), strict=True):
            match outcome:
                case RemoteLogSegmentMetadata():
                    found.append(outcome)
                    seen[_partition_of(listed)].add(listed.segment_id.uuid)
                case CorruptDataError():
                    refused[listed.key] = Refused(_shown(outcome.reason), listed)
                case ObjectNotFoundError() | None:
                    pass  # it has gone since it was listed
                case StoreError():
                    failure = failure or outcome
        return found, failure

    async def _read_all(self, new: Sequence[ListedManifest]) -> Sequence[_Outcome]:
        outcomes: list[_Outcome] = [None] * len(new)
        numbers = iter(range(len(new)))

        async def work() -> None:
            for number in numbers:
                outcomes[number] = await self._read_one(new[number])
                self.state.read += 1

        await asyncio.gather(*(work() for _ in range(_FETCHED_AT_ONCE)))
        return outcomes

    async def _read_one(self, listed: ListedManifest) -> _Outcome:
        if listed.missing:
            return CorruptDataError(where=listed.key, position=0, reason=f"missing beside it: {listed.missing}")
        try:
            data = await self._store.fetch_object(listed.key, max_bytes=ANY_SEGMENT.manifest_bytes)
            return await self._blocking.run(_segment_in, listed, data)
        except ObjectTooLargeError as error:
            return CorruptDataError(where=listed.key, position=0, reason=error.reason)
        except (CorruptDataError, StoreError) as error:
            return error

    def _gone(self, seen: Mapping[TopicIdPartition, set[Uuid]]) -> list[RemoteLogSegmentId]:
        gone = [one for one in self._picture.gone(seen) if one not in self._came_meanwhile]
        if gone and not seen:
            raise StoreError(
                verb="list",
                key=self._key_prefix,
                reason=f"{self._place} shows no segment any more, and had {len(gone)}: what was read is kept. If it was "
                "emptied on purpose, restart; else look whether it is mounted",
            )
        return gone

    def _note(self, look: Look, refused: dict[str, Refused]) -> None:
        state = self.state
        new = [one for key, one in refused.items() if state.refused.get(key) != one]
        for one in new[:_NAMED]:
            log.warning("bucket.manifest.refused", key=one.listed.key, reason=one.reason)
        figures = {**self._measured(), "refused": len(refused)}
        if not state.is_ready:
            log.info("bucket.ready", store=self._place, **figures, elapsed_s=round(look.elapsed_s, 3))
            for name, topic_id in self._picture.shadowed:
                log.warning("bucket.topic.shadowed", topic=name, topic_id=format_uuid(topic_id))
        elif look.added or look.removed or new:
            log.info("bucket.changed", added=look.added, removed=look.removed, **figures)
        state.is_ready, state.listed_ms, state.trouble, state.refused = True, self._clock.now_ms(), "", refused
        self._telemetry.count(BUCKET_LOOKS)
        self._telemetry.gauge(BUCKET_LOOK_SECONDS, look.elapsed_s)
        self._telemetry.gauge(BUCKET_REFUSED, len(refused))

    def _measured(self) -> dict[str, int]:
        """Return how much is served."""
        segments, size_bytes = self._picture.totals()
        partitions = len(self._picture.partitions())
        self._telemetry.gauge(BUCKET_SEGMENTS, segments)
        self._telemetry.gauge(BUCKET_PARTITIONS, partitions)
        return {"segments": segments, "partitions": partitions, "bytes": size_bytes}


def _partition_of(listed: ListedManifest) -> TopicIdPartition:
    return listed.segment_id.topic_id_partition


def _shown(reason: str) -> str:
    """Return the text for logs and terminals, without control characters and broken ones that a manifest may contain."""
    return "".join(one if one.isprintable() else "?" for one in reason[:_MOST_REASON])


def _segment_in(listed: ListedManifest, data: bytes) -> RemoteLogSegmentMetadata:
    return segment_of(listed, read_manifest(data, where=listed.key))
