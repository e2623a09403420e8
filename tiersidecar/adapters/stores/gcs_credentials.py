"""Bearer tokens for Google Cloud Storage, by Google's own library, renewed before they expire."""

from __future__ import annotations

import asyncio
import json
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

_log = structlog.get_logger(__name__)


class GcsTokens:
    """Headers that authorize a request.

    Credentials are loaded at the first request, and anew when the service refuses them: a key file may have been replaced.
    A token near its end is renewed; while that fails, the old one is used until it expires.
    """

    def __init__(self, load: Callable[[], Credentials], *, blocking: Blocking) -> None:
        self._load, self._blocking = load, blocking
        self._credentials: Credentials | None = None
        self._turn = asyncio.Lock()

    async def headers(self, verb: str, key: str) -> Mapping[str, str]:
        """``verb`` and ``key`` are for the error.

        Raises:
            StoreError: there are no credentials, or the service that gives tokens refuses or does not answer.
        """
        credentials = self._credentials
        if credentials is None or credentials.token_state is not TokenState.FRESH:
            async with self._turn:
                credentials = await self._fresh(verb, key)
        headers: dict[str, str] = {}
        credentials.apply(headers)  # type: ignore[no-untyped-call]
        return headers

    def refused(self) -> None:
        """Load credentials anew for the next request: the service did not take these."""
        self._credentials = None

    async def _fresh(self, verb: str, key: str) -> Credentials:
        credentials = self._credentials
        try:
            if credentials is None:
                credentials = await self._blocking.run(self._load)
            if credentials.token_state is not TokenState.FRESH:
                await self._blocking.run(_refresh, credentials)
        except (GoogleAuthError, OSError, ValueError) as error:
            if credentials is None or credentials.token_state is TokenState.INVALID:
                raise StoreError(verb=verb, key=key, reason=_explain(error)) from error
            _log.warning("store.token.not_renewed", reason=_explain(error))
        self._credentials = credentials
        return credentials


def credentials_loader(settings: GcsSettings) -> Callable[[], Credentials]:
    """Return what loads the credentials of ``settings``, from files and perhaps over the network.  It blocks, and raises
    google.auth's errors, OSError and ValueError."""
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
    """Credentials of any kind that Google's libraries write: a service account's key, a user's, a workload identity
    federation's; or, as the plugin takes it, a document with an ``access_token`` alone."""
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


def _request() -> Request:
    return Request()


def _explain(error: Exception) -> str:
    if isinstance(error, DefaultCredentialsError) and "not found" in str(error):
        return _NONE_FOUND
    if isinstance(error, OSError):
        return f"the credentials cannot be read: {error.strerror}: {error.filename}"
    if isinstance(error, ValueError) and not isinstance(error, GoogleAuthError):
        return "the credentials are not what Google's libraries write: a JSON document with a type"
    return f"no access token: {' '.join(str(error.args[0] if error.args else error).split())[:300]}"
