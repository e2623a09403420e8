"""Places by turns: who asks for many delays their own reads, not everybody's (issue 17).

Who reads cold data is told by name, within bounds that no client can pass (issue 20).
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.manual_clock import ManualClock, settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tiersidecar.decide.reader_quotas import DEFAULT, ColdReader, ReaderQuotaRule
from tiersidecar.ports.metrics.reading import COLD_READ_BYTES, COLD_READ_REQUESTS
from tiersidecar.reading.reader_limits import OTHERS, ColdReads, FairPlaces, PlacesFullError


class World:
    """Takes places, and lists who got one, in order."""

    def __init__(self, places: FairPlaces) -> None:
        self.places = places
        self.got = list[str]()
        self.shed = list[str]()
        self.tasks = list[asyncio.Task[None]]()

    def ask(self, asker: str, *, may_be_shed: bool = True) -> asyncio.Task[None]:
        async def take() -> None:
            try:
                await self.places.take(asker, may_be_shed=may_be_shed)
            except PlacesFullError:
                self.shed.append(asker)
            else:
                self.got.append(asker)

        task = asyncio.create_task(take())
        self.tasks.append(task)
        return task

    async def ask_all(self, askers: str) -> None:
        for asker in askers:
            self.ask(asker)
            await settle()

    async def ended(self, askers: str) -> None:
        for asker in askers:
            self.places.give_back(asker)
            await settle()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("places", "asked", "ended", "got"),
    [
        pytest.param(FairPlaces(2), "aa", "", "aa", id="free places are had at once"),
        pytest.param(
            FairPlaces(1), "aaaab", "aa", "aab", id="one that has just come waits for one of those who had come first"
        ),
        pytest.param(FairPlaces(1), "aaabbcc", "aabca", "aabcab", id="callers have their turns, each in its own order"),
        pytest.param(FairPlaces(3, most_each=2), "aaa", "", "aa", id="one caller never has all places"),
        pytest.param(FairPlaces(3, most_each=2), "aaab", "", "aab", id="and another has the one that is left, at once"),
        pytest.param(FairPlaces(3, most_each=2), "aaa", "a", "aaa", id="its next one waits for its own"),
    ],
)
async def test_who_gets_a_place(places: FairPlaces, asked: str, ended: str, got: str) -> None:
    world = World(places)
    await world.ask_all(asked)
    await world.ended(ended)
    assert "".join(world.got) == got
    await world.close()


@pytest.mark.parametrize(
    ("waiting", "asked", "shed"),
    [
        pytest.param(2, "aaa", "", id="as many wait as may"),
        pytest.param(2, "aaaa", "a", id="the next one of the same caller is turned away"),
        pytest.param(3, "aaaab", "a", id="for one of another the caller with the most loses its last"),
        pytest.param(2, "aabc", "c", id="where all have one waiting, who comes last is turned away"),
        pytest.param(3, "aaabb", "b", id="nobody loses one to who would then have as many"),
    ],
)
async def test_who_is_turned_away_from_a_full_line(waiting: int, asked: str, shed: str) -> None:
    world = World(FairPlaces(1, waiting=waiting))
    await world.ask_all(asked)
    assert "".join(world.shed) == shed
    await world.close()


async def test_who_must_not_be_shed_is_not_and_waits_above_the_limit() -> None:
    world = World(FairPlaces(1, waiting=1))
    await world.ask_all("a")
    world.ask("a", may_be_shed=False)
    world.ask("a", may_be_shed=False)
    await settle()
    world.ask("b")
    await settle()
    assert world.shed == ["b"], "nobody else may be shed"
    await world.ended("aa")
    assert world.got == ["a", "a", "a"]
    await world.close()


async def test_who_stops_waiting_leaves_the_line_and_who_stops_as_it_is_given_hands_it_on() -> None:
    world = World(FairPlaces(1))
    await world.ask_all("ab")
    world.tasks[1].cancel()
    await settle()
    await world.ask_all("cd")
    world.places.give_back("a")
    world.tasks[2].cancel()  # the place is its own, and it has not run since
    await settle()
    assert world.got == ["a", "d"]
    await world.close()


async def test_who_goes_in_the_moment_in_which_a_place_is_free_does_not_take_it_along() -> None:
    """A client that ended with several reads under way left its places to those of its reads that had just been cancelled, and
    with them went the places: after ten such ends nothing remote was read until the next start."""
    world = World(FairPlaces(1))
    await world.ask_all("abc")
    world.tasks[1].cancel()  # it has not run since
    world.places.give_back("a")
    await settle()
    assert world.got == ["a", "c"]
    world.places.give_back("c")
    await world.ask_all("d")
    assert world.got == ["a", "c", "d"]
    await world.close()


async def test_who_has_just_gone_is_not_shed() -> None:
    world = World(FairPlaces(1, waiting=2))
    await world.ask_all("aaa")
    world.ask("b")
    world.tasks[2].cancel()  # it has not run since when b asks
    await settle()
    assert world.shed == []
    await world.ended("ab")
    assert world.got == ["a", "a", "b"]
    await world.close()


@given(st.lists(st.sampled_from(["a", "b", "c", "cancel", "end", "settle"]), max_size=60), st.integers(1, 3))
def test_no_place_is_lost_whoever_goes_when(steps: list[str], count: int) -> None:
    async def run() -> None:
        places = FairPlaces(count, waiting=4)
        ends = asyncio.Event()

        async def read(asker: str, end: asyncio.Event) -> None:
            await places.take(asker, may_be_shed=True)
            try:
                await end.wait()
            finally:
                places.give_back(asker)

        reads = list[tuple[asyncio.Task[None], asyncio.Event]]()
        for step in steps:
            if step in "abc":
                end = asyncio.Event()
                reads.append((asyncio.create_task(read(step, end)), end))
            elif step == "settle":
                await settle()
            elif reads:
                task, end = reads.pop(0)
                if step == "cancel":
                    task.cancel()
                else:
                    end.set()
        for task, _ in reads:
            task.cancel()
        await settle()
        fresh = [asyncio.create_task(read("d", ends)) for _ in range(count)]
        await settle()
        ends.set()
        async with asyncio.timeout(1):
            await asyncio.gather(*fresh)

    asyncio.run(run())


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 3), st.data())
def test_no_caller_has_two_turns_while_another_waits(
    asked: list[str], count: int, most_each: int, data: st.DataObject
) -> None:
    """Whatever ends first: all get a place in the end, no more at once than there are, and no more than each may have."""

    async def run() -> None:
        world = World(FairPlaces(count, most_each=most_each))
        for asker in asked:
            world.ask(asker)
        await settle()
        held, seen = Counter(world.got), len(world.got)
        while held:
            assert sum(held.values()) <= count
            assert max(held.values()) <= most_each
            asker = data.draw(st.sampled_from(sorted(held)))
            world.places.give_back(asker)
            held[asker] -= 1
            await settle()
            held += Counter(world.got[seen:])
            seen = len(world.got)
        assert sorted(world.got) == sorted(asked)
        await world.close()

    asyncio.run(run())


async def test_who_gives_way_is_followed_by_others_and_goes_on_before_more_of_its_own() -> None:
    world = World(FairPlaces(1))
    try:
        await world.ask_all("aab")
        giving_way = asyncio.create_task(world.places.give_way("a"))
        await settle()
        assert (world.got, giving_way.done()) == (["a", "b"], False)
        await world.ended("b")
        assert (world.got, giving_way.done()) == (["a", "b"], True), "before the second of a"
        await world.ended("a")
        assert world.got == ["a", "b", "a"]
    finally:
        await world.close()


@pytest.mark.parametrize("is_given", [False, True])
async def test_who_is_given_up_while_it_gives_way_holds_no_place(is_given: bool) -> None:
    world = World(FairPlaces(1))
    try:
        await world.ask_all("ab")
        giving_way = asyncio.create_task(world.places.give_way("a"))
        await settle()
        if is_given:
            world.places.give_back("b")
        giving_way.cancel()
        await settle()
        if not is_given:
            await world.ended("b")
        await world.ask_all("c")
        assert world.got == ["a", "b", "c"]
    finally:
        await world.close()


ALICE = ColdReader(principal="User:alice", client_id="app")


def read(cold: ColdReads, reader: ColdReader, size_bytes: int = 10, topic: str = "orders") -> None:
    cold.begun(reader, topic)
    cold.took(reader, topic, size_bytes)


@pytest.mark.parametrize("size_bytes", [0, 1000])
def test_an_answer_counts_as_a_request_and_what_it_brought(size_bytes: int) -> None:
    rule = ReaderQuotaRule(user=DEFAULT, bytes_per_s=1)
    apart, at_once = (ColdReads(clock=ManualClock(), rules=[rule]) for _ in range(2))
    apart.begun(ALICE, "orders")
    apart.took(ALICE, "orders", size_bytes)
    at_once.answered(ALICE, "orders", size_bytes)
    assert at_once.readings == apart.readings
    assert at_once.throttle_s(ALICE) == apart.throttle_s(ALICE)
    assert (at_once.throttle_s(ALICE) > 0) is (size_bytes > 0)


def test_requests_and_bytes_are_counted_by_principal_client_id_and_topic() -> None:
    telemetry = RecordedTelemetry()
    cold = ColdReads(clock=ManualClock(), telemetry=telemetry)
    read(cold, ALICE, 10)
    read(cold, ALICE, 30)
    read(cold, ALICE, 500, topic="audit")
    labels = {"principal": "User:alice", "client_id": "app", "topic": "orders"}
    assert telemetry.value(COLD_READ_BYTES, **labels) == 40
    assert telemetry.value(COLD_READ_REQUESTS, **labels) == 2
    assert [(one.topic, one.requests, one.size_bytes) for one in cold.readings] == [
        ("audit", 1, 500),
        ("orders", 2, 40),
    ]


def test_one_principal_of_many_client_ids_takes_no_names_from_others() -> None:
    cold = ColdReads(clock=ManualClock())
    for number in range(1000):
        read(cold, ColdReader(principal="User:mallory", client_id=f"random-{number}"))
    read(cold, ALICE)
    told = cold.readings
    assert len(told) == 22
    mallorys = {one.client_id: one.size_bytes for one in told if one.principal == "User:mallory"}
    assert (len(mallorys), mallorys[OTHERS]) == (21, 9800)
    assert any(one.principal == "User:alice" and one.client_id == "app" for one in told)


def test_series_are_bounded_whoever_reads_and_nothing_is_left_out_of_the_sum() -> None:
    telemetry = RecordedTelemetry()
    cold = ColdReads(clock=ManualClock(), telemetry=telemetry)
    for number in range(1000):
        read(cold, ColdReader(principal=f"User:{number}", client_id="x" * 5000))
    told = cold.readings
    assert len(told) == 101
    assert sum(one.size_bytes for one in told) == 10_000
    assert (told[0].principal, told[0].size_bytes) == (OTHERS, 9000)
    assert max(len(one.client_id) for one in told) == 100


async def test_who_is_silent_for_an_hour_gives_its_place_and_its_series_to_another() -> None:
    clock, telemetry = ManualClock(), RecordedTelemetry()
    cold = ColdReads(clock=clock, telemetry=telemetry)
    for number in range(100):
        read(cold, ColdReader(principal=f"User:{number}", client_id="app"))
    await clock.advance(3599)
    read(cold, ColdReader(principal="User:0", client_id="app"))
    await clock.advance(2)
    read(cold, ALICE)
    principals = {one.principal for one in cold.readings}
    assert ("User:alice" in principals, "User:0" in principals, "User:1" in principals) == (True, True, False)
    assert telemetry.value(COLD_READ_BYTES, principal="User:1", client_id="app", topic="orders") is None


async def test_a_budget_is_over_when_its_bytes_of_the_windows_are_too_many_and_comes_back() -> None:
    clock = ManualClock()
    cold = ColdReads(clock=clock, rules=[ReaderQuotaRule(user=DEFAULT, bytes_per_s=100)])
    bob = ColdReader(principal="User:bob", client_id="app")
    assert cold.throttle_s(ALICE) == 0
    read(cold, ALICE, 500)
    assert (cold.throttle_s(ALICE), cold.throttle_s(bob), cold.throttle_s(None)) == (5.0, 0, 0)
    await clock.advance(5)
    assert cold.throttle_s(ALICE) == 0


def test_without_a_rule_nothing_is_throttled() -> None:
    cold = ColdReads(clock=ManualClock())
    read(cold, ALICE, 10**12)
    assert cold.throttle_s(ALICE) == 0


def test_long_client_ids_take_no_memory_and_no_budget_of_their_own() -> None:
    rule = ReaderQuotaRule(client_id=DEFAULT, bytes_per_s=1.0)
    cold = ColdReads(clock=ManualClock(), rules=[rule])
    cold.took(ColdReader(principal="User:mallory", client_id="x" * 30_000 + "1"), "orders", 1000)
    assert cold.throttle_s(ColdReader(principal="User:mallory", client_id="x" * 30_000 + "2")) > 0
    assert cold.throttle_s(ALICE) == 0
