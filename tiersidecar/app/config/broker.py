"""How the sidecar reaches its broker: Kafka's own client settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import Section, refuse
from tiersidecar.app.config.values import Addresses, FilePath, PositiveDurationMs, Resolved, Secret

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class BrokerSection(Section):
    """The local broker; every connection that the sidecar makes to Kafka uses these settings (S-303)."""

    bootstrap_servers: Annotated[Addresses, Field(min_length=1, examples=["127.0.0.1:9092"])]
    """Listener of the local broker, `host:port`; several are a list or separated by commas."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    """Protocol of that listener."""

    sasl_mechanism: SaslMechanism | None = None
    """SASL mechanism; required with SASL_PLAINTEXT and SASL_SSL."""

    sasl_username: Annotated[Resolved | None, Field(examples=["tiersidecar"])] = None
    """User for PLAIN and SCRAM. With `{env: NAME}` a gateway in its own process can use another user with the same file."""

    sasl_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_SASL_PASSWORD}"])] = None
    """Password for PLAIN and SCRAM."""

    sasl_oauthbearer_token_endpoint_url: Annotated[
        str | None,
        Field(pattern=r"^(https?://[^\s/]+.*|file:///.+)$", examples=["https://login.example.com/oauth2/token"]),
    ] = None
    """Source of OAUTHBEARER tokens: `https://…` (client credentials grant), or `file:///path` to a token that another
    program renews; the file is read again for each authentication."""

    sasl_oauthbearer_client_credentials_client_id: Annotated[str | None, Field(examples=["tiersidecar"])] = None
    """Client id for the client credentials grant."""

    sasl_oauthbearer_client_credentials_client_secret: Annotated[
        Secret | None, Field(examples=["{file: /etc/tiersidecar/oauth-client-secret}"])
    ] = None
    """Client secret for the client credentials grant."""

    sasl_oauthbearer_scope: Annotated[str | None, Field(examples=["kafka"])] = None
    """Scope to request, if the identity provider requires one."""

    sasl_oauthbearer_ssl_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/idp-ca.pem"])] = None
    """PEM file of the authorities that signed the identity provider's certificate; default: the system's."""

    ssl_ca_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/ca.pem"])] = None
    """PEM file of the authorities that signed the broker's certificate; default: the system's."""

    ssl_certificate_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/client.pem"])] = None
    """PEM file with the client certificate chain, for mutual TLS."""

    ssl_key_location: Annotated[FilePath | None, Field(examples=["/etc/tiersidecar/client.key"])] = None
    """PEM file with the client's private key; default: the certificate's file holds it."""

    ssl_key_password: Annotated[Secret | None, Field(examples=["{env: TIERSIDECAR_KEY_PASSWORD}"])] = None
    """Password of the private key."""

    ssl_endpoint_identification_algorithm: Literal["https", ""] = "https"
    """`https` checks that the certificate names the host; empty does not."""

    client_id: str = "tiersidecar"
    """The sidecar's client id, in the broker's request log and quotas."""

    request_timeout_ms: PositiveDurationMs = 30_000
    """Longest wait for one response of the broker."""

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in {"SASL_PLAINTEXT", "SASL_SSL"}

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in {"SSL", "SASL_SSL"}

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        refuse(self._sasl_faults() + self._oauth_faults() + self._tls_faults())
        return self

    def _sasl_faults(self) -> list[tuple[KeyPath, str]]:
        if not self.uses_sasl:
            unused = [
                key for key in self.model_fields_set if key.startswith("sasl_") and getattr(self, key) is not None
            ]
            reason = f"has no effect with security.protocol {self.security_protocol}"
            return [((key.replace("_", "."),), reason) for key in sorted(unused)]
        if self.sasl_mechanism is None:
            return [(("sasl.mechanism",), f"is required with security.protocol {self.security_protocol}")]
        if self.sasl_mechanism == "OAUTHBEARER":
            return []
        reason = f"is required with sasl.mechanism {self.sasl_mechanism}"
        given = {"sasl.username": self.sasl_username, "sasl.password": self.sasl_password}
        return [((key,), reason) for key, value in given.items() if not value]

    def _oauth_faults(self) -> list[tuple[KeyPath, str]]:
        if not self.uses_sasl or self.sasl_mechanism != "OAUTHBEARER":
            return []
        url = self.sasl_oauthbearer_token_endpoint_url
        if url is None:
            return [(("sasl.oauthbearer.token.endpoint.url",), "is required with sasl.mechanism OAUTHBEARER")]
        if url.startswith("file:"):
            return []
        given = {
            "sasl.oauthbearer.client.credentials.client.id": self.sasl_oauthbearer_client_credentials_client_id,
            "sasl.oauthbearer.client.credentials.client.secret": self.sasl_oauthbearer_client_credentials_client_secret,
        }
        return [((key,), "is required to ask a token endpoint") for key, value in given.items() if not value]

    def _tls_faults(self) -> list[tuple[KeyPath, str]]:
        faults: list[tuple[KeyPath, str]] = []
        if not self.uses_tls:
            reason = f"has no effect with security.protocol {self.security_protocol}"
            locations = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "ssl_key_password")
            return [((key.replace("_", "."),), reason) for key in locations if getattr(self, key) is not None]
        if self.ssl_key_location is not None and self.ssl_certificate_location is None:
            faults.append((("ssl.certificate.location",), "is required with ssl.key.location"))
        return faults


class SourceSection(BrokerSection):
    """The cluster whose topics are mounted read-only in the cluster of `broker`."""

    mount_plan: Annotated[FilePath, Field(examples=["/etc/tiersidecar/mount.json"])]
    """The file of `tiersidecar mount plan --read-only` by which the nodes of `broker`'s cluster were seeded: it names the
    topics that are mounted. Rules in `topics` have no effect."""
