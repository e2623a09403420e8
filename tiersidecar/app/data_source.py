"""``spark.read.format("tiersidecar")``: tiered topics as rows, from the store (docs/spark-data-source.md).

Nothing here writes.  The driver plans with the broker's metadata; executors read records from the store alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.config.config import Config
from tiersidecar.app.data_source_config import ConfigSource, config_source, takes_option
from tiersidecar.app.data_source_store import log_errors_only, open_manifests, open_reading_store
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.reading.chunk_manager import StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader, RemoteIndexCache
from tiersidecar.spark.datasource.background_loop import BackgroundLoop
from tiersidecar.spark.datasource.filters import PushedBounds, bounds_of
from tiersidecar.spark.datasource.options import KNOWN, SOURCE, ReadOptions, read_options
from tiersidecar.spark.datasource.plan import Share
from tiersidecar.spark.datasource.row_schema import row_ddl
from tiersidecar.spark.datasource.share_reading import Reads, ShareReader

_THREADS = 4
_MERGED_BYTES = 4 * 1024 * 1024


def read_share(
    config: Config,
    share: Share,
    *,
    include_headers: bool,
    min_timestamp_ms: int | None = None,
    telemetry: Telemetry | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of one share, in this process; raises as :meth:`ShareReader.rows`."""
    log_errors_only()
    with BackgroundLoop("tiersidecar reads") as loop:
        stack = AsyncExitStack()
        try:
            reads = loop.run(_open_reads(stack, config, telemetry or NoTelemetry()))
            reader = ShareReader(loop, reads, include_headers=include_headers, min_timestamp_ms=min_timestamp_ms)
            yield from reader.rows(share)
        finally:
            loop.run(stack.aclose())


async def _open_reads(stack: AsyncExitStack, config: Config, telemetry: Telemetry) -> Reads:
    store = await stack.enter_async_context(open_reading_store(config))
    blocking = await stack.enter_async_context(ThreadBlocking(max_threads=_THREADS, name="read"))
    manifests = await stack.enter_async_context(open_manifests(config, store, blocking))
    blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests, telemetry=telemetry)
    indexes = RemoteIndexCache(blobs, blocking=blocking)
    stack.push_async_callback(indexes.aclose)
    chunks = StoreChunkManager(store=store, blocking=blocking, merged_bytes=_MERGED_BYTES, telemetry=telemetry)
    stack.push_async_callback(chunks.aclose)
    return Reads(manifests=manifests, indexes=indexes, chunks=chunks)


FORMAT = "tiersidecar"


class TiersidecarDataSource(DataSource):
    """Register it with ``spark.dataSource.register``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._options, self._source = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return row_ddl(include_headers=self._options.include_headers)

    def reader(self, schema: StructType) -> TiersidecarReader:
        return TiersidecarReader(self._options, self._source)


@dataclass(frozen=True, slots=True)
class ShareInput(InputPartition):
    """One task."""

    share: Share | None = None
    min_timestamp_ms: int | None = None


class TiersidecarReader(DataSourceReader):
    """Plans on the driver, reads on the executors: it is pickled in between."""

    def __init__(self, options: ReadOptions, source: ConfigSource) -> None:
        self._options, self._source = options, source
        self._pushed = PushedBounds()
        self.pushFilters = _OptionalPushdown(self)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        # Each process of Spark's loads only what it needs: the broker's protocol and the store's clients take seconds.
        from tiersidecar.app.data_source_planning import plan_read

        shares = run_to_end(plan_read(self._source.load(), self._options, self._pushed))
        # A plan of nothing needs a task too: Spark would make one of its own.
        return [ShareInput(share, self._pushed.min_timestamp_ms) for share in shares] or [ShareInput()]

    def narrow(self, pushed: PushedBounds) -> None:
        """Leave out what does not fit ``pushed``."""
        self._pushed = pushed

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ShareInput)
        if partition.share is not None:
            yield from read_share(
                self._source.load(),
                partition.share,
                include_headers=self._options.include_headers,
                min_timestamp_ms=partition.min_timestamp_ms,
            )


class _OptionalPushdown:
    """Takes filters where Spark pushes them down, and is taken for the base class's method where it does not: there Spark
    would refuse the whole read for a method that it does not call (DATA_SOURCE_PUSHDOWN_DISABLED)."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: TiersidecarReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.narrow(bounds_of(filters))
        return filters


def parse_options(options: Mapping[str, str]) -> tuple[ReadOptions, ConfigSource]:
    """Return what to read, and where from.

    Raises:
        ConfigError: with every fault, each naming its option.
    """
    known = {name.lower() for name in KNOWN}
    faults = [f"{name}: no such option" for name in options if name.lower() not in known and not takes_option(name)]
    parsed: ReadOptions | None = None
    source: ConfigSource | None = None
    try:
        parsed = read_options(options)
    except ConfigError as error:
        faults += error.faults
    try:
        source = config_source(options)
    except ConfigError as error:
        faults += error.faults
    if faults or parsed is None or source is None:
        raise ConfigError(source=SOURCE, faults=tuple(faults))
    return parsed, source
