"""What the status service shows of a partition."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.expiry import segments
from tests.support.expiry_world import Sidecar, StoppedClock, World, run
from tests.support.pins import local_partition
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.process_status import ProcessStatus, sidecars_of
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.status.source import TierBytes

LEASE = Lease(
    name="3",
    cluster_id="c",
    broker_id=3,
    incarnation="one",
    term=1,
    host="h",
    pid=1,
    version="1",
    renewed_ms=1_000_000,
    duration_ms=10_000,
    status_address="h:8091",
)


def said(offset: int, epoch: int) -> PartitionState:
    return PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(epoch))


@pytest.mark.parametrize(
    ("age_ms", "released", "is_over"),
    [
        pytest.param(29_999, False, False, id="renewed within three durations: clocks differ"),
        pytest.param(30_001, False, True, id="not renewed for long"),
        pytest.param(0, True, True, id="given back"),
    ],
)
def test_a_lease_that_is_over(age_ms: int, released: bool, is_over: bool) -> None:
    lease = replace(LEASE, renewed_ms=1_000_000 - age_ms, released=released)
    command = replace(lease, name="repair", broker_id=-1)
    assert [(sidecar.node_id, sidecar.is_over) for sidecar in sidecars_of([lease, command], 1_000_000)] == [
        (3, is_over)
    ]


def test_a_replica_has_no_sidecars_but_its_source_has() -> None:
    """The leases in the source's state topic led the page and the commands of the replica to sidecars of another cluster."""
    status = ProcessStatus(
        version="1",
        config=SimpleNamespace(source=object()),  # type: ignore[arg-type]
        roles=frozenset({Role.GATEWAY}),
        table=Sidecar(World(), policy=TopicPolicy(), lineage=Lineage.of([(0, 0)]), clock=StoppedClock()).table,
        started_ms=0,
        leases=SimpleNamespace(known_leases=lambda: [LEASE]),
    )
    assert status.sidecars() == []


def test_the_remote_log_start_is_the_one_of_this_history() -> None:
    """As readers see it (docs/design/0003): the highest that was said, each as far as it holds, not what was said last."""
    world = World()
    sidecar = Sidecar(world, policy=TopicPolicy(), lineage=Lineage.of([(0, 0)]), clock=StoppedClock())
    local = local_partition(local_segments(0, 400), epochs=((0, 0), (2, 200)))
    sidecar.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: local}, faults={})
    status = ProcessStatus(
        version="1",
        config=None,  # type: ignore[arg-type]  # not asked of partitions
        roles=frozenset({Role.TIER}),
        table=sidecar.table,
        started_ms=0,
        state=world.state,
    )
    shown = []
    for state in (said(250, 0), said(50, 2)):
        run(world.state.publish_partition_state(TOPIC_ID_PARTITION, state))
        shown += [partition.remote_log_start_offset for partition in status.partitions()]
    assert shown == [200, 200]


def test_a_led_partition_without_a_directory_here_is_shown_once_it_is_told() -> None:
    world = World()
    sidecar = Sidecar(world, policy=TopicPolicy(), lineage=Lineage.of([(0, 0)]), clock=StoppedClock())
    table = sidecar.table
    table.unseen, table.assignment, table.local = table.assignment, {}, LogDirsView(partitions={}, faults={})
    status = ProcessStatus(
        version="1",
        config=None,  # type: ignore[arg-type]  # not asked of partitions
        roles=frozenset({Role.TIER}),
        table=table,
        started_ms=0,
        state=world.state,
    )
    assert list(status.partitions()) == []
    table.misplaced[TOPIC_ID_PARTITION] = "it is not here"
    (shown,) = status.partitions()
    assert (shown.topic_id_partition, shown.role, shown.held_back_reason) == (
        TOPIC_ID_PARTITION,
        "leader",
        "it is not here",
    )
    assert shown.local_segments == 0


def test_the_bytes_of_a_log_are_counted_once_each_from_its_start_to_its_end() -> None:
    """As the page draws them: two segments are remote alone, one is in the trash, one on both sides, one local, one active."""
    world = World()
    sidecar = Sidecar(world, policy=TopicPolicy(), lineage=Lineage.of([(0, 0)]), clock=StoppedClock())
    for segment in segments(4):
        world.add(segment, objects=False)
    entry = TrashEntry(
        id=TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=TrashKind.USER, opened_ms=0),
        decided_ms=0,
        due_ms=1,
        up_to=Offset(100),
    )
    run(world.state.put_into_trash(TOPIC_ID_PARTITION, [entry]))
    local = local_partition(local_segments(300, 400, 500), epochs=((0, 0),))
    sidecar.table.local = LogDirsView(partitions={TOPIC_ID_PARTITION: local}, faults={})
    (
        sidecar.table.record(TOPIC_ID_PARTITION).copied_offset,
        sidecar.table.record(TOPIC_ID_PARTITION).log_start_offset,
    ) = 399, 300
    status = ProcessStatus(
        version="1",
        config=None,  # type: ignore[arg-type]  # not asked of partitions
        roles=frozenset({Role.TIER}),
        table=sidecar.table,
        started_ms=0,
        state=world.state,
        metadata=world.metadata,
        trash=world.state,
    )
    (shown,) = status.partitions()
    on_disk, remote = local.segments[0].size_bytes, segments(1)[0].segment_size_in_bytes
    assert shown.tiers == TierBytes(
        trash=remote,
        remote=3 * remote - on_disk,
        both=on_disk,
        pinned=0,
        local=on_disk,
        active=local.segments[-1].size_bytes,
    )
    assert shown.tiers.trash + shown.tiers.remote + shown.tiers.both == shown.remote_size_bytes == 4 * remote
