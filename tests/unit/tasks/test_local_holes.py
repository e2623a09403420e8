"""Offsets below the copied one that only the broker still holds, and where what an unclean election has left to read ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.segments import TOPIC_ID_PARTITION, local_segments, remote_segment
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import ByteRange, Lineage
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.tasks.copy import LocalHoles

ONE_EPOCH = Lineage.of([(0, 0)])
LOCAL = local_segments(0, 100, 200, 300)


def spans(found: Iterable[ByteRange]) -> list[tuple[int, int]]:
    return [(one.start, one.stop) for one in found]


async def remote(*segments: RemoteLogSegmentMetadata) -> MemoryMetadataLog:
    metadata = MemoryMetadataLog()
    await metadata.assign([TOPIC_ID_PARTITION])
    for segment in segments:
        await finish(metadata, segment)
    return metadata


async def finish(metadata: MemoryMetadataLog, segment: RemoteLogSegmentMetadata) -> None:
    await metadata.publish(replace(segment, state=State.COPY_SEGMENT_STARTED))
    if segment.state is State.COPY_SEGMENT_STARTED:
        return
    update = RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment.remote_log_segment_id,
        broker_id=BrokerId(1),
        event_timestamp_ms=0,
        state=segment.state,
    )
    await metadata.publish(update)


@pytest.mark.parametrize(
    ("segments", "start", "copied", "lineage", "expected"),
    [
        pytest.param([(200, 299)], -1, 299, ONE_EPOCH, [(0, 100), (100, 200)], id="passed over by a former release"),
        pytest.param([(0, 99), (200, 299)], -1, 299, ONE_EPOCH, [(100, 200)], id="a hole between two"),
        pytest.param([(0, 149), (200, 299)], -1, 299, ONE_EPOCH, [(100, 200)], id="half of a segment is remote"),
        pytest.param([(0, 299)], -1, 299, ONE_EPOCH, [], id="one that reaches over all of them"),
        pytest.param([(200, 299)], 100, 299, ONE_EPOCH, [(100, 200)], id="what lies below the start is given up"),
        pytest.param([(200, 299)], 150, 299, ONE_EPOCH, [(100, 200)], id="a start within it gives up its front only"),
        pytest.param([(200, 299)], 200, 299, ONE_EPOCH, [], id="a start right behind it"),
        pytest.param([], -1, -1, ONE_EPOCH, [], id="nothing is remote: all is still to be copied anyway"),
        pytest.param([(200, 299)], -1, 299, Lineage.of([]), [], id="without a lineage nothing is known"),
        pytest.param([(200, 299)], -1, 299, Lineage.of([(0, 100)]), [(100, 200)], id="below the first epoch nothing is"),
        pytest.param([(200, 299)], -1, 299, Lineage.of([(0, 150)]), [(100, 200)], id="the first epoch begins within it"),
    ],
)  # fmt: skip
async def test_holes(
    segments: list[tuple[int, int]], start: int, copied: int, lineage: Lineage, expected: list[tuple[int, int]]
) -> None:
    metadata = await remote(*(remote_segment(*segment) for segment in segments))
    assert spans(LocalHoles(metadata).find(TOPIC_ID_PARTITION, LOCAL, lineage, copied, start)) == expected


async def test_a_pin_is_no_hole_of_this_kind() -> None:
    pinned = (replace(LOCAL[0], pinned=True), *LOCAL[1:])
    holes = LocalHoles(await remote(remote_segment(100, 299)))
    assert holes.find(TOPIC_ID_PARTITION, pinned, ONE_EPOCH, 299, -1) == ()


async def test_a_copy_that_has_only_begun_fills_nothing() -> None:
    begun = remote_segment(0, 99, state=State.COPY_SEGMENT_STARTED)
    holes = LocalHoles(await remote(begun, remote_segment(100, 299)))
    assert spans(holes.find(TOPIC_ID_PARTITION, LOCAL, ONE_EPOCH, 299, -1)) == [(0, 100)]


async def test_what_was_found_holds_until_a_segment_comes() -> None:
    metadata = await remote(remote_segment(200, 299))
    holes = LocalHoles(metadata)
    assert len(holes.find(TOPIC_ID_PARTITION, LOCAL, ONE_EPOCH, 299, -1)) == 2
    await finish(metadata, remote_segment(0, 99))
    assert spans(holes.find(TOPIC_ID_PARTITION, LOCAL, ONE_EPOCH, 299, -1)) == [(100, 200)]
    assert spans(holes.find(TOPIC_ID_PARTITION, LOCAL, ONE_EPOCH, 299, 200)) == []


async def test_what_a_copy_did_not_fill_is_not_copied_without_end() -> None:
    """A store that takes objects and metadata that never come."""
    metadata = await remote(remote_segment(100, 299))
    holes = LocalHoles(metadata)
    assert spans(holes.find(TOPIC_ID_PARTITION, LOCAL, ONE_EPOCH, 299, -1)) == [(0, 100)]
    holes.fill(TOPIC_ID_PARTITION, LOCAL[0])
    await finish(metadata, remote_segment(300, 399))
    assert holes.find(TOPIC_ID_PARTITION, LOCAL, ONE_EPOCH, 299, -1) == ()


@pytest.mark.parametrize(
    ("segments", "copied", "stop"),
    [
        pytest.param([], -1, 0, id="nothing is remote"),
        pytest.param([((0, 99), ((0, 0),))], 99, 100, id="nothing beyond the copied offset"),
        pytest.param([((0, 99), ((0, 0),)), ((100, 199), ((0, 100), (1, 150)))], 99, 150, id="the front of a cut segment"),
    ],
)  # fmt: skip
async def test_up_to_where_readers_go_on(
    segments: list[tuple[tuple[int, int], tuple[tuple[int, int], ...]]], copied: int, stop: int
) -> None:
    """An unclean election: epoch 2 has no record of epoch 1, whose segment's front both histories share."""
    metadata = await remote(*(remote_segment(*span, epochs=epochs) for span, epochs in segments))
    assert LocalHoles(metadata).readable_stop(TOPIC_ID_PARTITION, Lineage.of([(0, 0), (2, 170)]), copied) == stop
