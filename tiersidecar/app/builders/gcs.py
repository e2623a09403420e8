"""Turn the configuration's Google Cloud Storage section into the settings of the store."""

from __future__ import annotations

from typing import Literal

from tiersidecar.adapters.stores.gcs_settings import GOOGLE, GcsSettings
from tiersidecar.app.builders.authorities import read_authorities
from tiersidecar.app.config.store_base import MIB
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.app.config.values import plain

_CHUNK_MEMORY_BYTES = 128 * MIB
"""What chunks may hold together, unless those of one segment already are more."""


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
        ca_pem=read_authorities("gcs.ssl.ca.location", section.gcs_ssl_ca_location),
        verify_tls=section.gcs_certificate_check_enabled,
        key_prefix=section.key_prefix,
    )


def _login(section: GcsStore) -> Literal["default", "path", "json", "anonymous"]:
    if section.gcs_credentials_path is not None:
        return "path"
    if section.gcs_credentials_json is not None:
        return "json"
    return "anonymous" if section.gcs_credentials_default is False else "default"
