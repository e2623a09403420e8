"""The view of a partition that expiry decides by: values only, shared by its rules."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from tiersidecar.decide.trash import NO_DELAYS, TrashDelays
from tiersidecar.domain.ids import RemoteLogSegmentId, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, Lineage
from tiersidecar.domain.policy import UNLIMITED, GuardStop, TopicPolicy
from tiersidecar.domain.seen_time import UnseenTime
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.trash import SaidDelete, TrashEntry

DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryLimits:
    """Limits of one round, above which expiry stops and asks.

    ``max_share`` is of the bytes of all finished segments, in (0, 1]: 1 switches the guard off, and also lets a retention of
    0 count.  ``max_bytes`` is per round, -1 without limit.  One segment may always go.  ``foreign_copy_grace_ms`` is the age at
    which a copy that is not ours is taken for dead; ``idle_slack_ms`` is how much longer than its retention a
    partition may have been without any metadata event before the clock is doubted.
    """

    max_share: float = 0.5
    max_bytes: int = UNLIMITED
    foreign_copy_grace_ms: int = DAY_MS
    idle_slack_ms: int = 7 * DAY_MS

    def __post_init__(self) -> None:
        if not 0 < self.max_share <= 1 or self.max_bytes < UNLIMITED:
            raise ValueError(f"one round may delete a share of {self.max_share} and {self.max_bytes} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryView:
    """A led partition as the expiry decision sees it.

    ``remote_segments`` are those of any state; ``local_segments`` ascend and end with the active one.
    ``remote_log_start_offset`` is ours, -1 while nothing moved it; ``trim_offset`` is the highest that a trim of ours meant
    to reach, ``held_offset`` that up to which one gave up what was remote.  ``log_start_offset`` (the broker's: the
    local start) and ``high_watermark`` (exclusive) are the broker's recent answers, None when it has not been asked: a
    plan made without them is a hint, and nothing may be done by it.
    ``begun`` are the segments whose copy this sidecar's own journal has.  ``clock_doubt`` says why ``now_ms`` is not
    trusted, empty when it is; ``unseen`` and ``seen_ms`` as TrashTime has them.  ``broker_expires``: the broker's own
    retention deletes, in race mode or because the topic's settings do not fit.  ``guard_stop`` is the last stop by the guard.
    ``trash`` is all that was decided and may not be done yet, by ``delays``; ``start_generation`` and ``user_deletes`` as
    PartitionState has them.
    ``damaged`` are segments that were found damaged, and are to be copied again: they stand for no other.
    ``hold`` says why an operator lets no start move; empty without a hold.  ``by`` names the decider, for reports.

    Raises:
        ValueError: a retention that is neither an amount nor -1 (T-41).
    """

    policy: TopicPolicy
    lineage: Lineage
    remote_segments: tuple[RemoteLogSegmentMetadata, ...]
    local_segments: tuple[LocalSegment, ...]
    now_ms: int
    remote_log_start_offset: int = NO_OFFSET
    trim_offset: int = NO_OFFSET
    held_offset: int = NO_OFFSET
    accepted_loss_epoch: int = NO_EPOCH
    log_start_offset: int | None = None
    high_watermark: int | None = None
    in_flight: Set[RemoteLogSegmentId] = field(default_factory=frozenset)
    begun: Set[Uuid] = field(default_factory=frozenset)
    clock_doubt: str = ""
    unseen: tuple[UnseenTime, ...] = ()
    seen_ms: int = -1
    broker_expires: bool = False
    guard_stop: GuardStop | None = None
    leader_epoch: int = 0
    start_generation: int = 0
    trash: tuple[TrashEntry, ...] = ()
    user_deletes: tuple[SaidDelete, ...] = ()
    delays: TrashDelays = NO_DELAYS
    damaged: Set[Uuid] = field(default_factory=frozenset)
    hold: str = ""
    by: str = ""
    limits: ExpiryLimits = ExpiryLimits()

    def __post_init__(self) -> None:
        if min(self.policy.retention_ms, self.policy.retention_bytes) < UNLIMITED:
            raise ValueError(f"retention of {self.policy.retention_ms} ms, {self.policy.retention_bytes} bytes")

    def is_expired(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether ``segment`` is past ``retention.ms`` by its own time; never where there is no such limit (S-058)."""
        return self.is_past_retention(time_anchor_ms(segment, self.now_ms))

    def is_local_expired(self, segment: LocalSegment) -> bool:
        """Return whether a segment that was never copied is past ``retention.ms``, like :meth:`is_expired`."""
        return self.is_past_retention(local_time_ms(segment, self.now_ms))

    def is_past_retention(self, timestamp_ms: int) -> bool:
        """Return whether a record of that time is past ``retention.ms``."""
        if self.policy.retention_ms == UNLIMITED:
            return False
        cleanup_until_ms = self.now_ms - self.policy.retention_ms
        return cleanup_until_ms >= 0 and timestamp_ms <= cleanup_until_ms


def time_anchor_ms(segment: RemoteLogSegmentMetadata, now_ms: int) -> int:
    """Return when the age of a segment begins: the time of its newest record, or of its copy where its records are of the
    future or have no time: else they would never expire, or at once (U16, S-065)."""
    if 0 <= segment.max_timestamp_ms <= now_ms:
        return segment.max_timestamp_ms
    return segment.event_timestamp_ms


def local_time_ms(segment: LocalSegment, now_ms: int) -> int:
    """Return the same for a local segment: the time of its newest record, or of its last write (S-027)."""
    if 0 <= segment.max_timestamp_ms <= now_ms:
        return segment.max_timestamp_ms
    return segment.modified_ms
