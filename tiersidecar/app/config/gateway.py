"""The Kafka gateway: where it listens, the addresses that clients get, and its limits."""

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
    """What clients get instead of a broker's own address: host and port of the gateway in front of the broker
    `{node.id}`."""

    advertised_nodes: Annotated[
        Mapping[NodeId, Address], Field(examples=["{1: 'gw1.example.com:9192', 2: 'gw2.example.com:9192'}"])
    ] = {}
    """The same by node id, for brokers whose gateways fit no pattern. A broker with neither is advertised under a name
    below `.invalid`, so that no client goes around its gateway. With no pattern and no map, `listen` stands for the local
    broker."""

    broker: Annotated[Address | None, Field(examples=["127.0.0.1:9092"])] = None
    """The local broker's listener that this one stands in front of; default: the first of broker.bootstrap.servers."""

    broker_tls: Literal["auto", "on", "off"] = "auto"
    """Whether that listener has TLS (SSL or SASL_SSL); `auto`: as broker.security.protocol says. The broker's certificate is
    checked by broker.ssl.ca.location; the gateway shows it none of its own."""

    ssl_certificate_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/gateway.pem"])] = None
    """PEM file with the gateway's certificate chain; clients meet TLS when it is set."""

    ssl_key_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/gateway.key"])] = None
    """PEM file with the private key; default: the certificate's file holds it."""

    ssl_key_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_GATEWAY_KEY_PASSWORD}"])] = None
    """Password of the private key."""

    ssl_client_auth: Literal["none", "required"] = "none"
    """`required` takes only clients with a certificate that ssl.ca.location has signed. It is an additional lock: the broker
    does not learn whose certificate it was."""

    ssl_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/clients-ca.pem"])] = None
    """PEM file of the authorities that sign clients' certificates."""

    max_connections: ConnectionCount = 10_000
    """Most client connections at a time; each has one of its own to the broker. More are closed at once."""

    max_connections_per_ip: ConnectionCount = 10_000
    """Most client connections of one address: the broker's own limit sees the gateway's address only."""

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
    """One for each listener of the broker that clients use; without any the role does nothing."""

    socket_request_max_bytes: Annotated[PositiveSize, Field(le=2**31 - 1)] = 104_857_600
    """Largest request of a client, as the broker's own setting."""

    max_in_flight_requests: Annotated[int, Field(ge=2, le=100_000)] = 100
    """Requests of one connection that the broker has not answered; more wait in the client's socket."""

    sasl_raw_tokens: bool = False
    """Whether clients may log in as before Kafka 1.0: by SaslHandshake of version 0, or GSSAPI without one, and then tokens
    without headers. Off, ApiVersions offers SaslHandshake from version 1 on, and other clients are refused."""

    request_timeout_ms: PositiveDurationMs = 30_000
    """Time for a request to arrive whole once it has begun, and a second more for each 64 KiB of it."""

    write_timeout_ms: PositiveDurationMs = 300_000
    """A client that takes nothing for so long while there is something for it is cut off."""

    write_least_bytes_per_second: Size = 16_384
    """What a client must take of what waits for it, on average over each `write.timeout.ms`; a slower one is cut off, with an
    audit event. It asks for less, or reads on, if it needs longer for its records. 0: none."""

    connect_timeout_ms: PositiveDurationMs = 10_000
    """Time for a client's TLS handshake and for the connection to the broker."""

    unauthenticated_request_max_bytes: Annotated[PositiveSize, Field(ge=1024, le=524_288)] = 65_536
    """Largest request, and SASL token, of a connection that has not logged in. A broker's own limit is
    sasl.server.max.receive.size, 512 KiB: raise it for larger tokens (Kerberos, OAuth)."""

    unauthenticated_buffer_bytes: Annotated[PositiveSize, Field(ge=1_048_576)] = 16_777_216
    """What all connections that have not logged in may have in the gateway's memory together; those that have held something
    longest are closed first."""

    unauthenticated_max_connections: ConnectionCount = 1000
    """Connections that have not logged in, of all listeners together; for one more the oldest is closed, of the address that
    has most of them. No connection that has logged in counts, nor any of a listener whose broker demands no login."""

    unauthenticated_max_connections_per_ip: ConnectionCount = 500
    """The same of one address."""

    login_timeout_ms: PositiveDurationMs = 30_000
    """Time from a connection to its login."""

    response_memory_bytes: PositiveSize = 268_435_456
    """Most bytes of responses that are held to be rewritten, or filled in, of all connections together; further ones wait at
    the broker. One connection has a quarter of it at most, and those of one user (or address, where no user is known) three
    times what is left free. A response of more than a quarter is held beside it, one at a time."""

    remote_log_dir: Annotated[str | None, Field(pattern=r"^remote://[!-~]{0,200}$", examples=["remote://tier"])] = None
    """A log dir of this name is added to the answers of DescribeLogDirs, with remote bytes of each partition that the broker
    leads, for tools that show sizes. Tools that look for a replica's directory may take it for that: see the gateway's page.
    Unset: the broker's answers pass as they are."""

    audit_topic_name: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$", examples=["gateway-audit"])] = (
        None
    )
    """A topic to which every delete, and every conversation that was refused or malformed, is written, beside the log. You make
    it; the gateway needs Write on it. What it does not take for long is lost there, and counted."""

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
