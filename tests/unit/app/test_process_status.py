"""What the status service shows of a partition."""

from __future__ import annotations

from tests.support.expiry_world import Sidecar, StoppedClock, World, run
from tests.support.pins import local_partition
from tests.support.segments import TIP, local_segments
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.state_log import PartitionState


def said(offset: int, epoch: int) -> PartitionState:
    return PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(epoch))


def test_the_remote_log_start_is_the_one_of_this_history() -> None:
    """As readers see it (docs/design/0003): the highest that was said, each as far as it holds, not what was said last."""
    world = World()
    sidecar = Sidecar(world, policy=TopicPolicy(), lineage=Lineage.of([(0, 0)]), clock=StoppedClock())
    local = local_partition(local_segments(0, 400), epochs=((0, 0), (2, 200)))
    sidecar.board.local = LogDirsView(partitions={TIP: local}, faults={})
    status = ProcessStatus(
        version="1",
        config=None,  # type: ignore[arg-type]  # not asked of partitions
        roles=frozenset({Role.TIER}),
        board=sidecar.board,
        started_ms=0,
        state=world.state,
    )
    shown = []
    for state in (said(250, 0), said(50, 2)):
        run(world.state.publish_partition_state(TIP, state))
        shown += [one.remote_log_start_offset for one in status.partitions()]
    assert shown == [200, 200]
