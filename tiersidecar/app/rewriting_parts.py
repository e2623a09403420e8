"""What a command rewrites segments with: the store, past every cache, and the swap; and the claim of the topic's place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import layout_settings, open_key_ring, open_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.config.config import Config
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.segment_objects import SegmentObjects
from tiersidecar.tasks.segment_put import SwapStore
from tiersidecar.tasks.segment_swap import SegmentSwap
from tiersidecar.tasks.topic_owners import Claimant, TopicOwners

_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritingParts:
    """Open for one command."""

    store: Store
    key_prefix: str
    swap_store: SwapStore
    swap: SegmentSwap
    blocking: Blocking
    kafka_version: tuple[int, int]


@asynccontextmanager
async def open_swap_store(
    config: Config, kafka_version: tuple[int, int], clock: Clock, ids: Ids, failpoints: Failpoints, *, name: str
) -> AsyncIterator[tuple[Store, SwapStore, Blocking]]:
    """Open the store for as long as the body runs, with threads of this ``name``; ``kafka_version`` is that of the broker whose
    bytes are written."""
    pace, key_ring = UploadPace(None, clock), open_key_ring(config)
    async with (
        open_store(config, pace=pace, clock=clock, ids=ids, telemetry=NoTelemetry()) as store,
        ThreadBlocking(max_threads=_THREADS, name=name) as blocking,
    ):
        manifests = ManifestCache(
            store=store,
            blocking=blocking,
            key_prefix=config.store.key_prefix,
            key_ring=key_ring,
            max_bytes=0,
            most_chunk_bytes=config.store.chunk_size,
            most_index_bytes=config.read.index_max_bytes,
        )
        stream = SegmentStream(
            store=store,
            blocking=blocking,
            key_prefix=config.store.key_prefix,
            key_ring=key_ring,
            most_chunk_bytes=config.store.chunk_size,
            most_index_bytes=config.read.index_max_bytes,
        )
        objects = SegmentObjects(
            settings=layout_settings(config, key_ring, kafka_version),
            store=store,
            blocking=blocking,
            ids=ids,
            failpoints=failpoints,
        )
        swap_store = SwapStore(
            objects=objects,
            stream=stream,
            blobs=IndexBlobReader(store=store, blocking=blocking, manifests=manifests),
            pace=pace,
            open_file=partial(_opened, blocking=blocking),
            most_custom_metadata_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
        )
        try:
            yield store, swap_store, blocking
        finally:
            await manifests.aclose()


@asynccontextmanager
async def open_rewriting(
    session: Session, ids: Ids, failpoints: Failpoints, *, place: str
) -> AsyncIterator[RewritingParts]:
    """Open the store for as long as the body runs; ``place`` is the first part of the names of the swap's failpoints."""
    version, clock = await session.broker.kafka_version(), session.clock
    async with open_swap_store(session.config, version, clock, ids, failpoints, name=place) as opened:
        store, swap_store, blocking = opened
        assert session.metadata is not None, "a command that rewrites opens its session with metadata"
        swap = SegmentSwap(
            metadata=session.metadata, store=swap_store, clock=clock, ids=ids, failpoints=failpoints, place=place
        )
        yield RewritingParts(
            store=store,
            key_prefix=session.config.store.key_prefix,
            swap_store=swap_store,
            swap=swap,
            blocking=blocking,
            kafka_version=version,
        )


async def topic_owners(session: Session, store: Store, *, incarnation: str) -> TopicOwners:
    """Return what claims a topic where its new segments go, as a sidecar does before its first copy to a place: a segment
    without an owner object beside it means that the place is not the same store as before."""
    cluster_id = (await session.broker.describe_cluster()).cluster_id
    assert session.metadata is not None, "a command that rewrites opens its session with metadata"
    return TopicOwners(
        store=store,
        key_prefix=session.config.store.key_prefix,
        state=session.state,
        metadata=session.metadata,
        table=PartitionTable(),
        clock=session.clock,
        claimant=Claimant(cluster_id=cluster_id, broker_id=BrokerId(-1), incarnation=incarnation),
        place_of_topic=session.config.place_of_topic,
    )


@asynccontextmanager
async def _opened(segment: LocalSegment, *, blocking: Blocking) -> AsyncIterator[OpenSegmentFile]:
    file = OpenSegmentFile(segment, blocking=blocking)
    await file.open()
    try:
        yield file
    finally:
        await file.close()
