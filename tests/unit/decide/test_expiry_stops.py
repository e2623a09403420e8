"""When expiry stops and says why (issue text "Safety"; U16, U24)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, going, segment, segments, view
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.expiry_stops import ClockReading, reason_to_doubt_clock
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.seen_time import UnseenTime
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import SaidDelete

TEN_YEARS_H = 10 * 365 * 24
GUARDED = ExpiryLimits()
OLD = segments(4, youngest_h=9)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(
            view(segments(4, youngest_h=TEN_YEARS_H), retention_h=7 * 24),
            "the clock is wrong",
            id="the clock stands ten years ahead, and one segment after the other would go",
        ),
        pytest.param(
            view((*segments(4, youngest_h=TEN_YEARS_H), segment(400, 499)), retention_h=7 * 24),
            "the clock is wrong",
            id="the clock stands ten years ahead, and something was copied since",
        ),
        pytest.param(
            view(local=(0, 100, 200), local_age_h=TEN_YEARS_H, retention_h=7 * 24),
            "the clock is wrong",
            id="the same, where nothing is remote",
        ),
        pytest.param(
            view(local=(0, 100, 200), retention_h=0, limits=GUARDED),
            "retention.ms reads 0",
            id="retention.ms reads 0, and nothing is remote yet",
        ),
        pytest.param(
            view(local=(0, 100, 200, 300, 400), retention_bytes=2 * SEGMENT_BYTES, limits=GUARDED),
            "3 segments are due at once, 3072 of 5120 bytes",
            id="the guard: local data that were never copied count as well",
        ),
        pytest.param(
            view(OLD, retention_h=1, clock_doubt="the wall clock jumped 900 s ahead"),
            "jumped 900 s ahead",
            id="the clock jumped while the process ran",
        ),
        pytest.param(
            view(OLD, retention_h=0, limits=GUARDED), "retention.ms reads 0", id="retention.ms suddenly reads 0"
        ),
        pytest.param(
            view(OLD[:1], retention_bytes=0, limits=GUARDED),
            "retention.bytes reads 0",
            id="retention.bytes reads 0, one segment",
        ),
        pytest.param(
            view(local=(700, 800), local_age_h=9, retention_h=1, trim_offset=700),
            "metadata are not whole",
            id="the metadata topic is empty, but what was trimmed must be remote",
        ),
        pytest.param(
            view(local=(1, 800), local_age_h=9, retention_h=1, trim_offset=1),
            "trimmed to 1,",
            id="the same, where a single record was trimmed",
        ),
        pytest.param(
            view(OLD, retention_h=1, trim_offset=401),
            "trimmed to 401, but the remote segments of this history end at 400",
            id="the metadata have lost their end",
        ),
        pytest.param(view(OLD, retention_h=1, lineage=()), "no leader epoch", id="no leader epoch is known"),
        pytest.param(
            view(OLD, retention_h=1, lineage=((4, 0),)),
            "began anew in leader epoch 4 at offset 0, and 4 remote segments",
            id="all replicas were lost: the log begins at 0 in a new epoch",
        ),
        pytest.param(
            view((*OLD, segment(0, 99, epochs=((4, 0),))), retention_h=1, lineage=((4, 0),)),
            "began anew",
            id="all replicas were lost, and the new log is remote already",
        ),
        pytest.param(
            view(OLD, retention_h=1, lineage=((4, 0),), accepted_loss_epoch=3),
            "began anew",
            id="an earlier loss was accepted, not this one",
        ),
        pytest.param(
            view(OLD, retention_h=1, high_watermark=399),
            "ends at 399, below the end of the remote segments at 400",
            id="the log ends below what is remote",
        ),
        pytest.param(
            view(OLD, retention_h=9.5, limits=GUARDED),
            "3 segments are due at once, 3072 of 4096 bytes",
            id="the guard: more than half of the partition in one round",
        ),
        pytest.param(
            view(OLD, retention_h=10.5, limits=ExpiryLimits(max_bytes=2 * SEGMENT_BYTES - 1)),
            "deletes.max.bytes.per.round",
            id="the guard: more bytes than allowed in one round",
        ),
    ],
)
def test_expiry_stops_and_says_why(given: ExpiryView, reason: str) -> None:
    plan = decide_expiry(given)
    assert reason in plan.stop
    assert (going(plan), plan.remote_log_start_offset) == ([], -1)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        pytest.param(view(OLD, retention_h=10.5, limits=GUARDED), 2, id="half of the partition is within the guard"),
        pytest.param(view(OLD[:1], retention_h=1, limits=GUARDED), 1, id="one segment may always go"),
        pytest.param(
            view((segment(0, 99, age_h=8 * 24), segment(100, 199, age_h=-48)), retention_h=7 * 24),
            1,
            id="a copy dated by a clock that stood ahead for a while is no silence",
        ),
        pytest.param(
            view(segments(2, youngest_h=13 * 24), retention_h=7 * 24),
            2,
            id="an idle partition, and a sidecar that was away",
        ),
        pytest.param(
            view(
                segments(2, youngest_h=14 * 24 + 12), retention_h=7 * 24, delays=TrashDelays(retention_ms=24 * HOUR_MS)
            ),
            0,
            id="what waits in the trash for its delay explains as much more silence",
        ),
        pytest.param(
            view(OLD, retention_h=10.5, limits=ExpiryLimits(max_bytes=2 * SEGMENT_BYTES)),
            2,
            id="as many bytes as one round may delete",
        ),
        pytest.param(
            view(OLD, retention_h=10.5, limits=ExpiryLimits(max_bytes=-1)), 2, id="no limit on the bytes of a round"
        ),
        pytest.param(
            view(segments(1, youngest_h=14 * 24), retention_h=7 * 24), 1, id="a silence of exactly retention and slack"
        ),
        pytest.param(view(local=(0,), retention_h=1, high_watermark=0), 0, id="a partition without any record"),
        pytest.param(
            view(OLD, retention_h=1, lineage=((4, 0),), accepted_loss_epoch=4),
            4,
            id="an operator accepted the loss: all goes by its own retention",
        ),
        pytest.param(view(OLD, retention_h=1, high_watermark=400), 4, id="the log ends where the remote segments end"),
        pytest.param(view(OLD, retention_h=1, trim_offset=400), 4, id="trimmed to where the remote segments end"),
        pytest.param(
            replace(view(OLD, retention_h=1, trim_offset=450), held_offset=400),
            4,
            id="what was trimmed beyond was given up for room on the disk",
        ),
        pytest.param(
            view(OLD[3:], retention_h=9.5, trim_offset=300, start=300, limits=GUARDED),
            0,
            id="what expired earlier explains the trim",
        ),
        pytest.param(
            view(segments(2, youngest_h=TEN_YEARS_H), retention_bytes=0),
            2,
            id="expiry by size alone does not ask the clock",
        ),
    ],
)
def test_expiry_goes_on(given: ExpiryView, count: int) -> None:
    plan = decide_expiry(given)
    assert (plan.stop, len(plan.expired)) == ("", count)


def test_what_a_user_deleted_goes_although_retention_stops() -> None:
    """A start that is durable was decided before: nobody may read below it, whatever is in doubt now."""
    plan = decide_expiry(view(OLD, retention_h=1, start=200, clock_doubt="the wall clock jumped", limits=GUARDED))
    assert going(plan) == [(0, 99), (100, 199)]
    assert plan.stop == "the wall clock jumped"
    assert plan.remote_log_start_offset == 200


def test_the_guard_does_not_count_what_a_user_deleted() -> None:
    plan = decide_expiry(view(OLD, start=300, retention_h=9.5, limits=GUARDED))
    assert (len(plan.expired), plan.stop) == (3, "")


def test_leftovers_are_finished_although_expiry_stops() -> None:
    """S-063: a deletion that was begun was decided before.  By a clock in doubt no other broker's copy is dead."""
    deleting = segment(0, 99, state=State.DELETE_SEGMENT_STARTED)
    theirs = segment(100, 199, age_h=48, state=State.COPY_SEGMENT_STARTED, broker_id=2)
    remote: tuple[RemoteLogSegmentMetadata, ...] = (deleting, theirs, segment(200, 299))
    trusted = decide_expiry(view(remote, limits=GUARDED))
    assert {removal.metadata for removal in trusted.leftovers} == {deleting, theirs}
    doubted = decide_expiry(view(remote, limits=GUARDED, clock_doubt="jumped"))
    assert {removal.metadata for removal in doubted.leftovers} == {deleting}


