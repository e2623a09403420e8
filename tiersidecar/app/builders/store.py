"""From the configuration's store section to an open store, and to the layout of objects in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Literal, Protocol, assert_never

from tiersidecar.adapters.clock import SystemClock, ThreadBlocking
from tiersidecar.adapters.key_wrapping.service_keys import ServiceKeys
from tiersidecar.adapters.stores.azure_settings import AzureSettings
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.adapters.stores.gcs_settings import GOOGLE, GcsSettings
from tiersidecar.adapters.stores.installed import load_kind
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.adapters.stores.paced import PacedStore, UploadPace
from tiersidecar.adapters.stores.placed import Place, PlacedStore, PlaceStore
from tiersidecar.adapters.stores.s3_settings import S3Checksums, S3Settings
from tiersidecar.adapters.stores.temporary_file import ObjectModes
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.options import revealed
from tiersidecar.app.config.store import FilesystemStore, ReadableBy, S3Store, StoreSection
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_base import MIB
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.app.config.store_installed import InstalledStore
from tiersidecar.app.config.values import plain
from tiersidecar.domain.errors import ConfigError
from tiersidecar.formats.aiven.key_ring import DataKeys, KeyRing, read_rsa_key_pair
from tiersidecar.formats.aiven.keys import CustomMetadataField
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.store import Store, StoreTools
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.segment_objects import LayoutSettings

_PART_MEMORY_BYTES = 128 * MIB
"""The memory of all S3 parts, unless those in flight of one segment already are more."""
_BLOCK_MEMORY_BYTES = 128 * MIB
"""The memory of all Azure blocks, unless those in flight of one segment already are more."""
_CHUNK_MEMORY_BYTES = 128 * MIB
"""The memory of all chunks for Google Cloud Storage, unless those of one segment already are more."""
_ATTEMPT_TIMEOUT_S = 60.0
_ADDRESSING: dict[bool | None, Literal["auto", "path", "virtual"]] = {None: "auto", True: "path", False: "virtual"}


def s3_settings(section: S3Store) -> S3Settings:
    """Return the settings; where the key is unset, what the store takes by itself."""
    part_size_bytes, in_flight = section.s3_multipart_upload_part_size, section.s3_multipart_upload_parts_in_flight
    secret, sse = section.aws_secret_access_key, section.s3_server_side_encryption
    key_id, call, attempt = section.aws_access_key_id, section.s3_api_call_timeout, section.s3_api_call_attempt_timeout
    return S3Settings(
        bucket=section.s3_bucket_name,
        region=section.s3_region,
        endpoint_url=section.s3_endpoint_url,
        addressing=_ADDRESSING[section.s3_path_style_access_enabled],
        part_size_bytes=part_size_bytes,
        parts_in_flight=in_flight,
        part_buffers=max(in_flight, _PART_MEMORY_BYTES // part_size_bytes),
        call_timeout_s=None if call is None else call / 1000,
        attempt_timeout_s=_ATTEMPT_TIMEOUT_S if attempt is None else attempt / 1000,
        stall_timeout_s=section.upload_stall_timeout / 1000,
        max_attempts=section.s3_max_attempts,
        storage_class=section.s3_storage_class,
        server_side_encryption=None if sse == "none" else sse,
        kms_key_id=section.s3_server_side_encryption_kms_key_id,
        checksums=S3Checksums(section.s3_checksum_algorithm),
        ca_file=section.s3_ssl_ca_location,
        verify_tls=section.aws_certificate_check_enabled,
        access_key_id=None if key_id is None else key_id.get_secret_value(),
        secret_access_key=None if secret is None else secret.get_secret_value(),
        key_prefix=section.key_prefix,
    )


def azure_settings(section: AzureStore) -> AzureSettings:
    """Return the store's settings; a key that is not set leaves the choice to the store.

    Raises:
        ConfigError: the file of authorities cannot be read.
    """
    block_size_bytes, in_flight = section.azure_upload_block_size, section.azure_upload_blocks_in_flight
    return AzureSettings(
        account_name=section.azure_account_name,
        container=section.azure_container_name,
        endpoint_url=section.azure_endpoint_url,
        account_key=plain(section.azure_account_key),
        sas_token=plain(section.azure_sas_token),
        tenant_id=section.azure_tenant_id,
        client_id=section.azure_client_id,
        client_secret=plain(section.azure_client_secret),
        federated_token_file=section.azure_federated_token_file,
        authority_url=section.azure_authority_host,
        block_size_bytes=block_size_bytes,
        blocks_in_flight=in_flight,
        uploads_in_blocks=max(1, _BLOCK_MEMORY_BYTES // (block_size_bytes * (in_flight + 1))),
        attempt_timeout_s=section.azure_request_attempt_timeout / 1000,
        max_attempts=section.azure_max_attempts,
        access_tier=section.azure_access_tier,
        ca_pem=_authorities("azure.ssl.ca.location", section.azure_ssl_ca_location),
        verify_tls=section.azure_certificate_check_enabled,
        key_prefix=section.key_prefix,
    )


def gcs_settings(section: GcsStore) -> GcsSettings:
    """Return the store's settings; a key that is not set leaves the choice to the store.

    Raises:
        ConfigError: the file of authorities cannot be read.
    """
    chunk_size_bytes = section.gcs_resumable_upload_chunk_size
    return GcsSettings(
        bucket=section.gcs_bucket_name,
        endpoint_url=(section.gcs_endpoint_url or GOOGLE).rstrip("/"),
        login=_login(section),
        credentials_path=section.gcs_credentials_path,
        credentials_json=plain(section.gcs_credentials_json),
        chunk_size_bytes=chunk_size_bytes,
        uploads_in_chunks=max(1, _CHUNK_MEMORY_BYTES // (2 * chunk_size_bytes)),
        attempt_timeout_s=section.gcs_request_attempt_timeout / 1000,
        max_attempts=section.gcs_max_attempts,
        storage_class=section.gcs_storage_class,
        ca_pem=_authorities("gcs.ssl.ca.location", section.gcs_ssl_ca_location),
        verify_tls=section.gcs_certificate_check_enabled,
        key_prefix=section.key_prefix,
    )


def _login(section: GcsStore) -> Literal["default", "path", "json", "anonymous"]:
    if section.gcs_credentials_path is not None:
        return "path"
    if section.gcs_credentials_json is not None:
        return "json"
    return "anonymous" if section.gcs_credentials_default is False else "default"


def _authorities(key: str, path: str | None) -> str | None:
    """Return the content of the PEM file that ``key`` names; None without one.

    Raises:
        ConfigError: it cannot be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(source="store", faults=(f"{key}: {error}",)) from error


