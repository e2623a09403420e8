"""What the sidecar listens on, and what it writes to its log."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tiersidecar.app.config_broker import SaslMechanism, SecurityProtocol
from tiersidecar.app.config_document import KeyPath
from tiersidecar.app.config_section import Section, refuse
from tiersidecar.app.config_values import Address, Addresses, FilePath, PositiveDurationMs, Secret, Size


class ReadSection(Section):
    """The HTTP read service (role `read`)."""

    listen: Address = Address("127.0.0.1", 8090)
    """Address to listen on. Any other than a loopback address needs TLS and `authentication: required`."""

    authentication: Literal["optional", "required"] = "optional"
    """`optional` serves callers without credentials what the broker lets ANONYMOUS read; `required` turns them away."""

    ssl_certificate_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/read.pem"])] = None
    """PEM file with the service's certificate chain; TLS is on when it is set."""

    ssl_key_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/read.key"])] = None
    """PEM file with the private key; default: the certificate's file holds it."""

    ssl_key_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_READ_KEY_PASSWORD}"])] = None
    """Password of the private key."""

    authorization_bootstrap_servers: Annotated[Addresses | None, Field(min_length=1, examples=["127.0.0.1:9093"])] = (
        None
    )
    """Listener on which the broker is asked, with the caller's credentials, what the caller may read; default:
    broker.bootstrap.servers."""

    authorization_security_protocol: SecurityProtocol | None = None
    """Protocol of that listener; default: broker.security.protocol."""

    authorization_sasl_mechanism: Annotated[SaslMechanism | None, Field(examples=["SCRAM-SHA-512"])] = None
    """Mechanism for callers' credentials: PLAIN or SCRAM; default: broker.sasl.mechanism."""

    max_requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Requests that are served at once; more are turned away with 429. Each may hold a chunk until its client has taken it."""

    write_timeout_ms: PositiveDurationMs = 60_000
    """A client that takes nothing for so long is cut off."""

    chunk_cache_memory_bytes: Size = 134_217_728
    """Bytes of chunks kept in memory, shared by all readers."""

    chunk_cache_disk_bytes: Size = 0
    """Bytes of chunks kept on disk in state.dir, in the clear also where the store's objects are encrypted; 0: none. Every
    chunk that is fetched is written there, so it pays where the same chunks are read again and requests to the store are slow
    or cost money."""

    @property
    def uses_tls(self) -> bool:
        return self.ssl_certificate_location is not None

    @model_validator(mode="after")
    def _reachable_only_when_safe(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        if not self.listen.is_loopback:
            because = f"because listen ({self.listen}) is not a loopback address"
            if not self.uses_tls:
                faults.append((("ssl.certificate.location",), f"is required {because}"))
            if self.authentication != "required":
                faults.append((("authentication",), f"must be required {because}"))
        if self.ssl_key_location is not None and not self.uses_tls:
            faults.append((("ssl.certificate.location",), "is required with ssl.key.location"))
        if self.authorization_sasl_mechanism == "OAUTHBEARER":
            faults.append((("authorization.sasl.mechanism",), "OAUTHBEARER has no user and password to pass on"))
        refuse(faults)
        return self


class StatusSection(Section):
    """The status service: metrics, health, readiness and the status page.  It has no authentication and shows no payload."""

    listen: Address = Address("127.0.0.1", 8091)
    """Address to listen on; Prometheus and Kubernetes probes need one that they can reach."""

    per_partition_series: Literal["on-request", "always"] = "on-request"
    """`on-request` sums per-partition series by topic, unless a scrape asks for `/metrics?partitions=1`."""


class LoggingSection(Section):
    """Structured logs, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""

    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is `console` on a terminal and `json` elsewhere."""
