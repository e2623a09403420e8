"""Client of the cluster's other sidecars over HTTP: all are asked at once, each for a short time.

Their addresses come from leases in the state topic, where a forged one may name anything.  So they are only hosts and ports, no
redirect is followed, no proxy used, an answer is bounded in size, and nothing is shown of an answer that is not a sidecar's.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time

import aiohttp
from yarl import URL

from tiersidecar.ports.clock import Blocking
from tiersidecar.services.status.answers import REFUSED, UNPROVEN, Answer, is_host_and_port
from tiersidecar.services.status.proof import PROOF_HEADER, SignedRequest, is_proven

OVERVIEW_S, DETAIL_S = 1.0, 3.0
"""Time limits of a sidecar's answer: from its own memory, and where it has to ask broker and store."""
MOST_BYTES = 64 * 1024 * 1024
_PIECE = 64 * 1024


class Peers:
    """Opened by ``async with``; ``secret`` signs requests, None where the cluster has none."""

    def __init__(self, *, blocking: Blocking, secret: str | None) -> None:
        self._blocking, self._secret = blocking, secret
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Peers:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, address: str, target: str, timeout_s: float) -> Answer:
        """Ask the status service at ``address`` for ``target``, path and query; return an answer also after an error."""
        if not is_host_and_port(address):
            return Answer(problem=f"its address is {address[:100]!r}, must be HOST:PORT")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(address, target)
        except TimeoutError:
            return Answer(problem=f"it did not answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(problem=f"{address} cannot be reached: {_reason(error)}")

    async def _ask(self, address: str, target: str) -> Answer:
        assert self._session is not None, "not opened yet"
        nonce, headers = secrets.token_hex(16), {"Accept-Encoding": "identity"}
        if self._secret is not None:
            signed = SignedRequest(method="GET", target=target, time_ms=time.time_ns() // 1_000_000, nonce=nonce)
            headers["Authorization"] = signed.authorization(self._secret)
        # As it is signed: the client would otherwise quote it anew.
        url = URL(f"http://{address}{target}", encoded=True)
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            body = await _bounded(response)
            proof = response.headers.get(PROOF_HEADER, "")
            return await self._blocking.run(self._answer, response.status, body, proof, nonce)

    def _answer(self, code: int, body: bytes, proof: str, nonce: str) -> Answer:
        if code in {401, 403}:
            return Answer(code=code, problem=REFUSED)
        if self._secret is not None and not is_proven(self._secret, proof, nonce=nonce, code=code, body=body):
            return Answer(code=code, problem=UNPROVEN)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            return Answer(
                code=code, problem=f"it answered with HTTP {code}: is this a sidecar's status.listen, of this release?"
            )
        return Answer(code=code, document=document)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_chunked(_PIECE):
        pieces.append(piece)
        if (size := size + len(piece)) > MOST_BYTES:
            raise ValueError(f"its answer is longer than {MOST_BYTES} bytes")
    return b"".join(pieces)


def _reason(error: Exception) -> str:
    """Return the reason without the answer's own words, which may be another server's."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name cannot be resolved"
    return str(error)[:200] if isinstance(error, ValueError) else type(error).__name__
