"""Which HTTP connection makes room for a new one.

Clients that take a byte now and then.

Requests that a browser makes for another site are refused, and no others are.
"""

from __future__ import annotations

import socket
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import encode_basic_auth
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import load_run
from tests.support.served_bucket import follower_of
from tests.support.shown_cluster import empty_cluster, serving_cluster
from tests.unit.services.reader.service import open_service
from tiersidecar.services.bucket.picture import BucketPicture
from tiersidecar.services.bucket.status import serve_bucket_status
from tiersidecar.services.client_limits import Admission, Crowd, HostCheck, LeastPace, origin_of
from tiersidecar.services.status.access import Secrets


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


@pytest.mark.parametrize(
    ("steps", "is_slow"),
    [
        pytest.param([(0, 59)], False, id="nothing, and the time is not over"),
        pytest.param([(0, 60)], True, id="nothing"),
        pytest.param([(1, 30), (1, 30)], True, id="a byte now and then"),
        pytest.param([(0, 59), (6000, 1)], False, id="all of it in the last second"),
        pytest.param([(100, 1)] * 60, False, id="just the least"),
        pytest.param([(100, 1)] * 59 + [(99, 1)], True, id="a byte less"),
        pytest.param([(10**6, 60), (0, 60)], True, id="much at first, and nothing then"),
        pytest.param([(0, 40), (6000, 20), (0, 40), (6000, 20)], False, id="each minute counts by itself"),
        pytest.param([(11_999, 120)], True, id="a longer time needs more"),
    ],
)
def test_the_average_over_each_minute_counts(steps: list[tuple[int, float]], is_slow: bool) -> None:
    pace = LeastPace(bytes_per_s=100, over_s=60)
    told = [pace.took(size_bytes, waited_s) for size_bytes, waited_s in steps]
    assert not any(told[:-1])
    assert bool(told[-1]) is is_slow


def test_what_was_taken_whole_is_settled() -> None:
    pace = LeastPace(bytes_per_s=100, over_s=60)
    for _ in range(10):
        assert not pace.took(1, 59)
        pace.begin_anew()


def test_0_is_no_limit() -> None:
    assert not LeastPace(bytes_per_s=0, over_s=1).took(0, 3600)


def test_the_reason_names_the_numbers() -> None:
    told = LeastPace(bytes_per_s=100, over_s=60).took(17, 61)
    assert told == "the client took 17 bytes in 61 s of what was waiting for it: 100 a second are the least"


PORT = 8091
HOSTS = "127.0.0.1 localhost\n127.0.0.1 Kafka-1.Internal kafka-1 # of this machine\n# 127.0.0.1 old.example\n"


@pytest.fixture
def hosts_file(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text(HOSTS)
    return path


def is_foreign(check: HostCheck, host: str | None) -> bool:
    transport = Mock()
    transport.get_extra_info.return_value = ("127.0.0.1", PORT)
    headers = {} if host is None else {"Host": host}
    return check.is_foreign(make_mocked_request("GET", "/", headers=headers, transport=transport))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8091",
        "EVIL.example.:8091",
        "localhost.evil.example:8091",
        "127.0.0.1.evil.example:8091",
        "old.example:8091",
    ],
)
def test_names_of_other_sites(hosts_file: Path, host: str) -> None:
    assert is_foreign(HostCheck("127.0.0.1", hosts_file=hosts_file), host)
    assert is_foreign(HostCheck("localhost", hosts_file=hosts_file), host)
    assert is_foreign(HostCheck("::1", hosts_file=hosts_file), host)
    for others_come_here in ("0.0.0.0", "::", "10.0.0.1", "kafka-1.example"):
        assert not is_foreign(HostCheck(others_come_here, hosts_file=hosts_file), host)


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(None, id="none at all"),
        pytest.param("", id="an empty one"),
        pytest.param(f"{socket.gethostname()}:8091", id="this machine's own name"),
        "localhost:8091",
        "LOCALHOST:8091",
        "status.localhost:8091",
        "127.0.0.1:8091",
        "127.1:8091",
        "10.0.0.1:8091",
        "[::1]:8091",
        pytest.param("sidecar:8091", id="no site: one label, as of a container"),
        pytest.param("kafka-1.internal:8091", id="in the hosts file"),
        pytest.param("broker-1.example:8091", id="advertised"),
        pytest.param("status.example", id="a proxy's name, passed on"),
        pytest.param("status.example:443", id="with the proxy's port"),
        pytest.param("kafka-0.kafka.kafka.svc.cluster.local:8443", id="of a proxy in the same pod"),
        pytest.param(":8091", id="no name"),
    ],
)
def test_what_real_callers_send(hosts_file: Path, host: str | None) -> None:
    assert not is_foreign(HostCheck("127.0.0.1", names=["broker-1.example"], hosts_file=hosts_file), host)


