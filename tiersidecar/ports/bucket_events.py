"""Finished segments by another cluster's metadata topic: hints where to look in its bucket, and nothing more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.domain.ids import RemoteLogSegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSegment:
    """A segment that is finished since ``finished_ms``, the time of the record; ``start_offset`` is None where its copy began
    before the topic was followed."""

    segment_id: RemoteLogSegmentId
    start_offset: int | None
    finished_ms: int


class FollowFinished(Protocol):
    def finished(self) -> AsyncGenerator[Sequence[FinishedSegment], None]:
        """Yield the newly finished segments, without end: at least once a second, also where there are none.

        Raises:
            BrokerUnreachableError, BrokerRefusedError: it cannot be followed now; asked again, it goes on where it was.
        """
