"""What lies between the tiers: the broker has deleted it, and the remote one is yet to get it, as far as is known here."""

from __future__ import annotations

from tiersidecar.domain.errors import OffsetBetweenTiersError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.reading.pending_copies import PendingCopies
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.reading.segment_lookup import OffsetBounds


async def check_gap(
    partition: TopicIdPartition,
    bounds: OffsetBounds,
    local_start: Offset,
    pending: PendingCopies,
    reader: RemoteLogReader,
) -> None:
    """As for a Fetch of what lies there (``decide_out_of_range``): nobody can tell of it for now, and nobody may pass it over.

    ``bounds`` are of the remote tier, the broker's log begins at ``local_start``.

    Raises:
        OffsetBetweenTiersError: there is such a gap, or there was none that we knew of.
        RetriableError: nobody can tell yet.
    """
    if bounds.end >= local_start or bounds.log_start >= local_start:
        return
    if bounds.start >= bounds.end:
        bounds = await reader.current_bounds(partition)
    if bounds.start < bounds.end or await pending.is_pending(partition, below=local_start):
        raise OffsetBetweenTiersError(
            subject=str(partition), offset=bounds.end, remote_end=bounds.end, local_start=local_start
        )