@pytest.mark.parametrize(
    ("wall_ms", "monotonic_s", "reason"),
    [
        pytest.param(NOW_MS + 3_600_000, 3600.0, "", id="an hour went by on both clocks"),
        pytest.param(NOW_MS + 3_600_000 + 299_000, 3600.0, "", id="NTP steps by less than five minutes"),
        pytest.param(NOW_MS + 300_000, 0.0, "", id="NTP steps by five minutes"),
        pytest.param(NOW_MS - 300_000, 0.0, "", id="back by as much"),
        pytest.param(NOW_MS + 300_001, 0.0, "jumped 300 s ahead", id="a millisecond more"),
        pytest.param(NOW_MS + 400_000, 10.0, "jumped 390 s ahead", id="ahead"),
        pytest.param(NOW_MS - 400_000, 10.0, "jumped 410 s back", id="back"),
        pytest.param(NOW_MS + 10 * 365 * 86_400_000, 1.0, "ahead", id="ten years"),
    ],
)
def test_clock(wall_ms: int, monotonic_s: float, reason: str) -> None:
    first = ClockReading(wall_ms=NOW_MS, monotonic_s=5000.0)
    found = reason_to_doubt_clock(first, ClockReading(wall_ms=wall_ms, monotonic_s=5000.0 + monotonic_s))
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("wrong", [{"max_share": 0.0}, {"max_share": 1.5}, {"max_bytes": -2}])
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="one round may delete"):
        ExpiryLimits(**wrong)  # type: ignore[arg-type]


