"""Ask the broker, with the credentials of a caller, whether that caller may read a topic."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, ConnectionLimits, refused
from tiersidecar.adapters.kafka.connector import ConnectionPool, Connector
from tiersidecar.adapters.kafka.routes import addresses
from tiersidecar.adapters.kafka.security import (
    PLAINTEXT,
    GivenToken,
    SaslMechanism,
    SecurityProtocol,
    SecuritySettings,
)
from tiersidecar.adapters.kafka.tls import ssl_context
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials

_READ_BIT = 1 << 3
"""``AclOperation.READ`` in Metadata's bit field of authorized operations."""
_LOGINS_AT_ONCE = 8
"""Limit on connections to the broker for guessed passwords."""
_CERTIFICATE_ALERTS = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE"})
_ANONYMOUS = Credentials()
_NO_ACCESS = frozenset({ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_or_partition})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerListener:
    """The listener on which callers' credentials are tried.

    ``sasl_mechanism`` is given where the protocol has SASL, and nowhere else: PLAIN and SCRAM take a caller's username and
    password, OAUTHBEARER a caller's bearer token, from which the broker itself derives the principal.  The daemon's own
    identity is not in here: a caller without credentials must not be taken for the daemon, and so gets no client certificate.

    Raises:
        ValueError: SASL without a mechanism, or a mechanism without SASL.
    """

    bootstrap_servers: str
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    sasl_mechanism: SaslMechanism | None = None
    ssl_ca_file: str | None = None
    ssl_check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.security_protocol.has_sasl != (self.sasl_mechanism is not None):
            raise ValueError(f"{self.security_protocol} with SASL mechanism {self.sasl_mechanism} for callers")

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS part, with no client certificate."""
        has_tls = self.security_protocol.has_tls
        return ssl_context(
            SecuritySettings(
                security_protocol=SecurityProtocol.SSL if has_tls else SecurityProtocol.PLAINTEXT,
                ssl_ca_file=self.ssl_ca_file,
                ssl_check_hostname=self.ssl_check_hostname,
            )
        )

    def settings(self, credentials: Credentials) -> SecuritySettings:
        """Return the settings that log this caller in.

        Raises:
            CallerNotAuthenticatedError: none given where the listener demands some, given where it checks none, or such
                as no broker could accept.
        """
        if not self.security_protocol.has_sasl:
            if credentials != _ANONYMOUS:
                raise CallerNotAuthenticatedError("the broker's listener checks no credentials")
            return PLAINTEXT
        if self.sasl_mechanism is SaslMechanism.OAUTHBEARER:
            if credentials.token is None:
                raise CallerNotAuthenticatedError("the broker's listener demands a bearer token")
        elif credentials.username is None or credentials.password is None:
            raise CallerNotAuthenticatedError("the broker's listener demands a username and a password")
        try:
            return SecuritySettings(
                security_protocol=self.security_protocol,
                sasl_mechanism=self.sasl_mechanism,
                username=credentials.username,
                password=credentials.password,
                oauth_token_source=None if credentials.token is None else GivenToken(token=credentials.token),
            )
        except ValueError as error:
            raise CallerNotAuthenticatedError(str(error)) from error


@asynccontextmanager
async def open_authorizer(
    listener: CallerListener,
    *,
    client_id: str = "tiersidecar-reader",
    connection_ttl_s: float = 5.0,
    max_connections: int = 64,
    limits: ConnectionLimits | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> AsyncIterator[BrokerAuthorizer]:
    """Yield the authorizer for callers of ``listener``; its connections are closed on leaving.

    A caller's connection serves ``connection_ttl_s`` from its login, so that a withdrawn password or token ends soon; at most
    ``max_connections`` callers are logged in at once.
    """
    connector = Connector(PLAINTEXT, client_id=client_id, tls=listener.tls(), limits=limits, monotonic_s=monotonic_s)
    authorizer = BrokerAuthorizer(
        connector,
        listener,
        connection_ttl_s=connection_ttl_s,
        max_connections=max_connections,
        monotonic_s=monotonic_s,
    )
    try:
        yield authorizer
    finally:
        await authorizer.close()


class BrokerAuthorizer:
    """Ask the broker anew each time, over a connection per caller: a changed ACL holds at once.

    Passwords and tokens are not kept: a connection is found again by a keyed hash, with a key that this process draws for
    itself.
    """

    def __init__(
        self,
        connector: Connector,
        listener: CallerListener,
        *,
        connection_ttl_s: float,
        max_connections: int,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._connector = connector
        self._listener = listener
        self._bootstrap = addresses(listener.bootstrap_servers)
        self._connection_ttl_s = connection_ttl_s
        self._monotonic_s = monotonic_s
        self._pool = ConnectionPool(is_usable=connector.is_usable, max_connections=max_connections)
        self._logins = asyncio.Semaphore(_LOGINS_AT_ONCE)
        self._key = secrets.token_bytes(32)

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        """Return whether the broker says READ is authorized; False too for a topic that does not exist or must stay unseen.

        Raises:
            CallerNotAuthenticatedError: the broker refused the credentials, or demands some and none were given.
            BrokerUnreachableError: the broker could not be asked.
            BrokerRefusedError: the listener is not as configured.
        """
        connection = await self.connection(credentials)
        response = await connection.ask(
            apis.METADATA, lambda version: apis.metadata(version, (topic,), authorized_operations=True)
        )
        for row in response.topics:
            if row.error_code not in _NO_ACCESS and row.topic_authorized_operations == apis.NOT_SAID:
                raise refused(apis.METADATA, f"topic {topic}", row.error_code)
            return row.error_code not in _NO_ACCESS and bool(row.topic_authorized_operations & _READ_BIT)
        return False

    async def log_in(self, credentials: Credentials) -> None:
        """Return when the broker has accepted the caller.  The connection serves the caller's next requests.

        Raises:
            As :meth:`may_read`.
        """
        await self.connection(credentials)

    async def connection(self, credentials: Credentials) -> BrokerConnection:
        """Return a connection on which the caller is logged in.

        Raises:
            As :meth:`may_read`.
        """
        settings = self._listener.settings(credentials)
        return await self._pool.connection(self._digest(credentials), lambda: self._log_in(settings))

    async def close(self) -> None:
        """Log all callers out."""
        await self._pool.close()

    async def _log_in(self, settings: SecuritySettings) -> BrokerConnection:
        async with self._logins:
            connection = await self._connect(settings)
        ends_s = self._monotonic_s() + self._connection_ttl_s
        connection.usable_until_s = min(connection.usable_until_s, ends_s)
        return connection

    async def _connect(self, settings: SecuritySettings) -> BrokerConnection:
        failure: BrokerUnreachableError | None = None
        for address in self._bootstrap:
            try:
                return await self._connector.connect(address, settings)
            except BrokerUnreachableError as error:
                if _demands_certificate(error):
                    raise CallerNotAuthenticatedError("the broker's listener demands a client certificate") from error
                failure = error
            except BrokerRefusedError as error:
                if error.error == "SASL_AUTHENTICATION_FAILED":
                    raise CallerNotAuthenticatedError(str(error)) from error
                raise
        raise failure or BrokerUnreachableError(address=self._listener.bootstrap_servers, reason="no bootstrap server")

    def _digest(self, credentials: Credentials) -> bytes:
        fields = (credentials.username, credentials.password, credentials.token)
        text = b"".join(b"\0" if field is None else b"\1%d:" % len(field) + field.encode() for field in fields)
        return hmac.digest(self._key, text, hashlib.sha256)


def _demands_certificate(error: BrokerUnreachableError) -> bool:
    cause = error.__cause__
    return isinstance(cause, ssl.SSLError) and cause.reason in _CERTIFICATE_ALERTS
