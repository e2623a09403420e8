"""Turn the configuration's Azure section into the settings of the Azure store."""

from __future__ import annotations

from tiersidecar.adapters.stores.azure_settings import AzureSettings
from tiersidecar.app.builders.authorities import read_authorities
from tiersidecar.app.config.store_azure import AzureStore
from tiersidecar.app.config.store_base import MIB
from tiersidecar.app.config.values import plain

_BLOCK_MEMORY_BYTES = 128 * MIB
"""What blocks may hold together, unless those in flight of one segment already are more."""


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
        ca_pem=read_authorities("azure.ssl.ca.location", section.azure_ssl_ca_location),
        verify_tls=section.azure_certificate_check_enabled,
        key_prefix=section.key_prefix,
    )
