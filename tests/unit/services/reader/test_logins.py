"""Wrong passwords take nothing from callers whose passwords are right; rights that are withdrawn end what is being read."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from tests.support.scripted_authorizer import ScriptedAuthorizer
from tests.unit.services.reader.service import ALL_TOPICS, Service, open_service
from tiersidecar.domain.errors import QuotaExceededError
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials
from tiersidecar.ports.store import Buffer
from tiersidecar.services.failed_logins import Budget, FailedLoginLimits, FailedLogins
from tiersidecar.services.reader.callers import Callers, KnownCallers
from tiersidecar.services.reader.logins import LoginLimits, Logins
from tiersidecar.services.reader.problems import ProblemError
from tiersidecar.services.reader.server import ReaderServiceSettings
from tiersidecar.services.reader.streams import NoMore

ATTACKERS, ASKED = 80, 25
RIGHT = {"Authorization": aiohttp.encode_basic_auth("alice", "right")}


class Slow(ScriptedAuthorizer):
    """A broker answers a wrong password after a tenth of a second (connection.failed.authentication.delay.ms)."""

    def __init__(self) -> None:
        super().__init__(users={"alice": ("right", ALL_TOPICS)})
        self.logins = 0

    async def log_in(self, credentials: Credentials) -> None:
        self.logins += 1
        try:
            await super().log_in(credentials)
        except CallerNotAuthenticatedError:
            await asyncio.sleep(0.1)
            raise


async def guess(service: Service, number: int, user: str) -> None:
    """One caller that tries password after password."""
    turn = 0
    while True:
        turn += 1
        login = {"Authorization": aiohttp.encode_basic_auth(user, f"{number} {turn}")}
        try:
            async with service.client.get("/topics", headers=login) as response:
                assert response.status in {401, 429}
        except aiohttp.ClientError:
            pass


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
@pytest.mark.parametrize("user", ["alice", "mallory"])
async def test_80_callers_with_wrong_passwords_do_not_shut_a_valid_one_out(address: str, user: str) -> None:
    """22 of its 25 requests were turned away: refused logins held the places of requests."""
    async with open_service(authorizer=Slow(), settings=ReaderServiceSettings(port=0, max_requests=16)) as service:
        guesses = [asyncio.create_task(guess(service, number, user)) for number in range(ATTACKERS)]
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        try:
            await asyncio.sleep(0.5)
            async with aiohttp.ClientSession(service.server.url, connector=connector) as client:
                found = []
                for _ in range(ASKED):
                    async with client.get("/topics", headers=RIGHT) as response:
                        found.append(response.status)
        finally:
            for one in guesses:
                one.cancel()
            await asyncio.gather(*guesses, return_exceptions=True)
    assert found.count(200) >= ASKED - 1, found


def by(password: str, user: str = "alice") -> Credentials:
    return Credentials(username=user, password=password)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def test_what_was_refused_is_refused_again_without_asking_and_for_longer_each_time() -> None:
    broker, clock = Slow(), Clock()
    free = FailedLoginLimits(by_address=Budget(free=100, forgotten_s=1.0))
    logins = Logins(broker, monotonic_s=clock, failed=FailedLogins(limits=free, monotonic_s=clock))
    asked = []
    for _ in range(40):
        with pytest.raises(CallerNotAuthenticatedError):
            await logins.check("a", by("wrong"))
        asked.append(broker.logins)
        clock.now_s += 0.5
    # After 1, 2, 4 and 8 s more.
    assert [asked.index(number) for number in range(1, 6)] == [0, 2, 6, 14, 30]


async def test_a_password_that_is_asked_twice_is_no_sooner_told_to_be_wrong() -> None:
    """Whoever gave up the first time learnt at the second that it was wrong: 665 passwords a second."""
    broker, slept = Slow(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    clock = Clock()
    logins = Logins(broker, monotonic_s=clock, failed=FailedLogins(monotonic_s=clock, sleep=sleep))
    for number in range(8):
        for _ in range(2):
            with pytest.raises(CallerNotAuthenticatedError):
                await logins.check("a", by(f"wrong {number}"))
    assert (broker.logins, len(slept)) == (8, 2 * 8 - 5)


async def test_what_was_let_in_is_not_asked_again_until_the_broker_refuses_it() -> None:
    broker, clock = Slow(), Clock()
    logins = Logins(broker, monotonic_s=clock)
    for _ in range(5):
        await logins.check("a", by("right"))
    assert broker.logins == 1
    logins.forget(by("right"))
    await logins.check("a", by("right"))
    assert broker.logins == 2
    clock.now_s += 301
    await logins.check("a", by("right"))
    assert broker.logins == 3


async def test_too_many_that_wait_are_turned_away() -> None:
    logins = Logins(Slow(), monotonic_s=Clock(), limits=LoginLimits(waiting=10))
    tries = [logins.check("a", by(f"wrong {number}")) for number in range(30)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(outcome, QuotaExceededError) for outcome in outcomes) == 20
    assert sum(isinstance(outcome, CallerNotAuthenticatedError) for outcome in outcomes) == 10


async def test_made_up_names_of_one_address_do_not_shut_out_another_address() -> None:
    """400 connections of one address, each with names of its own, turned a valid caller elsewhere away for 13 s."""
    broker = Slow()
    logins = Logins(broker, monotonic_s=Clock(), limits=LoginLimits(waiting=40))
    crowd = [asyncio.create_task(logins.check("10.0.0.1", by("x", f"user {number}"))) for number in range(60)]
    await asyncio.sleep(0)
    await logins.check("10.0.0.2", by("right"))
    assert broker.logins <= 8, "after those that were being tried, and not after the crowd"
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    assert sum(isinstance(outcome, QuotaExceededError) for outcome in outcomes) == 20


async def test_addresses_share_the_places_of_those_who_wait() -> None:
    logins = Logins(Slow(), monotonic_s=Clock(), limits=LoginLimits(waiting=12))
    tries = [
        logins.check(f"10.0.0.{address}", by("x", f"user {number}")) for address in range(3) for number in range(12)
    ]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    let_in = [isinstance(outcome, CallerNotAuthenticatedError) for outcome in outcomes]
    assert [sum(let_in[at : at + 12]) for at in (0, 12, 24)] == [12, 6, 4]


class Withdrawing(ScriptedAuthorizer):
    """May read, as often as that."""

    def __init__(self, times: int) -> None:
        super().__init__(anonymous=ALL_TOPICS)
        self._times = times

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        self._times -= 1
        return self._times >= 0


RECHECKED = ReaderServiceSettings(port=0, recheck_s=0.0)


async def read_all(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """The body, and whether it came to its end."""
    body = b""
    try:
        while part := await response.content.readany():
            body += part
    except aiohttp.ClientPayloadError:
        return body, False
    return body, True


async def test_lines_end_with_a_problem_when_the_right_to_read_is_withdrawn() -> None:
    async with (
        open_service("plain", authorizer=Withdrawing(2), settings=RECHECKED) as service,
        service.client.get("/topics/plain/partitions/0/records?offset=0&format=base64") as response,
    ):
        assert response.status == 200
        body, is_whole = await read_all(response)
    assert not is_whole
    *records, last = (json.loads(line) for line in body.splitlines())
    assert records
    assert all("offset" in record for record in records)
    assert last["problem"]["type"] == "not-authorized"
    assert last["problem"]["status"] == 403


async def test_batches_end_without_their_end_when_the_right_to_read_is_withdrawn() -> None:
    async with (
        open_service("plain", authorizer=Withdrawing(1), settings=RECHECKED) as service,
        service.client.get("/topics/plain/partitions/0/batches?offset=0") as response,
    ):
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_a_part_ends_in_its_middle_when_the_right_to_read_is_withdrawn() -> None:
    """All of it went out to a client that took its time."""
    callers = Callers(Withdrawing(1), known=KnownCallers(), requires_credentials=False, recheck_s=0.0)
    headers = {"Authorization": aiohttp.encode_basic_auth("reports", "right")}
    request = make_mocked_request("GET", "/", headers=headers)

    taken: list[Buffer] = []

    async def take_all() -> None:
        async for piece in callers.while_allowed(request, "plain", bytes(1024 * 1024), NoMore()):
            taken.append(piece)

    with pytest.raises(ProblemError):
        await take_all()
    assert sum(map(len, taken)) == 2 * 256 * 1024, "the first piece, and one after the broker said yes"
