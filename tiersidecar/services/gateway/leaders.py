"""The leaders of the partitions of one request, asked for once, after the broker has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import DescribePartitions


class Once:
    """Does ``work`` when it is first waited for, for all that wait; once more where it has failed."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def done(self) -> None:
        """Return once it is done; raises what it raised."""
        if self._task is None or _has_failed(self._task):
            # A task, which the first to ask may not take with it when it is given up.
            self._task = asyncio.create_task(self._work(), name="gateway: once for a request")
            self._task.add_done_callback(_seen)
        await asyncio.shield(self._task)


class Leaders:
    """Finds the leaders of the partitions of one request.  The broker answers for whole topics: each is asked for once, and
    once more where that has failed."""

    def __init__(self, broker: DescribePartitions) -> None:
        self._broker = broker
        self._asked: dict[str, asyncio.Task[Mapping[TopicIdPartition, LeaderView]]] = {}

    async def leader(self, partition: TopicIdPartition) -> LeaderView:
        """Return what the broker says that is asked after the client's request was answered.

        Raises:
            BrokerRefusedError: there is no such partition.
            TiersidecarError: the broker does not say.
        """
        asked = self._asked.get(partition.topic)
        if asked is None or _has_failed(asked):
            # A task, which the first to ask may not take with it when it is given up.
            asked = asyncio.create_task(self._views(partition.topic), name="gateway: leaders of a topic")
            asked.add_done_callback(_seen)
            self._asked[partition.topic] = asked
        view = (await asyncio.shield(asked)).get(partition)
        if view is None:
            raise BrokerRefusedError(
                api="Metadata", subject=str(partition), error="UNKNOWN_TOPIC_OR_PARTITION", retriable=False
            )
        return view

    async def _views(self, topic: str) -> Mapping[TopicIdPartition, LeaderView]:
        return {view.topic_id_partition: view for view in await self._broker.describe_partitions([topic])}


def _seen(done: asyncio.Task[Any]) -> None:
    """Take its error, also where no task waits for it any more."""
    if not done.cancelled():
        done.exception()


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
