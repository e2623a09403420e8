"""Requests to the JSON API of Google Cloud Storage: authorized, limited in time, and retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from multidict import MultiMapping
from yarl import URL

from tiersidecar.adapters.stores.gcs_credentials import GcsTokens
from tiersidecar.adapters.stores.gcs_errors import gcs_error, without_queries
from tiersidecar.adapters.stores.gcs_settings import GcsSettings
from tiersidecar.domain.errors import ObjectTooLargeError, StoreError
from tiersidecar.ports.clock import Ids

AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Answers after which a request is sent again."""
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 16.0
_IN_BUFFER_BYTES = 1024 * 1024
_MOST_BYTES = 2**40
"""Most bytes of an answer that has no other bound."""

OpenBody = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a request's body for one attempt; the context may raise TimeoutError when nothing of it moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsAnswer:
    """``attempts`` counts the request that got it."""

    status: int
    headers: MultiMapping[str]
    body: bytes
    attempts: int = 1


class GcsRequests:
    """Send requests; ``tokens`` None sends no credentials."""

    def __init__(
        self, session: aiohttp.ClientSession, settings: GcsSettings, *, tokens: GcsTokens | None, ids: Ids
    ) -> None:
        self._session, self._settings, self._tokens, self._ids = session, settings, tokens, ids

    async def ask(
        self,
        verb: str,
        key: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        open_body: OpenBody | None = None,
        max_bytes: int | None = None,
        is_conditional: bool = False,
    ) -> GcsAnswer:
        """Return an answer of 2xx.  Transient failures are retried, with a pause that doubles and jitter.

        Raises:
            ObjectNotFoundError: the object, not the bucket, is missing.
            ObjectExistsError: the condition of a put was not met.
            ObjectTooLargeError: the answer has more than ``max_bytes``.
            StoreError: everything else that the service refuses or the network loses.
        """
        failed: StoreError | None = None
        for attempt in range(self._settings.max_attempts):
            if failed is not None:
                await self.pause(attempt)
            try:
                answer = await self.once(
                    verb, key, method, url, headers=headers, open_body=open_body, max_bytes=max_bytes
                )
            except ConnectionFailedError as error:
                failed = error.as_store_error(verb, key)
                continue
            if answer.status // 100 == 2:
                return GcsAnswer(status=answer.status, headers=answer.headers, body=answer.body, attempts=attempt + 1)
            failed = gcs_error(verb, key, answer.status, answer.body, is_conditional=is_conditional)
            if answer.status not in AGAIN:
                break
        assert failed is not None
        raise failed

    async def once(
        self,
        verb: str,
        key: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        open_body: OpenBody | None = None,
        max_bytes: int | None = None,
    ) -> GcsAnswer:
        """Return the answer to one attempt, whatever its status; after 401 it is sent again with new credentials.

        Raises:
            ConnectionFailedError: there is no answer, or not all of it.
            StoreError: there are no credentials.
            ObjectTooLargeError: a good answer has more than ``max_bytes``.
        """
        authorized = await self._authorized(verb, key)
        answer = await self._send(key, method, url, {**authorized, **(headers or {})}, open_body, max_bytes)
        if answer.status == 401 and self._tokens is not None:
            self._tokens.refused(authorized)
            authorized = await self._authorized(verb, key)
            answer = await self._send(key, method, url, {**authorized, **(headers or {})}, open_body, max_bytes)
        return answer

    async def pause(self, attempt: int) -> None:
        """Wait before attempt number ``attempt``, counted from 0: between half and all of a time that doubles."""
        longest_s = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
        await asyncio.sleep(longest_s * (0.5 + self._ids.random() / 2))

    async def _authorized(self, verb: str, key: str) -> Mapping[str, str]:
        if self._tokens is None:
            return {}
        try:
            async with asyncio.timeout(self._settings.attempt_timeout_s):
                return await self._tokens.headers(verb, key)
        except TimeoutError as error:
            raise ConnectionFailedError("no access token in time") from error

    async def _send(
        self,
        key: str,
        method: str,
        url: str,
        headers: Mapping[str, str],
        open_body: OpenBody | None,
        max_bytes: int | None,
    ) -> GcsAnswer:
        body = _no_body(self._settings.attempt_timeout_s) if open_body is None else open_body()
        try:
            async with (
                body as sent,
                # A path of ours is quoted already, as is an address from the service.
                self._session.request(
                    method,
                    URL(url, encoded=True),
                    headers=headers,
                    data=sent,
                    allow_redirects=False,
                ) as answer,
            ):
                content = await _content_of(answer, key, max_bytes)
                return GcsAnswer(status=answer.status, headers=answer.headers, body=content)
        except TimeoutError as error:
            raise ConnectionFailedError("no answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            is_away = not isinstance(error, aiohttp.ClientPayloadError)  # which broke off within its answer
            reason = without_queries(f"{type(error).__name__}: {error}")
            raise ConnectionFailedError(reason, is_away=is_away) from None


class ConnectionFailedError(Exception):
    """An attempt got no whole answer: whether the service has carried it out is unknown."""

    def __init__(self, reason: str, *, is_away: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.is_away = reason, is_away

    def as_store_error(self, verb: str, key: str) -> StoreError:
        """Return it in the form for the caller of the store."""
        hint = "does the network let this machine reach the service, and is gcs.endpoint.url right?"
        reason = f"{' '.join(self.reason.split())} ({hint})"
        return StoreError(verb=verb, key=key, reason=reason, is_away=self.is_away)


def open_bytes(data: bytes, *, within_s: float) -> OpenBody:
    """Return a function that opens ``data`` as a body; the whole request must end within ``within_s``."""
    return lambda: _timed(data, within_s)


@asynccontextmanager
async def _timed(data: bytes | None, within_s: float) -> AsyncIterator[bytes | None]:
    async with asyncio.timeout(within_s):
        yield data


def _no_body(within_s: float) -> AbstractAsyncContextManager[bytes | None]:
    return _timed(None, within_s)


async def _content_of(answer: aiohttp.ClientResponse, key: str, max_bytes: int | None) -> bytes:
    """Return the body, no more of it than ``max_bytes`` where the answer is a good one."""
    most = _MOST_BYTES if max_bytes is None or answer.status // 100 != 2 else max_bytes
    parts, count = [], answer.content_length or 0
    if count <= most:
        count = 0
        # read() would join parts within its own loop, which shows at 4 MiB a time.
        async for part in answer.content.iter_any():
            count += len(part)
            if count > most:
                break
            parts.append(part)
    if count > most:
        answer.close()
        raise ObjectTooLargeError(key=key, max_bytes=most)
    return b"".join(parts)


def new_session(tls: Any) -> aiohttp.ClientSession:
    """Return a session for the store's requests: they time themselves, and answers are taken as they come."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=64),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        read_bufsize=_IN_BUFFER_BYTES,
    )
