"""Reads of the Spark data source without Spark: plan and shares over remote runs in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.remote_runs import RemoteRun, open_run
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.ports.store import Store
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.reading.segment_lookup import History
from tiersidecar.spark.datasource.background_loop import BackgroundLoop
from tiersidecar.spark.datasource.filters import PushedBounds
from tiersidecar.spark.datasource.options import read_options
from tiersidecar.spark.datasource.plan import Share
from tiersidecar.spark.datasource.planning import Planner, RemoteTier
from tiersidecar.spark.datasource.share_reading import Reads, ShareReader

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SilentBroker:
    """``planning.AbortedBeyond``: returns what it is given, by partition."""

    aborted: Mapping[TopicIdPartition, Sequence[AbortedTransaction]] = field(default_factory=dict)

    async def aborted_beyond(
        self, topic_id_partition: TopicIdPartition, history: History, open_at_end: frozenset[tuple[int, int]]
    ) -> Sequence[AbortedTransaction] | None:
        return self.aborted.get(topic_id_partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReads:
    """One run, opened."""

    loop: BackgroundLoop
    run: RemoteRun
    reads: ReadPath
    border: SilentBroker

    def plan(
        self,
        partitions: Sequence[TopicIdPartition],
        options: Mapping[str, str] | None = None,
        pushed: PushedBounds | None = None,
    ) -> tuple[Share, ...]:
        parsed = read_options({"subscribe": "any", **(options or {})})
        tier = RemoteTier(self.reads, self.border, read_committed=parsed.read_committed)
        planner = Planner(self.reads, tier, parsed)
        return self.loop.run(planner.plan(partitions, pushed or PushedBounds()))

    def rows_of(self, share: Share, *, include_headers: bool = True, min_timestamp_ms: int | None = None) -> list[Row]:
        reads = Reads(manifests=self.reads.manifests, indexes=self.reads.indexes, chunks=self.reads.chunks)
        reader = ShareReader(self.loop, reads, include_headers=include_headers, min_timestamp_ms=min_timestamp_ms)
        return [row for batch in reader.rows(share) for row in batch.to_pylist()]

    def rows(self, partitions: Sequence[TopicIdPartition], options: Mapping[str, str] | None = None) -> list[Row]:
        return [row for share in self.plan(partitions, options) for row in self.rows_of(share)]


@contextmanager
def opened_rows(
    run: RemoteRun, *, store: Store | None = None, border: SilentBroker | None = None
) -> Iterator[RowReads]:
    """``run`` in a loop of its own; ``store`` stands in front of the run's."""
    with BackgroundLoop("test") as loop:
        opened = open_run(run, store=store)
        reads = loop.run(opened.__aenter__())
        try:
            yield RowReads(loop=loop, run=run, reads=reads, border=border or SilentBroker())
        finally:
            loop.run(opened.__aexit__(None, None, None))
