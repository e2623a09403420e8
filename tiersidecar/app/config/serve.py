"""The configuration of ``tiersidecar serve``: a bucket, who may read it, and where it is served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import document_faults, validation_faults
from tiersidecar.app.config.document import KeyPath, read_document
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.services import LoggingSection
from tiersidecar.app.config.store import StoreSection
from tiersidecar.app.config.values import (
    Address,
    FilePath,
    PositiveDurationMs,
    PositiveSize,
    Quantity,
    Secret,
    Size,
)
from tiersidecar.domain.errors import ConfigError

_LEAST_PASSWORD = 12
Mechanism = Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
ConnectionCount = Annotated[int, Field(ge=1, le=1_000_000)]


def _password(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _LEAST_PASSWORD or "\0" in secret.get_secret_value():
        reason = "a password has {least} or more characters, and no NUL"
        raise PydanticCustomError("password", reason, {"least": _LEAST_PASSWORD})
    return secret


class ServeUser(Section):
    """One entry of `users`: of the HTTP service and of the Kafka listener."""

    name: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00:]+$", examples=["auditor"])]
    """Name to log in with."""

    password: Annotated[
        Annotated[Secret, AfterValidator(_password)], Field(examples=["{file: /run/secrets/auditor-password}"])
    ]
    """Password, of 12 characters or more."""

    topic_prefixes: Annotated[tuple[str, ...], Field(examples=["[orders, payments.]"])] = ()
    """Prefixes of topic names that the user may read; empty: every topic."""


class TlsKeys(Section):
    """A listener's own certificate."""

    ssl_certificate_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/serve.pem"])] = None
    """PEM file with the certificate chain; TLS is on when it is set."""

    ssl_key_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/serve.key"])] = None
    """PEM file with the private key; default: the certificate's file holds it."""

    ssl_key_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_SERVE_KEY_PASSWORD}"])] = None
    """Password of the private key."""

    @property
    def has_tls(self) -> bool:
        """Return whether clients meet TLS."""
        return self.ssl_certificate_location is not None


class ServeKafkaSection(TlsKeys):
    """The read-only Kafka listener."""

    enabled: bool = True
    """Turn the Kafka listener on."""

    listen: Address = Address("127.0.0.1", 9192)
    """Address to listen on. Any other than a loopback address needs `users`."""

    advertised: Annotated[Address | None, Field(examples=["bucket.example:9192"])] = None
    """Address that Metadata gives to clients; default: `listen`, with this machine's name in place of an address such as
    0.0.0.0."""

    sasl_enabled_mechanisms: tuple[Mechanism, ...] = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
    """Mechanisms by which `users` log in. PLAIN is not offered if the password would be sent over a network without TLS."""

    max_connections: ConnectionCount = 1000
    """Maximum number of connections that have logged in, half of them for one user; further ones are closed."""

    unauthenticated_max_connections: ConnectionCount = 200
    """Maximum number of connections that have not logged in; for one more, the oldest one of the address with the most is
    closed."""

    unauthenticated_request_max_bytes: Annotated[PositiveSize, Field(ge=1024, le=524_288)] = 65_536
    """Largest request before the login."""

    request_max_bytes: Annotated[PositiveSize, Field(ge=65_536, le=104_857_600)] = 1_048_576
    """Largest request after the login."""

    request_memory_bytes: PositiveSize = 268_435_456
    """Memory for all parsed requests after the login, until they are answered; half of it for one user. Each counts as 96
    times its size, a Fetch as 40 times, and one of 1 KiB or less not at all. A request that gets no memory waits, and after
    30 s its connection is closed. Requests that are still arriving share an additional quarter."""

    login_timeout_ms: PositiveDurationMs = 30_000
    """Time within which a new connection must log in."""

    connections_max_idle_ms: PositiveDurationMs = 600_000
    """A client that sends no request for this long is disconnected."""

    write_timeout_ms: PositiveDurationMs = 60_000
    """A client that reads nothing for this long, while data is ready for it, is disconnected."""

    write_least_bytes_per_second: Size = 16_384
    """Minimum rate at which a client must read what is ready for it, on average over each `write.timeout.ms`. 0: none."""

    fetch_max_bytes: PositiveSize = 16_777_216
    """Maximum bytes of records in one response, even if a client requests more; a larger first batch is returned
    nevertheless."""

    fetch_max_wait_ms: PositiveDurationMs = 30_000
    """Longest wait for new records, even if a client requests more."""

    response_memory_bytes: PositiveSize = 268_435_456
    """Memory for all responses until their clients have received them; half of it for one user. A request that gets no
    memory in time is answered without records."""


class ServeHttpSection(TlsKeys):
    """The HTTP read service."""

    enabled: bool = True
    """Turn the HTTP service on."""

    listen: Address = Address("127.0.0.1", 8090)
    """Address to listen on. Any other than a loopback address needs TLS and `users`."""

    max_requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Requests that are served at once, half of them for one caller; further ones get 429."""

    write_timeout_ms: PositiveDurationMs = 60_000
    """A client that reads nothing for this long is disconnected."""

    write_least_bytes_per_second: Size = 4096
    """Minimum rate at which a client must read a body, on average over each `write.timeout.ms`. 0: none."""


class ServeReadSection(Section):
    """The resources for reading, for both listeners together."""

    threads: Annotated[int, Field(ge=1, le=1000)] = 10
    """Reads that run at once."""

    max_pending: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Reads that may wait for a free thread; further ones are rejected, and can be retried."""

    chunk_cache_memory_bytes: Size = 134_217_728
    """Bytes of chunks kept in memory."""

    ahead_memory_bytes: Size = 67_108_864
    """Maximum read-ahead of all readers together, in bytes; a single reader gets at most three quarters of it."""

    ahead_reader_max_bytes: Size = 67_108_864
    """Maximum read-ahead of one reader, in bytes, even with a slow store and a fast reader. 0: none."""

    index_max_bytes: Annotated[int, Quantity("size", at_least=1_048_576, at_most=1_073_741_824)] = 10_485_760
    """Largest index of a segment that is fetched: the largest segment.index.bytes of the topics in the bucket."""

    opened_memory_bytes: Annotated[int, Quantity("size", at_least=16_777_216)] = 150_994_944
    """Memory for decompressed record batches: for lookups by time and for NDJSON."""


