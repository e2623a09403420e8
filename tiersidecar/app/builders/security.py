"""Turn the configuration's security settings into those of the Kafka adapter."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tiersidecar.adapters.kafka.authorizer import CallerListener
from tiersidecar.adapters.kafka.security import (
    ClientCredentials,
    OauthTokenSource,
    SaslMechanism,
    SecurityProtocol,
    SecuritySettings,
    TokenFile,
)
from tiersidecar.app.config.broker import BrokerSection
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.services import ReadSection
from tiersidecar.app.config.values import plain
from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.broker import Credentials

if TYPE_CHECKING:
    from tiersidecar.services.reader.callers import KnownCallers


def bootstrap_servers(section: BrokerSection) -> str:
    """Return ``host:port,...``."""
    return ",".join(str(address) for address in section.bootstrap_servers)


def broker_security(section: BrokerSection) -> SecuritySettings:
    """Return the settings of every connection that the sidecar opens as itself."""
    return SecuritySettings(
        security_protocol=SecurityProtocol(section.security_protocol),
        sasl_mechanism=None if section.sasl_mechanism is None else SaslMechanism(section.sasl_mechanism),
        username=section.sasl_username,
        password=plain(section.sasl_password),
        oauth_token_source=_token_source(section),
        ssl_ca_file=section.ssl_ca_location,
        ssl_certificate_file=section.ssl_certificate_location,
        ssl_key_file=section.ssl_key_location,
        ssl_key_password=plain(section.ssl_key_password),
        ssl_check_hostname=section.ssl_endpoint_identification_algorithm == "https",
    )


def caller_listener(config: Config) -> CallerListener:
    """Return the listener on which callers' credentials are tried, with none of the sidecar's secrets."""
    read, broker = config.read, config.broker
    protocol = SecurityProtocol(read.authorization_security_protocol or broker.security_protocol)
    mechanism = read.authorization_sasl_mechanism or broker.sasl_mechanism or "PLAIN"
    if read.authorization_sasl_mechanism is None and mechanism == "OAUTHBEARER":
        mechanism = "PLAIN"  # a token of ours says nothing of what callers have
    servers = read.authorization_bootstrap_servers or broker.bootstrap_servers
    return CallerListener(
        bootstrap_servers=",".join(str(address) for address in servers),
        security_protocol=protocol,
        sasl_mechanism=SaslMechanism(mechanism) if protocol.has_sasl else None,
        ssl_ca_file=broker.ssl_ca_location if protocol.has_tls else None,
        ssl_check_hostname=broker.ssl_endpoint_identification_algorithm == "https",
    )


def known_callers(read: ReadSection) -> KnownCallers:
    """Return the callers to which ``read.callers`` assigns a user of the broker."""
    # Here, because it loads an HTTP server, and a Spark job that only wants to reach the broker has none.
    from tiersidecar.services.reader.callers import KnownCaller, KnownCallers

    return KnownCallers(
        KnownCaller(
            token=plain(caller.bearer_token),
            subject=caller.certificate_subject,
            credentials=Credentials(username=caller.sasl_username, password=plain(caller.sasl_password)),
        )
        for caller in read.callers
    )


def server_tls(section: ReadSection) -> ssl.SSLContext | None:
    """Return the read service's own certificate, and whose client certificates it takes; None without TLS.

    Raises:
        ConfigError: a file cannot be used.
    """
    if section.ssl_certificate_location is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    password = None if section.ssl_key_password is None else section.ssl_key_password.get_secret_value()
    try:
        context.load_cert_chain(section.ssl_certificate_location, section.ssl_key_location, password)
    except (OSError, ssl.SSLError) as error:
        fault = f"read.ssl.certificate.location: {section.ssl_certificate_location} cannot be used: {error}"
        raise ConfigError(source="read", faults=(fault,)) from error
    if section.ssl_client_ca_location is not None:
        context.verify_mode = ssl.CERT_REQUIRED if section.ssl_client_auth == "required" else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(section.ssl_client_ca_location)
        except (OSError, ssl.SSLError) as error:
            fault = f"read.ssl.client.ca.location: {section.ssl_client_ca_location} cannot be used: {error}"
            raise ConfigError(source="read", faults=(fault,)) from error
    return context


def _token_source(section: BrokerSection) -> OauthTokenSource | None:
    url = section.sasl_oauthbearer_token_endpoint_url
    if url is None:
        return None
    if url.startswith("file:"):
        return TokenFile(path=unquote(urlsplit(url).path))
    return ClientCredentials(
        token_endpoint_url=url,
        client_id=section.sasl_oauthbearer_client_credentials_client_id or "",
        client_secret=plain(section.sasl_oauthbearer_client_credentials_client_secret) or "",
        scope=section.sasl_oauthbearer_scope,
        ca_file=section.sasl_oauthbearer_ssl_ca_location,
    )
