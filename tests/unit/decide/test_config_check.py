"""What of a configuration does not fit what it names (issue 20)."""

from __future__ import annotations

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
    warning,
)

OK, WARNING, ERROR = Level.OK, Level.WARNING, Level.ERROR


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


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
    assert levels(list(check_ports([Listener("a", *one), Listener("b", *other)]))) == [level]


@pytest.mark.parametrize(
    ("ours", "brokers", "level", "words"),
    [
        pytest.param(["/a", "/b"], "/b, /a/", OK, "2, as the broker's", id="the same, in another order"),
        pytest.param(["/a"], "/a,/b", ERROR, "also has /b", id="one of the broker's is missing"),
        pytest.param(["/a", "/c"], "/a", WARNING, "/c", id="one that the broker does not have"),
        pytest.param(["/a"], None, WARNING, "does not say", id="the broker does not say"),
    ],
)
def test_log_dirs(ours: list[str], brokers: str | None, level: Level, words: str) -> None:
    found = check_log_dirs(ours, brokers)
    assert (found.level, words in found.says) == (level, True), found


@pytest.mark.parametrize(
    ("brokers", "mapped", "expected"),
    [
        pytest.param([1, 2], {1: "a:1", 2: "a:2"}, [OK], id="each its own"),
        pytest.param([1, 2, 3], {1: "a:1"}, [ERROR], id="two are not mapped"),
        pytest.param([1, 2], {1: "a:1", 2: "a:1"}, [ERROR], id="two share one"),
        pytest.param([], {}, [OK], id="no broker is known"),
    ],
)
def test_gateways(brokers: list[int], mapped: dict[int, str], expected: list[Level]) -> None:
    assert levels(list(check_gateway("GATEWAY", brokers, mapped))) == expected


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
    found = check_rights("topic orders", granted, [DELETE, DESCRIBE_CONFIGS])
    assert (found.level, words in found.says) == (level, True), found


@pytest.mark.parametrize(
    ("found", "level"),
    [
        pytest.param(check_owner("orders", "us", "us") or warning("x", "x", "x"), WARNING, id="ours is nothing to say"),
        pytest.param(check_owner("orders", "us", None) or warning("x", "x", "x"), WARNING, id="nobody's likewise"),
        pytest.param(check_owner("orders", "us", "them"), ERROR, id="another cluster's"),
        pytest.param(check_owner("orders", "us", "?"), ERROR, id="one that cannot be read is another's"),
        pytest.param(check_disk("/a", 100, 9, 10), WARNING, id="less than the reserve is free"),
        pytest.param(check_disk("/a", 100, 10, 10), OK, id="just the reserve is free"),
        pytest.param(check_disk("/a", 0, 0, 0), OK, id="a file system without a size"),
        pytest.param(check_user(1, 1, "/a"), OK, id="the broker's user"),
        pytest.param(check_user(0, 1, "/a"), ERROR, id="another user"),
        pytest.param(check_descriptors(1024, 0), OK, id="enough without a gateway"),
        pytest.param(check_descriptors(4096, 10_000), WARNING, id="too few for the gateway's clients"),
        pytest.param(check_clock("the store", 4.9), OK, id="a clock a little ahead"),
        pytest.param(check_clock("the store", -60), ERROR, id="a clock that is behind"),
        pytest.param(check_replicas("t", 3, 1), ERROR, id="too few brokers"),
        pytest.param(check_replicas("t", 3, 3) or warning("x", "x", "x"), WARNING, id="enough brokers"),
    ],
)
def test_the_rest(found: Finding | None, level: Level) -> None:
    assert found is not None
    assert found.level is level
    assert bool(found.do) == (level is not OK)
