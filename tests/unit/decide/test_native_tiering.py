"""What a native broker would do: a row for each rule of ``RemoteLogManager`` and ``RemoteLogLeaderEpochState`` (issue 21).

``tests/integration/test_handover.py`` holds the same rules against a real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.support.metadata_events import DELETED, DELETING, FINISHED, added, updated
from tiersidecar.decide.native_tiering import (
    DeletionReason,
    Forecast,
    NativeLog,
    NativeRetention,
    foretell,
    highest_remote_offset,
)
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.segments import MetadataEvent

NOW_MS = 1_000
UNLIMITED = NativeRetention()
BEGUN, BELOW, UNKNOWN, TIME, SIZE = DeletionReason
ONE_EPOCH = {0: 0}
TWO_EPOCHS = {0: 0, 2: 20}


def copied(
    number: int, start: int, end: int, epochs: Mapping[int, int] | None = None, size: int = 1000
) -> list[MetadataEvent]:
    return [added(number, start, end, epochs, size=size), updated(number, FINISHED)]


def begun(number: int, start: int, end: int, epochs: Mapping[int, int] | None = None) -> list[MetadataEvent]:
    return [added(number, start, end, epochs)]


def log(
    start: int, epochs: Mapping[int, int], *, local: int = 30, end: int = 100, only_local_bytes: int = 0
) -> NativeLog:
    return NativeLog(
        log_start_offset=Offset(start),
        local_log_start_offset=Offset(local),
        log_end_offset=Offset(end),
        leader_epochs=Lineage.of(sorted(epochs.items())),
        only_local_bytes=only_local_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class Situation:
    """``deleted`` are numbers of segments by reason, in order; ``start`` is the log start in the end."""

    events: Sequence[Sequence[MetadataEvent]]
    log: NativeLog
    retention: NativeRetention = UNLIMITED
    deleted: Sequence[tuple[int, DeletionReason]] = ()
    start: int = 0
    unreadable: Sequence[tuple[int, int]] = ()
    copies_from: int = 30

    def foretold(self) -> Forecast:
        segments = NativeSegments(event for some in self.events for event in some)
        return foretell(segments, self.log, self.retention, NOW_MS)


THREE = (copied(1, 0, 9), copied(2, 10, 19), copied(3, 20, 29))
BOTH_EPOCHS = (copied(1, 0, 9), copied(2, 10, 24, {0: 10, 2: 20}), copied(3, 25, 29, {2: 25}))

SITUATIONS = {
    "all is kept when log start and epochs reach back to the first segment": Situation(
        events=THREE, log=log(0, ONE_EPOCH)
    ),
    "what ends below the log start goes, of the first epoch": Situation(
        events=THREE, log=log(20, {0: 20}, local=20), deleted=[(1, BELOW), (2, BELOW)], start=20
    ),
    "a segment whose last offset is the log start stays": Situation(events=THREE, log=log(9, {0: 9}), start=9),
    "a segment that reaches over the log start stays": Situation(
        events=THREE, log=log(15, {0: 15}), deleted=[(1, BELOW)], start=15
    ),
    "what was written before the first known epoch goes, whatever its offsets": Situation(
        events=BOTH_EPOCHS, log=log(25, {2: 25}, local=25), deleted=[(2, BELOW), (1, UNKNOWN)], start=25
    ),
    "a segment of an unknown and a known epoch stays, if it reaches over the log start": Situation(
        events=BOTH_EPOCHS, log=log(22, {2: 22}, local=22), deleted=[(1, UNKNOWN)], start=22
    ),
    "the log start rises to the first segment of the first epoch": Situation(
        events=THREE[1:], log=log(0, ONE_EPOCH), start=10
    ),
    "without copying it does not rise by itself": Situation(
        events=THREE[1:],
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(is_copying=False),
        start=0,
        unreadable=[(0, 10)],
    ),
    "without any epoch nothing is deleted, and nothing can be read": Situation(
        events=THREE, log=log(30, {}), start=30, copies_from=0
    ),
    "another history's segment that ends past its epoch is neither read nor deleted": Situation(
        events=(*BOTH_EPOCHS, copied(4, 15, 22, {0: 15})), log=log(0, TWO_EPOCHS)
    ),
    "another history's epoch before the first known one goes": Situation(
        events=(copied(1, 0, 9, {0: 0}), copied(2, 10, 29, {1: 10})),
        log=log(10, {1: 10}, local=10),
        deleted=[(1, UNKNOWN)],
        start=10,
    ),
    "another history's epoch between the known ones stays for good": Situation(
        events=(*BOTH_EPOCHS, copied(4, 20, 29, {1: 20})), log=log(0, TWO_EPOCHS)
    ),
    "what is past retention.ms goes, oldest first": Situation(
        events=THREE,
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_ms=NOW_MS - 15),
        deleted=[(1, TIME)],
        start=10,
    ),
    "retention.ms of 0 takes all": Situation(
        events=THREE,
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_ms=0),
        deleted=[(1, TIME), (2, TIME), (3, TIME)],
        start=30,
    ),
    "retention.ms goes on past a segment of another history, which goes once its epoch is none of the log's": Situation(
        events=(copied(1, 0, 9), copied(4, 5, 22, {0: 5}), *BOTH_EPOCHS[1:]),
        log=log(0, TWO_EPOCHS),
        retention=NativeRetention(retention_ms=NOW_MS - 25),
        deleted=[(1, TIME), (2, TIME), (4, UNKNOWN)],
        start=25,
    ),
    "retention.ms leaves a segment that ends beyond the log": Situation(
        events=THREE,
        log=log(0, ONE_EPOCH, end=25),
        retention=NativeRetention(retention_ms=NOW_MS - 35),
        deleted=[(1, TIME), (2, TIME)],
        start=20,
        copies_from=25,
    ),
    "retention.ms ends at the first segment that is kept": Situation(
        events=(copied(1, 0, 19), copied(2, 20, 29)),
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_ms=NOW_MS - 10),
    ),
    "retention does not see what a shorter copy has taken the place of": Situation(
        events=(copied(1, 0, 9), copied(4, 0, 5), *THREE[1:]),
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_ms=NOW_MS - 15),
        deleted=[(4, TIME)],
        start=6,
        unreadable=[(6, 10)],
    ),
    "without retention.ms a segment stays whose records have no time": Situation(
        events=([replace(added(1, 0, 9), max_timestamp_ms=-1), updated(1, FINISHED)], *THREE[1:]), log=log(0, ONE_EPOCH)
    ),
    "what is past retention.bytes goes, whole segments at a time": Situation(
        events=THREE,
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_bytes=1500),
        deleted=[(1, SIZE)],
        start=10,
    ),
    "retention.bytes of 0 takes all": Situation(
        events=THREE,
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_bytes=0),
        deleted=[(1, SIZE), (2, SIZE), (3, SIZE)],
        start=30,
    ),
    "neither unfinished copies nor another history's segments count for retention.bytes": Situation(
        events=(*BOTH_EPOCHS, begun(4, 25, 29, {2: 25}), copied(5, 15, 22, {0: 15})),
        log=log(0, TWO_EPOCHS),
        retention=NativeRetention(retention_bytes=3000),
    ),
    "local bytes that are not remote count for retention.bytes": Situation(
        events=THREE,
        log=log(0, ONE_EPOCH, only_local_bytes=600),
        retention=NativeRetention(retention_bytes=1500),
        deleted=[(1, SIZE), (2, SIZE)],
        start=20,
    ),
    "of several copies of the same offsets all count for retention.bytes": Situation(
        events=(copied(1, 0, 9), copied(4, 5, 9), *THREE[1:]),
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_bytes=3000),
        deleted=[(1, SIZE), (4, BELOW)],
        start=10,
    ),
    "a deletion that has begun is finished once nothing before it is kept": Situation(
        events=(*THREE, [updated(2, DELETING)]),
        log=log(0, ONE_EPOCH),
        retention=NativeRetention(retention_ms=NOW_MS - 15),
        deleted=[(1, TIME), (2, BEGUN)],
        start=10,
        unreadable=[(10, 20)],
    ),
    "a deletion that has begun waits behind the first segment that is kept": Situation(
        events=(*THREE, [updated(2, DELETING)]), log=log(0, ONE_EPOCH), unreadable=[(10, 20)]
    ),
    "a copy that never ended stays": Situation(events=(*THREE, begun(4, 20, 29)), log=log(0, ONE_EPOCH)),
    "a copy that never ended goes below the log start": Situation(
        events=(*THREE, begun(4, 0, 9)), log=log(10, {0: 10}), deleted=[(1, BELOW), (4, BELOW)], start=10
    ),
    "a shorter copy that ends later hides the rest of the longer one": Situation(
        events=(copied(1, 0, 19), copied(2, 0, 9), copied(3, 20, 29)),
        log=log(0, ONE_EPOCH),
        unreadable=[(10, 20)],
    ),
    "a shorter copy that begins within a longer one hides the rest of it": Situation(
        events=(copied(1, 0, 19), copied(4, 5, 9), copied(3, 20, 29)),
        log=log(0, ONE_EPOCH),
        unreadable=[(10, 20)],
    ),
    "a longer copy that ends later takes the place of the shorter one": Situation(
        events=(copied(2, 0, 9), copied(1, 0, 19), copied(3, 20, 29)), log=log(0, ONE_EPOCH)
    ),
    "what a deleted copy had taken the place of does not come back": Situation(
        events=(
            copied(1, 0, 19),
            copied(2, 0, 9),
            [updated(2, DELETING), updated(2, DELETED)],
            copied(3, 20, 29),
        ),
        log=log(0, ONE_EPOCH),
        # The first listed segment begins at 20: there the log starts, and what is below it goes unseen.
        start=20,
    ),
    "what no segment holds cannot be read, and is not copied again": Situation(
        events=(THREE[0], THREE[2]), log=log(0, ONE_EPOCH), unreadable=[(10, 20)]
    ),
    "where nothing is remote nothing below the broker's disk can be read": Situation(
        events=(),
        log=log(0, TWO_EPOCHS),
        retention=NativeRetention(is_copying=False),
        unreadable=[(0, 30)],
        copies_from=0,
    ),
    "nothing between the last copy and the broker's disk can be read": Situation(
        events=THREE[:2], log=log(0, ONE_EPOCH), unreadable=[(20, 30)], copies_from=20
    ),
    "copying goes on at the log's end of an epoch that other copies went beyond": Situation(
        events=(copied(1, 0, 24), copied(3, 20, 29, {1: 20})),
        log=log(0, {0: 0, 2: 20}, local=20),
        copies_from=20,
    ),
}


@pytest.mark.parametrize("sentence", SITUATIONS)
def test_what_a_native_broker_does(sentence: str) -> None:
    row = SITUATIONS[sentence]
    found = row.foretold()
    numbers = [(int.from_bytes(one.segment.remote_log_segment_id.uuid, "big"), one.reason) for one in found.deletions]
    assert numbers == list(row.deleted)
    assert found.log_start_offset == row.start
    assert list(found.unreadable) == list(row.unreadable)
    assert found.copies_from == row.copies_from
    gone = {one.segment.remote_log_segment_id for one in found.deletions}
    left = NativeSegments(event for some in row.events for event in some)
    assert [one.remote_log_segment_id for one in found.kept] == [
        one.remote_log_segment_id
        for one in sorted(left, key=lambda one: (one.start_offset, one.end_offset, one.remote_log_segment_id.uuid))
        if one.remote_log_segment_id not in gone
    ]
    sizes = sum(found.bytes_of(reason) for reason in DeletionReason)
    assert sizes == sum(one.segment.segment_size_in_bytes for one in found.deletions)


def test_what_is_foretold_changes_nothing() -> None:
    row = SITUATIONS["what ends below the log start goes, of the first epoch"]
    segments = NativeSegments(event for some in row.events for event in some)
    assert foretell(segments, row.log, row.retention, NOW_MS) == foretell(segments, row.log, row.retention, NOW_MS)
    assert len(segments) == 3


@pytest.mark.parametrize(
    ("end", "highest"), [(100, 29), (25, 24), (30, 29)], ids=["beyond it", "before its end", "right behind it"]
)
def test_the_highest_remote_offset_is_not_beyond_the_log(end: int, highest: int) -> None:
    segments = NativeSegments(event for some in THREE for event in some)
    assert highest_remote_offset(segments, replace(log(0, ONE_EPOCH), log_end_offset=Offset(end))) == highest