_OBJECT_MODES = {
    ReadableBy.OWNER: ObjectModes(file=0o600, directory=0o700),
    ReadableBy.GROUP: ObjectModes(file=0o640, directory=0o750),
    ReadableBy.ALL: ObjectModes(file=0o644, directory=0o755),
}

_STORE_THREADS = 16
"""For the store alone: if they were those of the log dirs, a mount that hangs would stop the scans too (U1)."""


class HasStore(Protocol):
    """A configuration that names a store: a sidecar's, or another program's."""

    @property
    def store(self) -> StoreSection: ...


def places_of(config: HasStore) -> Mapping[str, StoreSection]:
    """Return the places beside the default one; a configuration that is no sidecar's has none."""
    return config.places if isinstance(config, Config) else {}


class OpenedStore(PlacedStore):
    """A configured store, as its process uses it."""

    def __init__(
        self, default: Store, places: Mapping[str, Place], *, key_prefix: str, bounded: Sequence[BoundedStore]
    ) -> None:
        super().__init__(default, places, key_prefix=key_prefix)
        self._bounded = tuple(bounded)

    @property
    def left_alone(self) -> int:
        """Return how many requests were given up and have not ended."""
        return sum(store.left_alone for store in self._bounded)


@asynccontextmanager
async def open_store(
    config: HasStore, *, pace: UploadPace, clock: Clock, ids: Ids, telemetry: Telemetry
) -> AsyncIterator[OpenedStore]:
    """Build the configured store, whose uploads keep to ``pace``, whose requests end in time, and are metered; and its places,
    whose uploads keep to that pace together and each to its own.

    A store that is away does not fail here, but when it is used.
    """
    async with AsyncExitStack() as stack:

        async def opened(section: StoreSection) -> BoundedStore:
            opening = _open_bounded(section, clock=clock, ids=ids, telemetry=telemetry)
            return await stack.enter_async_context(opening)

        bounded = await opened(config.store)
        default: Store = PacedStore(bounded, pace)
        stores, places = [bounded], {}
        for name, section in places_of(config).items():
            stores.append(await opened(section))
            own = UploadPace(section.upload_rate_limit_bytes_per_second, clock)
            paced = PacedStore(PacedStore(stores[-1], own), pace)
            places[name] = Place(store=PlaceStore(paced, clock), key_prefix=section.key_prefix)
        if places:
            default = PlaceStore(default, clock)
        yield OpenedStore(default, places, key_prefix=config.store.key_prefix, bounded=stores)


def limits_of(section: StoreSection) -> StoreLimits:
    """Return how long requests to the store may take."""
    return StoreLimits(
        stall_s=section.upload_stall_timeout / 1000,
        upload_s=section.upload_timeout / 1000,
        request_s=section.request_timeout / 1000,
    )


