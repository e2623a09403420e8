"""Authentication of the status service: other sidecars by their signature, browsers by a password."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.services.client_limits import REFUSAL, HostCheck
from tiersidecar.services.failed_logins import FailedLogins
from tiersidecar.services.status.proof import PROOF_HEADER, Verifier, answer_proof

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that show next to nothing."""
OPEN = PROBES | {"/metrics"}
"""Paths for probes and Prometheus, which sign nothing."""
_BROWSER = "browser"
"""Name of the page's user in the budget of failed logins: the page takes any name."""
_signed: ContextVar[bool] = ContextVar("signed", default=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Secrets:
    """``cluster`` is the secret that sidecars sign with; None: no request needs proof.  ``page`` is a browser's password;
    None: only browsers of this machine are served."""

    cluster: str | None = None
    page: str | None = None


class Access:
    """Admit requests by ``admit``, a middleware; ``prove`` adds to the answer of a signed request the proof of its sender."""

    def __init__(self, secrets: Secrets, hosts: HostCheck, failed_logins: FailedLogins | None = None) -> None:
        self._secrets, self._hosts, self._failed_logins = secrets, hosts, failed_logins or FailedLogins()
        self._verifier = None if secrets.cluster is None else Verifier(secrets.cluster)

    @staticmethod
    def is_signed() -> bool:
        """Return whether ``admit`` found that the present request is another sidecar's, or a command's."""
        return _signed.get()

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer only callers that may ask."""
        if self._verifier is None or request.path in OPEN:
            return await self._answer_anybody(request, handler)
        authorization = request.headers.get("Authorization", "")
        now_ms = time.time_ns() // 1_000_000
        _signed.set(False)  # one task answers a connection's requests
        nonce = self._verifier.nonce_of(authorization, method=request.method, target=request.raw_path, now_ms=now_ms)
        if nonce:
            _signed.set(True)
            return self._proven(await handler(request), nonce)
        if self._secrets.page is None:
            is_local = _is_of_this_machine(request.remote)
            if not is_local:
                return self._refusal()
            return await self._answer_anybody(request, handler, only_locals_may_ask=True)
        try:
            is_browser = await self._has_password(request, authorization, self._secrets.page)
        except QuotaExceededError as error:
            return web.json_response({"problem": str(error)}, status=429, headers={"Retry-After": "1"})
        return await handler(request) if is_browser else self._refusal()

    async def _answer_anybody(
        self, request: web.Request, handler: Handler, *, only_locals_may_ask: bool = False
    ) -> web.StreamResponse:
        is_foreign = self._hosts.is_foreign(request, only_locals_may_ask=only_locals_may_ask)
        if request.path not in PROBES and is_foreign:
            return web.json_response({"problem": REFUSAL}, status=HTTPStatus.MISDIRECTED_REQUEST)
        return await handler(request)

    async def _has_password(self, request: web.Request, authorization: str, page_password: str) -> bool:
        password = _password(authorization)
        if not password:
            return False  # a browser's first request has none, which is no guess
        is_right = hmac.compare_digest(password.encode(), page_password.encode())
        await self._failed_logins.settle(request.remote or "", _BROWSER, is_right=is_right, connection=request.task)
        return is_right

    def _proven(self, response: web.StreamResponse, nonce: str) -> web.StreamResponse:
        assert self._secrets.cluster is not None, "signed, without a secret"
        if isinstance(response, web.Response) and isinstance(response.body, bytes):
            response.headers[PROOF_HEADER] = answer_proof(
                self._secrets.cluster, nonce=nonce, code=response.status, body=response.body
            )
        return response

    def _refusal(self) -> web.Response:
        if self._secrets.page is None:
            problem = "this address answers sidecars alone: look from its own machine, or set status.page.password"
            return web.json_response({"problem": problem}, status=403)
        headers = {"WWW-Authenticate": 'Basic realm="tiersidecar", charset="UTF-8"'}
        problem = "it takes the user name of your choice and the password of status.page.password"
        return web.json_response({"problem": problem}, status=401, headers=headers)


def _password(authorization: str) -> str:
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:  # also for letters outside ASCII
        return ""


def _is_of_this_machine(remote: str | None) -> bool:
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