def test_port_80_is_not_in_the_host() -> None:
    transport = Mock()
    transport.get_extra_info.return_value = ("127.0.0.1", 80)
    request = make_mocked_request("GET", "/", headers={"Host": "evil.example"}, transport=transport)
    assert HostCheck("127.0.0.1").is_foreign(request)


async def status_of(url: str, host: str, password: str | None = None) -> int:
    headers = {"Host": host} | ({} if password is None else {"Authorization": encode_basic_auth("me", password)})
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


@pytest.mark.parametrize(
    ("secrets", "password", "refused"),
    [
        pytest.param(Secrets(), None, True, id="nobody is asked"),
        pytest.param(Secrets(), "made up", True, id="nobody is asked, whatever is sent"),
        pytest.param(Secrets(cluster="s" * 32), None, True, id="every browser of this machine is served"),
        pytest.param(Secrets(cluster="s" * 32, page="p" * 12), "p" * 12, False, id="one that has the password"),
    ],
)
async def test_the_status_service_shows_nothing_to_another_site(
    secrets: Secrets, password: str | None, refused: bool
) -> None:
    """A page of a site whose name meant 127.0.0.1 could read all of it."""
    async with serving_cluster(empty_cluster()[:1], secrets=secrets) as servers:
        url, evil = servers[1].url, f"evil.example:{servers[1].port}"
        for path in ("/", "/status", "/overview"):
            assert await status_of(url + path, evil, password) == (421 if refused else 200)
        assert await status_of(url + "/metrics", evil) == 421
        assert await status_of(url + "/healthz", evil) == 200
        assert await status_of(url + "/metrics", f"localhost:{servers[1].port}") == 200


async def test_what_a_password_would_show_to_others_is_not_for_other_sites_either() -> None:
    """With ``listen: 0.0.0.0``, a secret and no page password, callers of this machine alone are served: a page of another
    site, whose name meant 127.0.0.1, read all of it."""
    secrets, named = Secrets(cluster="s" * 32), ["kafka-1.example"]
    async with serving_cluster(empty_cluster()[:1], secrets=secrets, host="0.0.0.0", names=named) as servers:
        port = servers[1].port
        url = f"http://127.0.0.1:{port}"
        for path in ("/", "/overview", "/status", "/explain?topic=orders&partition=0"):
            assert await status_of(url + path, f"evil.example:{port}") == 421
            for own in ("localhost", "127.0.0.1", "kafka-1.example", socket.gethostname()):
                assert await status_of(url + path, f"{own}:{port}") == 200
        for path in ("/metrics", "/healthz"):
            assert await status_of(url + path, f"broker.example:{port}") == 200, (
                "others may ask for it without a browser"
            )


async def test_the_status_of_serve_shows_nothing_to_another_site() -> None:
    run = await load_run("plain")
    picture, telemetry = BucketPicture(InlineBlocking()), RecordedTelemetry()
    async with serve_bucket_status(
        host="127.0.0.1",
        port=0,
        picture=picture,
        follower=follower_of(run, picture, telemetry),
        render_metrics=lambda: b"",
        clock=ManualClock(),
        place="memory",
    ) as server:
        for path, code in (("/status", 421), ("/metrics", 421), ("/healthz", 200)):
            assert await status_of(server.url + path, f"evil.example:{server.port}") == code
            assert await status_of(server.url + path, f"127.0.0.1:{server.port}") == 200


async def test_records_that_everybody_on_this_machine_may_read_are_not_for_other_sites() -> None:
    async with open_service("plain") as service:
        url, port = f"{service.server.url}/topics", service.server.port
        assert await status_of(url, f"localhost:{port}") == 200
        assert await status_of(url, f"evil.example:{port}") == 421
        assert await status_of(url, f"evil.example:{port}", "made up") == 401
