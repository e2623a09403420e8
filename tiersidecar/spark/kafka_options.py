"""Turn security settings into options of Spark's Kafka source: Java's client settings, each ``kafka.``-prefixed.

Certificates and keys go as PEM text, not as paths: executors need not have the driver's files.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization

from tiersidecar.adapters.kafka.security import (
    ClientCredentials,
    GivenToken,
    SaslMechanism,
    SecuritySettings,
    TokenFile,
)
from tiersidecar.domain.errors import ConfigError

_MODULES = "org.apache.kafka.common.security"
_LOGIN = {
    SaslMechanism.PLAIN: f"{_MODULES}.plain.PlainLoginModule",
    SaslMechanism.SCRAM_SHA_256: f"{_MODULES}.scram.ScramLoginModule",
    SaslMechanism.SCRAM_SHA_512: f"{_MODULES}.scram.ScramLoginModule",
    SaslMechanism.OAUTHBEARER: f"{_MODULES}.oauthbearer.OAuthBearerLoginModule",
}


def kafka_options(bootstrap_servers: str, security: SecuritySettings) -> dict[str, str]:
    """Return the options for ``spark.read.format("kafka")``.

    Raises:
        ConfigError: a certificate or key file that cannot be read.
    """
    options = {"bootstrap.servers": bootstrap_servers, "security.protocol": security.security_protocol.value}
    if security.security_protocol.has_sasl:
        options |= _sasl(security)
    if security.security_protocol.has_tls:
        options |= _tls(security)
    return {f"kafka.{key}": value for key, value in options.items()}


def _sasl(security: SecuritySettings) -> dict[str, str]:
    mechanism = security.sasl_mechanism
    assert mechanism is not None  # SecuritySettings refuses it
    options = {"sasl.mechanism": mechanism.value}
    if mechanism is not SaslMechanism.OAUTHBEARER:
        given = {"username": security.username or "", "password": security.password or ""}
        return {**options, "sasl.jaas.config": _jaas(mechanism, given)}
    options["sasl.login.callback.handler.class"] = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
    match security.oauth_token_source:
        case TokenFile(path=path):
            return {
                **options,
                "sasl.oauthbearer.token.endpoint.url": Path(path).absolute().as_uri(),
                "sasl.jaas.config": _jaas(mechanism, {}),
            }
        case ClientCredentials() as source:
            given = {"clientId": source.client_id, "clientSecret": source.client_secret}
            if source.scope is not None:
                given["scope"] = source.scope
            return {
                **options,
                "sasl.oauthbearer.token.endpoint.url": source.token_endpoint_url,
                "sasl.jaas.config": _jaas(mechanism, given),
            }
        case GivenToken() | None:
            raise AssertionError(
                "a configuration has a file or an endpoint for OAUTHBEARER: SecuritySettings sees to it"
            )


def _jaas(mechanism: SaslMechanism, given: dict[str, str]) -> str:
    words = "".join(f' {name}="{_escaped(value)}"' for name, value in given.items())
    return f"{_LOGIN[mechanism]} required{words};"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _tls(security: SecuritySettings) -> dict[str, str]:
    options = {"ssl.endpoint.identification.algorithm": "https" if security.ssl_check_hostname else ""}
    if security.ssl_ca_file is not None:
        options |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _read(security.ssl_ca_file).decode(),
        }
    if security.ssl_certificate_file is not None:
        key_file = security.ssl_key_file or security.ssl_certificate_file
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _read(security.ssl_certificate_file).decode(),
            "ssl.keystore.key": _pkcs8(key_file, security.ssl_key_password),
        }
    return options


def _pkcs8(path: str, password: str | None) -> str:
    """Return the key in the only form that Java reads."""
    try:
        key = serialization.load_pem_private_key(_read(path), None if password is None else password.encode())
    except (TypeError, ValueError) as error:
        raise ConfigError(source="broker", faults=(f"ssl.key.location: {path}: {error}",)) from error
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(source="broker", faults=(f"{path}: {error.strerror}",)) from error
