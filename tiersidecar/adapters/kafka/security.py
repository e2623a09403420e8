"""Settings of TLS and SASL towards a broker.

The fields are Kafka's client settings of the same meaning; PEM files instead of Java keystores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit


class SecurityProtocol(StrEnum):
    """``security.protocol``."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class SaslMechanism(StrEnum):
    """``sasl.mechanism``."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """A bearer token in a file that another program renews; read again for each login."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenToken:
    """A bearer token that a caller has presented, for this one login.

    Raises:
        ValueError: it has characters that no token has (RFC 6750), and that would break out of its field in the SASL message.
    """

    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", self.token, re.ASCII):
            raise ValueError("a bearer token has other characters than RFC 6750 allows")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """The client credentials grant (RFC 6749 section 4.4), as ``sasl.oauthbearer.token.endpoint.url`` uses it.

    ``ca_file`` is the PEM trust store for the endpoint, None the system's.

    Raises:
        ValueError: not an HTTP URL, or one with a password in it.
    """

    token_endpoint_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        url = urlsplit(self.token_endpoint_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("the token endpoint is not an http or https URL")
        if url.username is not None:
            raise ValueError("the token endpoint's URL must not carry credentials: they are client id and secret")


OauthTokenSource = TokenFile | GivenToken | ClientCredentials


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """One listener's security, from the client's side.

    ``ssl_ca_file`` None means the system's trust store; ``ssl_check_hostname`` is
    ``ssl.endpoint.identification.algorithm`` (https or empty).

    Raises:
        ValueError: settings that contradict each other, with a message for the operator.
    """

    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    sasl_mechanism: SaslMechanism | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    oauth_token_source: OauthTokenSource | None = None
    ssl_ca_file: str | None = None
    ssl_certificate_file: str | None = None
    ssl_key_file: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True

    def __post_init__(self) -> None:
        faults = (*self._sasl_faults(), *self._tls_faults())
        if faults:
            raise ValueError("; ".join(faults))

    def _sasl_faults(self) -> tuple[str, ...]:
        if not self.security_protocol.has_sasl:
            idle = self.sasl_mechanism is not None
            return (f"{self.security_protocol} has no SASL: a SASL mechanism has no effect",) if idle else ()
        match self.sasl_mechanism:
            case None:
                return (f"{self.security_protocol} needs a SASL mechanism",)
            case SaslMechanism.OAUTHBEARER:
                return () if self.oauth_token_source else ("OAUTHBEARER needs a token file or a token endpoint",)
            case mechanism:
                return self._password_faults(mechanism)

    def _password_faults(self, mechanism: SaslMechanism) -> tuple[str, ...]:
        if not self.username or not self.password:
            return (f"{mechanism} needs a username and a password",)
        # NUL separates the fields of a PLAIN message (RFC 4616): inside one it would forge another.
        if "\0" in self.username + self.password:
            return (f"{mechanism} allows no NUL character in the username or the password",)
        return ()

    def _tls_faults(self) -> tuple[str, ...]:
        if self.ssl_key_file is not None and self.ssl_certificate_file is None:
            return ("a client key needs its certificate",)
        return ()


PLAINTEXT = SecuritySettings()
"""No encryption, and no login."""
