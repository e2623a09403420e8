"""Who has the memory for responses, where clients take none of theirs."""

from __future__ import annotations

import random
from functools import partial

from tiersidecar.services.gateway.frames import MemoryPart, ResponseMemory


class Connection:
    """Takes memory, and waits for it; ``got`` is what it was given after it had waited."""

    def __init__(self, memory: ResponseMemory, client: str) -> None:
        self.client = client
        self.part = memory.part(lambda: self.client)
        self.got = 0

    def take(self, size_bytes: int) -> bool:
        return self.part.take(size_bytes, partial(self._given, size_bytes))

    def _given(self, size_bytes: int) -> None:
        self.got += size_bytes


def test_a_connection_has_a_quarter_at_most() -> None:
    memory = ResponseMemory(400)
    one = Connection(memory, "a")
    assert one.part.take_some(1000) == 100
    assert one.part.take_some(1) == 0
    assert not one.take(1)
    one.part.give_back(60)
    assert one.got == 1
    assert memory.held_bytes == one.part.held_bytes == 41


def test_a_client_with_many_connections_that_takes_nothing_leaves_room_for_others() -> None:
    memory = ResponseMemory(400)
    stuck = [Connection(memory, "a") for _ in range(100)]
    taken = [one.part.take_some(100) for one in stuck]
    assert sum(taken) == memory.held_bytes == 300, "three times what it leaves free"
    assert not stuck[0].take(1)
    assert not stuck[1].take(90)
    other = Connection(memory, "b")
    assert other.take(100), "whatever the first waits for"
    other.part.give_back(100)
    assert other.part.take_some(1000) == 100


def test_of_two_such_clients_neither_takes_all() -> None:
    memory = ResponseMemory(700)
    for _ in range(100):
        for client in "ab":
            Connection(memory, client).part.take_some(10)
    assert memory.held_bytes <= 600
    assert Connection(memory, "c").take(100)


def test_a_client_that_has_nothing_is_next_and_others_wait_behind_it() -> None:
    """Or it would wait for as long as there are small ones."""
    memory = ResponseMemory(400)
    holders = [Connection(memory, client) for client in "abcd"]
    assert all(holder.take(90) for holder in holders)
    poor = Connection(memory, "e")
    assert not poor.take(80)
    assert holders[0].part.take_some(5) == 0
    assert not holders[1].take(5)
    holders[0].part.give_back(30)
    assert (poor.got, holders[1].got) == (0, 0)
    holders[0].part.give_back(30)
    assert (poor.got, holders[1].got) == (80, 0)
    holders[2].part.give_back(90)
    assert holders[1].got == 5


def test_connections_of_one_client_are_served_in_their_order() -> None:
    memory = ResponseMemory(400)
    holders = [Connection(memory, "a") for _ in range(3)]
    assert all(holder.take(100) for holder in holders)
    first, second = Connection(memory, "a"), Connection(memory, "a")
    assert not first.take(90)
    assert not second.take(1), "behind the first"
    assert second.part.take_some(1) == 0
    holders[0].part.give_back(50)
    assert (first.got, second.got) == (0, 0)
    holders[0].part.give_back(50)
    assert (first.got, second.got) == (90, 1)


def test_a_response_larger_than_a_part_goes_beside_one_at_a_time_and_holds_up_no_other() -> None:
    memory = ResponseMemory(400)
    large, next_of_a, of_b = Connection(memory, "a"), Connection(memory, "a"), Connection(memory, "b")
    others = [Connection(memory, client) for client in "cdef"]
    assert all(other.take(100) for other in others), "the memory is used up"
    assert large.take(5000)
    assert (memory.held_bytes, memory.beside_bytes) == (400, 5000)
    assert not next_of_a.take(101)
    assert not of_b.take(300)
    others[0].part.give_back(100)
    assert others[1].part.take_some(10) == 0, "a quarter is a quarter"
    assert Connection(memory, "g").take(100), "nobody waits for what is beside"
    large.part.give_back(5000)
    assert (next_of_a.got, of_b.got, memory.beside_bytes) == (101, 0, 101)
    assert not large.take(2000)
    next_of_a.part.give_back(101)
    assert (large.got, of_b.got) == (0, 300), "clients take turns"
    of_b.part.close()
    assert (large.got, memory.beside_bytes) == (2000, 2000)


def test_what_is_filled_into_a_large_response_is_given_back_apart_from_it() -> None:
    memory = ResponseMemory(400)
    one = Connection(memory, "a")
    assert one.take(1000)
    assert one.part.take_some(80) == 80
    one.part.give_back(30)
    assert (memory.held_bytes, memory.beside_bytes) == (50, 1000)
    one.part.give_back(1050)
    assert (memory.held_bytes, memory.beside_bytes) == (0, 0)


def test_a_connection_that_ends_waits_no_more_and_nobody_behind_it() -> None:
    memory = ResponseMemory(400)
    holders = [Connection(memory, client) for client in "abcd"]
    assert all(holder.take(95) for holder in holders)
    gone, behind, large, large_behind = (Connection(memory, client) for client in "efgh")
    assert not gone.take(100)
    assert not behind.take(20)
    assert large.take(500)
    assert not large_behind.take(600)
    gone.part.close()
    assert behind.got == 20
    large.part.close()
    assert large_behind.got == 600


def test_what_a_connection_has_stays_its_client_s_who_logs_in_meanwhile() -> None:
    memory = ResponseMemory(400)
    one = Connection(memory, "an address")
    assert one.take(50)
    one.client = "User:alice"
    assert one.part.take_some(10) == 10
    one.part.give_back(60)
    assert one.take(100)
    assert one.part.client == "User:alice"
    one.part.close()
    assert memory.held_bytes == 0
    assert Connection(memory, "an address").take(100)


def test_of_whatever_is_taken_and_given_back_the_sums_are_right_and_nobody_waits_in_vain() -> None:
    chances = random.Random(17)
    for _ in range(300):
        memory = ResponseMemory(chances.choice([1, 40, 400, 4000]))
        connections = [Connection(memory, chances.choice("abc")) for _ in range(chances.randint(1, 12))]
        for _ in range(200):
            _do_something(memory, chances.choice(connections), chances)
            held = [connection.part.held_bytes for connection in connections]
            assert sum(held) == memory.held_bytes <= memory.size_bytes
            assert max(held) <= memory.part_bytes
            assert sum(connection.part.beside_bytes > 0 for connection in connections) <= 1
        while any(
            connection.part.held_bytes or connection.part.beside_bytes or connection.part.waits
            for connection in connections
        ):
            holding = [
                connection for connection in connections if connection.part.held_bytes or connection.part.beside_bytes
            ]
            assert holding, "somebody waits, and nobody has anything"
            _give_all(chances.choice(holding).part)
        assert (memory.held_bytes, memory.beside_bytes) == (0, 0)


def _do_something(memory: ResponseMemory, one: Connection, chances: random.Random) -> None:
    match chances.randrange(5):
        case 0 if not one.part.waits and not one.part.beside_bytes:
            one.take(chances.randint(1, memory.size_bytes // 2 + 2))
        case 1 if not one.part.waits:
            one.part.take_some(chances.randint(1, memory.size_bytes))
        case 2:
            one.part.give_back(chances.randint(0, one.part.held_bytes))
        case 3:
            _give_all(one.part)
        case 4 if chances.random() < 0.1:
            one.part.close()


def _give_all(part: MemoryPart) -> None:
    part.give_back(part.held_bytes + part.beside_bytes)
