"""Answer of the gateway for a partition that the broker answered OFFSET_OUT_OF_RANGE (S-136, S-137, S-146, S-147; U7).

A client that gets that error wrongly skips records silently.  So it stands only where no reader may have the offset; where
that is merely not known yet, the client gets an error that it retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tiersidecar.domain.offsets import Offset


class OutOfRange(Enum):
    """Fate of the broker's OFFSET_OUT_OF_RANGE."""

    FILL = auto()
    """The remote tier has the offset."""
    STANDS = auto()
    """No reader may have it: the client gets the error."""
    AT_END = auto()
    """The end of a log that is remote alone: the client waits there for more, as at the end of a broker's."""
    RETRY = auto()
    """It may be remote, or local again, in a moment."""
    HOLE = auto()
    """Neither tier has it, and nothing is known to bring it.  The client tries again, as the records may be safe on another
    broker, and an operator has to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiersView:
    """The known state of both tiers of a partition.

    The remote tier holds ``remote_start`` up to, not including, ``remote_end``; equal when it holds nothing.  The broker has
    ``local_start`` up to, not including, ``high_watermark``, asked for after it had given its answer.  ``held_offset`` is
    how far our own trims gave up what was remote, -1 for none; ``is_copy_pending`` says that pins hold what the broker
    has deleted and the remote tier is yet to get.  Of a read-only mount (``is_mounted``) nothing is ever local: its two local
    offsets are the end of the log.
    """

    remote_start: Offset
    remote_end: Offset
    local_start: Offset
    high_watermark: Offset
    held_offset: int = -1
    is_copy_pending: bool = False
    is_mounted: bool = False


def decide_out_of_range(offset: int, view: TiersView) -> OutOfRange:
    """Fill only below the broker's local start; out of range only below the remote log start, or past the log's end."""
    if offset > view.high_watermark:
        return OutOfRange.STANDS
    if offset >= view.local_start:
        # Else the broker's start has moved back since, as it does after a crash.
        return OutOfRange.AT_END if view.is_mounted else OutOfRange.RETRY
    if view.remote_start <= offset < view.remote_end:
        return OutOfRange.FILL
    if offset < view.remote_start:
        return OutOfRange.STANDS
    if offset < view.held_offset or view.is_copy_pending:
        return OutOfRange.RETRY  # trimmed and not read back by us yet, or pinned
    return OutOfRange.HOLE if view.remote_start < view.remote_end else OutOfRange.STANDS


def decide_grants(limits: Sequence[int], max_bytes: int, local_bytes: int) -> tuple[int, ...]:
    """Return the bytes that each partition may be filled with, within its own limit and what the broker has left of the
    request's ``max_bytes``, the first partitions served first."""
    left, grants = max(max_bytes - local_bytes, 0), list[int]()
    for limit in limits:
        grants.append(min(max(limit, 0), left))
        left -= grants[-1]
    return tuple(grants)


def decide_returned(sizes: Sequence[int], grants: Sequence[int], local_bytes: int) -> tuple[bool, ...]:
    """Return which of the fills, of ``sizes`` bytes, go into the response.

    A first batch may be larger than its grant, so that a consumer gets past it, but only if nothing else is returned before
    it (KIP-74).
    """
    returned, has_data = list[bool](), local_bytes > 0
    for size, grant in zip(sizes, grants, strict=True):
        fits = 0 < size <= grant or (size > 0 and not has_data)
        returned.append(fits)
        has_data |= fits
    return tuple(returned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds since the broker has answered.

    ``for_first`` is how long remote reads are waited for while there is nothing to return; ``hold`` is how long a response
    without any data is held: because of the partition out of range the broker has not waited at all, and a client that
    gets an empty response asks again at once.
    """

    for_first: float
    hold: float


def decide_patience(*, max_wait_ms: int, min_bytes: int, local_bytes: int, remote_max_wait_ms: int) -> Patience:
    """Return how long to wait.  A client waits ``max_wait_ms`` for ``min_bytes``; if the broker has given as many, it waits
    ``remote.fetch.max.wait.ms`` for remote data, as natively (``DelayedRemoteFetch``).  It waits at least as long where there
    is nothing yet: a client that does not wait (``fetch.max.wait.ms`` 0) would never see a remote record."""
    hold_s, remote_s = max(max_wait_ms, 0) / 1000, remote_max_wait_ms / 1000
    if local_bytes >= max(min_bytes, 1):
        return Patience(for_first=remote_s, hold=0.0)
    return Patience(for_first=max(hold_s, remote_s), hold=hold_s)


def decide_grace(elapsed_s: float) -> float:
    """Return how much longer other partitions' reads are waited for once some data is there, after ``elapsed_s``: a slow one
    must not hold up a fast one, and its bytes will be in the cache the next time."""
    return max(0.01, elapsed_s)
