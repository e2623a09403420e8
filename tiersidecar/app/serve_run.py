"""``tiersidecar serve``, put together: a store, the picture of what it holds, and the listeners over it.  It writes nothing."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import socket
import ssl
from contextlib import AsyncExitStack
from importlib.metadata import version

import structlog
import uvloop

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.ending_loop import EndingRunner
from tiersidecar.adapters.metadata_topic.finished_segments import FinishedSegments
from tiersidecar.adapters.opening_rests import OpeningRests
from tiersidecar.adapters.process_limits import reuse_freed_memory, take_descriptors
from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.builders.store import open_key_ring
from tiersidecar.app.builders.untouched_store import open_store_untouched
from tiersidecar.app.config.serve import ServeConfig, ServeKafkaSection, TlsKeys
from tiersidecar.app.stop_signals import stop_on_signals
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, ConfigError, StoreError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metrics.catalogue import BUCKET_CATALOGUE, CATALOGUE
from tiersidecar.ports.store import Store
from tiersidecar.reading.holes import GIVE_UP_AT_SOURCE
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper, NoLiveLog
from tiersidecar.reading.opening import LONG_AT_ONCE
from tiersidecar.reading.read_path import ReadPath, ReadSettings, open_read_path
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.services.bucket.apis import api_table
from tiersidecar.services.bucket.connection import ClientLimits
from tiersidecar.services.bucket.fetch_api import FetchApi
from tiersidecar.services.bucket.follow import BucketFollower
from tiersidecar.services.bucket.listener import BucketListenerSettings, bind_listener, serve_kafka
from tiersidecar.services.bucket.memory_budget import MemoryBudget
from tiersidecar.services.bucket.metadata_api import Advertised, MetadataApi
from tiersidecar.services.bucket.notices import BucketNotices
from tiersidecar.services.bucket.offsets_api import OffsetsApi
from tiersidecar.services.bucket.picture import BucketLineages, BucketPicture, NoLogStarts
from tiersidecar.services.bucket.places import Places
from tiersidecar.services.bucket.sasl import Mechanisms
from tiersidecar.services.bucket.status import serve_bucket_status
from tiersidecar.services.bucket.users import User, Users
from tiersidecar.services.failed_logins import FailedLogins
from tiersidecar.services.reader.server import ReaderServiceSettings, serve_reader

log = structlog.get_logger(__name__)

_THREADS = 8


def run_serve(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: a key or a certificate cannot be used.
        ListenError: an address cannot be listened on.
    """
    take_descriptors()
    reuse_freed_memory()
    with EndingRunner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_stopped(config))


async def _until_stopped(config: ServeConfig) -> None:
    with stop_on_signals(asyncio.get_running_loop()) as stopping:
        serving = asyncio.create_task(serve_bucket(config), name="serve")
        stop = asyncio.create_task(stopping.wait(), name="stop signal")
        await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not serving.done():
            log.info("serve.stopping")
            serving.cancel()
            await asyncio.wait((serving,))
        if not serving.cancelled():
            serving.result()
        log.info("serve.stopped")


async def serve_bucket(config: ServeConfig) -> None:
    """Serve until cancelled: the status service at once, the others when the bucket has been listed once.

    Raises:
        As :func:`run_serve`.
    """
    async with AsyncExitStack() as stack:
        await _Serving(config, stack).run()


