"""The Kafka gateway: where it listens, what it advertises to clients, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.values import Address, FilePath, PositiveDurationMs, PositiveSize, Secret, Size
from tiersidecar.services.gateway.advertised import AdvertisedAddresses

ConnectionCount = Annotated[int, Field(ge=1, le=1_000_000)]
NodeId = Annotated[int, Field(ge=0, le=2**31 - 1)]
ListenerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]


class GatewayListenerSection(Section):
    """One address for clients, in front of one listener of the local broker."""

    name: ListenerName = "GATEWAY"
    """Its name in metrics and the log."""

    listen: Annotated[Address, Field(examples=["0.0.0.0:9192"])]
    """Address to listen on."""

    advertised_pattern: Annotated[
        str | None, Field(examples=["broker-{node.id}.kafka.example.com:9192", "127.0.0.1:{19092+node.id}"])
    ] = None
    """Address that clients get in place of broker `{node.id}`'s own: host and port of the gateway in front of it."""

    advertised_nodes: Annotated[
        Mapping[NodeId, Address], Field(examples=["{1: 'gw1.example.com:9192', 2: 'gw2.example.com:9192'}"])
    ] = {}
    """The same by node id, for brokers that do not fit the pattern. A broker with neither gets a name below `.invalid`, so
    that no client bypasses its gateway. Without both keys, `listen` is advertised for the local broker."""

    broker: Annotated[Address | None, Field(examples=["127.0.0.1:9092"])] = None
    """The listener of the local broker behind this one; default: the first of broker.bootstrap.servers."""

    broker_tls: Literal["auto", "on", "off"] = "auto"
    """Use of TLS by that listener (SSL or SASL_SSL); `auto`: as in broker.security.protocol. The broker's certificate is
    checked against broker.ssl.ca.location; the gateway presents none of its own."""

    ssl_certificate_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/gateway.pem"])] = None
    """PEM file with the gateway's certificate chain; clients must use TLS if it is set."""

    ssl_key_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/gateway.key"])] = None
    """PEM file with the private key; default: the certificate's file holds it."""

    ssl_key_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_GATEWAY_KEY_PASSWORD}"])] = None
    """Password of the private key."""

    ssl_client_auth: Literal["none", "required"] = "none"
    """`required` accepts only clients with a certificate that ssl.ca.location has signed. This is an additional barrier:
    the broker does not learn the certificate's subject."""

    ssl_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/clients-ca.pem"])] = None
    """PEM file of the authorities that sign clients' certificates."""

    max_connections: ConnectionCount = 10_000
    """Maximum number of client connections; each has its own connection to the broker. Further ones are closed at once."""

    max_connections_per_ip: ConnectionCount = 10_000
    """Maximum number of client connections from one address; the broker's own limit sees only the gateway's address."""

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        try:
            AdvertisedAddresses(pattern=self.advertised_pattern)
        except ValueError as error:
            faults.append((("advertised.pattern",), str(error)))
        if self.ssl_certificate_location is None:
            given = (self.ssl_key_location, self.ssl_key_password)
            if any(value is not None for value in given) or self.ssl_client_auth == "required":
                faults.append((("ssl.certificate.location",), "is required for the other ssl settings to have effect"))
        if self.ssl_client_auth == "required" and self.ssl_ca_location is None:
            faults.append((("ssl.ca.location",), "is required with ssl.client.auth: required"))
        refuse(faults)
        return self


