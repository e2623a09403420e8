"""Delete single blobs with a SAS token.

object_store deletes by Blob Batch only, which not every token and server takes: Azurite answers 500 to a batch under a token.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import quote

import aiohttp
from yarl import URL

from tiersidecar.adapters.stores.azure_errors import refused
from tiersidecar.adapters.stores.azure_settings import AzureSettings
from tiersidecar.domain.errors import StoreError

_API_VERSION = "2021-08-06"
_FIRST_PAUSE_S = 0.1


class TokenDeletes:
    """``token`` is ``settings.sas_token``; connections are ``session``'s."""

    def __init__(self, session: aiohttp.ClientSession, settings: AzureSettings, token: str) -> None:
        self._session, self._settings, self._token = session, settings, token.lstrip("?")
        account = settings.endpoint_url or f"https://{settings.account_name}.blob.core.windows.net"
        self._container_url = f"{account.rstrip('/')}/{settings.container}"

    async def delete(self, key: str) -> None:
        """Delete the blob; one that is not there is no error.

        Raises:
            StoreError: the service refuses, or does not answer in ``max_attempts``.
        """
        for attempt in range(self._settings.max_attempts):
            is_last = attempt + 1 == self._settings.max_attempts
            try:
                status, code = await self._ask(key)
            except (aiohttp.ClientError, TimeoutError) as error:
                if is_last:
                    raise StoreError(verb="delete", key=key, reason=f"no answer: {type(error).__name__}") from None
            else:
                if status in (202, 404) and code != "ContainerNotFound":
                    return
                if status < 500 or is_last:
                    raise StoreError(verb="delete", key=key, reason=refused(status, code))
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)

    async def _ask(self, key: str) -> tuple[int, str]:
        url = f"{self._container_url}/{quote(key)}?{self._token}"
        timeout = aiohttp.ClientTimeout(total=self._settings.attempt_timeout_s)
        headers = {"x-ms-version": _API_VERSION}
        # The token is signed as it is written: no part of the address is to be quoted anew.
        async with self._session.delete(URL(url, encoded=True), headers=headers, timeout=timeout) as answer:
            return answer.status, answer.headers.get("x-ms-error-code", "")


def tls_of(settings: AzureSettings) -> ssl.SSLContext | bool:
    """As aiohttp takes it: true checks against the system's authorities."""
    if not settings.verify_tls:
        return False
    return True if settings.ca_pem is None else ssl.create_default_context(cadata=settings.ca_pem)
