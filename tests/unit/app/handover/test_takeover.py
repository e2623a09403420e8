"""What is in the way of a takeover from native tiering, and what it must not do yet (issue 21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.metadata_events import DELETING, ORDERS, segment_id, updated
from tests.unit.app.handover.test_run import NATIVE, broker, look
from tests.unit.decide.test_native_tiering import THREE, begun
from tiersidecar.app.handover.look import finished_of
from tiersidecar.app.handover.run import BrokerSettings
from tiersidecar.app.handover.steps import steps_from_native
from tiersidecar.app.handover.takeover import (
    NativePartition,
    TakeoverLook,
    copies_in_progress,
    takeover_document,
    takeover_text,
)
from tiersidecar.decide.native_settings import Sight
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Offset
from tiersidecar.reading.remote_objects import recorded_keys

SEGMENTS = NativeSegments(event for some in (*THREE, begun(4, 30, 39)) for event in some)
FINISHED = tuple(finished_of(SEGMENTS))
THREE_HOURS_MS = 3 * 3_600_000
UNFINISHED = tuple(one for one in SEGMENTS if one not in FINISHED)
KEYS = [key for one in FINISHED for key in recorded_keys(one, "tier/").in_upload_order]
WHOLE = NativePartition(
    owner=ORDERS,
    finished=FINISHED,
    unfinished=(),
    copying=(),
    log_start_offset=Offset(0),
    local_log_start_offset=Offset(30),
    high_watermark=Offset(100),
    leader_epochs=(),
    object_bytes=dict.fromkeys(KEYS, 7),
)


def takeover(partition: NativePartition = WHOLE, *, brokers: Sequence[BrokerSettings] = ()) -> TakeoverLook:
    return TakeoverLook(
        topics=("orders",), partitions=(partition,), refusals=(), cluster=look(brokers=brokers), key_prefix="tier/"
    )


ROWS = {
    "nothing": (WHOLE, None),
    "a copy that the broker has not finished": (
        replace(WHOLE, unfinished=UNFINISHED, copying=UNFINISHED),
        "1 copies are unfinished (offsets 30 to 39): set remote.log.copy.disable=true, and wait until the broker has finished",
    ),
    "what the broker never finishes, for it keeps what is before it": (replace(WHOLE, unfinished=UNFINISHED), None),
    "objects under another prefix, or in another bucket": (
        replace(WHOLE, object_bytes={}),
        "lacks objects of the segment with offsets 0 to 9",
    ),
}


@pytest.mark.parametrize("sentence", ROWS)
def test_what_is_in_the_way(sentence: str) -> None:
    partition, expected = ROWS[sentence]
    found = list(takeover(partition).obstacles())
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


COPYING = {
    "a copy that has just begun may be finished": (begun(4, 30, 39), 1_000, [4]),
    "after three hours it is one that was interrupted": (begun(4, 30, 39), THREE_HOURS_MS + 4, []),
    "of a clock that is ahead it may be finished": (begun(4, 30, 39), 0, [4]),
    "a deletion is not waited for, however young: the sidecar finishes it": (
        [*begun(4, 30, 39), updated(4, DELETING)],
        1_000,
        [],
    ),
    "what is finished is none": (THREE[0], 1_000, []),
}


@pytest.mark.parametrize("sentence", COPYING)
def test_which_copies_are_waited_for(sentence: str) -> None:
    events, now_ms, numbers = COPYING[sentence]
    found = copies_in_progress(NativeSegments(events), now_ms)
    assert [one.remote_log_segment_id for one in found] == [segment_id(number) for number in numbers]


def test_while_brokers_see_native_tiering_must_not_be_switched_off() -> None:
    blind, seeing = broker(1, NATIVE, sight=Sight.BLIND), broker(2, NATIVE, sight=Sight.SEEING)
    off = broker(3, {}, sight=Sight.SEEING)
    (warning,) = takeover(brokers=[blind, seeing, off]).warnings()
    assert warning.startswith("brokers 2 see the events: remote.storage.enable=false would delete all that is remote")
    assert list(takeover(brokers=[blind, off]).warnings()) == []
    refused = BrokerSettings(broker_id=BrokerId(4), problem="CLUSTER_AUTHORIZATION_FAILED", sight=Sight.SEEING)
    (warning,) = takeover(brokers=[blind, refused]).warnings()
    assert warning.startswith("brokers 4 see the events"), "by its file, for it shows nothing"
    shown = takeover_document(takeover(brokers=[blind, seeing]))["brokers"]
    assert [one["sight"] for one in shown] == ["blind", "seeing"]


def test_brokers_that_may_see_are_in_the_way() -> None:
    refused = BrokerSettings(broker_id=BrokerId(4), problem="CLUSTER_AUTHORIZATION_FAILED")
    off = broker(3, {}, sight=Sight.UNKNOWN)
    (obstacle,) = takeover(brokers=[broker(2, NATIVE, sight=Sight.UNKNOWN), off, refused]).obstacles()
    assert obstacle.startswith("it is not known whether brokers 2, 4 see its events: give all lines")


DELETED_AGAIN = {
    "within a segment": (replace(WHOLE, log_start_offset=Offset(5)), "--offset 5"),
    "up to the end of segments that the broker has yet to delete": (
        replace(WHOLE, log_start_offset=Offset(20)),
        "--offset 20",
    ),
    "nothing": (WHOLE, None),
    "nothing, as far as can be seen: once it is off, the log start is the disk's": (
        replace(WHOLE, log_start_offset=Offset(25), local_log_start_offset=Offset(-1)),
        None,
    ),
}


@pytest.mark.parametrize("sentence", DELETED_AGAIN)
def test_what_users_have_deleted_is_deleted_again(sentence: str) -> None:
    partition, offset = DELETED_AGAIN[sentence]
    steps = [one for one in steps_from_native(takeover(partition), None) if "delete-records" in one]
    assert len(steps) == (offset is not None)
    assert all(f"tiersidecar delete-records orders -p 0 {offset}" in one for one in steps)


def test_the_table() -> None:
    _, row = takeover_text(takeover()).splitlines()
    assert " ".join(row.split()) == "orders-0 0 30 100 3 2.9 KiB 0 0"
