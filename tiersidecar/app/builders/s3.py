"""From the configuration's S3 section to the S3 store's settings."""

from __future__ import annotations

from typing import Literal

from tiersidecar.adapters.stores.s3_settings import S3Checksums, S3Settings
from tiersidecar.app.config.store import S3Store
from tiersidecar.app.config.store_base import MIB

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
