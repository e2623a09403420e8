"""Section store, type azure: the settings of Aiven's plugin under their own names, and how to log in without a key."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import refuse
from tiersidecar.app.config.store_base import MIB, StoreBase, VerifyReadBack
from tiersidecar.app.config.values import FilePath, PositiveDurationMs, Quantity, Secret


class AzureStore(StoreBase):
    """Azure Blob Storage, or a server that speaks its protocol."""

    type: Literal["azure"]
    """This kind of store."""

    azure_account_name: Annotated[str, Field(pattern=r"^[a-z0-9]{3,24}$", examples=["kafkatier"])]
    """Storage account."""

    azure_container_name: Annotated[str, Field(pattern=r"^[a-z0-9](-?[a-z0-9]){2,62}$", examples=["kafka-tier"])]
    """Container of the blobs; it must exist."""

    azure_endpoint_url: Annotated[
        str | None, Field(pattern=r"^https?://[^\s/]+/?\S*$", examples=["https://kafkatier.blob.core.windows.net"])
    ] = None
    """Address of the account where it is not https://ACCOUNT.blob.core.windows.net: in a sovereign cloud, or another server."""

    azure_account_key: Annotated[Secret | None, Field(examples=["{env: AZURE_STORAGE_ACCOUNT_KEY}"])] = None
    """Key of the account. Without key, token and identity below: the AZURE_* variables of the environment (workload identity
    on Kubernetes sets them), then the machine's managed identity."""

    azure_sas_token: Annotated[Secret | None, Field(examples=["{file: /etc/tiersidecar/sas-token}"])] = None
    """Shared access signature of the account or the container, with permissions rwdl; it is not renewed."""

    azure_tenant_id: Annotated[str | None, Field(min_length=1, examples=["11111111-2222-3333-4444-555555555555"])] = (
        None
    )
    """Directory (tenant) of the identity below."""

    azure_client_id: Annotated[str | None, Field(min_length=1, examples=["66666666-7777-8888-9999-000000000000"])] = (
        None
    )
    """Application (client) id: with a secret or a token file that of a service principal, alone that of a managed identity."""

    azure_client_secret: Annotated[Secret | None, Field(examples=["{env: AZURE_CLIENT_SECRET}"])] = None
    """Secret of the service principal."""

    azure_federated_token_file: Annotated[FilePath | None, Field(examples=["/var/run/secrets/azure/tokens/token"])] = (
        None
    )
    """File with the token of workload identity federation, read again whenever a new access token is needed."""

    azure_authority_host: Annotated[
        str | None, Field(pattern=r"^https?://\S+$", examples=["https://login.microsoftonline.us"])
    ] = None
    """Where identities log in; default: https://login.microsoftonline.com."""

    azure_upload_block_size: Annotated[int, Quantity("size", at_least=100 * 1024, at_most=1024 * MIB)] = 5 * MIB
    """Size of the blocks of an upload, each held in memory while it is sent. A blob has 50,000 blocks at most."""

    azure_upload_blocks_in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    """Blocks of one segment that are sent at once."""

    azure_request_attempt_timeout: PositiveDurationMs = 60_000
    """Longest wait for one attempt of a request."""

    azure_max_attempts: Annotated[int, Field(ge=1, le=20)] = 5
    """Attempts for one request that the network or the service fails."""

    azure_access_tier: Literal["Hot", "Cool", "Cold"] | None = None
    """Access tier of new blobs; default: the account's. The archive tier is not accepted, since it cannot be read."""

    azure_ssl_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/azure-ca.pem"])] = None
    """PEM file of the authorities that signed the server's certificate; default: the system's."""

    azure_certificate_check_enabled: bool = True
    """false accepts any certificate: for tests only."""

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        ways = {
            "azure.account.key": self.azure_account_key,
            "azure.sas.token": self.azure_sas_token,
            "azure.client.secret": self.azure_client_secret,
            "azure.federated.token.file": self.azure_federated_token_file,
        }
        given = [key for key, value in ways.items() if value is not None]
        faults += [((key,), f"cannot be given beside {given[0]}: one of them is to log in with") for key in given[1:]]
        if self.azure_client_secret is not None or self.azure_federated_token_file is not None:
            needed = {"azure.tenant.id": self.azure_tenant_id, "azure.client.id": self.azure_client_id}
            faults += [((key,), f"is required with {given[0]}") for key, value in needed.items() if value is None]
        if self.verify_read_back is VerifyReadBack.CHECKSUM:
            faults.append(
                (("verify.read.back",), "checksum needs a store that keeps a full-object CRC32C: Azure does not")
            )
        refuse(faults)
        return self

    @property
    def location(self) -> tuple[str, str]:
        return f"{self.place} at {self.azure_endpoint_url or 'the service'}", self.key_prefix

    @property
    def place(self) -> str:
        return f"azure://{self.azure_account_name}/{self.azure_container_name}"
