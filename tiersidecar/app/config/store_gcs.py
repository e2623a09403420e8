"""Section store, type gcs: the settings of Aiven's plugin under their own names, and how often to try."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import refuse
from tiersidecar.app.config.store_base import MIB, StoreBase
from tiersidecar.app.config.values import FilePath, PositiveDurationMs, Quantity, Secret

_GRAIN_BYTES = 256 * 1024


class GcsStore(StoreBase):
    """Google Cloud Storage, or a server that speaks its JSON API."""

    type: Literal["gcs"]
    """This kind of store."""

    gcs_bucket_name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$", examples=["kafka-tier"])]
    """Bucket of the objects; it must exist."""

    gcs_endpoint_url: Annotated[
        str | None,
        Field(pattern=r"^https?://[^\s/?#]+/?$", examples=["https://storage.me-central2.rep.googleapis.com"]),
    ] = None
    """Address of the service where it is not https://storage.googleapis.com: a regional endpoint, or another server."""

    gcs_credentials_path: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/gcs-key.json"])] = None
    """Credentials file: a service account's key, the configuration of a workload identity federation, a user's credentials,
    or a document with an `access_token` alone. It is read again when the service refuses its content."""

    gcs_credentials_json: Annotated[Secret | None, Field(examples=["{env: GCS_CREDENTIALS}"])] = None
    """The content of such a file."""

    gcs_credentials_default: bool | None = None
    """true is the default: Google's own chain (GOOGLE_APPLICATION_CREDENTIALS, the file of `gcloud auth application-default
    login`, the metadata server of the machine or pod). false sends no credentials, for servers that ask for none."""

    gcs_resumable_upload_chunk_size: Annotated[int, Quantity("size", at_least=_GRAIN_BYTES, at_most=1024 * MIB)] = (
        25 * MIB
    )
    """Size of the chunks of an upload, a multiple of 256 KiB. Two of them are held in memory during an upload."""

    gcs_request_attempt_timeout: PositiveDurationMs = 60_000
    """Longest wait for one attempt of a request; of an upload, for any progress of it."""

    gcs_max_attempts: Annotated[int, Field(ge=1, le=20)] = 5
    """Attempts for one request that the network or the service fails."""

    gcs_storage_class: Literal["STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"] | None = None
    """Storage class of new objects; default: the bucket's. All can be read immediately; the colder ones charge for reads
    and for early deletion."""

    gcs_ssl_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/gcs-ca.pem"])] = None
    """PEM file of the authorities that signed the server's certificate; default: the system's."""

    gcs_certificate_check_enabled: bool = True
    """false accepts any certificate: for tests only."""

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        ways = {
            "gcs.credentials.path": self.gcs_credentials_path,
            "gcs.credentials.json": self.gcs_credentials_json,
            "gcs.credentials.default": self.gcs_credentials_default,
        }
        given = [key for key, value in ways.items() if value is not None]
        faults += [((key,), f"cannot be given beside {given[0]}: one of them is to log in with") for key in given[1:]]
        if self.gcs_resumable_upload_chunk_size % _GRAIN_BYTES:
            faults.append((("gcs.resumable.upload.chunk.size",), "must be a multiple of 256 KiB"))
        refuse(faults)
        return self

    @property
    def location(self) -> tuple[str, str]:
        return f"{self.place} at {self.gcs_endpoint_url or 'the service'}", self.key_prefix

    @property
    def place(self) -> str:
        return f"gs://{self.gcs_bucket_name}"
