"""Where the partitions of an internal topic end by now, asked for by many at a time: after an election every partition that is
led anew waits for what stands in the same few."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from tiersidecar.domain.errors import BrokerRefusedError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, Offset
from tiersidecar.ports.broker import ListOffsets, OffsetAnswer, OffsetSpec


@dataclass(slots=True)
class _Round:
    """One ListOffsets, for all callers that came before it was sent."""

    partitions: set[TopicIdPartition] = field(default_factory=set)
    answers: Mapping[TopicIdPartition, OffsetAnswer] | None = None
    failure: TiersidecarError | None = None


class EndOffsets:
    """Sends one request at a time.  A caller that comes while it is on its way may have come after it was answered, and is
    served by the next one, together with all others that wait for that."""

    def __init__(self, broker: ListOffsets) -> None:
        self._broker = broker
        self._turn = asyncio.Lock()
        self._next = _Round()

    async def of(self, partition: TopicIdPartition) -> Offset:
        """Return the high watermark at this call, or a later one.

        Raises:
            BrokerRefusedError: with the partition's error.
            BrokerUnreachableError: no broker answers.
        """
        mine = self._next
        mine.partitions.add(partition)
        async with self._turn:
            if mine.answers is None and mine.failure is None:
                await self._ask(mine)
        if mine.failure is not None:
            raise mine.failure.with_traceback(None)  # it would grow with each caller that raises it
        assert mine.answers is not None
        answer = mine.answers[partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(partition), error=answer.error)
        return answer.offset

    async def _ask(self, asked: _Round) -> None:
        """Ask; if abandoned, the next one of the round asks again."""
        if self._next is asked:
            self._next = _Round()
        try:
            asked.answers = await self._broker.list_offsets(
                dict.fromkeys(asked.partitions, NO_EPOCH), OffsetSpec.LATEST
            )
        except TiersidecarError as error:
            asked.failure = error
