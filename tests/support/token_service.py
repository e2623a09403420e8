"""A stand-in for AWS STS on loopback: no S3 server at hand has one that takes tokens of loopback.  It gives the keys that it
was made with to any client that asks for a role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

# An empty session token: the S3 server behind learns nothing of a session, and knows the keys as its own.
_ANSWER = """<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>
<AccessKeyId>{access_key}</AccessKeyId><SecretAccessKey>{secret_key}</SecretAccessKey>
<SessionToken></SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>
</Credentials></{action}Result></{action}Response>"""


@dataclass(slots=True, kw_only=True)
class TokenService:
    """``asked`` has the form of each request."""

    url: str
    asked: list[dict[str, str]] = field(default_factory=list)


@asynccontextmanager
async def running_token_service(access_key: str, secret_key: str) -> AsyncIterator[TokenService]:
    service = TokenService(url="")

    async def assume(request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        service.asked.append(form)
        text = _ANSWER.format(action=form["Action"], access_key=access_key, secret_key=secret_key)
        return web.Response(text=text, content_type="text/xml")

    app = web.Application()
    app.router.add_post("/", assume)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()
