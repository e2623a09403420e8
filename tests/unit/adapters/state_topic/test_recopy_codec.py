"""Requests for another copy, as records of the state topic (U12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.metadata_events import ORDERS
from tiersidecar.adapters.state_topic.codec import partition_key
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import read_recopy_key, recopy_key, write_recopy
from tiersidecar.domain.ids import BrokerId, Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.state_records import RecopyRequest

REQUEST = RecopyRequest(
    topic_id_partition=ORDERS,
    start_offset=Offset(10),
    end_offset=Offset(19),
    segment_uuid=Uuid(bytes(range(16))),
    requested_ms=5,
)
OF_NO_SEGMENT = replace(REQUEST, segment_uuid=None)
FROM_STORE = replace(REQUEST, from_store=True)
DECLINED = replace(REQUEST, declined={BrokerId(2): "no", BrokerId(1): "not here"})


def folded(*requests: RecopyRequest) -> StateFold:
    fold = StateFold()
    for request in requests:
        fold.apply(recopy_key(request), write_recopy(request), where="test")
    return fold


@pytest.mark.parametrize(
    "request_", [REQUEST, OF_NO_SEGMENT, DECLINED, FROM_STORE], ids=["a segment", "a gap", "declined", "from the store"]
)
def test_a_request_comes_back_as_it_was(request_: RecopyRequest) -> None:
    assert folded(request_).recopies(ORDERS) == [request_]


def test_the_last_word_on_a_request_counts_and_a_tombstone_ends_it() -> None:
    fold = folded(REQUEST, OF_NO_SEGMENT, DECLINED)
    assert sorted(fold.recopies(ORDERS), key=lambda one: one.segment_uuid is None) == [DECLINED, OF_NO_SEGMENT]
    assert fold.recopy(recopy_key(REQUEST)) == DECLINED
    fold.apply(recopy_key(REQUEST), None, where="test")
    assert fold.recopies(ORDERS) == [OF_NO_SEGMENT]


def test_requests_of_another_partition_are_not_ours() -> None:
    assert folded(REQUEST).recopies(replace(ORDERS, partition=ORDERS.partition + 1)) == []


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"v":1}', id="no field"),
        pytest.param(b'{"v":1,"topic":"orders","requested_ms":"x","declined":{}}', id="a time that is none"),
        pytest.param(b'{"v":1,"topic":"orders","requested_ms":Infinity,"declined":{}}', id="a time beyond all bounds"),
        pytest.param(b'{"v":1,"topic":"orders","requested_ms":1,"declined":[]}', id="a list for a map"),
    ],
)
def test_a_record_that_cannot_be_read_asks_for_nothing(value: bytes) -> None:
    fold = StateFold()
    fold.apply(recopy_key(REQUEST), value, where="test")
    assert fold.recopies(ORDERS) == []


@pytest.mark.parametrize(
    "key", [partition_key(ORDERS), b"recopy/x/0/1-2/", b"recopy/" + b"A" * 22 + b"/0/12/", b"recopy/a/b", b"", b"\xff"]
)
def test_other_keys_are_none_of_ours(key: bytes) -> None:
    assert read_recopy_key(key) is None
