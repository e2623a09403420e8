"""Where the remote log starts for a reader, whose history may have been cut since that was said."""

from __future__ import annotations

import pytest

from tests.support.local_batches import local_batches
from tests.support.manual_clock import ManualClock
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.scripted import MemoryStateLog
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.lineage import StateLogStarts
from tiersidecar.reading.segment_lookup import History, SegmentLookup


def lineage(**starts: int) -> Lineage:
    return Lineage.of(
        EpochEntry(epoch=LeaderEpoch(int(name[1:])), start_offset=Offset(start)) for name, start in starts.items()
    )


@pytest.mark.parametrize(
    ("said", "history", "expected"),
    [
        pytest.param((), lineage(e0=0), -1, id="nobody moved it"),
        pytest.param(((1, 92),), lineage(e0=0, e1=10), 92, id="it was said in this history"),
        pytest.param(
            ((1, 92),), lineage(e0=0, e2=50), 50, id="it was said of records that an unclean election cut off"
        ),
        pytest.param(((1, 92), (2, 0)), lineage(e0=0, e1=10, e2=95), 92, id="a later leader had not read it yet"),
    ],
)
async def test_the_start_of_a_reader_s_history(
    said: tuple[tuple[int, int], ...], history: Lineage, expected: int
) -> None:
    partition = RemoteBuilder().partition
    state = MemoryStateLog()
    for epoch, offset in said:
        await state.publish_partition_state(
            partition,
            PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(epoch)),
        )
    assert StateLogStarts(state).remote_log_start_offset(partition, history) == expected


@pytest.mark.parametrize(
    ("before", "now", "agrees"),
    [
        pytest.param({0: 0}, {0: 0}, True, id="the same"),
        pytest.param({0: 0}, {0: 0, 1: 100}, True, id="a leader more, past what is asked"),
        pytest.param({0: 0}, {0: 0, 1: 60}, False, id="another leader wrote the end"),
        pytest.param({0: 0, 1: 60}, {0: 0, 2: 60}, False, id="another leader in place of one"),
        pytest.param({0: 0, 1: 30}, {0: 0, 1: 20}, False, id="it wrote from an earlier offset on"),
        pytest.param({0: 0}, {0: 50}, True, id="how it began is forgotten"),
        pytest.param({0: 50}, {0: 0}, True, id="how it began is known again"),
        pytest.param({0: 0, 1: 30}, {1: 40}, True, id="an epoch is forgotten at the front"),
        pytest.param({0: 0, 1: 30}, {1: 40, 2: 60}, False, id="forgotten at the front, and another leader wrote the end"),
        pytest.param({0: 0}, {0: 200}, True, id="nothing is known of it any more"),
        pytest.param({}, {0: 0}, True, id="nothing was known of it"),
        pytest.param({0: 0}, {}, True, id="nothing is known of it now"),
        pytest.param({0: 0, 1: 5}, {0: 0, 1: 7}, True, id="who wrote what was read before is no matter"),
    ],
)  # fmt: skip
def test_histories_agree_where_both_know_who_wrote(
    before: dict[int, int], now: dict[int, int], *, agrees: bool
) -> None:
    history = History(Lineage.of(before.items()), Offset(100))
    assert history.agrees(Lineage.of(now.items()), 10, 100) is agrees


class LineageOfAMomentAgo:
    """What a flight found that began before the first segment was finished; anew it is ``now``."""

    def __init__(self, before: Lineage, now: Lineage) -> None:
        self._before, self._now = before, now

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        return self._before

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        return self._now

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        return self._before

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        return Offset(200)


async def test_the_bounds_begin_where_the_log_does_though_the_lineage_is_older_than_the_first_copy() -> None:
    """Simulation, hazards 99: what only pins had was told to be out of range right after its copy."""
    builder = RemoteBuilder()
    batches = local_batches("plain-0")[:3]
    await builder.add(SegmentSource(batches=batches, start_offset=0, end_offset=7))
    state = MemoryStateLog()
    await state.publish_partition_state(
        builder.partition, PartitionState(remote_log_start_offset=Offset(0), remote_log_start_epoch=LeaderEpoch(0))
    )
    lookup = SegmentLookup(
        metadata=builder.run.metadata,
        lineages=LineageOfAMomentAgo(lineage(e0=100), lineage(e0=0)),
        log_starts=StateLogStarts(state),
        clock=ManualClock(),
    )
    bounds = await lookup.bounds(builder.partition)
    assert (bounds.start, bounds.end, bounds.log_start) == (0, 8, 0)
