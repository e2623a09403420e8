"""Settings of the Azure store: container, login, timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, RetryConfig

MIB = 1024 * 1024
_CONNECT_TIMEOUT_S = 10.0
_MOST_RETRYING_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """One of ``account_key``, ``sas_token``, ``client_secret`` and ``federated_token_file`` decides about the login.  None of
    them: obstore's own chain, which is the AZURE_* variables of the environment (workload identity's among them), then the
    machine's managed identity, of ``client_id`` where it has several.

    ``blocks_in_flight`` blocks of ``block_size_bytes`` are sent at once of one object, ``uploads_in_blocks`` such objects.
    ``attempt_timeout_s`` bounds one request, of which there are ``max_attempts``.
    """

    account_name: str
    container: str
    endpoint_url: str | None = None
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    federated_token_file: str | None = None
    authority_url: str | None = None
    block_size_bytes: int = 5 * MIB
    blocks_in_flight: int = 4
    uploads_in_blocks: int = 4
    attempt_timeout_s: float = 60.0
    max_attempts: int = 5
    access_tier: str | None = None
    ca_pem: str | None = None
    verify_tls: bool = True
    key_prefix: str = ""

    def store_config(self) -> AzureConfig:
        """Return the account and the login for ``obstore.store.AzureStore``."""
        given = {
            "account_name": self.account_name,
            "endpoint": self.endpoint_url,
            "account_key": self.account_key,
            "sas_key": None if self.sas_token is None else self.sas_token.lstrip("?"),
            "tenant_id": self.tenant_id,
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "federated_token_file": self.federated_token_file,
            "authority_host": self.authority_url,
            "credential_type": self.credential_type,
        }
        config: AzureConfig = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
        return config

    @property
    def credential_type(self) -> str:
        """Return the configured type, which wins over what the environment may have beside it."""
        configured = {
            "access_key": self.account_key,
            "sas_token": self.sas_token,
            "client_secret": self.client_secret,
            "workload_identity": self.federated_token_file,
        }
        return next((kind for kind, value in configured.items() if value is not None), "auto")

    def client_options(self) -> ClientConfig:
        options: ClientConfig = {
            "allow_http": (self.endpoint_url or "").startswith("http:"),
            "connect_timeout": timedelta(seconds=_CONNECT_TIMEOUT_S),
            "timeout": timedelta(seconds=self.attempt_timeout_s),
        }
        if not self.verify_tls:
            options["allow_invalid_certificates"] = True
        elif self.ca_pem is not None:
            options["root_certificate"] = self.ca_pem
        return options

    def retry_config(self) -> RetryConfig:
        return {"max_retries": self.max_attempts - 1, "retry_timeout": timedelta(seconds=_MOST_RETRYING_S)}