class ServeEventsSection(BrokerSection):
    """The cluster whose sidecars or brokers fill the bucket. By its events new segments are served at once."""

    remote_log_metadata_topic_name: str = "__remote_log_metadata"
    """Its metadata topic, of which Describe and Read are needed."""


class ServeStatusSection(Section):
    """`/healthz`, `/readyz`, `/metrics` and `/status`, for every client that reaches the address."""

    listen: Address = Address("127.0.0.1", 8091)
    """Address to listen on."""


class ServeConfig(Section):
    """All of it."""

    store: StoreSection
    """The bucket, as in a sidecar's configuration: its type and location, `key.prefix`, and `encryption.key.pairs` if
    segments are encrypted. Nothing is written to it: read rights are enough."""

    refresh_ms: PositiveDurationMs = 60_000
    """Pause between two listings of the bucket. New segments are seen after this pause and the time of a listing."""

    events: ServeEventsSection | None = None
    """The cluster that fills the bucket, if it can be reached: segments are served as soon as its events report them as
    finished. The listings then only detect what is gone."""

    cluster_id: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["audit-of-orders"])] = None
    """Cluster id that Kafka clients get; default: derived from the location of the store."""

    users: Annotated[tuple[ServeUser, ...], Field(examples=["[]"])] = ()
    """Users of this service; they are independent of any broker's users. Without any, every user of this machine may read
    everything, and the service listens only on loopback addresses."""

    kafka: ServeKafkaSection = Field(default_factory=ServeKafkaSection)
    """The read-only Kafka listener."""

    http: ServeHttpSection = Field(default_factory=ServeHttpSection)
    """The HTTP read service."""

    read: ServeReadSection = Field(default_factory=ServeReadSection)
    """Memory and concurrency of reads."""

    status: ServeStatusSection = Field(default_factory=ServeStatusSection)
    """Health, readiness, metrics."""

    logging: LoggingSection = Field(default_factory=LoggingSection)
    """Structured logs, on standard error."""

    @model_validator(mode="after")
    def _nobody_reads_unasked(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        for name, count in Counter(user.name for user in self.users).items():
            if count > 1:
                faults.append((("users",), f"{name} is there {count} times"))
        if not self.kafka.enabled and not self.http.enabled:
            faults.append((("kafka", "enabled"), "or http.enabled must be true: nothing would be served"))
        faults += self._open_faults()
        refuse(faults)
        return self

    def _open_faults(self) -> list[tuple[KeyPath, str]]:
        faults: list[tuple[KeyPath, str]] = []
        for name, section in (("kafka", self.kafka), ("http", self.http)):
            if not section.enabled or section.listen.is_loopback:
                continue
            if not self.users:
                reason = f"{section.listen} can be reached from other machines: name users, or listen on 127.0.0.1"
                faults.append(((name, "listen"), reason))
            elif name == "http" and not section.has_tls:
                reason = f"passwords would pass to {section.listen} in the clear: set http.ssl.certificate.location"
                faults.append(((name, "listen"), reason))
        if self.users and self.kafka.enabled and not self.mechanisms:
            reason = "PLAIN needs TLS on another than a loopback address: add a SCRAM mechanism, or a certificate"
            faults.append((("kafka", "sasl.enabled.mechanisms"), reason))
        return faults

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Return the SASL mechanisms that are offered; none where no client logs in."""
        if not self.users:
            return ()
        is_private = self.kafka.has_tls or self.kafka.listen.is_loopback
        return tuple(
            mechanism for mechanism in self.kafka.sasl_enabled_mechanisms if is_private or mechanism != "PLAIN"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about settings that work and may not be meant."""
        found = list[str]()
        if self.kafka.enabled and not self.kafka.listen.is_loopback and not self.kafka.has_tls:
            found.append(f"kafka.listen: records pass to {self.kafka.listen} in the clear; a certificate turns TLS on")
        return tuple(found)


def load_serve_config(path: Path, environ: Mapping[str, str]) -> ServeConfig:
    """Read, resolve secrets from ``environ`` and files, and validate.

    Raises:
        ConfigError: with every fault, each naming its line and key.
    """
    document = read_document(path)
    faults = document_faults(document)
    try:
        config = ServeConfig.model_validate(document.data, context={"environ": environ}, by_alias=True, by_name=False)
    except ValidationError as error:
        faults += validation_faults(error, document, ServeConfig)
    else:
        if not faults:
            return config
    sentences = tuple(
        str(fault) for fault in sorted(dict.fromkeys(faults), key=lambda fromkey: (fromkey.line, fromkey.path))
    )
    raise ConfigError(source=str(path), faults=sentences)
