"""Guesses of the page's password have a budget, which no valid browser elsewhere and no sidecar pays for."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import make_mocked_request

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.services.client_limits import HostCheck
from tiersidecar.services.failed_logins import FailedLoginLimits, FailedLogins
from tiersidecar.services.status.access import Access, Secrets

PASSWORD, SECRET = "correct horse battery", "s" * 32
HERE, THERE = "10.0.0.1", "10.0.0.2"


async def answer(request: web.Request) -> web.StreamResponse:
    return web.Response()


class Page:
    """Who may see it, and a clock that moves only while an answer is waited for."""

    def __init__(self, limits: FailedLoginLimits | None = None) -> None:
        self.clock = ManualClock()
        failed = FailedLogins(limits=limits, monotonic_s=self.clock.monotonic_s, sleep=self.clock.sleep)
        self._access = Access(Secrets(cluster=SECRET, page=PASSWORD), HostCheck("0.0.0.0"), failed)

    async def ask(self, address: str, password: str | None, path: str = "/") -> tuple[int, float]:
        """The status of the response, and how long it took."""
        headers = {} if password is None else {"Authorization": encode_basic_auth("me", password)}
        request = make_mocked_request("GET", path, headers=headers).clone(remote=address)
        begun_s, task = self.clock.monotonic_s(), asyncio.create_task(self._access.admit(request, answer))
        await settle()
        while not task.done():
            await self.clock.advance(0.25)
        return (await task).status, self.clock.monotonic_s() - begun_s


async def test_guesses_are_slowed_and_a_right_one_among_them_too() -> None:
    """Each was answered at once."""
    page = Page()
    found = [await page.ask(HERE, f"guess {number}") for number in range(11)]
    assert found == [(401, waited) for waited in [0, 0, 0, 0, 0, 0.25, 0.5, 1, 2, 4, 5]]
    assert await page.ask(HERE, PASSWORD) == (200, 5)
    assert await page.ask(THERE, PASSWORD) == (200, 0)
    assert await page.ask(HERE, None, "/metrics") == (200, 0)


@pytest.mark.parametrize("password", [None, ""])
async def test_a_request_without_a_password_is_no_guess(password: str | None) -> None:
    page = Page()
    for _ in range(20):
        assert await page.ask(HERE, password) == (401, 0)
    assert await page.ask(HERE, PASSWORD) == (200, 0)


async def test_where_too_many_wait_a_guess_is_not_even_looked_at() -> None:
    page = Page(FailedLoginLimits(held_back=0))
    for number in range(6):
        await page.ask(HERE, f"guess {number}")
    waiting = asyncio.create_task(page.ask(HERE, "guess"))
    await settle()
    assert await page.ask(HERE, PASSWORD) == (429, 0)
    waiting.cancel()
