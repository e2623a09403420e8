"""The plan of a mount as a file (issue 21): whole or not at all, and nothing in it is believed that cannot be used."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.app.test_mount_seed import PLAN, TOPIC_ID
from tiersidecar.app.mount_file import read_plan, write_plan
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.ids import format_uuid


def test_a_plan_with_one_id_for_two_topics_is_neither_written_nor_read(tmp_path: Path) -> None:
    twice = replace(PLAN, topics=(*PLAN.topics, replace(PLAN.topics[0], name="orderz")))
    with pytest.raises(ConfigError, match="two topics have one topic_id"):
        write_plan(twice, tmp_path / "mount.json")
    assert not (tmp_path / "mount.json").exists()


def test_a_plan_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    path, (soft, hard) = tmp_path / "mount.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            write_plan(PLAN, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mount.json"
    write_plan(PLAN, path)
    assert read_plan(path) == PLAN
    assert PLAN.brokers == [1, 2, 3]
    with pytest.raises(ConfigError, match="another plan may be in use"):
        write_plan(PLAN, path)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        pytest.param('"version": 1', '"version": 3', "use the release that wrote it", id="a later release's"),
        pytest.param(
            '"version": 1', '"version": 2', "of all partitions of a read-only", id="read-only, by its version"
        ),
        pytest.param(
            '"start_offset": 20', f'"start_offset": {2**62}', "and of no others", id="read-only, by an offset"
        ),
        pytest.param('"tiersidecar-mount"', '"else"', "use the release", id="another file"),
        pytest.param('"orders"', '"../../etc"', "is not a topic name", id="a path out of the log dir"),
        pytest.param('"orders"', '"__cluster_metadata"', "is internal", id="the cluster's own metadata"),
        pytest.param('"partition": 1', '"partition": 7', "are not 0, 1, 2", id="a partition that is missing"),
        pytest.param('"start_offset": 20', '"start_offset": -20', "start_offset -20", id="an offset below 0"),
        pytest.param('"start_offset": 20', '"start_offset": 20.9', "start_offset 20.9 is no int", id="a fraction"),
        pytest.param('"start_offset": 20', '"start_offset": true', "start_offset true is no int", id="a truth value"),
        pytest.param('"start_offset": 20', f'"start_offset": {2**63}', "start_offset 9223", id="an offset, no int64"),
        pytest.param('"retention.ms": "-1"', '"retention.ms": null', "orders: retention.ms null", id="a setting, null"),
        pytest.param('"retention.ms": "-1"', '"retention.ms": 1e9', "retention.ms 1000000000.0 is no", id="a number"),
        pytest.param('"retention.ms": "-1"', '"a": "\\ud800"', "surrogates", id="text that UTF-8 does not have"),
        pytest.param(
            '"next_producer_id": 1000004', f'"next_producer_id": {2**63}', "next_producer_id 9", id="no int64"
        ),
        pytest.param("\n      1,\n      2\n", f"1, {2**31}", "a replica 2147483648 is no", id="a replica, no int32"),
        pytest.param("\n       4,\n       1,", "4, 40000,", "a producer epoch 40000 is no", id="no int16"),
        pytest.param('"start_offset": 20,', "", "'start_offset' is missing", id="a field that is missing"),
        pytest.param('"made_ms": 1', '"made_ms": 1e999', "made_ms Infinity is no", id="a number beyond all bounds"),
        pytest.param('"made_ms": 1', '"made_ms": ' + "[" * 100_000, "no plan", id="nested without end"),
        pytest.param('"leader_epoch": 1007', '"leader_epoch": 9999999999', "leader_epoch 9999999999", id="no int32"),
        pytest.param(format_uuid(TOPIC_ID), "x", "no plan", id="no topic id"),
        pytest.param("{", "[", "no plan", id="no JSON"),
    ],
)
def test_a_plan_with_a_value_that_cannot_be_used_is_refused(
    tmp_path: Path, before: str, after: str, reason: str
) -> None:
    path = tmp_path / "mount.json"
    write_plan(PLAN, path)
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(ConfigError, match=reason):
        read_plan(path)
