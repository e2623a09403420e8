"""Who is let in of a crowd, and what the crowd costs."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tiersidecar.services.gateway.listener import network_of
from tiersidecar.services.gateway.unauthenticated import LeftOpen, Waiting, WaitingLine


@pytest.fixture
def line() -> Iterator[WaitingLine]:
    line = WaitingLine(4)
    yield line
    line.close()


def waiting(ip: str, port: int, *, since_s: float = 0.0) -> Waiting:
    return Waiting(socket.socket(), ip, port, since_s, ip.partition(":")[0])


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


def test_addresses_of_one_network_take_one_turn(line: WaitingLine) -> None:
    for ip, port in (("net:1", 1), ("net:2", 2), ("net:3", 3), ("other", 4)):
        line.add(waiting(ip, port))
    assert let_in(line) == [("net:3", 3), ("other", 4), ("net:2", 2), ("net:1", 1)]


@pytest.mark.parametrize(
    ("ip", "network"),
    [
        pytest.param("192.0.2.7", "192.0.2.7", id="IPv4"),
        pytest.param("127.0.0.2", "127.0.0.2", id="this machine's own"),
        pytest.param("2001:db8::7", "2001:db8::/64", id="of IPv6 64 bits"),
        pytest.param("::1", "::1", id="this machine's own of IPv6"),
        pytest.param("::ffff:192.0.2.7", "192.0.2.7", id="IPv4 by a socket of IPv6"),
    ],
)
def test_one_host_of_ipv6_has_as_many_addresses_as_it_likes(ip: str, network: str) -> None:
    assert network_of(ip) == network


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


# Those that ended


@pytest.fixture
def left_open() -> Iterator[LeftOpen]:
    left_open = LeftOpen(2)
    yield left_open
    left_open.close()


def end(left_open: LeftOpen, now_s: float) -> socket.socket:
    """The client's end of a connection whose other end is left open, and closed by whoever had it."""
    client, server = socket.socketpair()
    with server:
        left_open.add(server, now_s)
    client.settimeout(0)
    return client


def is_told(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_client_is_told_only_once_its_time_is_over(left_open: LeftOpen) -> None:
    with end(left_open, 1.0) as first, end(left_open, 2.0) as second:
        assert (is_told(first), is_told(second)) == (False, False)
        left_open.close_before(2.0)
        assert (is_told(first), is_told(second)) == (True, False)
        left_open.close()
        assert is_told(second)


def test_of_too_many_the_oldest_is_told(left_open: LeftOpen) -> None:
    with end(left_open, 1.0) as first, end(left_open, 2.0) as second, end(left_open, 3.0) as third:
        assert [is_told(one) for one in (first, second, third)] == [True, False, False]
        assert len(left_open) == 2


def test_whose_socket_is_gone_already_is_not_kept(left_open: LeftOpen) -> None:
    gone = socket.socket()
    gone.close()
    left_open.add(gone, 1.0)
    assert len(left_open) == 0
