"""The read path of a process: one for its roles ``read`` and ``gateway``, so that cache, pool and quota are theirs together."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tiersidecar.adapters.blocking import ThreadBlocking
from tiersidecar.adapters.opening_rests import OpeningRests
from tiersidecar.app.builders.read_caches import open_chunk_cache, open_index_cache
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.fetch_quota import ConfiguredFetchQuota
from tiersidecar.app.parts import Parts
from tiersidecar.decide.reader_quotas import ReaderQuotaRule
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.cold_reads import ColdReads
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.log_starts import StateLogStarts
from tiersidecar.reading.opening import LONG_AT_ONCE
from tiersidecar.reading.read_path import ReadPath, ReadSettings, open_read_path
from tiersidecar.reading.request_budget import CountedFetches

_CATCH_UP_S = 5.0
"""A client waits meanwhile: it is told to try again long before it gives the connection up."""


async def open_process_read_path(stack: AsyncExitStack, parts: Parts) -> ReadPath:
    """Open until ``stack`` closes.  A gateway in a process of its own has directories of its own: caches are not shared.

    Raises:
        ConfigError: the caches' directories cannot be used.
    """
    config = parts.config

    async def catch_up(partition: TopicIdPartition) -> None:
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                await parts.metadata.catch_up(partition)
                await parts.state.catch_up()
        except TimeoutError as error:
            raise MetadataNotReadyError(subject=str(partition)) from error

    parts.status.cold = cold = cold_reads_of(config, parts.clock, parts.telemetry)
    suffix = "" if Role.READ in parts.roles else "-gateway"
    requests = ConfiguredFetchQuota(parts.tuning.store_requests, parts.clock)
    store = CountedFetches(parts.store, requests)
    blobs = IndexBlobReader(store=store, blocking=parts.blocking, manifests=parts.manifests, telemetry=parts.telemetry)
    index_files = await stack.enter_async_context(
        open_index_cache(
            config, blobs, bound=parts.tuning.index_cache, blocking=parts.blocking, clock=parts.clock, suffix=suffix
        )
    )
    chunk_layers = await stack.enter_async_context(
        open_chunk_cache(config, blocking=parts.blocking, clock=parts.clock, telemetry=parts.telemetry, suffix=suffix)
    )
    return await stack.enter_async_context(
        open_read_path(
            store=store,
            metadata=parts.metadata,
            manifests=parts.manifests,
            lineages=parts.lineages,
            log_starts=StateLogStarts(parts.state),
            blocking=parts.blocking,
            clock=parts.clock,
            quota=ConfiguredFetchQuota(parts.tuning.fetch_quota, parts.clock),
            requests=requests,
            cold=cold,
            telemetry=parts.telemetry,
            catch_up=catch_up,
            settings=ReadSettings(
                reader_threads=config.remote_log_reader_threads,
                reader_max_pending_tasks=config.remote_log_reader_max_pending_tasks,
                chunk_cache_bytes=config.read.chunk_cache_memory_bytes,
                opened_memory_bytes=config.read.opened_memory_bytes,
            ),
            long_blocking=await stack.enter_async_context(ThreadBlocking(max_threads=LONG_AT_ONCE, name="opening")),
            rest=OpeningRests(),
            index_files=index_files,
            chunk_layers=chunk_layers,
        )
    )


def cold_reads_of(config: Config, clock: Clock, telemetry: Telemetry) -> ColdReads:
    """Who reads, within the budgets of ``remote.fetch.quota``."""
    return ColdReads(
        clock=clock,
        rules=[
            ReaderQuotaRule(user=rule.user, client_id=rule.client_id, bytes_per_s=rule.consumer_byte_rate)
            for rule in config.remote_fetch_quota
        ],
        window_num=config.remote_log_manager_fetch_quota_window_num,
        window_size_s=config.remote_log_manager_fetch_quota_window_size_seconds,
        telemetry=telemetry,
    )
