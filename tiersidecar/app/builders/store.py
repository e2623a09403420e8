"""From the configuration's store section to an open store, and to the layout of objects in it.

From the configuration's S3 section to the S3 store's settings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol, assert_never

from tiersidecar.adapters.blocking import ThreadBlocking
from tiersidecar.adapters.stores.bounded import BoundedStore, StoreLimits
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.adapters.stores.installed import load_kind
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.adapters.stores.paced import PacedStore, UploadPace
from tiersidecar.adapters.stores.s3_settings import S3Checksums, S3Settings
from tiersidecar.adapters.stores.temporary_file import ObjectModes
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.store import FilesystemStore, ReadableBy, S3Store, StoreSection
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_base import MIB
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.app.config.store_installed import InstalledStore
from tiersidecar.domain.errors import ConfigError
from tiersidecar.formats.aiven.custom_metadata import CustomMetadataField
from tiersidecar.formats.aiven.key_ring import KeyRing, read_rsa_key_pair
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.store import Store, StoreTools
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.tasks.segment_objects import LayoutSettings

_PART_MEMORY_BYTES = 128 * MIB
"""What parts may hold together, unless those in flight of one segment already are more."""
_ATTEMPT_TIMEOUT_S = 60.0
_ADDRESSING: dict[bool | None, Literal["auto", "path", "virtual"]] = {None: "auto", True: "path", False: "virtual"}


def s3_settings(section: S3Store) -> S3Settings:
    """Where the key is unset, what the store takes by itself."""
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


_OBJECT_MODES = {
    ReadableBy.OWNER: ObjectModes(file=0o600, directory=0o700),
    ReadableBy.GROUP: ObjectModes(file=0o640, directory=0o750),
    ReadableBy.ALL: ObjectModes(file=0o644, directory=0o755),
}

_STORE_THREADS = 16
"""Of the store alone: were they those of the log dirs, a mount that hangs would stop the scans too (U1)."""


class HasStore(Protocol):
    """A configuration that names a store: a sidecar's, or another program's."""

    @property
    def store(self) -> StoreSection: ...


class OpenedStore(PacedStore):
    """A configured store, as its process uses it."""

    def __init__(self, store: BoundedStore, pace: UploadPace) -> None:
        super().__init__(store, pace)
        self._bounded = store

    @property
    def left_alone(self) -> int:
        """How many requests were given up and have not ended."""
        return self._bounded.left_alone


@asynccontextmanager
async def open_store(
    config: HasStore, *, pace: UploadPace, clock: Clock, ids: Ids, telemetry: Telemetry
) -> AsyncIterator[OpenedStore]:
    """The configured store, whose uploads keep to ``pace``, whose requests end in time, and are metered.

    A store that is away does not fail here, but when it is used.
    """
    section = config.store
    limits = StoreLimits(
        stall_s=section.upload_stall_timeout / 1000,
        upload_s=section.upload_timeout / 1000,
        request_s=section.request_timeout / 1000,
    )
    async with (
        ThreadBlocking(max_threads=_STORE_THREADS, name="store") as blocking,
        _open_backend(config, blocking=blocking, clock=clock, ids=ids) as backend,
    ):
        yield OpenedStore(BoundedStore(MeteredStore(backend, telemetry), limits=limits, clock=clock), pace)


@asynccontextmanager
async def _open_backend(config: HasStore, *, blocking: Blocking, clock: Clock, ids: Ids) -> AsyncIterator[Store]:
    match config.store:
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
            from tiersidecar.app.builders.store import s3_settings

            async with open_s3_store(s3_settings(section), blocking=blocking, clock=clock, ids=ids) as s3:
                yield s3
        case AzureStore() as section:
            from tiersidecar.adapters.stores.azure import open_azure_store
            from tiersidecar.app.builders.azure import azure_settings

            async with open_azure_store(azure_settings(section), blocking=blocking, ids=ids) as azure:
                yield azure
        case GcsStore() as section:
            from tiersidecar.adapters.stores.gcs import open_gcs_store
            from tiersidecar.app.builders.gcs import gcs_settings

            async with open_gcs_store(gcs_settings(section), blocking=blocking, ids=ids) as gcs:
                yield gcs
        case InstalledStore() as section:
            tools = StoreTools(key_prefix=section.key_prefix, blocking=blocking, clock=clock, ids=ids)
            async with load_kind(section.type).open_store(section.revealed_options, tools) as installed:
                yield installed
        case _:
            assert_never(config.store)


def open_key_ring(config: HasStore) -> KeyRing | None:
    """The key pairs, also when encryption is off for new segments: older ones are still to be read.

    Raises:
        ConfigError: a key file that cannot be read or used, each named.
    """
    section, faults, keys = config.store, [], {}
    for key_id, files in section.encryption_key_pairs.items():
        try:
            public, private = Path(files.public_key_file).read_bytes(), Path(files.private_key_file).read_bytes()
            keys[key_id] = read_rsa_key_pair(public, private)
        except (OSError, ValueError) as error:
            faults.append(f"encryption.key.pairs.{key_id}: {error}")
    if faults:
        raise ConfigError(source="store", faults=tuple(faults))
    if not keys:
        return None
    return KeyRing(active_key_id=section.encryption_key_pair_id or next(iter(keys)), keys=keys)


def layout_settings(config: Config, key_ring: KeyRing | None, kafka_version: tuple[int, int]) -> LayoutSettings:
    """How new segments become objects."""
    section = config.store
    return LayoutSettings(
        key_prefix=section.key_prefix,
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
