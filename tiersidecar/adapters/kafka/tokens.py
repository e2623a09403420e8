"""Fetch and cache bearer tokens for OAUTHBEARER (KIP-255, KIP-768)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from ssl import create_default_context
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from tiersidecar.adapters.kafka.security import ClientCredentials, GivenToken, OauthTokenSource, TokenFile
from tiersidecar.domain.errors import BrokerUnreachableError

if TYPE_CHECKING:  # loaded where a token is asked for: each process of a Spark job would pay for it
    import aiohttp

_MAX_TOKEN_BYTES = 64 * 1024
_TIMEOUT_S = 10.0
_RENEW_AT = 0.8
"""Part of a token's lifetime after which a new one is fetched (``sasl.login.refresh.window.factor``)."""


class Tokens(Protocol):
    async def token(self) -> str:
        """Return a token that is valid now.

        Raises:
            BrokerUnreachableError: there is no token; ``address`` names the file or the endpoint.
        """


def open_tokens(source: OauthTokenSource, *, monotonic_s: Callable[[], float] = time.monotonic) -> Tokens:
    """Return the tokens of ``source``; nothing is read or requested yet."""
    match source:
        case TokenFile():
            return FileTokens(source)
        case GivenToken():
            return GivenTokens(source)
        case ClientCredentials():
            return EndpointTokens(source, monotonic_s=monotonic_s)


class FileTokens:
    """Reads the file for each token."""

    def __init__(self, source: TokenFile) -> None:
        self._path = source.path

    async def token(self) -> str:
        try:
            text = (await asyncio.to_thread(Path(self._path).read_text, "utf-8")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BrokerUnreachableError(address=self._path, reason=f"no token: {error}") from error
        return _checked(text, self._path)


class GivenTokens:
    """Returns the given token."""

    def __init__(self, source: GivenToken) -> None:
        self._token = source.token

    async def token(self) -> str:
        return self._token


class EndpointTokens:
    """Asks a token endpoint, and again when most of the token's lifetime is over; one request at a time."""

    def __init__(self, source: ClientCredentials, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._monotonic_s = monotonic_s
        self._lock = asyncio.Lock()
        self._token = ""
        self._renew_at_s = float("-inf")

    async def token(self) -> str:
        async with self._lock:
            if self._monotonic_s() >= self._renew_at_s:
                asked_at_s = self._monotonic_s()
                self._token, lifetime_s = await self._fetch()
                self._renew_at_s = asked_at_s + lifetime_s * _RENEW_AT
            return self._token

    async def _fetch(self) -> tuple[str, float]:
        import aiohttp

        address = _without_secrets(self._source.token_endpoint_url)
        try:
            status, body = await self._post()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = f"token endpoint: {str(error) or type(error).__name__}"
            raise BrokerUnreachableError(address=address, reason=reason) from error
        answer = _parsed(body)
        if status != 200:
            reason = f"token endpoint answers {status} {answer.get('error', '')}".rstrip()
            raise BrokerUnreachableError(address=address, reason=reason)
        return _checked(answer.get("access_token"), address), _lifetime_s(answer)

    async def _post(self) -> tuple[int, bytes]:
        import aiohttp

        source = self._source
        form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
        tls = await asyncio.to_thread(create_default_context, cafile=source.ca_file)
        async with (
            aiohttp.ClientSession(
                headers={"Authorization": _basic(source)},
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
                connector=aiohttp.TCPConnector(ssl=tls),
            ) as session,
            session.post(source.token_endpoint_url, data=form, allow_redirects=False) as response,
        ):
            return response.status, await _read_bounded(response)


def _basic(source: ClientCredentials) -> str:
    # Not form-encoded first, contrary to RFC 6749: Kafka's default (sasl.oauthbearer.header.urlencode=false).
    return "Basic " + base64.b64encode(f"{source.client_id}:{source.client_secret}".encode()).decode()


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    import aiohttp

    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MAX_TOKEN_BYTES:
            raise aiohttp.ClientPayloadError(f"an answer of more than {_MAX_TOKEN_BYTES} bytes")
    return bytes(body)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _lifetime_s(answer: dict[str, Any]) -> float:
    """Return ``expires_in``; a token without it is used once."""
    lifetime = answer.get("expires_in")
    return float(lifetime) if isinstance(lifetime, int | float) and lifetime > 0 else 0.0


def _checked(token: object, address: str) -> str:
    # The alphabet of RFC 6750: anything else would break out of its field in the SASL message.
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BrokerUnreachableError(address=address, reason="no valid bearer token there")
    return token


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
