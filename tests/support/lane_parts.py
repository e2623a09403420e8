"""The parts that lanes take of the process (``tasks/edges.py``), of what a test has: doubles know only what the lane in
question asks."""

from __future__ import annotations

from typing import Any

from tests.support.inline_blocking import InlineBlocking
from tests.support.trash_clock import trash_clock
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.ids import BrokerId, TopicIdPartition
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.ports.telemetry import NoTelemetry, Telemetry
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.ownership import UNQUESTIONED, Ownership
from tiersidecar.tasks.partition_table import PartitionTable


def edges_of(
    clock: Clock,
    *,
    ids: Ids | None = None,
    blocking: Blocking | None = None,
    telemetry: Telemetry | None = None,
    failpoints: Any = NO_FAILPOINTS,
) -> Edges:
    """Real ids, no threads and no measurements unless they are given."""
    return Edges(
        clock=clock,
        trash_clock=trash_clock(clock),
        ids=ids or SystemIds(),
        blocking=blocking or InlineBlocking(),
        telemetry=telemetry or NoTelemetry(),
        failpoints=failpoints,
    )


def sources_of(
    *, table: PartitionTable, broker: Any = None, metadata: Any = None, state: Any = None, lineages: Any = None
) -> Sources:
    """Return the sources; what is left out is not asked for."""
    return Sources(table=table, broker=broker, metadata=metadata, state=state, lineages=lineages)


def actor_of(
    guard: Any = None,
    *,
    broker_id: BrokerId = BrokerId(1),  # noqa: B008 - a number
    ownership: Ownership = UNQUESTIONED,
    observe_only: bool = False,
) -> Actor:
    """Broker 1's sidecar, whose role is not questioned."""
    return Actor(broker_id=broker_id, guard=guard, ownership=ownership, observe_only=observe_only)


class AllDue:
    """In the place of ``tasks/due_looks.py``: each look takes up every partition."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self.settled: dict[TopicIdPartition, bool] = {}

    def take(self) -> list[TieredPartition]:
        return list(self._table.assignment.values())

    def note(self, partition: TieredPartition, *, is_settled: bool) -> None:
        self.settled[partition.view.topic_id_partition] = is_settled