class GatewaySection(Section):
    """The Kafka gateway (role `gateway`): clients reach the local broker through it, and tiered records with it."""

    listeners: Annotated[tuple[GatewayListenerSection, ...], Field(examples=["[]"])] = ()
    """One for each listener of the broker that clients use; without any, the role does nothing."""

    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that serve the listeners' clients. With 1 the process with the role `gateway` does so itself, on one core. With
    more it starts that many, among which the system distributes connections (SO_REUSEPORT), and serves no client. Each has
    metadata of its own in memory; limits and quotas hold for all together: see docs/gateway.md."""

    socket_request_max_bytes: Annotated[PositiveSize, Field(le=2**31 - 1)] = 104_857_600
    """Largest request of a client, like the broker's own setting."""

    max_in_flight_requests: Annotated[int, Field(ge=2, le=100_000)] = 100
    """Requests of one connection that the broker has not answered yet; further ones wait in the client's socket."""

    sasl_raw_tokens: bool = False
    """Allow logins as before Kafka 1.0: SaslHandshake version 0, or GSSAPI without a handshake, followed by tokens without
    headers. If off, ApiVersions offers SaslHandshake from version 1 on, and such clients are refused."""

    request_timeout_ms: PositiveDurationMs = 30_000
    """Time within which a request that has begun must arrive completely, plus a second for each 64 KiB of it."""

    write_timeout_ms: PositiveDurationMs = 300_000
    """A client that reads nothing for this long, while data is ready for it, is disconnected."""

    write_least_bytes_per_second: Size = 16_384
    """Minimum rate at which a client must read what is ready for it, on average over each `write.timeout.ms`; a slower one
    is disconnected, with an audit event. A client that needs longer to process its records should fetch less at a time, or
    keep reading. 0: none."""

    connect_timeout_ms: PositiveDurationMs = 10_000
    """Time limit for a client's TLS handshake, and for the connection to the broker."""

    unauthenticated_request_max_bytes: Annotated[PositiveSize, Field(ge=1024, le=524_288)] = 65_536
    """Largest request, and SASL token, of a connection that has not logged in. A broker's own limit is
    sasl.server.max.receive.size, 512 KiB: raise it for larger tokens (Kerberos, OAuth)."""

    unauthenticated_buffer_bytes: Annotated[PositiveSize, Field(ge=1_048_576)] = 16_777_216
    """Memory for all connections that have not logged in. If it is used up, those that have held data longest are closed
    first."""

    unauthenticated_max_connections: ConnectionCount = 1000
    """Maximum number of connections that have not logged in, for all listeners together. For one more, the oldest is
    closed, of the address with the most of them. Connections of a listener whose broker requires no login do not count."""

    unauthenticated_max_connections_per_ip: ConnectionCount = 500
    """The same for one address."""

    login_timeout_ms: PositiveDurationMs = 30_000
    """Time within which a new connection must log in."""

    response_memory_bytes: PositiveSize = 268_435_456
    """Memory for responses that are rewritten or filled in, for all connections together; further responses wait at the
    broker. One connection gets at most a quarter of it, and those of one user (or address, if the user is unknown) at most
    three times what is still free. A response of more than a quarter is held outside it, one at a time."""

    remote_log_dir: Annotated[str | None, Field(pattern=r"^remote://[!-~]{0,200}$", examples=["remote://tier"])] = None
    """Name of an additional log dir in DescribeLogDirs responses, with the remote bytes of each partition that the broker
    leads, for tools that show sizes. Tools that look for a replica's directory may mistake it for that: see the gateway's
    page. Unset: the broker's responses pass unchanged."""

    audit_topic_name: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$", examples=["gateway-audit"])] = (
        None
    )
    """Topic for audit events, in addition to the log: every delete, and every connection that was refused or malformed. You
    create it; the gateway needs Write on it. Events that it does not accept for too long are missing there, and counted."""

    @model_validator(mode="after")
    def _settings_of_workers_fit_together(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        if self.workers > 1 and not self.listeners:
            faults.append((("workers",), "needs listeners: without any, the workers have nothing to do"))
        refuse(faults)
        return self

    @model_validator(mode="after")
    def _listeners_differ(self) -> Self:
        faults: list[tuple[KeyPath, str]] = []
        for index, listener in enumerate(self.listeners):
            for other in self.listeners[:index]:
                if listener.name == other.name:
                    faults.append((("listeners", index, "name"), f"{listener.name} is there twice"))
                if listener.listen == other.listen and listener.listen.port != 0:
                    faults.append((("listeners", index, "listen"), f"{listener.listen} is there twice"))
        refuse(faults)
        return self