@asynccontextmanager
async def _open_bounded(
    section: StoreSection, *, clock: Clock, ids: Ids, telemetry: Telemetry
) -> AsyncIterator[BoundedStore]:
    async with (
        ThreadBlocking(max_threads=_STORE_THREADS, name="store") as blocking,
        _open_backend(section, blocking=blocking, clock=clock, ids=ids) as backend,
    ):
        yield BoundedStore(MeteredStore(backend, telemetry), limits=limits_of(section), clock=clock)


@asynccontextmanager
async def _open_backend(
    configured: StoreSection, *, blocking: Blocking, clock: Clock, ids: Ids
) -> AsyncIterator[Store]:
    match configured:
        case FilesystemStore() as section:
            async with open_filesystem_store(
                root=section.root,
                blocking=blocking,
                clock=clock,
                ids=ids,
                probe_prefix=section.key_prefix,
                modes=_OBJECT_MODES[section.objects_readable_by],
            ) as store:
                yield store
        case S3Store() as section:
            # Only where it is used: its libraries take a second to load, in every process of a Spark job.
            from tiersidecar.adapters.stores.s3 import open_s3_store

            async with open_s3_store(s3_settings(section), blocking=blocking, clock=clock, ids=ids) as s3:
                yield s3
        case AzureStore() as section:
            from tiersidecar.adapters.stores.azure import open_azure_store

            async with open_azure_store(azure_settings(section), blocking=blocking, ids=ids) as azure:
                yield azure
        case GcsStore() as section:
            from tiersidecar.adapters.stores.gcs import open_gcs_store

            async with open_gcs_store(gcs_settings(section), blocking=blocking, ids=ids) as gcs:
                yield gcs
        case InstalledStore() as section:
            tools = StoreTools(key_prefix=section.key_prefix, blocking=blocking, clock=clock, ids=ids)
            async with load_kind(section.type).open_store(section.revealed_options, tools) as installed:
                yield installed
        case _:
            assert_never(configured)


def open_key_ring(config: HasStore) -> DataKeys | None:
    """Return the key pairs and the key service, also when encryption is off for new segments: older ones are still to be read.

    Raises:
        ConfigError: a key file that cannot be read or used, each named.
    """
    section, faults, keys, read = config.store, [], {}, []
    for key_id, files in section.encryption_key_pairs.items():
        try:
            public, private = Path(files.public_key_file).read_bytes(), Path(files.private_key_file).read_bytes()
            keys[key_id] = read_rsa_key_pair(public, private)
            read += [public, private]
        except (OSError, ValueError) as error:
            faults.append(f"encryption.key.pairs.{key_id}: {error}")
    if faults:
        raise ConfigError(source="store", faults=tuple(faults))
    ring = KeyRing(active_key_id=section.encryption_key_pair_id or next(iter(keys)), keys=keys) if keys else None
    kind = section.encryption_key_wrapping
    if kind is None:
        return ring
    from tiersidecar.adapters.key_wrapping.kinds import load_wrapping_kind

    options = revealed(section.encryption_key_wrapping_options)
    numbers = section.encryption_data_key_cache_ms, section.encryption_data_key_cache_size
    what = (kind, sorted(options.items()), numbers, section.encryption_key_pair_id, list(keys), read)
    name = sha256(repr(what).encode()).digest()
    if name not in _OPENED_KEYS:
        _OPENED_KEYS[name] = ServiceKeys(
            kind,
            load_wrapping_kind(kind).open_wrapping(options),
            keep_s=section.encryption_data_key_cache_ms / 1000,
            max_keys=section.encryption_data_key_cache_size,
            now_s=SystemClock().monotonic_s,
            ring=ring,
            ring_wraps=section.encryption_key_pair_id is not None,
        )
    return _OPENED_KEYS[name]


_OPENED_KEYS: dict[bytes, ServiceKeys] = {}
"""By the digest of what they were configured with: one for all that a process does, so that no key is asked for twice."""


def layout_settings(config: Config, key_ring: DataKeys | None, kafka_version: tuple[int, int]) -> LayoutSettings:
    """Return how new segments become objects."""
    section = config.store
    return LayoutSettings(
        key_prefix=section.key_prefix,
        place_of_topic=config.place_of_topic,
        place_key_prefixes={name: place.key_prefix for name, place in config.places.items()},
        chunk_size=section.chunk_size,
        compression=section.compression_enabled,
        skip_compressed=section.compression_heuristic_enabled,
        key_ring=key_ring if section.encryption_enabled else None,
        custom_metadata_fields=frozenset(
            CustomMetadataField(field) for field in section.custom_metadata_fields_include
        ),
        custom_metadata_max_bytes=config.remote_log_metadata_custom_metadata_max_bytes,
        kafka_version=kafka_version,
    )
