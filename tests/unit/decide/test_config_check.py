"""What of a configuration does not fit what it names (issue 20)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiersidecar.decide.config_check import (
    DELETE,
    DESCRIBE_CONFIGS,
    Finding,
    Level,
    Listener,
    check_clock,
    check_descriptors,
    check_disk,
    check_gateway,
    check_log_dirs,
    check_owner,
    check_ports,
    check_replicas,
    check_rights,
    check_user,
    missing_rights,
)

OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def assert_whole(findings: list[Finding], check: str) -> None:
    """They name the check, and what to do where something is wrong."""
    for finding in findings:
        assert finding.check == check
        assert bool(finding.do) == (finding.level is not OK)


@pytest.mark.parametrize(
    ("one", "other", "level"),
    [
        pytest.param(("127.0.0.1", 8090), ("127.0.0.1", 8091), OK, id="two ports"),
        pytest.param(("127.0.0.1", 8090), ("127.0.0.1", 8090), ERROR, id="the same"),
        pytest.param(("0.0.0.0", 8090), ("10.0.0.1", 8090), ERROR, id="any address has this one"),
        pytest.param(("", 9092), ("127.0.0.1", 9092), ERROR, id="a broker's listener without a host"),
        pytest.param(("localhost", 9092), ("127.0.0.1", 9092), ERROR, id="two names of one address"),
        pytest.param(("10.0.0.1", 9092), ("127.0.0.1", 9092), OK, id="two addresses"),
        pytest.param(("127.0.0.1", 0), ("127.0.0.1", 0), OK, id="ports that the system picks"),
    ],
)
def test_ports(one: tuple[str, int], other: tuple[str, int], level: Level) -> None:
    found = list(check_ports([Listener("a", *one), Listener("b", *other)]))
    assert levels(found) == [level]
    assert_whole(found, "ports")


def test_each_two_that_want_the_same_port_are_named() -> None:
    listeners = [
        Listener(name, host, 9092) for name, host in (("gateway", ""), ("http", "::1"), ("status", "10.0.0.1"))
    ]
    assert [one.says for one in check_ports(listeners)] == [
        "gateway and http both listen on port 9092 of any address",
        "gateway and status both listen on port 9092 of any address",
    ]
    (fits,) = check_ports(listeners[1:])
    assert fits.says == "2 listeners, no port twice"


@pytest.mark.parametrize(
    ("ours", "brokers", "level", "words"),
    [
        pytest.param(["/a", "/b"], "/b, /a/", OK, "2, as the broker's", id="the same, in another order"),
        pytest.param(["/a"], "/a,/b", ERROR, "also has /b", id="one of the broker's is missing"),
        pytest.param(["/a", "/c"], "/a", WARNING, "/c", id="one that the broker does not have"),
        pytest.param(["/a"], None, WARNING, "does not say", id="the broker does not say"),
        pytest.param(
            ["/a/"], "/a,", OK, "1, as the broker's", id="a slash or a comma at the end is no other directory"
        ),
        pytest.param(
            ["/c", "/a"], "/a", WARNING, "calls its log dirs /a, this configuration /c", id="it is said which differ"
        ),
        pytest.param(["/b"], "/c, /b, /a", ERROR, "also has /a, /c:", id="all that are missing are named"),
    ],
)
def test_log_dirs(ours: list[str], brokers: str | None, level: Level, words: str) -> None:
    found = check_log_dirs(ours, brokers)
    assert (found.level, words in found.says) == (level, True), found
    assert_whole([found], "log.dirs")


@pytest.mark.parametrize(
    ("brokers", "mapped", "expected"),
    [
        pytest.param([1, 2], {1: "a:1", 2: "a:2"}, [OK], id="each its own"),
        pytest.param([1, 2, 3], {1: "a:1"}, [ERROR], id="two are not mapped"),
        pytest.param([1], {1: "a:1", 2: "a:2"}, [OK], id="one is mapped that is not there"),
        pytest.param([1, 2, 3], {1: "a:1", 2: "a:1"}, [ERROR, ERROR], id="two share one, and one is not mapped"),
        pytest.param([1, 2, 3], dict.fromkeys((1, 2, 3), "a:1"), [ERROR, ERROR], id="three share one"),
        pytest.param([1, 2], {1: "a:1", 2: "a:1"}, [ERROR], id="two share one"),
        pytest.param([], {}, [OK], id="no broker is known"),
    ],
)
def test_gateways(brokers: list[int], mapped: dict[int, str], expected: list[Level]) -> None:
    found = list(check_gateway("GATEWAY", brokers, mapped))
    assert levels(found) == expected
    assert_whole(found, "gateway")


def test_a_gateways_findings_name_listener_and_brokers() -> None:
    (fits,) = check_gateway("GATEWAY", [1, 2], {1: "a:1", 2: "b:1"})
    assert fits.says == "listener GATEWAY maps 2 brokers"
    (unmapped,) = check_gateway("GATEWAY", [3, 1, 2], {1: "a:1"})
    assert "listener GATEWAY maps no address to broker 2, 3: its clients get node-2.not-mapped.invalid" in unmapped.says
    (shared,) = check_gateway("GATEWAY", [1, 2], {2: "a:1", 1: "a:1"})
    assert shared.says == "listener GATEWAY gives clients a:1 for brokers 1 and 2"


@pytest.mark.parametrize(
    ("granted", "level", "words"),
    [
        pytest.param(DELETE.bit | DESCRIBE_CONFIGS.bit, OK, "all that is needed", id="all"),
        pytest.param(DELETE.bit, ERROR, "may not DescribeConfigs", id="one is missing"),
        pytest.param(0, ERROR, "may not Delete, DescribeConfigs", id="it may not even be seen"),
        pytest.param(None, WARNING, "does not say", id="not said"),
    ],
)
def test_rights(granted: int | None, level: Level, words: str) -> None:
    needed = [DELETE, DESCRIBE_CONFIGS]
    assert bool(missing_rights(granted, needed)) is (level is ERROR)
    found = check_rights("topic orders", granted, needed)
    assert (found.level, words in found.says, "topic orders" in found.says) == (level, True, True), found
    assert_whole([found], "rights")


Look = Callable[[], Finding | None]
"""Carried out in the test: what a row computes when it is collected, no mutant run sees."""

REST: dict[str, tuple[Look, tuple[str, Level, str] | None]] = {
    "ours is nothing to say": (lambda: check_owner("orders", "us", "us"), None),
    "nobody's likewise": (lambda: check_owner("orders", "us", None), None),
    "another cluster's": (
        lambda: check_owner("orders", "us", "them"),
        ("owner", ERROR, "orders belong to cluster them, and this is us"),
    ),
    "one that cannot be read is another's": (
        lambda: check_owner("orders", "us", "?"),
        ("owner", ERROR, "belong to cluster ?"),
    ),
    "less than the reserve is free": (lambda: check_disk("/a", 100, 9, 10), ("disk", WARNING, "/a: 9 % is free")),
    "just the reserve is free": (lambda: check_disk("/a", 100, 10, 10), ("disk", OK, "/a: 10 % is free")),
    "a part of a percent counts for nothing": (lambda: check_disk("/a", 1000, 99, 10), ("disk", WARNING, ": 9 %")),
    "all is free": (lambda: check_disk("/a", 3, 3, 10), ("disk", OK, ": 100 %")),
    "a file system of one byte": (lambda: check_disk("/a", 1, 1, 10), ("disk", OK, ": 100 %")),
    "a file system without a size": (lambda: check_disk("/a", 0, 0, 0), ("disk", OK, ": 0 %")),
    "the broker's user": (lambda: check_user(1, 1, "/a"), ("user", OK, "uid 1")),
    "another user": (lambda: check_user(0, 1, "/a"), ("user", ERROR, "this is uid 0, and /a is of uid 1")),
    "enough files without a gateway": (
        lambda: check_descriptors(1024, 0),
        ("files", OK, "1024 may be open, 1024 are needed"),
    ),
    "one file too few": (lambda: check_descriptors(1023, 0), ("files", WARNING, "1023 files may be open, 0 clients")),
    "a client of the gateway takes two files": (lambda: check_descriptors(1224, 100), ("files", OK, "1224 are needed")),
    "too few files for the gateway's clients": (
        lambda: check_descriptors(1223, 100),
        ("files", WARNING, "1223 files may be open, 100 clients of the gateway and the rest may need 1224"),
    ),
    "a clock a little ahead": (lambda: check_clock("the store", 4.9), ("clock", OK, "of the store is ours")),
    "a clock that is just within the limit": (lambda: check_clock("the store", -5), ("clock", OK, "within 5 s")),
    "a clock that is behind": (
        lambda: check_clock("the store", -60),
        ("clock", ERROR, "of the store is 60 s behind ours"),
    ),
    "a clock that is ahead": (
        lambda: check_clock("the broker", 60),
        ("clock", ERROR, "of the broker is 60 s ahead of ours"),
    ),
    "too few brokers": (
        lambda: check_replicas("state", 3, 1),
        ("topics", ERROR, "state is not there, and cannot be made with 3 replicas on 1 brokers"),
    ),
    "enough brokers": (lambda: check_replicas("state", 3, 3), None),
}


@pytest.mark.parametrize("sentence", REST)
def test_the_rest(sentence: str) -> None:
    look, expected = REST[sentence]
    found = look()
    if expected is None:
        assert found is None
        return
    assert found is not None
    check, level, words = expected
    assert (found.check, found.level) == (check, level)
    assert words in found.says
    assert bool(found.do) == (level is not OK)
