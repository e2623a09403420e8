"""Who is let in of a crowd, and what the crowd costs."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tiersidecar.services.gateway.waiting_line import Waiting, WaitingLine


@pytest.fixture
def line() -> Iterator[WaitingLine]:
    line = WaitingLine(4)
    yield line
    line.close()


def waiting(ip: str, port: int, *, since_s: float = 0.0) -> Waiting:
    return Waiting(socket.socket(), ip, port, since_s)


def let_in(line: WaitingLine) -> list[tuple[str, int]]:
    found = []
    while (one := line.next()) is not None:
        found.append((one.ip, one.port))
        one.client.close()
    return found


def test_addresses_take_turns_and_the_newest_of_each_goes_first(line: WaitingLine) -> None:
    for ip, port in (("crowd", 1), ("crowd", 2), ("crowd", 3), ("other", 4)):
        line.add(waiting(ip, port))
    assert let_in(line) == [("crowd", 3), ("other", 4), ("crowd", 2), ("crowd", 1)]
    assert (len(line), line.next()) == (0, None)


def test_one_too_many_closes_the_one_that_waits_longest(line: WaitingLine) -> None:
    first = waiting("a", 1)
    assert [line.add(one) for one in (first, *(waiting("a", port) for port in (2, 3, 4)))] == [0, 0, 0, 0]
    assert line.add(waiting("b", 5)) == 1
    assert first.client.fileno() == -1
    assert let_in(line) == [("a", 4), ("b", 5), ("a", 3), ("a", 2)]


def test_those_that_wait_too_long_are_closed(line: WaitingLine) -> None:
    old, young = waiting("a", 1, since_s=1.0), waiting("a", 2, since_s=2.0)
    line.add(old)
    line.add(young)
    assert (line.close_before(2.0), line.close_before(2.0)) == (1, 0)
    assert (old.client.fileno(), young.client.fileno() > 0) == (-1, True)


def test_all_are_closed_in_the_end(line: WaitingLine) -> None:
    clients = [waiting("a", 1), waiting("b", 2)]
    for one in clients:
        line.add(one)
    line.close()
    assert [one.client.fileno() for one in clients] == [-1, -1]
