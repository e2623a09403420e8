"""Leases, as records of the state topic: of several that claim one term the first in the log wins."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.state_topic.codec import partition_key
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import lease_key, read_lease_key, write_lease
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.seen_time import SeenTime, UnseenTime

FIRST = Lease(
    name="repair",
    cluster_id="c",
    broker_id=-1,
    incarnation="one",
    term=1,
    host="h",
    pid=7,
    version="0",
    renewed_ms=5,
    duration_ms=60_000,
)
OTHER = replace(FIRST, incarnation="two")


def folded(*leases: Lease) -> StateFold:
    fold = StateFold()
    for lease in leases:
        fold.apply(lease_key(lease.name), write_lease(lease), where="test")
    return fold


@pytest.mark.parametrize(
    ("leases", "counts"),
    [
        pytest.param([FIRST], FIRST, id="the first that is seen"),
        pytest.param([FIRST, replace(FIRST, renewed_ms=9)], replace(FIRST, renewed_ms=9), id="a renewal"),
        pytest.param([FIRST, OTHER], FIRST, id="another claim to the same term comes too late"),
        pytest.param([FIRST, replace(OTHER, term=2)], replace(OTHER, term=2), id="the next term"),
        pytest.param(
            [FIRST, replace(OTHER, term=3)],
            replace(OTHER, term=3),
            id="a term that skips one: compaction has taken what was in between",
        ),
        pytest.param(
            [FIRST, replace(OTHER, renewal=True)],
            replace(OTHER, renewal=True),
            id="a renewal shows that the claim that was seen had lost: compaction has taken the one that won",
        ),
        pytest.param(
            [replace(FIRST, renewal=True), replace(OTHER, renewal=True)],
            replace(FIRST, renewal=True),
            id="what the holder has renewed is not overruled in its term",
        ),
        pytest.param(
            [FIRST, replace(OTHER, term=2), replace(FIRST, renewed_ms=9)],
            replace(OTHER, term=2),
            id="a former holder renews",
        ),
        pytest.param(
            [FIRST, replace(OTHER, term=2), replace(FIRST, released=True)],
            replace(OTHER, term=2),
            id="a former holder releases",
        ),
        pytest.param(
            [FIRST, replace(FIRST, released=True)],
            replace(FIRST, released=True),
            id="the holder releases, and is known",
        ),
    ],
)
def test_one_holder(leases: list[Lease], counts: Lease) -> None:
    assert folded(*leases).lease("repair") == counts


def test_a_losers_record_is_mended_for_compaction_would_keep_it_alone() -> None:
    fold = folded(FIRST, OTHER)
    assert fold.lowered == {lease_key("repair")}
    assert fold.mended_value(lease_key("repair")) == write_lease(FIRST)
    fold.apply(lease_key("repair"), write_lease(FIRST), where="test")
    assert fold.lowered == set()


def test_a_sidecar_says_where_its_status_is_and_one_of_a_former_release_does_not() -> None:
    named = replace(FIRST, name="3", broker_id=3, status_address="b3:8091")
    fold = folded(FIRST, named)
    former = write_lease(replace(named, name="4", broker_id=4)).replace(b'"status_address":"b3:8091",', b"")
    fold.apply(lease_key("4"), former, where="test")
    assert [(one.name, one.status_address) for one in fold.leases()] == [("3", "b3:8091"), ("4", ""), ("repair", "")]


def test_a_command_says_which_partitions_it_is_at_and_one_of_a_former_release_does_not() -> None:
    named = replace(FIRST, concerns="AAAAAAAAAAAAAAAAAAAABw/3")
    assert folded(named).lease("repair") == named
    fold = StateFold()
    fold.apply(lease_key("repair"), write_lease(FIRST).replace(b'"concerns":"",', b""), where="test")
    assert fold.lease("repair") == FIRST
    moved = replace(named, concerns="AAAAAAAAAAAAAAAAAAAABw/4", renewal=True, renewed_ms=9)
    assert folded(named, moved).lease("repair") == moved


SEEN = SeenTime(until_ms=90, unseen=(UnseenTime(from_ms=0, to_ms=7), UnseenTime(from_ms=20, to_ms=30)))
HELD = replace(FIRST, name="3", broker_id=3, seen=SEEN)


def test_a_lease_says_which_time_its_holder_has_seen() -> None:
    assert folded(HELD).lease("3") == HELD


@pytest.mark.parametrize("unseen", [b'[[0,7],[20,"x"]]', b"[[0]]", b"7", b'"later"'])
def test_a_seen_time_that_cannot_be_read_takes_no_lease_away(unseen: bytes) -> None:
    value = write_lease(HELD).replace(b"[[0,7],[20,30]]", unseen)
    fold = StateFold()
    fold.apply(lease_key("3"), value, where="test")
    assert fold.lease("3") == replace(HELD, seen=None)


def test_the_former_format_tells_of_no_seen_time_and_reads_ours() -> None:
    """What this format adds are two fields of their own: a reader takes those that it knows."""
    added = json.loads(write_lease(HELD)).keys() - json.loads(write_lease(replace(HELD, seen=None))).keys()
    assert added == {"seen_until_ms", "unseen_ms"}
    assert folded(replace(HELD, seen=None)).lease("3") == replace(HELD, seen=None)


def test_leases_of_other_names_are_others() -> None:
    assert folded(FIRST, replace(OTHER, name="3")).lease("repair") == FIRST


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"v":2}', id="no field"),
        pytest.param(write_lease(FIRST).replace(b'"term":1', b'"term":"1"'), id="a term that is none"),
    ],
)
def test_a_record_that_cannot_be_read_is_no_lease(value: bytes) -> None:
    fold = StateFold()
    fold.apply(lease_key("repair"), value, where="test")
    assert fold.lease("repair") is None


@pytest.mark.parametrize("key", [partition_key(ORDERS), b"lease/", b"lease", b"leases/repair", b"", b"\xff"])
def test_other_keys_are_none_of_ours(key: bytes) -> None:
    assert read_lease_key(key) is None
