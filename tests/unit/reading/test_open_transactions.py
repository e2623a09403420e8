"""How far transactions are decided where an unclean election has cut a remote segment (simulation, cluster seed 925)."""

from __future__ import annotations

import pytest

from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import open_run
from tests.unit.reading.test_histories import between
from tests.unit.reading.test_lineage import FixedLog
from tiersidecar.formats.kafka.producer_snapshots import ProducerState

ONE, IDLE = 7, -1


async def built(*segments: tuple[int, int, int | None]) -> RemoteBuilder:
    """Start, stop, and the first offset of the transaction that is open at the end: None without any producer."""
    builder = RemoteBuilder()
    for start, stop, first in segments:
        producers = [] if first is None else [ProducerState(producer_id=ONE, current_transaction_first_offset=first)]
        await builder.add(
            SegmentSource(batches=between(start, stop), start_offset=start, end_offset=stop - 1, producers=producers)
        )
    return builder


@pytest.mark.parametrize(
    ("segments", "cut_at", "stable"),
    [
        pytest.param([(0, 35, IDLE), (35, 70, 60)], 70, 60, id="whole: its snapshot tells"),
        pytest.param([(0, 35, IDLE), (35, 70, IDLE)], 70, 70, id="whole, and nothing is open"),
        pytest.param([(0, 35, IDLE), (35, 70, IDLE)], 50, 35, id="cut: what was open at 50 may have ended in what is cut off"),
        pytest.param([(0, 35, 20), (35, 70, IDLE)], 50, 20, id="cut, and one was open where it begins"),
        pytest.param([(0, 35, 20), (35, 70, 60), (70, 105, IDLE)], 50, 20, id="the one behind it is no history at all"),
        pytest.param([(0, 35, IDLE), (35, 70, None)], 50, 50, id="cut, and nobody writes with a producer id"),
        pytest.param([(35, 70, IDLE)], 50, 35, id="cut, and nothing before it is remote"),
    ],
)  # fmt: skip
async def test_below_the_last_stable_offset_each_transaction_has_ended_in_the_history_that_counts(
    segments: list[tuple[int, int, int | None]], cut_at: int, stable: int
) -> None:
    builder = await built(*segments)
    async with open_run(builder.run, live=FixedLog({0: 0, 1: cut_at}, 200)) as path:
        assert await path.reader.last_stable_offset(builder.partition) == stable


@pytest.mark.parametrize(
    ("first", "undecided"),
    [
        pytest.param(IDLE, [(-1, 35)], id="any may be open"),
        pytest.param(None, [], id="nobody writes with a producer id"),
    ],
)
async def test_before_a_hole_what_an_election_has_cut_may_have_any_end(
    first: int | None, undecided: list[tuple[int, int]]
) -> None:
    builder = await built((0, 35, IDLE), (35, 70, first))
    await builder.add(SegmentSource(batches=between(105, 140), start_offset=105, end_offset=139, epochs={0: 0, 1: 50}))
    async with open_run(builder.run, live=FixedLog({0: 0, 1: 50}, 200)) as path:
        found = await path.undecided.above(builder.partition, 0)
    assert [(one.producer_id, one.first_offset) for one in found] == undecided
