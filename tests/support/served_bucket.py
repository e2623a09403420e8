"""A bucket in memory, the picture that is made of it, and one listener over both, all in this process."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kio.index import load_request_schema, load_response_schema

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import RemoteRun, key_ring, load_run
from tiersidecar.formats.wire.framing import read_response, write_request
from tiersidecar.ports.store import Store
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper, NoLiveLog
from tiersidecar.reading.read_path import ReadPath, open_read_path
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.services.bucket.answers import made
from tiersidecar.services.bucket.apis import Api, api_table
from tiersidecar.services.bucket.fetch_api import FetchApi
from tiersidecar.services.bucket.follow import BucketFollower
from tiersidecar.services.bucket.listener import BucketListenerSettings, bind_listener, serve_kafka
from tiersidecar.services.bucket.memory_budget import MemoryBudget
from tiersidecar.services.bucket.metadata_api import Advertised, MetadataApi
from tiersidecar.services.bucket.offsets_api import OffsetsApi
from tiersidecar.services.bucket.picture import BucketLineages, BucketPicture, NoLogStarts
from tiersidecar.services.bucket.places import Places
from tiersidecar.services.bucket.sasl import Mechanisms
from tiersidecar.services.bucket.users import User, Users
from tiersidecar.services.failed_logins import FailedLogins

ALL_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
AUDITOR = User(name="auditor", password="auditor-password")
NARROW = User(name="narrow", password="narrow-password", topic_prefixes=("plain",))


def follower_of(
    run: RemoteRun, picture: BucketPicture, telemetry: RecordedTelemetry, store: Store | None = None
) -> BucketFollower:
    """Follows the run's bucket, or ``store`` in its place."""
    return BucketFollower(
        store=run.store if store is None else store,
        key_prefix=run.key_prefix,
        picture=picture,
        blocking=InlineBlocking(),
        clock=ManualClock(),
        telemetry=telemetry,
        place="memory",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBucket:
    """The bucket's contents, and where its listener listens."""

    run: RemoteRun
    picture: BucketPicture
    follower: BucketFollower
    path: ReadPath
    lineages: BucketLineages
    telemetry: RecordedTelemetry
    apis: Mapping[int, Api]
    port: int

    async def connect(self) -> KafkaTalk:
        """Return a new client's connection."""
        return KafkaTalk(*await asyncio.open_connection("127.0.0.1", self.port))


class KafkaTalk:
    """Requests and responses of one connection, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, api_key: int, version: int, **values: object) -> Any:
        """Return the response; blanks stand for what is not given."""
        request: Any = made(load_request_schema(api_key, version), **values)
        self.writer.write(write_request(request, correlation_id=7, client_id="talk"))
        return read_response(load_response_schema(api_key, version), await self.frame())

    async def frame(self) -> bytes:
        """Return the next response, without its size.

        Raises:
            IncompleteReadError: the connection has been closed.
        """
        async with asyncio.timeout(10):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Return whether the listener ends the connection, having sent nothing more."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        """Leave."""
        self.writer.close()


@asynccontextmanager
async def serving(
    name: str = "plain",
    *,
    users: tuple[User, ...] = (),
    settings: BucketListenerSettings | None = None,
    failed_logins: FailedLogins | None = None,
) -> AsyncIterator[ServedBucket]:
    """Yield the bucket of a run of the plugin, listed once, with a listener."""
    run, blocking, clock, telemetry = await load_run(name), InlineBlocking(), ManualClock(), RecordedTelemetry()
    picture = BucketPicture(blocking)
    follower = follower_of(run, picture, telemetry)
    await follower.look()
    manifests = ManifestCache(store=run.store, blocking=blocking, key_prefix=run.key_prefix, key_ring=key_ring())
    epochs = IndexBlobReader(store=run.store, blocking=blocking, manifests=manifests)
    keeper = LineageKeeper(metadata=picture, epochs=epochs, live=NoLiveLog(), blocking=blocking, clock=clock)
    lineages = BucketLineages(picture, keeper)
    settings = settings or BucketListenerSettings(host="127.0.0.1", port=0)
    known = Users(users)
    async with open_read_path(
        store=run.store,
        metadata=picture,
        manifests=manifests,
        lineages=lineages,
        log_starts=NoLogStarts(),
        blocking=blocking,
        clock=clock,
    ) as path:
        listening, places = bind_listener(settings), Places(picture)
        port = listening.getsockname()[1]
        fetch = FetchApi(
            places=places,
            picture=picture,
            path=path,
            memory=MemoryBudget(1 << 26),
            telemetry=telemetry,
            most_bytes=1 << 24,
            most_wait_s=5.0,
        )
        advertised = Advertised(host="127.0.0.1", port=port, cluster_id="served")
        apis = api_table(MetadataApi(places, advertised), OffsetsApi(places, path, lineages), fetch)
        mechanisms = Mechanisms(known, ALL_MECHANISMS if users else ())
        async with serve_kafka(
            listening,
            settings,
            apis=apis,
            mechanisms=mechanisms,
            telemetry=telemetry,
            failed_logins=failed_logins,
        ):
            yield ServedBucket(
                run=run,
                picture=picture,
                follower=follower,
                path=path,
                lineages=lineages,
                telemetry=telemetry,
                apis=apis,
                port=port,
            )
    await lineages.aclose()
    await keeper.aclose()
    await manifests.aclose()
