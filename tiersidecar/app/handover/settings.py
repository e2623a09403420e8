"""The settings of a native broker that must agree with ours, by the names of its server.properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.store import FilesystemStore, S3Store
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_base import StoreBase
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.decide.native_settings import (
    RLMM_PREFIX,
    RSM_PREFIX,
    SYSTEM,
    BrokerFiles,
    Setting,
)
from tiersidecar.domain.errors import CorruptDataError, HandoverError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.formats.kafka.server_properties import read_properties

NATIVE_METADATA_TOPIC = "__remote_log_metadata"
"""The name is fixed in Kafka."""
PLUGIN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
_BACKENDS = "io.aiven.kafka.tieredstorage.storage"


def as_native(config: Config) -> Config:
    """Return the configuration with Kafka's own metadata topic."""
    return config.model_copy(update={"remote_log_metadata_topic_name": NATIVE_METADATA_TOPIC})


def has_own_topic(config: Config) -> bool:
    """Return whether the sidecar's events are in another topic than Kafka's, which then gets them with the plan."""
    return config.remote_log_metadata_topic_name != NATIVE_METADATA_TOPIC


def read_broker_files(paths: Sequence[Path]) -> BrokerFiles:
    """Read server.properties of brokers.

    Raises:
        HandoverError: one cannot be read, names no broker, or names the same one as another.
    """
    found: dict[BrokerId, Mapping[str, str | None]] = {}
    for path in paths:
        file = read_broker_file(path)
        node_id = file.get("node.id", file.get("broker.id")) or ""
        if not node_id.isdecimal():
            raise HandoverError(subject=str(path), reason="it has no node.id: which broker's is it?")
        if BrokerId(int(node_id)) in found:
            raise HandoverError(subject=str(path), reason=f"another file is of broker {node_id}, too")
        found[BrokerId(int(node_id))] = file
    return found


def read_broker_file(path: Path) -> Mapping[str, str]:
    """Read one server.properties.

    Raises:
        HandoverError: it cannot be read.
    """
    try:
        return read_properties(path.read_bytes(), where=str(path))
    except (CorruptDataError, OSError) as error:
        reason = explain_os_error(error) if isinstance(error, OSError) else str(error)
        raise HandoverError(subject=str(path), reason=reason) from error


def native_settings(config: Config) -> tuple[Setting, ...]:
    """Return what a broker needs to find our objects and events; a different ``chunk.size`` is none: each manifest has its
    own."""
    store = config.store
    partitions = str(config.remote_log_metadata_topic_num_partitions)
    return (
        Setting(name=SYSTEM, wanted="true", default="false"),
        Setting(name="remote.log.storage.manager.class.name", wanted=PLUGIN),
        Setting(name=f"{RLMM_PREFIX}remote.log.metadata.topic.num.partitions", wanted=partitions, default="50"),
        Setting(name=f"{RSM_PREFIX}key.prefix", wanted=store.key_prefix, default=""),
        *_encryption(store),
        *(Setting(name=f"{RSM_PREFIX}storage.{name}", wanted=wanted) for name, wanted in _backend(config)),
    )


def _encryption(store: StoreBase) -> Iterator[Setting]:
    """Yield the settings of encryption: the plugin opens encrypted segments only with it on, and with the key pair of each
    segment."""
    if store.encryption_key_pairs:
        yield Setting(name=f"{RSM_PREFIX}encryption.enabled", wanted="true", default="false")
        yield Setting(name=f"{RSM_PREFIX}encryption.key.pair.id", wanted=store.encryption_key_pair_id or "")


def _backend(config: Config) -> Iterator[tuple[str, str]]:
    match config.store:
        case FilesystemStore() as store:
            yield "backend.class", f"{_BACKENDS}.filesystem.FileSystemStorage"
            yield "root", str(store.root)
        case S3Store() as store:
            yield "backend.class", f"{_BACKENDS}.s3.S3Storage"
            yield "s3.bucket.name", store.s3_bucket_name
            yield "s3.region", store.s3_region
            if store.s3_endpoint_url is not None:
                yield "s3.endpoint.url", store.s3_endpoint_url
        case AzureStore() as store:
            yield "backend.class", f"{_BACKENDS}.azure.AzureBlobStorage"
            yield "azure.container.name", store.azure_container_name
        case GcsStore() as store:
            yield "backend.class", f"{_BACKENDS}.gcs.GcsStorage"
            yield "gcs.bucket.name", store.gcs_bucket_name
            if store.gcs_endpoint_url is not None:
                yield "gcs.endpoint.url", store.gcs_endpoint_url
        case _:
            return
