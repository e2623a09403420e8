"""Looks for the segments that the source's events name as soon as they do, between the listings of the whole bucket.

An event is a hint where to look: what is served is what the bucket shows.  Where a bucket is copied to another region, its
objects come after the event, so a segment that is not there yet is looked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, StoreError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.ports.bucket_events import FinishedSegment, FollowFinished
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metrics.bucket import BUCKET_EVENTS_FOLLOWED, BUCKET_SERVE_DELAY_SECONDS
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.services.bucket.follow import BucketFollower

log = structlog.get_logger(__name__)

_AGAIN_S, _MOST_AGAIN_S = 2.0, 30.0
_KEPT_S = 900.0
_MOST_KEPT = 10_000
"""Segments that are looked for again; the listing of the whole bucket finds all others."""
_AT_ONCE = 16
_CONNECT_AGAIN_S = 5.0

_Place = tuple[TopicIdPartition, int | None]


@dataclass(slots=True)
class _Wanted:
    """Where segments are looked for: from ``due_s`` on, then after ``again_s``, until ``end_s``."""

    finished_ms: dict[Uuid, int]
    due_s: float
    end_s: float
    again_s: float = _AGAIN_S


class BucketNotices:
    """One loop: wait for events, look where they say."""

    def __init__(self, *, source: FollowFinished, follower: BucketFollower, clock: Clock, telemetry: Telemetry) -> None:
        self._source, self._follower, self._clock, self._telemetry = source, follower, clock, telemetry
        self._wanted: dict[_Place, _Wanted] = {}

    async def follow(self) -> None:
        """Look at what the source finishes, until cancelled; without its events the listings go on."""
        while True:
            try:
                async with aclosing(self._source.finished()) as rounds:
                    async for finished in rounds:
                        self._telemetry.gauge(BUCKET_EVENTS_FOLLOWED, 1)
                        self._want(finished)
                        await self.look()
            except (BrokerUnreachableError, BrokerRefusedError) as error:
                self._telemetry.gauge(BUCKET_EVENTS_FOLLOWED, 0)
                log.warning("bucket.events.failed", reason=str(error))
            await self._clock.sleep(_CONNECT_AGAIN_S)

    def _want(self, finished: Sequence[FinishedSegment]) -> None:
        now_s = self._clock.monotonic_s()
        for one in finished:
            place = one.segment_id.topic_id_partition, one.start_offset
            if place not in self._wanted and len(self._wanted) >= _MOST_KEPT:
                continue
            wanted = self._wanted.setdefault(place, _Wanted({}, now_s, now_s + _KEPT_S))
            wanted.finished_ms[one.segment_id.uuid] = one.finished_ms
            wanted.due_s, wanted.again_s = now_s, _AGAIN_S

    async def look(self) -> None:
        """Look at all places that are due; what is found, or has been looked for long enough, is wanted no more."""
        now_s = self._clock.monotonic_s()
        due = [place for place, wanted in self._wanted.items() if wanted.due_s <= now_s]
        places = iter(due)

        async def work() -> None:
            for place in places:
                await self._look_at(place)

        await asyncio.gather(*(work() for _ in range(min(_AT_ONCE, len(due)))))

    async def _look_at(self, place: _Place) -> None:
        wanted = self._wanted[place]
        try:
            there = await self._follower.look_at(*place)
        except StoreError as error:
            there = set()
            log.warning("bucket.look.failed", partition=str(place[0]), reason=str(error))
        for uuid in there & wanted.finished_ms.keys():
            delay_s = max(self._clock.now_ms() - wanted.finished_ms.pop(uuid), 0) / 1000
            self._telemetry.gauge(BUCKET_SERVE_DELAY_SECONDS, delay_s)
        wanted.due_s = self._clock.monotonic_s() + wanted.again_s
        wanted.again_s = min(wanted.again_s * 2, _MOST_AGAIN_S)
        if not wanted.finished_ms or wanted.due_s > wanted.end_s:
            del self._wanted[place]
