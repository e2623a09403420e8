"""The sidecar's listeners, and its log."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from cryptography import x509
from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from tiersidecar.app.config.broker import SaslMechanism, SecurityProtocol
from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.values import (
    Address,
    Addresses,
    BytesPerSecond,
    FilePath,
    PositiveDurationMs,
    Quantity,
    Secret,
    Size,
    shown,
)

_LEAST_TOKEN = 32
_LEAST_PASSWORD = 12


def _distinguished_name(text: str) -> str:
    try:
        x509.Name.from_rfc4514_string(text)
    except ValueError:
        details = {"got": shown(text)}
        raise PydanticCustomError(
            "subject", "{got} is not a distinguished name such as CN=reports,O=Example", details
        ) from None
    return text


def _bearer_token(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(rf"[A-Za-z0-9._~+/=-]{{{_LEAST_TOKEN},}}", secret.get_secret_value(), re.ASCII):
        reason = "a bearer token has {least} or more characters, letters, digits and . _ ~ + / = - alone"
        raise PydanticCustomError("token", reason, {"least": _LEAST_TOKEN})
    return secret


class ReadCaller(Section):
    """One entry of `read.callers`: what a caller proves its identity with, and its user at the broker.  The broker decides
    whether that user may read a topic."""

    bearer_token: Annotated[
        Annotated[Secret, AfterValidator(_bearer_token)] | None, Field(examples=["{file: /run/secrets/reports-token}"])
    ] = None
    """Token that the caller sends as `Authorization: Bearer`, 32 characters or more (`openssl rand -hex 32`); either this
    or `certificate.subject`."""

    certificate_subject: Annotated[
        Annotated[str, AfterValidator(_distinguished_name)] | None, Field(examples=["CN=reports,O=Example"])
    ] = None
    """Subject of the caller's client certificate (RFC 4514, as `openssl x509 -noout -subject -nameopt RFC2253` prints it);
    needs `read.ssl.client.ca.location`."""

    sasl_username: Annotated[str, Field(min_length=1, examples=["reports"])]
    """Kafka user that the service logs in to the broker as, for this caller."""

    sasl_password: Annotated[Secret, Field(examples=["{file: /run/secrets/reports-password}"])]
    """Password of that user."""

    @model_validator(mode="after")
    def _one_proof(self) -> Self:
        if (self.bearer_token is None) == (self.certificate_subject is None):
            refuse([((), "needs either bearer.token or certificate.subject")])
        return self


class ReaderQuota(Section):
    """A budget of remote bytes, as a client quota of Kafka's: of a user, of a client id, or of both."""

    user: Annotated[str | None, Field(min_length=1, examples=["reports"])] = None
    """Name of the user, without `User:`; `<default>`: each user that no other rule names. Default: any user."""

    client_id: Annotated[str | None, Field(min_length=1, examples=["spark"])] = None
    """Client id; `<default>`: each client id that no other rule names. Default: any. HTTP requests have `http`."""

    consumer_byte_rate: Annotated[BytesPerSecond, Field(examples=["10MiB"])]
    """Bytes per second that all readers with this budget may together read of remote data."""

    @model_validator(mode="after")
    def _of_somebody(self) -> Self:
        if self.user is None and self.client_id is None:
            refuse([((), "needs user, client.id, or both; remote.log.manager.fetch.max.bytes.per.second bounds all")])
        return self


