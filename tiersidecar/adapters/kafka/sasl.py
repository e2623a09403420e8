"""Logging in: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), and how long the login holds (KIP-368)."""

from __future__ import annotations

import asyncio
from typing import assert_never

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateResponse

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.scram import ScramClient, ScramError
from tiersidecar.adapters.kafka.security import SaslMechanism, SecuritySettings
from tiersidecar.adapters.kafka.tokens import Tokens
from tiersidecar.domain.errors import BrokerRefusedError


async def log_in(connection: BrokerConnection, settings: SecuritySettings, tokens: Tokens | None) -> float | None:
    """Authenticate as ``settings`` says, with ``tokens`` for OAUTHBEARER.

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
        # The server explains in JSON why it refuses, and says so only after this byte (RFC 7628 section 3.2.3).
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
