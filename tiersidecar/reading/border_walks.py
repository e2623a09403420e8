"""Walks behind the border of the tiers: a reader that comes again continues the walk it has begun."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.formats.kafka.border_walk import BorderWalk, Transaction
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.ports.broker import LocalBatches
from tiersidecar.reading.remote_objects import ByteLru
from tiersidecar.reading.segment_lookup import History

_WALKS_KEPT = 10_000
_STEP_BYTES = 256 * 1024

FetchLocal = Callable[[int, int, LeaderEpoch], Awaitable[LocalBatches]]
"""The broker's answer to a read_committed reader from an offset on: about as many bytes, at least one whole batch.  The leader
epoch is that of the record right before, -1 where it is not known: a broker may know of an election before the lineage does."""


@dataclass(frozen=True, slots=True)
class _Key:
    partition: TopicIdPartition
    history: History
    open_at_end: frozenset[Transaction]


class BorderWalks:
    """Find the aborted transactions that reach over the border.  Each reader asks the broker itself, which authorises it; what
    the batches behind the border show is shared by all readers."""

    def __init__(self) -> None:
        self._kept: ByteLru[_Key, BorderWalk] = ByteLru(_WALKS_KEPT)

    async def aborted_beyond(
        self,
        partition: TopicIdPartition,
        history: History,
        open_at_end: frozenset[Transaction],
        fetch: FetchLocal,
    ) -> tuple[AbortedTransaction, ...] | None:
        """Return the aborted transactions that reach over the end of ``history``; None while one is undecided there.

        ``open_at_end`` are those that are open at the end of the remote tier.  One Fetch at the border returns the aborted ones
        that the broker knows: it lists each that reaches into what it returns, and searches until none is missing, because no
        earlier marker has a last stable offset past the border.  The batches are searched for the markers of the others.

        Raises:
            As ``fetch``.
            CorruptDataError: a batch behind the border cannot be read.
        """
        key = _Key(partition, history, open_at_end)
        walk = self._kept.get(key)
        if walk is None:
            epoch = history.lineage.epoch_for_offset(history.end - 1)
            walk = BorderWalk(history.end, open_at_end, NO_EPOCH if epoch is None else epoch)
            self._kept.put(key, walk, 1)
        answer = await fetch(history.end, 1, walk.epoch_before)
        listed, stable, where = frozenset(answer.aborted), answer.last_stable_offset, f"Fetch of {partition}"
        if stable <= history.end or not answer.records:
            return None  # below its last stable offset a broker without anything to give has another history
        walk.take(answer.records, where=where)
        while walk.seeks(listed):
            if walk.next_offset >= stable:
                return None
            if not walk.take((await fetch(walk.next_offset, _STEP_BYTES, walk.last_epoch)).records, where=where):
                return None
        return walk.aborted(listed, Offset(stable))