def test_what_a_producer_writes_today_does_not_hide_that_the_sealed_data_are_of_long_ago() -> None:
    given = view(local=(0, 100, 200), local_age_h=TEN_YEARS_H, retention_h=7 * 24)
    active = replace(given.local_segments[-1], modified_ms=NOW_MS)
    assert (
        "the clock is wrong" in decide_expiry(replace(given, local_segments=(*given.local_segments[:-1], active))).stop
    )


def test_the_segment_that_holds_the_start_still_tells_of_a_silence() -> None:
    given = view((segment(0, 99, age_h=TEN_YEARS_H),), start=99, retention_h=7 * 24)
    assert "the clock is wrong" in decide_expiry(given).stop
    assert decide_expiry(replace(given, remote_log_start_offset=100)).stop == "", (
        "what is given up waits for no retention"
    )


@pytest.mark.parametrize(
    ("fields", "removed"),
    [
        pytest.param({}, [0, 100], id="a user's delete is carried out beside a long silence"),
        pytest.param({"clock_doubt": "the wall clock jumped"}, [], id="not by a clock that jumped"),
        pytest.param(
            {"unseen": (UnseenTime(from_ms=0, to_ms=NOW_MS),)},
            [],
            id="nor by time that nobody saw: the clock may be ahead",
        ),
    ],
)
def test_silence_stops_retention_and_keeps_nothing_in_the_trash(fields: dict[str, Any], removed: list[int]) -> None:
    """A user's delete is what ends the stop (retention.md)."""
    delays = TrashDelays(retention_ms=HOUR_MS, user_ms=HOUR_MS)
    entry = user_delete(Offset(200), LeaderEpoch(0), generation=0, delays=delays, now_ms=NOW_MS - HOUR_MS, by="a user")
    silent = segments(4, youngest_h=TEN_YEARS_H)
    said = SaidDelete(opened_ms=entry.id.opened_ms, leader_epoch=LeaderEpoch(0), offset=Offset(200))
    by_user: dict[str, Any] = {"start": 200, "trash": (entry,), "user_deletes": (said,), "delays": delays}
    plan = decide_expiry(view(silent, retention_h=7 * 24, **by_user, **fields))
    assert plan.stop
    assert [one.metadata.start_offset for one in plan.expired] == removed
