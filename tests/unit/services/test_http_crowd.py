"""Which HTTP connection makes room for a new one (DESIGN.md, rule 8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiersidecar.services.client_limits import Admission, Crowd, origin_of


def crowd(*connections: tuple[str, str], most: int = 4, most_per_origin: int = 4) -> Crowd[str]:
    made: Crowd[str] = Crowd(most=most, most_per_origin=most_per_origin)
    for connection, origin in connections:
        made.admit(connection, origin)
    return made


def admitted(instead_of: str | None) -> Admission[str]:
    return Admission(is_admitted=True, instead_of=instead_of)


REFUSED: Admission[str] = Admission(is_admitted=False)


def test_where_there_is_room_none_makes_room() -> None:
    assert crowd(("a1", "a")).admit("a2", "a") == admitted(None)


def test_the_longest_waiting_of_the_largest_crowd_makes_room() -> None:
    full = crowd(("b1", "b"), ("a1", "a"), ("a2", "a"), ("a3", "a"))
    assert full.admit("c1", "c") == admitted("a1")
    assert full.admit("c2", "c") == admitted("a2")
    assert len(full) == 4


def test_of_crowds_of_one_size_the_longest_waiting_makes_room() -> None:
    assert crowd(("a1", "a"), ("b1", "b"), most=2).admit("c1", "c") == admitted("a1")


def test_one_with_a_request_in_hand_makes_no_room() -> None:
    full = crowd(("a1", "a"), ("a2", "a"), most=2)
    full.begin_request("a1")
    assert full.admit("b1", "b") == admitted("a2")
    full.begin_request("b1")
    assert full.admit("c1", "c") == REFUSED
    full.end_request("a1")
    assert full.admit("c1", "c") == admitted("a1")


def test_one_whose_client_takes_nothing_makes_room_where_none_waits() -> None:
    """1,024 that left their answers unread kept everybody else out for a minute, and again."""
    full = crowd(("a1", "a"), ("a2", "a"), ("b1", "b"), most=3)
    for one in ("b1", "a1", "a2"):
        full.begin_request(one)
        full.pause(one)
    full.resume("a1")
    assert full.admit("c1", "c") == admitted("a2")
    assert full.admit("c2", "c") == admitted("c1"), "one that waits goes first"
    full.begin_request("c2")
    assert full.admit("c3", "c") == admitted("b1")
    full.begin_request("c3")
    assert full.admit("c4", "c") == REFUSED


def test_of_an_origin_with_as_many_as_it_may_have_a_stalled_one_makes_room() -> None:
    full = crowd(("a1", "a"), ("a2", "a"), ("b1", "b"), most=9, most_per_origin=2)
    for one in ("b1", "a1", "a2"):
        full.begin_request(one)
        full.pause(one)
    assert full.admit("a3", "a") == admitted("a1")


def test_one_that_was_stalled_before_its_request_is_stalled_in_it() -> None:
    full = crowd(("a1", "a"), most=1)
    full.pause("a1")
    full.begin_request("a1")
    assert full.admit("b1", "b") == admitted("a1")


def test_one_that_was_stalled_waits_after_its_request() -> None:
    full = crowd(("a1", "a"), ("a2", "a"), most=2)
    full.begin_request("a1")
    full.pause("a1")
    full.end_request("a1")
    assert full.admit("b1", "b") == admitted("a2")
    assert full.admit("b2", "b") == admitted("a1")


def test_one_that_has_had_a_request_waits_from_its_end() -> None:
    full = crowd(("a1", "a"), ("a2", "a"), most=2)
    full.begin_request("a1")
    full.end_request("a1")
    assert full.admit("b1", "b") == admitted("a2")


def test_an_origin_with_as_many_as_it_may_have_makes_room_itself() -> None:
    some = crowd(("b1", "b"), ("a1", "a"), ("a2", "a"), most=9, most_per_origin=2)
    assert some.admit("a3", "a") == admitted("a1")
    some.begin_request("a2")
    some.begin_request("a3")
    assert some.admit("a4", "a") == REFUSED
    assert some.admit("b2", "b") == admitted(None)


def test_connections_without_an_origin_have_no_bound_of_their_own() -> None:
    assert crowd(("1", ""), ("2", ""), most=9, most_per_origin=2).admit("3", "") == admitted(None)


def test_what_has_left_is_forgotten() -> None:
    some = crowd(("a1", "a"), most=1)
    some.leave("a1")
    some.leave("a1")
    some.begin_request("a1")
    some.end_request("a1")
    assert some.admit("b1", "b") == admitted(None)


def is_nobody_waiting(origins: dict[int, str], busy: set[int], origin: str) -> bool:
    """Of this origin at least, where it has as many as it may have."""
    return all(one in busy for one, its in origins.items() if its == origin)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["admit", "begin", "end", "pause", "resume", "leave"]),
            st.integers(0, 30),
            st.sampled_from("abc"),
        ),
        max_size=60,
    )
)
def test_there_are_never_too_many_and_none_whose_client_takes_its_answer_makes_room(
    steps: list[tuple[str, int, str]],
) -> None:
    full: Crowd[int] = Crowd(most=4, most_per_origin=3)
    origins: dict[int, str] = {}
    busy, paused = set[int](), set[int]()
    for step, number, origin in steps:
        if step == "admit" and number not in origins:
            admission = full.admit(number, origin)
            if admission.instead_of is not None:
                gone = admission.instead_of
                assert gone not in busy or (gone in paused and is_nobody_waiting(origins, busy, origin))
                del origins[gone]
                busy.discard(gone)
                paused.discard(gone)
            if admission.is_admitted:
                origins[number] = origin
            else:
                makes_room = [origins[one] for one in origins if one not in busy or one in paused]
                assert origin not in makes_room, "it could have made room"
        elif step == "begin" and number in origins:
            full.begin_request(number)
            busy.add(number)
        elif step == "end" and number in busy:
            full.end_request(number)
            busy.discard(number)
        elif step == "pause" and number in origins:
            full.pause(number)
            paused.add(number)
        elif step == "resume":
            full.resume(number)
            paused.discard(number)
        elif step == "leave":
            full.leave(number)
            origins.pop(number, None)
            busy.discard(number)
            paused.discard(number)
        assert len(full) == len(origins) <= 4
        assert all(list(origins.values()).count(one) <= 3 for one in "abc")


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("a name", "a name"),
    ],
)
def test_origins(address: str, origin: str) -> None:
    assert origin_of(address) == origin