class _Serving:
    """Opens one thing after the other; all are closed in reverse when the stack ends."""

    def __init__(self, config: ServeConfig, stack: AsyncExitStack) -> None:
        self._config, self._stack = config, stack
        self._clock = SystemClock()
        self._telemetry = PrometheusTelemetry(version=version("tiersidecar"), catalogue=(*CATALOGUE, *BUCKET_CATALOGUE))
        self._users = Users(
            User(
                name=user.name,
                password=user.password.get_secret_value(),
                topic_prefixes=user.topic_prefixes or ("",),
            )
            for user in config.users
        )
        # One budget: a guesser may not try half of the passwords over HTTP.
        self._failed_logins = FailedLogins()

    async def run(self) -> None:
        """Serve until cancelled."""
        config, stack = self._config, self._stack
        listening = bind_listener(self._kafka_settings()) if config.kafka.enabled else None
        if listening is not None:
            stack.callback(listening.close)
        blocking = await stack.enter_async_context(ThreadBlocking(max_threads=_THREADS, name="serve"))
        store = await stack.enter_async_context(
            open_store_untouched(config, clock=self._clock, ids=SystemIds(), telemetry=self._telemetry)
        )
        picture = BucketPicture(blocking)
        follower = self._follower(store, picture, blocking)
        await self._serve_status(picture, follower)
        lineages, path = await self._read_path(store, picture, blocking)
        notices = await self._begin_notices(follower)
        refresh_s = config.refresh_ms / 1000
        while not follower.state.is_ready:
            await self._first_look(follower, refresh_s)
        gc.collect()
        gc.freeze()
        await self._serve_readers(listening, picture, path, lineages, blocking)
        follower.state.is_serving = True
        async with asyncio.TaskGroup() as group:
            if notices is not None:
                group.create_task(notices.follow(), name="events of the bucket's cluster")
            await self._clock.sleep(refresh_s)
            await follower.follow(refresh_s)

    async def _begin_notices(self, follower: BucketFollower) -> BucketNotices | None:
        """Begin before the first listing, so that nothing comes between; a cluster that is away is asked again later."""
        section = self._config.events
        if section is None:
            return None
        source = FinishedSegments(
            bootstrap_servers(section),
            broker_security(section),
            topic=section.remote_log_metadata_topic_name,
            client_id=f"{section.client_id}-serve",
            request_timeout_s=section.request_timeout_ms / 1000,
        )
        try:
            await source.begin()
        except (BrokerUnreachableError, BrokerRefusedError) as error:
            log.warning("bucket.events.failed", reason=str(error))
        return BucketNotices(source=source, follower=follower, clock=self._clock, telemetry=self._telemetry)

    async def _first_look(self, follower: BucketFollower, refresh_s: float) -> None:
        try:
            await follower.look()
        except StoreError as error:
            follower.state.trouble = str(error)
            log.warning("bucket.look.failed", store=self._config.store.place, reason=str(error))
            await self._clock.sleep(min(refresh_s, 5.0))

    def _follower(self, store: Store, picture: BucketPicture, blocking: Blocking) -> BucketFollower:
        section = self._config.store
        return BucketFollower(
            store=store,
            key_prefix=section.key_prefix,
            picture=picture,
            blocking=blocking,
            clock=self._clock,
            telemetry=self._telemetry,
            place=section.place,
        )

    async def _read_path(
        self, store: Store, picture: BucketPicture, blocking: Blocking
    ) -> tuple[BucketLineages, ReadPath]:
        config, stack = self._config, self._stack
        manifests = ManifestCache(
            store=store,
            blocking=blocking,
            key_prefix=config.store.key_prefix,
            key_ring=open_key_ring(config),
            most_chunk_bytes=config.store.chunk_size,
            most_index_bytes=config.read.index_max_bytes,
        )
        stack.push_async_callback(manifests.aclose)
        epochs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests, telemetry=self._telemetry)
        keeper = LineageKeeper(metadata=picture, epochs=epochs, live=NoLiveLog(), blocking=blocking, clock=self._clock)
        stack.push_async_callback(keeper.aclose)
        lineages = BucketLineages(picture, keeper)
        stack.push_async_callback(lineages.aclose)
        opening = await stack.enter_async_context(ThreadBlocking(max_threads=LONG_AT_ONCE, name="opening"))
        path = await stack.enter_async_context(
            open_read_path(
                store=store,
                metadata=picture,
                manifests=manifests,
                lineages=lineages,
                log_starts=NoLogStarts(),
                blocking=blocking,
                clock=self._clock,
                telemetry=self._telemetry,
                settings=ReadSettings(
                    reader_threads=config.read.threads,
                    reader_max_pending_tasks=config.read.max_pending,
                    chunk_cache_bytes=config.read.chunk_cache_memory_bytes,
                    read_ahead_bytes=config.read.ahead_reader_max_bytes,
                    read_ahead_total_bytes=config.read.ahead_memory_bytes,
                    opened_memory_bytes=config.read.opened_memory_bytes,
                ),
                long_blocking=opening,
                rest=OpeningRests(),
                hole_advice=GIVE_UP_AT_SOURCE,
            )
        )
        return lineages, path

    async def _serve_status(self, picture: BucketPicture, follower: BucketFollower) -> None:
        config = self._config
        server = await self._stack.enter_async_context(
            serve_bucket_status(
                host=config.status.listen.host,
                port=config.status.listen.port,
                picture=picture,
                follower=follower,
                render_metrics=self._telemetry.render,
                clock=self._clock,
                place=config.store.place,
            )
        )
        log.info("serve.status.listening", url=server.url)

    async def _serve_readers(
        self,
        listening: socket.socket | None,
        picture: BucketPicture,
        path: ReadPath,
        lineages: BucketLineages,
        blocking: Blocking,
    ) -> None:
        config = self._config
        if config.http.enabled:
            server = await self._stack.enter_async_context(
                serve_reader(
                    path=path,
                    catalogue=picture,
                    authorize=self._users,
                    blocking=blocking,
                    telemetry=self._telemetry,
                    settings=ReaderServiceSettings(
                        host=config.http.listen.host,
                        port=config.http.listen.port,
                        ssl_context=_tls(config.http, "http"),
                        requires_credentials=self._users.are_required,
                        max_requests=config.http.max_requests,
                        write_timeout_s=config.http.write_timeout_ms / 1000,
                        least_taken_bytes_per_s=config.http.write_least_bytes_per_second,
                    ),
                    failed_logins=self._failed_logins,
                )
            )
            log.info("serve.http.listening", url=server.url)
        if listening is not None:
            await self._serve_kafka(listening, picture, path, lineages)

    async def _serve_kafka(
        self, listening: socket.socket, picture: BucketPicture, path: ReadPath, lineages: BucketLineages
    ) -> None:
        kafka, places = self._config.kafka, Places(picture)
        advertised = _advertised(kafka, listening.getsockname()[1], self._config)
        fetch = FetchApi(
            places=places,
            picture=picture,
            path=path,
            memory=MemoryBudget(kafka.response_memory_bytes),
            telemetry=self._telemetry,
            most_bytes=kafka.fetch_max_bytes,
            most_wait_s=kafka.fetch_max_wait_ms / 1000,
        )
        await self._stack.enter_async_context(
            serve_kafka(
                listening,
                self._kafka_settings(),
                apis=api_table(MetadataApi(places, advertised), OffsetsApi(places, path, lineages), fetch),
                mechanisms=Mechanisms(self._users, self._config.mechanisms),
                telemetry=self._telemetry,
                failed_logins=self._failed_logins,
            )
        )
        log.info(
            "serve.kafka.listening",
            listen=str(kafka.listen),
            advertised=f"{advertised.host}:{advertised.port}",
            mechanisms=list(self._config.mechanisms),
        )

    def _kafka_settings(self) -> BucketListenerSettings:
        kafka = self._config.kafka
        return BucketListenerSettings(
            host=kafka.listen.host,
            port=kafka.listen.port,
            tls=_tls(kafka, "kafka"),
            max_connections=kafka.max_connections,
            max_connections_before_login=kafka.unauthenticated_max_connections,
            request_memory_bytes=kafka.request_memory_bytes,
            limits=ClientLimits(
                request_bytes_before_login=kafka.unauthenticated_request_max_bytes,
                request_bytes=kafka.request_max_bytes,
                login_timeout_s=kafka.login_timeout_ms / 1000,
                idle_timeout_s=kafka.connections_max_idle_ms / 1000,
                write_timeout_s=kafka.write_timeout_ms / 1000,
                least_taken_bytes_per_s=kafka.write_least_bytes_per_second,
            ),
        )


