"""A partition whose segments lie in a place that was taken out of the configuration is halted, and told (S-293)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.segments import TOPIC_ID_PARTITION, remote_segment
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import PlaceRemovedError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LeaderView
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.place_checks import PlaceChecks


def led(epoch: int = 1) -> TieredPartition:
    view = LeaderView(
        topic_id_partition=TOPIC_ID_PARTITION,
        leader_id=BrokerId(1),
        leader_epoch=LeaderEpoch(epoch),
        replicas=(BrokerId(1),),
        in_sync_replicas=(BrokerId(1),),
    )
    return TieredPartition(view=view, role=PartitionRole.LEADER, policy=TopicPolicy())


async def metadata_of(*custom: bytes | None) -> MemoryMetadataLog:
    """One segment with each of these custom metadata."""
    metadata = MemoryMetadataLog()
    await metadata.assign([TOPIC_ID_PARTITION])
    for number, one in enumerate(custom):
        segment = remote_segment(number * 10, number * 10 + 9, state=State.COPY_SEGMENT_STARTED)
        await metadata.publish(replace(segment, custom_metadata=one))
    return metadata


def in_place(place: str) -> bytes:
    return write_custom_metadata(CustomMetadata(remote_size=7, place=place))


@pytest.mark.parametrize(
    "custom",
    [
        pytest.param([], id="no segment"),
        pytest.param([None, in_place("")], id="section store"),
        pytest.param([in_place("cold"), None], id="a place that there is"),
        pytest.param([b"another plugin's"], id="another plugin's custom metadata"),
    ],
)
async def test_what_lies_where_the_configuration_says_goes_on(custom: list[bytes | None]) -> None:
    await PlaceChecks(await metadata_of(*custom), InlineBlocking(), PartitionTable(), {"cold"}).ensure(led())


@pytest.mark.parametrize("places", [pytest.param((), id="no place any more"), pytest.param(("warm",), id="others")])
async def test_segments_in_a_place_that_is_gone_halt_their_partition(places: tuple[str, ...]) -> None:
    metadata = await metadata_of(in_place("cold"), None, in_place("cold"))
    table, begun = PartitionTable(), list[TieredPartition]()
    checks = PlaceChecks(metadata, InlineBlocking(), table, places)

    async def work(partition: TieredPartition) -> None:
        begun.append(partition)

    for _ in range(2):
        with pytest.raises(PlaceRemovedError, match=r"2 remote segments of .* lie in place 'cold'"):
            await checks.before(work)(led())
    assert begun == []
    assert "lie in place 'cold'" in table.record(TOPIC_ID_PARTITION).removed_place, "the warnings of /readyz"
    await PlaceChecks(metadata, InlineBlocking(), table, ("cold",)).ensure(led())
    assert table.record(TOPIC_ID_PARTITION).removed_place == ""


async def test_another_leaders_segments_are_looked_at_when_the_partition_is_led_again() -> None:
    metadata = await metadata_of(None)
    checks = PlaceChecks(metadata, InlineBlocking(), PartitionTable(), ())
    await checks.ensure(led(1))
    await metadata.publish(
        replace(remote_segment(50, 59, state=State.COPY_SEGMENT_STARTED), custom_metadata=in_place("cold"))
    )
    await checks.ensure(led(1))
    with pytest.raises(PlaceRemovedError):
        await checks.ensure(led(3))