class ReadSection(Section):
    """The HTTP read service (role `read`)."""

    listen: Address = Address("127.0.0.1", 8090)
    """Address to listen on. Any other than a loopback address needs TLS and `authentication: required`."""

    authentication: Literal["optional", "required"] = "optional"
    """`optional`: callers without credentials may read what the broker allows ANONYMOUS; `required`: they are rejected."""

    ssl_certificate_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/read.pem"])] = None
    """PEM file with the service's certificate chain; TLS is on when it is set."""

    ssl_key_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/read.key"])] = None
    """PEM file with the private key; default: the certificate's file holds it."""

    ssl_key_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_READ_KEY_PASSWORD}"])] = None
    """Password of the private key."""

    ssl_client_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/clients-ca.pem"])] = None
    """PEM file of the authorities whose client certificates are accepted. With it, other callers cannot connect, unless
    `ssl.client.auth` is `requested`. A certificate allows a connection, but no topic: see `callers`."""

    ssl_client_auth: Literal["required", "requested"] = "required"
    """With `ssl.client.ca.location`: `requested` also accepts connections without a certificate."""

    callers: Annotated[tuple[ReadCaller, ...], Field(examples=["[]"])] = ()
    """Callers with a bearer token or a client certificate, and the Kafka user of each."""

    authorization_bootstrap_servers: Annotated[Addresses | None, Field(min_length=1, examples=["127.0.0.1:9093"])] = (
        None
    )
    """Broker listener at which the service checks, with the caller's credentials, what the caller may read; default:
    broker.bootstrap.servers."""

    authorization_security_protocol: SecurityProtocol | None = None
    """Protocol of that listener; default: broker.security.protocol."""

    authorization_sasl_mechanism: Annotated[SaslMechanism | None, Field(examples=["SCRAM-SHA-512"])] = None
    """Mechanism for callers' credentials. PLAIN and SCRAM take `Authorization: Basic`; OAUTHBEARER takes `Authorization:
    Bearer` and passes the token on unchanged. Default: broker.sasl.mechanism, or PLAIN if that is OAUTHBEARER."""

    max_requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Requests that are served at once, at most half of them for one caller; further ones get 429. Each may hold a chunk
    until its client has received it."""

    store_requests_per_minute: Annotated[Annotated[int, Field(ge=1)] | None, Field(examples=[6000])] = None
    """Requests to the store, for chunks and indexes, that reads may make in a minute. Above it new reads get 429, and
    streams wait. Default: no limit. Changed by a reload (SIGHUP)."""

    hedged_fetches_percent: Annotated[int, Field(ge=0, le=50)] = 5
    """A fetch from the store that takes longer than 95 % of similar ones is sent again, and the first response is used. At
    most this percentage of fetches are sent twice; 0: none. A filesystem store has no second request."""

    ahead_memory_bytes: Size = 67_108_864
    """Maximum read-ahead of all readers together, in bytes. A single reader gets at most three quarters of it; several get
    about equal shares."""

    ahead_reader_max_bytes: Size = 67_108_864
    """Maximum read-ahead of one reader, in bytes. The actual read-ahead follows measurements: the time of a fetch, times
    the reader's rate. 0: none."""

    recheck_ms: PositiveDurationMs = 60_000
    """How often, while a body is sent, the service asks the broker whether the caller may still read the topic. If not, the
    body is cut off; lines of JSON end with one that gives the reason."""

    write_timeout_ms: PositiveDurationMs = 60_000
    """A client that reads nothing for this long is disconnected."""

    write_least_bytes_per_second: Size = 4096
    """Minimum rate at which a client must read a body, on average over each `write.timeout.ms` in which the service waits
    for it; a slower client is disconnected. 0: none."""

    chunk_cache_memory_bytes: Size = 134_217_728
    """Bytes of chunks kept in memory, shared by all readers. Segments of a filesystem store that are neither compressed nor
    encrypted are not cached here: the kernel's page cache has them."""

    chunk_cache_disk_bytes: Size = 0
    """Bytes of chunks kept on disk in state.dir, unencrypted even if the store's objects are encrypted; 0: none. Every
    fetched chunk is written there, so use it if the same chunks are read repeatedly and requests to the store are slow or
    expensive."""

    index_max_bytes: Annotated[int, Quantity("size", at_least=1_048_576, at_most=1_073_741_824)] = 10_485_760
    """Largest index of a segment that is fetched: the largest segment.index.bytes of tiered topics, which has the same
    default. A manifest with a larger one counts as damaged."""

    opened_memory_bytes: Annotated[int, Quantity("size", at_least=16_777_216)] = 150_994_944
    """Memory for decompressed record batches, of all readers together: for lookups by time and for NDJSON. A batch is
    decompressed piece by piece, so only zstd's window (up to 128 MiB) and single records of more than 1 MiB count. A read
    that gets no memory waits, and is rejected after a while; one that needs more than all of it is refused."""

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
        refuse(faults)
        return self

    @model_validator(mode="after")
    def _callers_can_be_known(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        if self.ssl_client_ca_location is not None and not self.uses_tls:
            faults.append((("ssl.certificate.location",), "is required with ssl.client.ca.location"))
        if self.callers and self.authorization_sasl_mechanism == "OAUTHBEARER":
            faults.append(
                (("callers",), "have passwords, which authorization.sasl.mechanism OAUTHBEARER does not take")
            )
        proofs: set[object] = set()
        for number, caller in enumerate(self.callers):
            if caller.certificate_subject is not None and self.ssl_client_ca_location is None:
                faults.append((("callers", number, "certificate.subject"), "needs read.ssl.client.ca.location"))
            proof = caller.bearer_token or caller.certificate_subject
            if proof in proofs:
                faults.append((("callers", number), "has the token or the subject of an earlier one"))
            proofs.add(proof)
        refuse(faults)
        return self


def _shared_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _LEAST_TOKEN:
        raise PydanticCustomError("secret", "must have {least} characters or more", {"least": _LEAST_TOKEN})
    return secret


def _password(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _LEAST_PASSWORD:
        raise PydanticCustomError("password", "must have {least} characters or more", {"least": _LEAST_PASSWORD})
    return secret


class StatusSection(Section):
    """The status service: metrics, health, readiness and the page of the cluster.  It shows no payload."""

    listen: Address = Address("127.0.0.1", 8091)
    """Address to listen on; Prometheus and Kubernetes probes need one that they can reach."""

    advertised: Annotated[Address | None, Field(examples=["broker-1.example:8091"])] = None
    """Address at which other machines reach the service, for `tiersidecar status` and similar commands. Default: `listen`,
    with this machine's name in place of an address such as 0.0.0.0."""

    cluster_secret: Annotated[
        Annotated[Secret, AfterValidator(_shared_secret)] | None,
        Field(examples=["{file: /run/secrets/tiersidecar-cluster}"]),
    ] = None
    """Secret by which the sidecars of the cluster, and the commands that ask them, authenticate each other with signatures:
    32 characters or more (`openssl rand -hex 32`), the same in every configuration. With it, the service answers only
    these, browsers on its own machine, and browsers with `page.password`; except for `/healthz`, `/readyz` and `/metrics`.
    Default: it answers every request."""

    page_password: Annotated[
        Annotated[Secret, AfterValidator(_password)] | None, Field(examples=["{file: /run/secrets/tiersidecar-page}"])
    ] = None
    """With `cluster.secret`: password that every browser must send (HTTP Basic, any user name); 12 characters or more. It
    is sent in plain text: put a proxy with TLS in front, or use a tunnel. Default: only browsers on the same machine get
    answers, without a password."""

    also_ask: Annotated[Addresses, Field(examples=["[gateway-1.example:8092]"])] = ()
    """Additional status addresses for the page: gateways and read services in processes of their own, which have no lease
    and so cannot be found."""

    per_partition_series: Literal["on-request", "always"] = "on-request"
    """`on-request` sums per-partition series by topic, unless a scrape asks for `/metrics?partitions=1`."""

    @model_validator(mode="after")
    def _password_of_a_secret(self) -> Self:
        if self.page_password is not None and self.cluster_secret is None:
            refuse([(("page.password",), "needs cluster.secret: without it the page answers every request")])
        return self

    def advertised_by(self, host_name: str) -> Address:
        """Return where others reach it, on a machine of this name."""
        if self.advertised is not None:
            return self.advertised
        is_any = self.listen.host in {"0.0.0.0", "::"}
        return Address(host_name, self.listen.port) if is_any else self.listen


class LoggingSection(Section):
    """Structured logs, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""

    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is `console` on a terminal and `json` elsewhere."""
