"""Plan a read on Spark's driver: with the broker, the metadata and the small objects of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tiersidecar.adapters.clock import SystemClock, ThreadBlocking
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.app.commands.session import Session, open_session
from tiersidecar.app.config.config import Config
from tiersidecar.app.data_source_store import log_errors_only, open_manifests, open_reading_store
from tiersidecar.domain.errors import BrokerRefusedError, HistoryChangedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.ports.broker import LocalBatches
from tiersidecar.reading.border_walks import BorderWalks
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper, NoLiveLog, StateLogStarts
from tiersidecar.reading.read_path import ReadPath, open_read_path
from tiersidecar.reading.segment_lookup import History
from tiersidecar.spark.datasource.filters import PushedBounds
from tiersidecar.spark.datasource.offset_ranges import chosen_partitions
from tiersidecar.spark.datasource.options import ReadOptions, Subscription
from tiersidecar.spark.datasource.plan import Share
from tiersidecar.spark.datasource.planning import Planner, RemoteTier

_THREADS = 4


class LeadersLog:
    """The log behind the border of the tiers, by the partition's leader."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker, self._walks = broker, BorderWalks()

    async def aborted_beyond(
        self, topic_id_partition: TopicIdPartition, history: History, open_at_end: frozenset[tuple[int, int]]
    ) -> Sequence[AbortedTransaction] | None:
        """Return the aborted transactions that reach over the end of ``history``, by the broker's own log from there on.

        Raises:
            BrokerRefusedError: we may not read the topic, or the leader does not have the offset.
            BrokerUnreachableError: its leader does not answer.
        """

        async def fetch(offset: int, max_bytes: int, last_epoch: LeaderEpoch) -> LocalBatches:
            return await self._broker.fetch_committed(
                topic_id_partition, offset, max_bytes=max_bytes, last_fetched_epoch=last_epoch
            )

        try:
            return await self._walks.aborted_beyond(topic_id_partition, history, open_at_end, fetch)
        except HistoryChangedError:
            return None
        except BrokerRefusedError as error:
            if error.error == "OFFSET_OUT_OF_RANGE":
                return None  # between the tiers, or of an epoch that the leader has not heard of yet
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlanning:
    """The sources of planning; the metadata is that of ``partitions``."""

    session: Session
    partitions: Sequence[TopicIdPartition]
    reads: ReadPath

    def tier(self, options: ReadOptions) -> RemoteTier:
        """Return the remote tier, as ``options`` want to see it."""
        return RemoteTier(self.reads, LeadersLog(self.session.broker), read_committed=options.read_committed)


@asynccontextmanager
async def open_planning(config: Config, subscription: Subscription) -> AsyncIterator[OpenPlanning]:
    """Connect, and replay the metadata of the partitions that are subscribed to.

    Raises:
        ConfigError: a topic or partition does not exist.
        MetadataNotReadyError: the metadata could not be replayed in time.
        BrokerUnreachableError: no broker answers.
    """
    log_errors_only()
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(config, with_metadata=True))
        names = None if subscription.pattern else list(subscription.assigned or subscription.topics)
        views = await session.broker.describe_partitions(names)
        partitions = chosen_partitions(subscription, [view.topic_id_partition for view in views])
        metadata = await session.follow(partitions)
        store = await stack.enter_async_context(open_reading_store(config))
        blocking = await stack.enter_async_context(ThreadBlocking(max_threads=_THREADS, name="read"))
        manifests = await stack.enter_async_context(open_manifests(config, store, blocking))
        epochs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests)
        lineages = LineageKeeper(metadata=metadata, epochs=epochs, live=NoLiveLog(), blocking=blocking, clock=clock)
        stack.push_async_callback(lineages.aclose)
        reads = await stack.enter_async_context(
            open_read_path(
                store=store,
                metadata=metadata,
                manifests=manifests,
                lineages=lineages,
                log_starts=StateLogStarts(session.state),
                blocking=blocking,
                clock=clock,
            )
        )
        yield OpenPlanning(session=session, partitions=partitions, reads=reads)


async def plan_read(config: Config, options: ReadOptions, pushed: PushedBounds) -> tuple[Share, ...]:
    """Return the shares of a read.

    Raises:
        TiersidecarError: as :func:`open_planning` and :meth:`Planner.plan`.
    """
    async with open_planning(config, options.subscription) as planning:
        planner = Planner(planning.reads, planning.tier(options), options)
        return await planner.plan(planning.partitions, pushed)
