"""Bearer tokens for Google Cloud Storage, by Google's own library, renewed before they expire."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import google.auth
import structlog
from google.auth.credentials import Credentials, TokenState
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials as OAuthCredentials

from tiersidecar.adapters.stores.gcs_settings import GcsSettings
from tiersidecar.domain.errors import StoreError
from tiersidecar.ports.clock import Blocking

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_NONE_FOUND = (
    "no credentials were found: set gcs.credentials.path, attach a service account to this machine or pod, or say"
    " gcs.credentials.default: false for a server that asks for none"
)

_REQUEST_TIMEOUT_S = 10.0
"""Time limit of a request for a token, instead of two minutes."""

_log = structlog.get_logger(__name__)


class GcsTokens:
    """Headers that authorize a request.

    Credentials are loaded at the first request, and anew when the service refuses them: a key file may have been replaced.
    A token near its end is renewed in the background, once in ``pause_s``, and used meanwhile.  Without a usable one all
    requests wait for one renewal; for ``failed_pause_s`` after its failure they fail with it.
    """

    def __init__(
        self,
        load: Callable[[], Credentials],
        *,
        blocking: Blocking,
        pause_s: float = 10.0,
        failed_pause_s: float = 1.0,
    ) -> None:
        self._load, self._blocking = load, blocking
        self._pause_s, self._failed_pause_s = pause_s, failed_pause_s
        self._credentials: Credentials | None = None
        self._renewal: asyncio.Task[Credentials | None] | None = None
        self._renewed_s = self._failed_s = -math.inf
        self._failure = ""

    async def headers(self, verb: str, key: str) -> Mapping[str, str]:
        """Return them, at once while a token is good.  ``verb`` and ``key`` are for the error.

        Raises:
            StoreError: there are no credentials, or the token service refuses or does not answer.
        """
        credentials = self._credentials
        if credentials is None or credentials.token_state is TokenState.INVALID:
            credentials = await self._usable()
        elif credentials.token_state is TokenState.STALE and _now_s() >= self._renewed_s + self._pause_s:
            self._running_renewal()
        if credentials is None:
            raise StoreError(verb=verb, key=key, reason=self._failure)
        return _headers_of(credentials)

    def refused(self, headers: Mapping[str, str]) -> None:
        """Load credentials anew for the next request, unless that was done: the service did not accept ``headers``."""
        if self._credentials is not None and _headers_of(self._credentials) == headers:
            self._credentials = None

    async def aclose(self) -> None:
        """End a running renewal; a thread in the middle of a request ends with it."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal], timeout=_REQUEST_TIMEOUT_S)

    async def _usable(self) -> Credentials | None:
        """Return credentials with a token, None without any.  A caller that leaves does not end the renewal."""
        if _now_s() < self._failed_s + self._failed_pause_s:
            return None
        return await asyncio.shield(self._running_renewal())

    def _running_renewal(self) -> asyncio.Task[Credentials | None]:
        if self._renewal is None or self._renewal.done():
            self._renewed_s = _now_s()
            self._renewal = asyncio.create_task(self._renew(), name="renewal of the access token")
        return self._renewal

    async def _renew(self) -> Credentials | None:
        before = credentials = self._credentials
        try:
            if credentials is None:
                credentials = await self._blocking.run(self._load)
            if credentials.token_state is not TokenState.FRESH:
                await self._blocking.run(_refresh, credentials)
        except (GoogleAuthError, OSError, ValueError) as error:
            self._failed_s, self._failure = _now_s(), _explain(error)
            _log.warning("store.token.not_renewed", reason=self._failure)
            return None
        if self._credentials is before:
            self._credentials = credentials
        return credentials


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _headers_of(credentials: Credentials) -> dict[str, str]:
    headers: dict[str, str] = {}
    credentials.apply(headers)  # type: ignore[no-untyped-call]
    return headers


def credentials_loader(settings: GcsSettings) -> Callable[[], Credentials]:
    """Return the function that loads the credentials of ``settings``, from files and perhaps over the network.  It blocks, and
    raises google.auth's errors, OSError and ValueError."""
    match settings.login:
        case "path":
            path = Path(settings.credentials_path or "")
            return lambda: _credentials_in(path.read_text(encoding="utf-8"))
        case "json":
            return lambda: _credentials_in(settings.credentials_json or "")
        case _:
            return _default_credentials


def _default_credentials() -> Credentials:
    credentials, _ = google.auth.default(scopes=[SCOPE], request=_request())
    found: Credentials = credentials
    return found


def _credentials_in(text: str) -> Credentials:
    """Return credentials of any kind that Google's libraries write: a service account's key, a user's, a workload identity
    federation's; or, as in the plugin, a document with only an ``access_token``."""
    document: Any = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - as json has it: the file is wrong, not the program
    if "type" not in document and "access_token" in document:
        return OAuthCredentials(token=str(document["access_token"]))  # type: ignore[no-untyped-call]
    credentials, _ = google.auth.load_credentials_from_dict(  # type: ignore[no-untyped-call]
        document, scopes=[SCOPE], request=_request()
    )
    found: Credentials = credentials
    return found


def _refresh(credentials: Credentials) -> None:
    credentials.refresh(_request())  # type: ignore[no-untyped-call]


class _ImpatientRequest(Request):
    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: Any = None,
        headers: Any = None,
        timeout: float | None = None,
        **others: Any,
    ) -> Any:
        within_s = timeout or _REQUEST_TIMEOUT_S
        return super().__call__(url, method, body, headers, within_s, **others)  # type: ignore[no-untyped-call]


def _request() -> Request:
    return _ImpatientRequest()


def _explain(error: Exception) -> str:
    if isinstance(error, DefaultCredentialsError) and "default credentials were not found" in str(error):
        return _NONE_FOUND
    if isinstance(error, OSError):
        return f"the credentials cannot be read: {error.strerror}: {error.filename}"
    if isinstance(error, ValueError) and not isinstance(error, GoogleAuthError):
        return "the credentials are not what Google's libraries write: a JSON document with a type"
    return f"no access token: {' '.join(str(error.args[0] if error.args else error).split())[:300]}"