def _advertised(kafka: ServeKafkaSection, port: int, config: ServeConfig) -> Advertised:
    """Return the address; ``port`` is the real one where a free one was asked for."""
    host = socket.gethostname() if kafka.listen.host in {"0.0.0.0", "::"} else kafka.listen.host
    at = kafka.advertised
    return Advertised(
        host=host if at is None else at.host,
        port=port if at is None else at.port,
        cluster_id=config.cluster_id or _cluster_id(config),
    )


def _cluster_id(config: ServeConfig) -> str:
    """Return an id that is the same for the same place, and no cluster's own."""
    place = f"{config.store.place} {config.store.key_prefix}"
    return format_uuid(Uuid(hashlib.sha256(place.encode()).digest()[:16]))


def _tls(section: TlsKeys, name: str) -> ssl.SSLContext | None:
    """Return the listener's certificate; None without TLS.

    Raises:
        ConfigError: a file cannot be used.
    """
    certificate = section.ssl_certificate_location
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    password = None if section.ssl_key_password is None else section.ssl_key_password.get_secret_value()
    try:
        context.load_cert_chain(certificate, section.ssl_key_location, password)
    except (OSError, ssl.SSLError) as error:
        fault = f"{name}.ssl.certificate.location: {certificate} cannot be used: {error}"
        raise ConfigError(source=name, faults=(fault,)) from error
    return context
