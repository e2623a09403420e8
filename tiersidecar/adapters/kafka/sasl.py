"""Log in with SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), and return how long the login is valid (KIP-368).

SCRAM (RFC 5802, RFC 7677) is the client's side as in Kafka: without channel binding and SASLprep.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from typing import assert_never

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateResponse

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.security import SaslMechanism, SecuritySettings
from tiersidecar.adapters.kafka.tokens import Tokens
from tiersidecar.domain.errors import BrokerRefusedError

_HASHES = {SaslMechanism.SCRAM_SHA_256: "sha256", SaslMechanism.SCRAM_SHA_512: "sha512"}
_FEWEST_ITERATIONS = 4096
"""``ScramMechanism.minIterations``: fewer would let a false broker test passwords cheaply."""
_MOST_ITERATIONS = 1_000_000
"""More would only keep a thread busy."""


class ScramError(ValueError):
    """The server's message is wrong, or the server does not know our password."""


class ScramClient:
    """One exchange: :attr:`first_message`, :meth:`answer` to the server's first, :meth:`verify` of its last."""

    def __init__(self, mechanism: SaslMechanism, username: str, password: str, *, nonce: str | None = None) -> None:
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._first_bare = f"n={_sasl_name(username)},r={self._nonce}"
        self._server_signature = b""

    @property
    def first_message(self) -> bytes:
        """Return client-first-message."""
        return f"n,,{self._first_bare}".encode()

    def answer(self, server_first: bytes) -> bytes:
        """Return client-final-message with our proof.  Takes milliseconds of CPU: not for the event loop.

        Raises:
            ScramError: no valid server-first-message, or not in answer to ours.
        """
        fields = _fields(server_first)
        if "m" in fields:
            raise ScramError("an extension that we do not know")
        nonce, salt, iterations = _required(fields, "r"), _base64(_required(fields, "s")), _required(fields, "i")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not extend ours")
        if not iterations.isdecimal() or not _FEWEST_ITERATIONS <= int(iterations) <= _MOST_ITERATIONS:
            raise ScramError(f"{iterations} iterations, not {_FEWEST_ITERATIONS} to {_MOST_ITERATIONS}")
        without_proof = f"c=biws,r={nonce}"
        message = ",".join((self._first_bare, server_first.decode(), without_proof)).encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(iterations))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows our password as well.

        Raises:
            ScramError: it does not, or reports another error.
        """
        fields = _fields(server_final)
        if "e" in fields:
            raise ScramError(f"the server answers {fields['e']}")
        signature = _base64(_required(fields, "v"))
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ScramError("the server's signature is wrong: it does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _sasl_name(username: str) -> str:
    return username.replace("=", "=3D").replace(",", "=2C")


def _fields(message: bytes) -> dict[str, str]:
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ScramError("a message that is not UTF-8") from error
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _required(fields: dict[str, str], name: str) -> str:
    if not fields.get(name):
        raise ScramError(f"a message without {name}=")
    return fields[name]


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError("a value that is not base64") from error


async def log_in(connection: BrokerConnection, settings: SecuritySettings, tokens: Tokens | None) -> float | None:
    """Authenticate by ``settings``, with ``tokens`` for OAUTHBEARER.

    Returns:
        Seconds until the broker demands a new login; None when it never does.

    Raises:
        BrokerRefusedError: SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM, ...
        BrokerUnreachableError: the broker went away, or there was no token.
    """
    mechanism = settings.sasl_mechanism
    if mechanism is None:
        return None
    shaken = await connection.ask(apis.SASL_HANDSHAKE, lambda version: apis.sasl_handshake(version, mechanism))
    if shaken.error_code is not ErrorCode.none:
        offered = f"the broker offers {', '.join(shaken.mechanisms) or 'none'}"
        raise refused(apis.SASL_HANDSHAKE, _subject(settings), shaken.error_code, offered)
    answer = await _authenticate(connection, mechanism, settings, tokens)
    lifetime_s = getattr(answer, "session_lifetime", None)  # from version 1 on
    return lifetime_s.total_seconds() if lifetime_s else None


async def _authenticate(
    connection: BrokerConnection, mechanism: SaslMechanism, settings: SecuritySettings, tokens: Tokens | None
) -> SaslAuthenticateResponse:
    username, password = settings.username or "", settings.password or ""
    match mechanism:
        case SaslMechanism.PLAIN:
            return await _step(connection, settings, f"\0{username}\0{password}".encode())
        case SaslMechanism.SCRAM_SHA_256 | SaslMechanism.SCRAM_SHA_512:
            return await _scram(connection, settings, ScramClient(mechanism, username, password))
        case SaslMechanism.OAUTHBEARER:
            if tokens is None:
                raise ValueError("OAUTHBEARER without a source of tokens")
            return await _bearer(connection, settings, await tokens.token())
        case _:
            assert_never(mechanism)


async def _scram(
    connection: BrokerConnection, settings: SecuritySettings, client: ScramClient
) -> SaslAuthenticateResponse:
    first = await _step(connection, settings, client.first_message)
    try:
        answer = await asyncio.to_thread(client.answer, first.auth_bytes)
        final = await _step(connection, settings, answer)
        client.verify(final.auth_bytes)
    except ScramError as error:
        raise _failed(settings, str(error)) from error
    return final


async def _bearer(connection: BrokerConnection, settings: SecuritySettings, token: str) -> SaslAuthenticateResponse:
    answer = await _step(connection, settings, f"n,,\1auth=Bearer {token}\1\1".encode())
    if answer.auth_bytes:
        # The server explains in JSON why it refuses, but only after this byte (RFC 7628 section 3.2.3).
        await _step(connection, settings, b"\1")
        raise _failed(settings, answer.auth_bytes.decode(errors="replace"))
    return answer


async def _step(connection: BrokerConnection, settings: SecuritySettings, token: bytes) -> SaslAuthenticateResponse:
    answer = await connection.ask(apis.SASL_AUTHENTICATE, lambda version: apis.sasl_authenticate(version, token))
    if answer.error_code is not ErrorCode.none:
        raise refused(apis.SASL_AUTHENTICATE, _subject(settings), answer.error_code, answer.error_message)
    return answer


def _failed(settings: SecuritySettings, reason: str) -> BrokerRefusedError:
    return refused(apis.SASL_AUTHENTICATE, _subject(settings), ErrorCode.sasl_authentication_failed, reason)


def _subject(settings: SecuritySettings) -> str:
    return f"{settings.sasl_mechanism} as {settings.username}" if settings.username else f"{settings.sasl_mechanism}"
