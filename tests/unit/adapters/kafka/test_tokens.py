from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tiersidecar.adapters.kafka.security import ClientCredentials, TokenFile
from tiersidecar.adapters.kafka.tokens import EndpointTokens, FileTokens, open_tokens
from tiersidecar.domain.errors import BrokerUnreachableError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ManualClock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def endpoint(handler: Handler) -> AsyncIterator[ClientCredentials]:
    """A token endpoint in this process, and the credentials for it."""
    application = web.Application()
    application.router.add_post("/token", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield ClientCredentials(
            token_endpoint_url=f"http://{host}:{port}/token", client_id="me", client_secret="s3cret", scope="kafka"
        )
    finally:
        await runner.cleanup()


async def test_a_token_file_is_read_for_each_login(tmp_path: Path) -> None:
    """Somebody else renews it."""
    path = tmp_path / "token"
    tokens = open_tokens(TokenFile(path=str(path)))
    path.write_text("first\n")
    assert await tokens.token() == "first"
    path.write_text("second\n")
    assert await tokens.token() == "second"


@pytest.mark.parametrize("content", [None, b"", b"two words", b"a\x01b", b"\xff", "tokén".encode()])
async def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(BrokerUnreachableError, match=str(path)) as error:
        await FileTokens(TokenFile(path=str(path))).token()
    assert "two words" not in str(error.value)


async def test_the_endpoint_is_asked_as_rfc_6749_says() -> None:
    """Section 4.4, client credentials; section 2.3.1, HTTP Basic."""
    seen: list[tuple[str, dict[str, str]]] = []

    async def handler(request: web.Request) -> web.Response:
        form = {key: str(value) for key, value in (await request.post()).items()}
        seen.append((request.headers["Authorization"], form))
        return web.json_response({"access_token": "t", "expires_in": 60, "token_type": "Bearer"})

    async with endpoint(handler) as source:
        assert await open_tokens(source).token() == "t"

    assert seen == [("Basic bWU6czNjcmV0", {"grant_type": "client_credentials", "scope": "kafka"})]


async def test_one_token_serves_all_until_most_of_its_life_is_over() -> None:
    clock, given = ManualClock(), 0

    async def handler(_: web.Request) -> web.Response:
        nonlocal given
        given += 1
        return web.json_response({"access_token": f"t{given}", "expires_in": 100})

    async with endpoint(handler) as source:
        tokens = EndpointTokens(source, monotonic_s=clock)
        assert await asyncio.gather(*(tokens.token() for _ in range(5))) == ["t1"] * 5
        clock.now_s += 79
        assert await tokens.token() == "t1"
        clock.now_s += 1
        assert await tokens.token() == "t2"


async def test_a_token_of_unknown_lifetime_is_used_once() -> None:
    given = 0

    async def handler(_: web.Request) -> web.Response:
        nonlocal given
        given += 1
        return web.json_response({"access_token": f"t{given}"})

    async with endpoint(handler) as source:
        tokens = EndpointTokens(source, monotonic_s=ManualClock())
        assert [await tokens.token(), await tokens.token()] == ["t1", "t2"]


REFUSALS: dict[str, tuple[web.Response | None, str]] = {
    "wrong client secret": (web.json_response({"error": "invalid_client"}, status=401), "answers 401 invalid_client"),
    "server error": (web.Response(status=500, text="oops"), "answers 500"),
    "a redirect, which might leak the secret": (web.Response(status=302, headers={"Location": "/"}), "answers 302"),
    "not JSON": (web.Response(text="<html>"), "no valid bearer token"),
    "JSON of another form": (web.json_response(["t"]), "no valid bearer token"),
    "no token": (web.json_response({"expires_in": 60}), "no valid bearer token"),
    "a token that would break out of its field": (
        web.json_response({"access_token": "a\1b"}),
        "no valid bearer token",
    ),
    "an endless answer": (web.Response(body=b"x" * 70_000), "more than 65536 bytes"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_an_endpoint_that_gives_no_token_is_named_without_secrets(name: str) -> None:
    response, reason = REFUSALS[name]

    async def handler(_: web.Request) -> web.StreamResponse:
        assert response is not None
        return response

    async with endpoint(handler) as source:
        with pytest.raises(BrokerUnreachableError, match=reason) as error:
            await open_tokens(source).token()
    assert source.token_endpoint_url in str(error.value)
    assert "s3cret" not in str(error.value)


async def test_after_a_failure_the_endpoint_is_asked_again() -> None:
    answers = [web.Response(status=503), web.json_response({"access_token": "t", "expires_in": 9})]

    async def handler(_: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async with endpoint(handler) as source:
        tokens = open_tokens(source)
        with pytest.raises(BrokerUnreachableError):
            await tokens.token()
        assert await tokens.token() == "t"


async def test_an_endpoint_that_is_not_there_is_named_without_the_secrets_of_its_url() -> None:
    source = ClientCredentials(
        token_endpoint_url="http://127.0.0.1:1/token?key=hidden", client_id="me", client_secret="hidden"
    )

    with pytest.raises(BrokerUnreachableError, match=r"http://127\.0\.0\.1:1/token") as error:
        await open_tokens(source).token()
    assert "hidden" not in str(error.value)
