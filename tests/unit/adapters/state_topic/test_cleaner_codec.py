"""How far leaders have cleaned a partition, as a record of the state topic (S-271, S-272, S-273)."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.state_topic.codec import Writer, partition_key, stamped, topic_key
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import cleaner_key, read_cleaner_key, write_cleaner_claims
from tiersidecar.domain.cleaner import MOST_CLAIMS, CleanerClaim, merged_claims
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset

WRITER = Writer("this", 1, "x")


def claim(epoch: int, **offsets: int) -> CleanerClaim:
    named = {LeaderEpoch(int(one.removeprefix("e"))): Offset(offset) for one, offset in offsets.items()}
    return CleanerClaim(leader_epoch=LeaderEpoch(epoch), offsets=named)


FIRST = claim(0, e0=100)
SECOND = replace(claim(1, e0=100, e1=155), revision=3, segments=("AAAAAAAA", "BBBBBBBB"))
claims = st.builds(
    lambda epoch, own, other, revision, names: replace(
        claim(epoch, **{f"e{epoch}": own}, **({"e0": other} if epoch else {})),
        revision=revision,
        segments=names,
        parted_at=None if other else Offset(own),
    ),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([(), ("AAAAAAAA",), ("BBBBBBBB",)]),
)


def record(*said: CleanerClaim, **former: Any) -> bytes:
    return stamped(write_cleaner_claims(ORDERS, said, former), WRITER)


def folded(*values: bytes | None) -> StateFold:
    fold = StateFold("this")
    for value in values:
        fold.apply(cleaner_key(ORDERS), value, where="here")
    return fold


def test_keys_and_values_are_readable_and_do_not_change() -> None:
    assert cleaner_key(ORDERS) == partition_key(ORDERS).replace(b"partition", b"cleaner")
    assert read_cleaner_key(cleaner_key(ORDERS)) == (ORDERS.topic_id, ORDERS.partition)
    assert write_cleaner_claims(ORDERS, [FIRST, SECOND], {}) == (
        b'{"claims":{"0":{"offsets":{"0":100},"revision":0,"segments":""},'
        b'"1":{"offsets":{"0":100,"1":155},"revision":3,"segments":"AAAAAAAA BBBBBBBB"}},"topic":"orders","v":1}'
    )


def test_a_claim_comes_back_as_it_was_written_until_the_partition_is_forgotten() -> None:
    assert folded(record(FIRST, SECOND)).cleaner_claims(ORDERS) == (FIRST, SECOND)
    third = replace(claim(2, e2=170), reach=Offset(190), parted_at=Offset(120))
    assert folded(record(SECOND, third)).cleaner_claims(ORDERS) == (SECOND, third)
    assert folded(record(FIRST, SECOND), None).cleaner_claims(ORDERS) == ()
    assert folded().cleaner_claims(ORDERS) == ()


def test_what_is_known_is_not_written_again_and_what_is_new_is_written_with_all_that_is_known() -> None:
    fold = folded(record(FIRST, later_field=7))
    assert fold.cleaner_value(ORDERS, FIRST) is None
    assert fold.cleaner_value(ORDERS, claim(0, e0=90)) is None
    written = fold.cleaner_value(ORDERS, SECOND)
    assert written is not None
    assert json.loads(written)["later_field"] == 7
    assert folded(written).cleaner_claims(ORDERS) == (FIRST, SECOND)


def test_a_deposed_leaders_record_hides_no_other_claim_and_is_written_again() -> None:
    fold = folded(record(FIRST, SECOND), record(claim(0, e0=123)))
    known = (claim(0, e0=123), SECOND)
    assert fold.cleaner_claims(ORDERS) == known
    assert fold.lowered == {cleaner_key(ORDERS)}
    mended = fold.mended_value(cleaner_key(ORDERS))
    assert mended is not None
    fold.apply(cleaner_key(ORDERS), stamped(mended, WRITER), where="here")
    assert (fold.lowered, fold.cleaner_claims(ORDERS)) == (set(), known)


def test_another_clusters_claims_count_for_nothing_and_hide_none() -> None:
    other = stamped(write_cleaner_claims(ORDERS, [claim(5, e5=900)], {}), Writer("other", 1, "x"))
    assert folded(other).cleaner_claims(ORDERS) == ()
    fold = folded(record(FIRST), other)
    assert fold.cleaner_claims(ORDERS) == (FIRST,)
    assert fold.lowered == {cleaner_key(ORDERS)}


@given(several=st.lists(claims, max_size=4))
def test_claims_merge_in_whatever_order_and_however_often(several: list[CleanerClaim]) -> None:
    merged = merged_claims(several)
    for order in permutations(several):
        assert merged_claims([*merged_claims(order[:2]), *order]) == merged


def test_the_latest_epochs_alone_are_kept() -> None:
    several = [claim(epoch, **{f"e{epoch}": epoch}) for epoch in range(MOST_CLAIMS + 3)]
    assert [one.leader_epoch for one in merged_claims(several)] == list(range(3, MOST_CLAIMS + 3))


def test_a_record_of_many_epochs_over_many_segments_is_one_that_brokers_take() -> None:
    """Segments are never merged: a partition that is written to has more from day to day."""
    names = tuple(f"{number:08d}" for number in range(30_000))
    several = [
        replace(claim(epoch, **{f"e{epoch}": epoch}), segments=names, revision=1) for epoch in range(MOST_CLAIMS)
    ]
    assert len(record(*merged_claims(several))) < 1 << 20
    assert [len(one.segments) for one in merged_claims(several)][-2:] == [30_000, 30_000], "those that may count next"


@pytest.mark.parametrize(
    "value",
    [
        b'{"v":1}',
        b'{"v":1,"claims":[]}',
        b'{"v":1,"claims":{"0":5}}',
        b'{"v":1,"claims":{"0":{"offsets":{"0":5}}}}',
        b'{"v":1,"claims":{"a":{}}}',
        b'{"v":1,"claims":{"0":{"offsets":{"0":"5"},"revision":0,"segments":""}}}',
    ],
)
def test_what_cannot_be_read_is_passed_over(value: bytes) -> None:
    assert folded(record(FIRST), value).cleaner_claims(ORDERS) == (FIRST,)


@pytest.mark.parametrize(
    "key", [partition_key(ORDERS), topic_key(Uuid(bytes(16))), b"cleaner/x/0", b"cleaner/" + b"A" * 22, b"cleaner//1"]
)
def test_other_keys_are_no_claims(key: bytes) -> None:
    assert read_cleaner_key(key) is None
