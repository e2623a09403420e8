"""Build the gateway's parts: the table of rewrites, TLS on both sides, limits."""

from __future__ import annotations

import ssl

from tiersidecar.adapters.kafka.security import SecurityProtocol, SecuritySettings
from tiersidecar.adapters.kafka.tls import ssl_context
from tiersidecar.app.builders.gateway_fill import RemoteTier, fill_rewrites
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.gateway import GatewayListenerSection, GatewaySection
from tiersidecar.app.parts import Parts
from tiersidecar.domain.errors import ConfigError
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.exchange import Rewrites
from tiersidecar.services.gateway.limits import GatewayLimits
from tiersidecar.services.gateway.listener import ListenerSettings
from tiersidecar.services.gateway.rewrites import ApiVersionsRewrite, frame_rewrites
from tiersidecar.services.gateway.unauthenticated import UnauthenticatedLimits


def gateway_rewrites(parts: Parts, tier: RemoteTier, advertised: AdvertisedAddresses) -> Rewrites:
    """Return the rewrites by API key; ApiVersions comes last, because it offers clients what the others can rewrite."""
    raw_tokens = parts.config.gateway.sasl_raw_tokens
    rewrites = frame_rewrites(advertised, topic_id=tier.tiered.topic_id, raw_tokens=raw_tokens)
    rewrites |= fill_rewrites(parts, tier, advertised)
    rewrites[ApiKey.API_VERSIONS] = ApiVersionsRewrite(rewrites)
    return rewrites


def advertised_addresses(section: GatewayListenerSection, node_id: int) -> AdvertisedAddresses:
    """Return the addresses for a gateway in front of broker ``node_id``."""
    nodes = {node: (address.host, address.port) for node, address in section.advertised_nodes.items()}
    if not nodes and section.advertised_pattern is None:
        nodes[node_id] = (section.listen.host, section.listen.port)
    return AdvertisedAddresses(nodes=nodes, pattern=section.advertised_pattern)


def gateway_limits(section: GatewaySection) -> GatewayLimits:
    return GatewayLimits(
        socket_request_max_bytes=section.socket_request_max_bytes,
        max_in_flight_requests=section.max_in_flight_requests,
        request_timeout_s=section.request_timeout_ms / 1000,
        write_timeout_s=section.write_timeout_ms / 1000,
        least_taken_bytes_per_s=section.write_least_bytes_per_second,
        connect_timeout_s=section.connect_timeout_ms / 1000,
    )


def unauthenticated_limits(section: GatewaySection) -> UnauthenticatedLimits:
    return UnauthenticatedLimits(
        buffer_bytes=section.unauthenticated_buffer_bytes,
        request_bytes=section.unauthenticated_request_max_bytes,
        login_timeout_s=section.login_timeout_ms / 1000,
        max_connections=section.unauthenticated_max_connections,
        max_connections_per_ip=section.unauthenticated_max_connections_per_ip,
    )


def listener_settings(
    config: Config, section: GatewayListenerSection, *, is_one_of_several: bool = False
) -> ListenerSettings:
    """Return what a listener needs; ``is_one_of_several``: each worker has one at the same address.

    Raises:
        ConfigError: a certificate cannot be used.
    """
    broker = section.broker or config.broker.bootstrap_servers[0]
    return ListenerSettings(
        name=section.name,
        host=section.listen.host,
        port=section.listen.port,
        broker_host=broker.host,
        broker_port=broker.port,
        tls=_client_tls(section),
        broker_tls=_broker_tls(config, section),
        max_connections=section.max_connections,
        max_connections_per_ip=section.max_connections_per_ip,
        is_one_of_several=is_one_of_several,
    )


def _broker_tls(config: Config, section: GatewayListenerSection) -> ssl.SSLContext | None:
    """Return the TLS context without the sidecar's certificate: with it, every client would be the sidecar."""
    broker = config.broker
    if section.broker_tls == "off" or (section.broker_tls == "auto" and not broker.uses_tls):
        return None
    return ssl_context(
        SecuritySettings(
            security_protocol=SecurityProtocol.SSL,
            ssl_ca_file=broker.ssl_ca_location,
            ssl_check_hostname=broker.ssl_endpoint_identification_algorithm == "https",
        )
    )


def _client_tls(section: GatewayListenerSection) -> ssl.SSLContext | None:
    if section.ssl_certificate_location is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = "" if section.ssl_key_password is None else section.ssl_key_password.get_secret_value()
    source = f"gateway.listeners {section.name}"
    try:
        context.load_cert_chain(section.ssl_certificate_location, section.ssl_key_location, lambda: password)
    except OSError as error:
        fault = f"ssl.certificate.location: {section.ssl_certificate_location} cannot be used: {error}"
        raise ConfigError(source=source, faults=(fault,)) from error
    if section.ssl_client_auth == "required":
        try:
            context.load_verify_locations(cafile=section.ssl_ca_location)
        except OSError as error:
            fault = f"ssl.ca.location: {section.ssl_ca_location} cannot be used: {error}"
            raise ConfigError(source=source, faults=(fault,)) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
