"""Guesses are slowed by address and user, and by user; others' logins are not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import structlog

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials
from tiersidecar.services.bucket.users import User, Users
from tiersidecar.services.failed_logins import FailedLoginLimits, FailedLogins
from tiersidecar.services.reader.logins import Logins

HERE, THERE = "10.0.0.1", "10.0.0.2"
SLOWEST_S = FailedLoginLimits().most_delay_s


class World:
    """Failed logins, and a clock that moves only while one of them is waited for."""

    def __init__(self, limits: FailedLoginLimits | None = None) -> None:
        self.clock = ManualClock()
        self.failed = FailedLogins(limits=limits, monotonic_s=self.clock.monotonic_s, sleep=self.clock.sleep)

    async def waited_s(self, login: Coroutine[Any, Any, None]) -> float:
        """How long ``login`` takes."""
        begun_s, task = self.clock.monotonic_s(), asyncio.create_task(login)
        await settle()
        while not task.done():
            await self.clock.advance(0.25)
        await task
        return self.clock.monotonic_s() - begun_s

    async def wrong(self, address: str, user: str, times: int = 1) -> float:
        """How long the last of so many takes, one after the other."""
        waits = [await self.waited_s(self.failed.settle(address, user, is_right=False)) for _ in range(times)]
        return waits[-1]

    async def right(self, address: str, user: str, connection: object = None) -> float:
        """How long it takes."""
        login = self.failed.settle(address, user, is_right=True, connection=connection)
        return await self.waited_s(login)


async def test_after_five_failures_each_outcome_comes_later_than_the_one_before() -> None:
    world = World()
    assert [await world.wrong(HERE, "alice") for _ in range(12)] == [0] * 5 + [0.25, 0.5, 1, 2, 4, 5, 5]


async def test_a_right_login_in_the_midst_of_guesses_waits_as_they_do() -> None:
    """Else a guesser need not wait: an outcome that does not come at once is a wrong one."""
    world = World()
    await world.wrong(HERE, "alice", 20)
    assert await world.right(HERE, "alice") == SLOWEST_S


async def test_guesses_that_are_sent_together_count_one_after_the_other() -> None:
    world = World()
    guesses = [asyncio.create_task(world.failed.settle(HERE, "alice", is_right=False)) for _ in range(40)]
    await settle()
    assert sum(one.done() for one in guesses) == 5
    for one in guesses:
        one.cancel()
    await asyncio.gather(*guesses, return_exceptions=True)
    assert await world.right(HERE, "alice") == SLOWEST_S, "what was not waited for counts all the same"


@pytest.mark.parametrize(("address", "user"), [(HERE, "bob"), (THERE, "alice"), (THERE, "bob")])
async def test_guesses_of_one_address_delay_neither_other_users_nor_other_addresses(address: str, user: str) -> None:
    world = World()
    await world.wrong(HERE, "alice", 300)
    assert await world.right(address, user) == 0


@pytest.mark.parametrize(
    ("address", "others"), [("2001:db8::1", ["2001:db8::2"]), ("127.0.0.1", ["127.0.0.2", "::1", "::ffff:127.0.0.1"])]
)
async def test_an_ipv6_network_is_one_address_and_so_is_this_machine(address: str, others: list[str]) -> None:
    world = World()
    await world.wrong(address, "alice", 20)
    for other in others:
        assert await world.right(other, "alice") > 0
    assert await world.right("2001:db8:0:1::1", "alice") == 0


async def test_guesses_of_many_addresses_are_slowed_by_user_but_not_where_the_user_logs_in() -> None:
    world = World()
    assert await world.right(HERE, "alice") == 0
    for number in range(60):
        await world.wrong(f"10.1.0.{number}", "alice")
    assert 0 < await world.wrong("10.2.0.1", "alice") <= SLOWEST_S
    assert await world.right(HERE, "alice") == 0
    assert await world.right(THERE, "bob") == 0


async def test_failures_are_forgotten() -> None:
    world = World()
    await world.wrong(HERE, "alice", 20)
    await world.clock.advance(61)
    assert await world.wrong(HERE, "alice") > 0
    await world.clock.advance(120)
    assert await world.wrong(HERE, "alice", 5) == 0


async def test_a_connection_that_has_logged_in_waits_no_more() -> None:
    world, connection, other = World(), asyncio.Event(), asyncio.Event()
    await world.wrong(HERE, "alice", 20)
    assert await world.right(HERE, "alice", connection) == SLOWEST_S
    assert await world.right(HERE, "alice", connection) == 0
    assert await world.right(HERE, "alice", other) == SLOWEST_S
    await world.wrong(HERE, "bob", 20)
    assert await world.right(HERE, "bob", connection) == SLOWEST_S, "of another user"


async def test_no_more_than_so_many_are_held_back_and_others_have_their_part() -> None:
    world = World(FailedLoginLimits(held_back=4))
    for address in (HERE, THERE):
        await world.wrong(address, "alice", 10)
    guesses = [asyncio.create_task(world.failed.settle(HERE, "alice", is_right=False)) for _ in range(9)]
    await settle()
    assert sum(one.done() and isinstance(one.exception(), QuotaExceededError) for one in guesses) == 5
    assert await world.right(THERE, "alice") == SLOWEST_S
    for one in guesses:
        one.cancel()
    await asyncio.gather(*guesses, return_exceptions=True)


async def test_the_log_says_so_once_a_minute() -> None:
    world = World()
    with structlog.testing.capture_logs() as logs:
        await world.wrong(HERE, "x" * 5000, 12)
    assert [(one["event"], one["address"], len(one["user"]) < 600) for one in logs] == [("logins.slowed", HERE, True)]


async def test_no_more_than_ten_thousand_callers_are_remembered() -> None:
    world = World()
    await world.wrong(HERE, "alice", 20)
    for number in range(10_000):
        await world.failed.settle(HERE, f"user {number}", is_right=False)
    assert await world.right(HERE, "alice") == 0


def by(password: str, user: str = "alice") -> Credentials:
    return Credentials(username=user, password=password)


class OfServe(World):
    """The logins of ``tiersidecar serve`` over HTTP, whose users are its own."""

    def __init__(self) -> None:
        super().__init__()
        users = Users([User(name="alice", password="right"), User(name="bob", password="right")])
        self.logins = Logins(users, monotonic_s=self.clock.monotonic_s, failed=self.failed)

    async def guess(self, times: int) -> None:
        """Of alice's, from here."""
        for number in range(times):
            with pytest.raises(CallerNotAuthenticatedError):
                await self.waited_s(self.logins.check(HERE, by(f"guess {number}")))


async def test_serve_slows_guesses_of_its_users() -> None:
    """A hundred were answered at once: what was remembered was each password by itself."""
    world = OfServe()
    begun_s = world.clock.monotonic_s()
    await world.guess(100)
    assert world.clock.monotonic_s() - begun_s > 90 * SLOWEST_S
    for address, user in ((THERE, "alice"), (HERE, "bob")):
        assert await world.waited_s(world.logins.check(address, by("right", user))) == 0


async def test_what_is_known_of_a_caller_tells_nothing_to_a_guesser() -> None:
    """A right guess was let in at once while its user was known, from any address; so none had to be waited for."""
    world, connection = OfServe(), asyncio.Event()
    await world.waited_s(world.logins.check(THERE, by("right"), connection))
    await world.waited_s(world.logins.check(HERE, by("right"), connection))
    await world.guess(20)
    assert await world.waited_s(world.logins.check(HERE, by("right"))) == SLOWEST_S
    assert await world.waited_s(world.logins.check(HERE, by("right"), connection)) == 0
    assert await world.waited_s(world.logins.check(THERE, by("right"))) == 0
