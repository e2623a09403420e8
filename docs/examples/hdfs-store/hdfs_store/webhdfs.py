"""Requests to WebHDFS: to the name node that is active, on to a data node, limited in time, and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from yarl import URL

from hdfs_store.answers import Answer, answer_of, hdfs_error
from hdfs_store.settings import HdfsSettings
from tiersidecar.adapters.stores.tls import tls_context
from tiersidecar.domain.errors import ObjectTooLargeError, StoreError
from tiersidecar.ports.clock import Blocking, Ids

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 16.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_BYTES = 2**40
"""Of an answer that has no other bound."""
_HINT = "are all name nodes and data nodes reached from this machine by the names that they give themselves?"


class ConnectionFailedError(Exception):
    """There is no answer, or not all of it: whether the server has done what was asked is unknown."""

    def as_store_error(self, verb: str, key: str) -> StoreError:
        return StoreError(verb=verb, key=key, reason=f"{self} ({_HINT})", is_away=True)


class WebHdfs:
    """One cluster.  Paths are absolute."""

    def __init__(self, session: aiohttp.ClientSession, settings: HdfsSettings, *, ids: Ids) -> None:
        self._session, self._settings, self._ids = session, settings, ids
        self._active = 0

    async def ask(
        self, verb: str, key: str, method: str, op: str, path: str, *, max_bytes: int | None = None, **asked: str
    ) -> Answer:
        """Return a good answer, from the data node if the name node names one.  What may pass is tried again.

        Raises:
            ObjectNotFoundError: there is nothing at ``path``.
            ObjectExistsError: there is something already.
            ObjectTooLargeError: the answer has more than ``max_bytes``.
            StoreError: everything else that the server refuses or the network loses.
        """
        answer = await self._ask(verb, key, method, op, path, asked, max_bytes=max_bytes, is_followed=True)
        if not answer.is_good:
            raise hdfs_error(verb, key, answer)
        return answer

    async def place_for(self, verb: str, key: str, path: str, **asked: str) -> str:
        """Return the data node's address to which the content of a new file at ``path`` is sent; nothing exists yet.

        Raises:
            StoreError: the name node names none.
        """
        answer = await self._ask(verb, key, "PUT", "CREATE", path, asked, max_bytes=None, is_followed=False)
        if answer.status not in _REDIRECTS:
            raise hdfs_error(verb, key, answer)
        return self._place_in(verb, key, answer)

    async def send(self, key: str, place: str, content: AsyncIterator[bytes | bytearray]) -> Answer:
        """Send the content of a file, once; who calls it limits the time.

        Raises:
            ConnectionFailedError: there is no answer.
        """
        return await self._once(key, "PUT", place, content=content)

    async def pause(self, attempt: int) -> None:
        """Wait before attempt number ``attempt``, counted from 0: between half and all of a time that doubles."""
        longest_s = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
        await asyncio.sleep(longest_s * (0.5 + self._ids.random() / 2))

    async def _ask(
        self,
        verb: str,
        key: str,
        method: str,
        op: str,
        path: str,
        asked: dict[str, str],
        *,
        max_bytes: int | None,
        is_followed: bool,
    ) -> Answer:
        """Return the last answer, whatever it is.  An attempt is one round over the name nodes."""
        failed: ConnectionFailedError | None = None
        answer: Answer | None = None
        for turn in range(self._settings.max_attempts * len(self._settings.namenodes)):
            if turn and turn % len(self._settings.namenodes) == 0:
                await self.pause(turn // len(self._settings.namenodes))
            asked_of = self._active
            try:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    answer = await self._once(key, method, self._url(op, path, asked), max_bytes=max_bytes)
                    if is_followed and answer.status in _REDIRECTS:
                        place = self._place_in(verb, key, answer)
                        answer = await self._once(key, method, place, max_bytes=max_bytes)
            except TimeoutError:
                answer, failed = None, ConnectionFailedError("no answer in time")
            except ConnectionFailedError as error:
                answer, failed = None, error
            if answer is not None and not answer.may_pass:
                return answer
            if self._active == asked_of:  # else another request has moved on already
                self._active = (asked_of + 1) % len(self._settings.namenodes)
        if answer is None:
            assert failed is not None
            raise failed.as_store_error(verb, key)
        return answer

    def _url(self, op: str, path: str, asked: dict[str, str]) -> str:
        login = {"user.name": self._settings.user, "delegation": self._settings.delegation_token}
        query = {"op": op, **asked, **{name: value for name, value in login.items() if value is not None}}
        return f"{self._settings.namenodes[self._active]}/webhdfs/v1{quote(path)}?{urlencode(query, quote_via=quote)}"

    def _place_in(self, verb: str, key: str, answer: Answer) -> str:
        """The address that a name node sends on to.  It holds the token: it must be as private as the name node's."""
        place = answer.headers.get("Location", "")
        parts = urlsplit(place)
        scheme = urlsplit(self._settings.namenodes[0]).scheme
        if parts.scheme != scheme or not parts.path.startswith("/webhdfs/v1/"):
            reason = f"it is sent on to {parts.scheme or 'nowhere'}://{parts.netloc}, which is no {scheme} address of WebHDFS"
            raise StoreError(verb=verb, key=key, reason=reason)
        return place

    async def _once(
        self,
        key: str,
        method: str,
        url: str,
        *,
        content: AsyncIterator[bytes | bytearray] | None = None,
        max_bytes: int | None = None,
    ) -> Answer:
        headers = {} if content is None else {"Content-Type": "application/octet-stream"}
        try:
            async with self._session.request(
                method, URL(url, encoded=True), headers=headers, data=content, allow_redirects=False
            ) as answer:
                body = await _content_of(answer, key, max_bytes)
                return answer_of(answer.status, answer.headers, body)
        except (aiohttp.ClientError, OSError) as error:
            # The URL has the token in its query: of the error only its kind, and of what lies below it the system's words.
            said = " ".join(part for part in (type(error).__name__, getattr(error, "strerror", None)) if part)
            raise ConnectionFailedError(said) from None


async def _content_of(answer: aiohttp.ClientResponse, key: str, max_bytes: int | None) -> bytes:
    """The body, no more of it than ``max_bytes`` where the answer is a good one."""
    most = _MOST_BYTES if max_bytes is None or answer.status // 100 != 2 else max_bytes
    parts, count = [], 0
    async for part in answer.content.iter_any():
        count += len(part)
        if count > most:
            answer.close()
            raise ObjectTooLargeError(key=key, max_bytes=most)
        parts.append(part)
    return b"".join(parts)


@asynccontextmanager
async def open_webhdfs(settings: HdfsSettings, *, blocking: Blocking, ids: Ids) -> AsyncIterator[WebHdfs]:
    """The cluster with its connections; one that is away does not fail here."""
    tls = await blocking.run(lambda: tls_context(ca_pem=settings.ca_pem, verify=True))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=64),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        read_bufsize=1024 * 1024,
    ) as session:
        yield WebHdfs(session, settings, ids=ids)
