"""A read parted at the border: together its parts are the read, and no offset is in both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiersidecar.domain.errors import BrokerRefusedError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec
from tiersidecar.spark.datasource.both_tiers import BothTiers, Parted
from tiersidecar.spark.datasource.offset_ranges import LogBounds, OffsetRange
from tiersidecar.spark.datasource.options import AtOffset, AtTimestamp, Place, ReadOptions, Subscription

TOPIC_ID_PARTITION = TopicIdPartition(topic_id=Uuid(b"both-tiers-topic"), topic="both", partition=0)
PER_OFFSET_MS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Both ports: offset n has timestamp 10 n; remote from ``remote_start`` to ``remote_end``, local to ``end``."""

    remote_start: int
    remote_end: int
    local_start: int
    end: int
    error: str | None = None
    log_start: int = -1

    async def bounds(self, partition: TopicIdPartition) -> LogBounds:
        return LogBounds(start=self.remote_start, end=self.remote_end, log_start=self.log_start)

    async def find_offset(self, topic_id_partition: TopicIdPartition, timestamp_ms: int) -> int | None:
        return _first(timestamp_ms, self.remote_start, self.remote_end)

    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        match spec:
            case OffsetSpec.EARLIEST:
                offset: int | None = self.local_start
            case OffsetSpec.LATEST:
                offset = self.end
            case _:
                offset = _first(int(spec), self.local_start, self.end)
        answer = OffsetAnswer(
            offset=Offset(-1 if offset is None else offset),
            timestamp_ms=-1,
            leader_epoch=LeaderEpoch(0),
            error=self.error,
        )
        return dict.fromkeys(partitions, answer)

    def part(self, start: Place, end: Place, *, fail_on_data_loss: bool = True) -> Parted:
        options = ReadOptions(
            subscription=Subscription(topics=("both",)), start=start, end=end, fail_on_data_loss=fail_on_data_loss
        )
        return asyncio.run(BothTiers(self, self, options).part((TOPIC_ID_PARTITION,)))


def _first(timestamp_ms: int, start: int, end: int) -> int | None:
    found = max(-(-timestamp_ms // PER_OFFSET_MS), start)
    return found if found < end else None


def offsets_of(parted: Parted) -> tuple[list[int], list[int]]:
    remote, local = parted.remote.get(TOPIC_ID_PARTITION), parted.local.get(TOPIC_ID_PARTITION)
    return _offsets(remote), _offsets(local)


def _offsets(wanted: OffsetRange | None) -> list[int]:
    return [] if wanted is None else list(range(wanted.start, wanted.end))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Without a hole: the broker keeps what is not remote, and maybe more."""
    remote_start = draw(st.integers(0, 20))
    remote_end = draw(st.integers(remote_start, 40))
    local_start = draw(st.integers(0, remote_end)) if remote_end > remote_start else draw(st.integers(0, 50))
    return Log(
        remote_start=remote_start,
        remote_end=remote_end,
        local_start=local_start,
        end=draw(st.integers(max(remote_end, local_start), 60)),
    )


places = st.integers(0, 600).map(AtTimestamp) | st.integers(0, 60).map(AtOffset)


@settings(max_examples=200)
@given(
    logs(),
    places | st.just(AtOffset(OffsetSpec.EARLIEST)),
    places | st.just(AtOffset(OffsetSpec.LATEST)),
)
def test_the_parts_are_the_whole(log: Log, start: Place, end: Place) -> None:
    is_tiered = log.remote_end > log.remote_start
    first = log.remote_start if is_tiered else log.local_start
    there = range(first, log.end)

    def meant(place: Place, otherwise: int) -> int:
        match place:
            case AtTimestamp(timestamp_ms):
                return next((one for one in there if one * PER_OFFSET_MS >= timestamp_ms), otherwise)
            case AtOffset(OffsetSpec.EARLIEST):
                return first
            case AtOffset(OffsetSpec.LATEST):
                return log.end
            case AtOffset(offset):
                return offset

    late = 10**9
    if meant(start, late) == late:
        start = AtOffset(log.end)
    remote, local = offsets_of(log.part(start, end, fail_on_data_loss=False))
    assert remote + local == [one for one in there if meant(start, late) <= one < meant(end, log.end)]
    assert all(log.remote_start <= one < log.remote_end for one in remote)
    assert not is_tiered or all(one >= log.remote_end for one in local)


def test_offsets_that_neither_tier_has_are_an_error() -> None:
    log = Log(remote_start=5, remote_end=10, local_start=8, end=20)
    with pytest.raises(OffsetOutOfRangeError):
        log.part(AtOffset(4), AtOffset(20))
    with pytest.raises(OffsetOutOfRangeError):
        log.part(AtOffset(5), AtOffset(21))
    assert offsets_of(log.part(AtOffset(5), AtOffset(20))) == (list(range(5, 10)), list(range(10, 20)))


def test_what_the_broker_refuses_is_told() -> None:
    log = Log(remote_start=5, remote_end=10, local_start=8, end=20, error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(BrokerRefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
        log.part(AtOffset(5), AtOffset(20))


def test_a_hole_between_the_tiers_is_an_error() -> None:
    """What the broker trimmed beyond the end of the remote tier is nowhere."""
    log = Log(remote_start=0, remote_end=10, local_start=12, end=20)
    with pytest.raises(OffsetOutOfRangeError):
        log.part(AtOffset(0), AtOffset(20))
    assert offsets_of(log.part(AtOffset(0), AtOffset(20), fail_on_data_loss=False)) == (
        list(range(10)),
        list(range(12, 20)),
    )
    assert offsets_of(log.part(AtOffset(0), AtOffset(9))) == (list(range(9)), [])


@pytest.mark.parametrize("start", [AtOffset(OffsetSpec.EARLIEST), AtOffset(Offset(12))])
def test_what_a_broker_has_forgotten_to_be_deleted_is_read_by_nobody(start: Place) -> None:
    """After a crash its log start is that of a minute ago; all that was remote lies below the delete."""
    log = Log(remote_start=20, remote_end=20, local_start=5, end=40, log_start=30)
    latest = AtOffset(OffsetSpec.LATEST)
    assert offsets_of(log.part(start, latest, fail_on_data_loss=False)) == ([], list(range(30, 40)))
    assert offsets_of(log.part(AtTimestamp(310), latest)) == ([], list(range(31, 40)))
    with pytest.raises(BrokerRefusedError, match="OFFSET_NOT_AVAILABLE"):
        log.part(AtTimestamp(100), latest)  # which record is the first of those that are left?
    with pytest.raises(OffsetOutOfRangeError):
        log.part(AtOffset(Offset(12)), latest)
    beyond = Log(remote_start=20, remote_end=20, local_start=5, end=40, log_start=60)
    assert offsets_of(beyond.part(start, latest, fail_on_data_loss=False)) == ([], []), (
        "no further than the log reaches"
    )
