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
    """One entry of `read.callers`: somebody who proves who he is to the read service, and the user he is at the broker.
    Whether that user may read a topic is the broker's to say."""

    bearer_token: Annotated[
        Annotated[Secret, AfterValidator(_bearer_token)] | None, Field(examples=["{file: /run/secrets/reports-token}"])
    ] = None
    """Token that he sends as `Authorization: Bearer`, 32 characters or more (`openssl rand -hex 32`); either this or
    `certificate.subject`."""

    certificate_subject: Annotated[
        Annotated[str, AfterValidator(_distinguished_name)] | None, Field(examples=["CN=reports,O=Example"])
    ] = None
    """Subject of his client certificate (RFC 4514, as `openssl x509 -noout -subject -nameopt RFC2253` prints it); needs
    `read.ssl.client.ca.location`."""

    sasl_username: Annotated[str, Field(min_length=1, examples=["reports"])]
    """Kafka user by whose name the broker is asked."""

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
    """Name of the user, without `User:`; `<default>`: each user whom no other rule names. Default: any user."""

    client_id: Annotated[str | None, Field(min_length=1, examples=["spark"])] = None
    """Client id; `<default>`: each that no rule names. Default: whatever it is. Of HTTP requests it is `http`."""

    consumer_byte_rate: Annotated[BytesPerSecond, Field(examples=["10MiB"])]
    """Bytes per second that all together may read of what is remote to whom the rule stands for one budget."""

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
    """`optional` serves callers without credentials what the broker lets ANONYMOUS read; `required` turns them away."""

    ssl_certificate_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/read.pem"])] = None
    """PEM file with the service's certificate chain; TLS is on when it is set."""

    ssl_key_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/read.key"])] = None
    """PEM file with the private key; default: the certificate's file holds it."""

    ssl_key_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_READ_KEY_PASSWORD}"])] = None
    """Password of the private key."""

    ssl_client_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/clients-ca.pem"])] = None
    """PEM file of the authorities whose client certificates are taken; no other caller gets a connection then, unless
    `ssl.client.auth` is `requested`. A certificate opens the door and no topic: see `callers`."""

    ssl_client_auth: Literal["required", "requested"] = "required"
    """With `ssl.client.ca.location`: whether a caller without a certificate may connect all the same (`requested`)."""

    callers: Annotated[tuple[ReadCaller, ...], Field(examples=["[]"])] = ()
    """Callers who have a bearer token or a client certificate, and the Kafka users that they are."""

    authorization_bootstrap_servers: Annotated[Addresses | None, Field(min_length=1, examples=["127.0.0.1:9093"])] = (
        None
    )
    """Listener on which the broker is asked, with the caller's credentials, what the caller may read; default:
    broker.bootstrap.servers."""

    authorization_security_protocol: SecurityProtocol | None = None
    """Protocol of that listener; default: broker.security.protocol."""

    authorization_sasl_mechanism: Annotated[SaslMechanism | None, Field(examples=["SCRAM-SHA-512"])] = None
    """Mechanism for callers' credentials: PLAIN and SCRAM take `Authorization: Basic`, OAUTHBEARER takes `Authorization:
    Bearer` and passes the token on as it is; default: broker.sasl.mechanism, and PLAIN where that is OAUTHBEARER."""

    max_requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Requests that are served at once, half of them for one caller; more are turned away with 429. Each may hold a chunk
    until its client has taken it."""

    store_requests_per_minute: Annotated[Annotated[int, Field(ge=1)] | None, Field(examples=[6000])] = None
    """Requests for chunks and indexes that reads may make of the store in a minute; over it new reads are turned away with 429,
    and streams wait. Default: none. Changed by a reload (SIGHUP)."""

    hedged_fetches_percent: Annotated[int, Field(ge=0, le=50)] = 5
    """A fetch from the store that takes longer than 95 of 100 like it is sent again, and the first answer counts. At most
    so many percent of all are; 0: none. A filesystem store has no second one."""

    ahead_memory_bytes: Size = 67_108_864
    """Bytes that readers may have fetched ahead, all of them together. A single reader has at most three quarters of it, and
    several have about equal shares."""

    ahead_reader_max_bytes: Size = 67_108_864
    """Bytes that one reader may have fetched ahead. How many it has follows what it measures: the time that a fetch takes,
    times the rate at which the reader reads. 0: none."""

    recheck_ms: PositiveDurationMs = 60_000
    """While a body is sent, the broker is asked so often whether the caller may still read the topic; if not, the body ends
    without its end, lines of JSON with one that says why."""

    write_timeout_ms: PositiveDurationMs = 60_000
    """A client that takes nothing for so long is cut off."""

    write_least_bytes_per_second: Size = 4096
    """What a client must take of a body, on average over each `write.timeout.ms` in which the service waits for it; a slower
    one is cut off. 0: none."""

    chunk_cache_memory_bytes: Size = 134_217_728
    """Bytes of chunks kept in memory, shared by all readers. Segments of a filesystem store that are neither compressed nor
    encrypted are read where they lie and not kept: the kernel's page cache has them."""

    chunk_cache_disk_bytes: Size = 0
    """Bytes of chunks kept on disk in state.dir, in the clear also where the store's objects are encrypted; 0: none. Every
    chunk that is fetched is written there, so it pays where the same chunks are read again and requests to the store are slow
    or cost money."""

    index_max_bytes: Annotated[int, Quantity("size", at_least=1_048_576, at_most=1_073_741_824)] = 10_485_760
    """Largest index of a segment that is fetched: the largest segment.index.bytes of tiered topics, whose default is the same.
    A manifest that speaks of a larger one is taken for damaged."""

    opened_memory_bytes: Annotated[int, Quantity("size", at_least=16_777_216)] = 150_994_944
    """Bytes that compressed record batches may take when they are opened, of all readers together: for lookups by time and for
    NDJSON. A batch is opened piece by piece, so only zstd's window (up to 128 MiB) and single records of more than 1 MiB count.
    What finds no room waits, and is turned away after a while; what needs more than all of it is refused."""

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
    """Where the other machines reach it, for `tiersidecar status` and its like. By default `listen`,
    with this machine's name in place of an address such as 0.0.0.0."""

    cluster_secret: Annotated[
        Annotated[Secret, AfterValidator(_shared_secret)] | None,
        Field(examples=["{file: /run/secrets/tiersidecar-cluster}"]),
    ] = None
    """What the sidecars of the cluster, and the commands that ask them, prove to each other that they know, by a signature: 32
    characters or more (`openssl rand -hex 32`), the same in every configuration. Where it is set, the service answers these and
    browsers on its own machine, or with `page.password`; but for `/healthz`, `/readyz` and `/metrics`. Default: it answers
    everybody who reaches it."""

    page_password: Annotated[
        Annotated[Secret, AfterValidator(_password)] | None, Field(examples=["{file: /run/secrets/tiersidecar-page}"])
    ] = None
    """With `cluster.secret`: what a browser has to give (HTTP Basic, with any user name), wherever it is; 12 characters or
    more. It passes as plain text: put a proxy with TLS in front, or use a tunnel. Default: only browsers on the same machine
    are answered, without one."""

    also_ask: Annotated[Addresses, Field(examples=["[gateway-1.example:8092]"])] = ()
    """Status addresses that the page shows besides those of the sidecars: of gateways and read services in processes of their
    own, which have no lease by which they could be found."""

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
    """Least level that is written."""

    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is `console` on a terminal and `json` elsewhere."""
