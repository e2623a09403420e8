"""Limits hold for all workers of a gateway together: two halves of it in one process, over one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.scripted_kafka import gateway_between
from tiersidecar.adapters.worker_table import RowShares, WorkerTable
from tiersidecar.app.gateway_workers.shared_memory import SharedOpenedMemory
from tiersidecar.decide.reader_quotas import ColdReader, ReaderQuotaRule
from tiersidecar.domain.errors import NoMemoryLeftError, TooLargeToOpenError
from tiersidecar.ports.metrics.gateway import GATEWAY_CONNECTIONS_REFUSED
from tiersidecar.reading.reader_limits import ColdReads
from tiersidecar.services.gateway.frames import MemoryPart, ResponseMemory
from tiersidecar.services.gateway.unauthenticated import (
    ListenerLogins,
    PendingLogin,
    Unauthenticated,
    UnauthenticatedLimits,
)

LIMITS = UnauthenticatedLimits(
    buffer_bytes=100, request_bytes=50, login_timeout_s=10, max_connections=6, max_connections_per_ip=4
)


@pytest.fixture
def table() -> Iterator[WorkerTable]:
    made = WorkerTable.create(workers=2, keys=100)
    yield made
    made.close()


def shares(table: WorkerTable) -> tuple[RowShares, RowShares]:
    return RowShares(table, 1), RowShares(table, 2)


def part_of(memory: ResponseMemory, client: str) -> MemoryPart:
    return memory.part(lambda: client)


def test_a_response_waits_for_what_another_worker_gives_back(table: WorkerTable) -> None:
    """Half of the memory is divided, a quarter each; the rest is the first's who needs it."""
    first, second = (ResponseMemory(400, shares=one) for one in shares(table))
    parts = [part_of(first, name) for name in "abcd"]
    assert all(part.take(100, lambda: None) for part in parts[:3])
    assert parts[3].take_some(100) == 0, "the last quarter is the other worker's"
    got: list[int] = []
    theirs = [part_of(second, name) for name in "ef"]
    assert theirs[0].take(100, lambda: None)
    assert not theirs[1].take(60, lambda: got.append(60))
    parts[0].give_back(100)
    second.look_again()
    assert got == [60]
    for part in (*parts, *theirs):
        part.close()
    assert (first.held_bytes, second.held_bytes) == (0, 0)


def test_a_worker_always_has_room_for_a_response(table: WorkerTable) -> None:
    first, second = (ResponseMemory(400, shares=one) for one in shares(table))
    for name in "abcdefgh":
        part_of(first, name).take_some(100)
    assert first.held_bytes == 300
    assert second.part_bytes == 100
    assert second.part(lambda: "z").take(100, lambda: None)


class Half:
    """One worker's connections that have not logged in, by name."""

    def __init__(self, one: RowShares) -> None:
        self.all = Unauthenticated(LIMITS, one)
        self.listener, self.shed = ListenerLogins(), dict[str, str]()

    def enter(self, name: str, ip: str) -> PendingLogin:
        def shed(reason: str) -> None:
            self.shed[name] = reason

        return self.all.enter(self.listener, ip, 0, shed)


def test_places_before_a_login_are_lent_and_given_back(table: WorkerTable) -> None:
    first, second = map(Half, shares(table))
    for number in range(6):
        first.enter(str(number), f"ip{number}")
    assert first.shed == {}, "the other worker has none"
    assert second.all.is_crowded(second.listener, "a") is False, "its half is its own"
    for number in range(3):
        second.enter(str(number), "b")
    assert second.shed == {}
    first.all.sweep(1)
    assert (first.all.count, second.all.count) == (3, 3)
    assert set(first.shed.values()) == {"unauthenticated"}
    assert second.all.is_crowded(second.listener, "c")


def test_places_of_an_address_are_counted_in_both(table: WorkerTable) -> None:
    first, second = map(Half, shares(table))
    for name in "123":
        first.enter(name, "a")
    second.enter("4", "a")
    assert second.all.is_crowded(second.listener, "a") is False
    second.enter("5", "a")
    assert second.all.is_crowded(second.listener, "a")
    first.all.sweep(1)
    assert first.shed == {"1": "unauthenticated_per_ip"}
    assert second.shed == {}


def test_bytes_before_a_login_are_lent_and_given_back(table: WorkerTable) -> None:
    first, second = map(Half, shares(table))
    for name in "123":
        first.enter(name, f"ip{name}").hold(30)
    assert first.shed == {}
    second.enter("4", "b").hold(50)
    assert second.shed == {}
    first.all.sweep(1)
    assert first.shed == dict.fromkeys("12", "unauthenticated_bytes")
    assert first.all.held_bytes + second.all.held_bytes <= 100


async def test_connections_are_counted_in_both_listeners(table: WorkerTable) -> None:
    async with AsyncExitStack() as stack:
        halves = [
            await stack.enter_async_context(gateway_between(max_connections=3, shares=one)) for one in shares(table)
        ]
        kept = [await halves[0].pair(), await halves[1].pair(), await halves[0].pair()]
        for half in halves:
            refused = await half.client()
            assert await refused.ends() == b""
        kept[1][0].close()
        assert await kept[1][1].ends() == b""
        await halves[0].pair()
    for half in halves:
        assert half.telemetry.value(GATEWAY_CONNECTIONS_REFUSED, listener="GATEWAY", reason="max_connections") == 1


async def test_connections_of_an_address_are_counted_in_both_listeners(table: WorkerTable) -> None:
    async with AsyncExitStack() as stack:
        halves = [
            await stack.enter_async_context(gateway_between(max_connections_per_ip=2, shares=one))
            for one in shares(table)
        ]
        for half in halves:
            await half.pair()
        refused = await halves[1].client()
        assert await refused.ends() == b""
    reason = "max_connections_per_ip"
    assert halves[1].telemetry.value(GATEWAY_CONNECTIONS_REFUSED, listener="GATEWAY", reason=reason) == 1


def test_a_readers_budget_is_one(table: WorkerTable) -> None:
    clock = ManualClock()
    rules = [ReaderQuotaRule(user="a", bytes_per_s=50)]
    first, second = (ColdReads(clock=clock, rules=rules, shares=one) for one in shares(table))
    reader = ColdReader(principal="User:a", client_id="c")
    first.took(reader, "t", 500)
    assert second.throttle_s(reader) == first.throttle_s(reader) > 0
    assert second.throttle_s(ColdReader(principal="User:b")) == 0


def test_memory_for_opened_batches_is_one(table: WorkerTable) -> None:
    first, second = (SharedOpenedMemory(100, one, rest=lambda: None) for one in shares(table))
    first.change(0, 80)
    with pytest.raises(NoMemoryLeftError):
        second.change(0, 30)
    second.change(0, 20)
    with pytest.raises(TooLargeToOpenError):
        second.change(20, 101)
    first.change(80, 0)
    second.change(20, 100)
    assert (first.held_bytes, second.held_bytes) == (0, 100)
