"""Dependencies that every lane takes of the process: its edges, the sources it decides by, and the role in which it acts.

Three frozen records, so that a lane's constructor names only what is the lane's own.  None of them makes anything: the code
that opens the parts fills them in once (``app/builders``, the simulation, the tests' shells).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.ids import BrokerId
from tiersidecar.ports.broker import Broker
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.failpoints import AllFailpoints
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.state_records import RequestingStateLog
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.lineage import LineageSource
from tiersidecar.tasks.ownership import MayDelete, Ownership
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.trash_clock import TrashClock


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Edges:
    """Time, ids, threads, measurements and failpoints; ``trash_clock`` is the wall clock that delays of deletes go by."""

    clock: Clock
    trash_clock: TrashClock
    ids: Ids
    blocking: Blocking
    telemetry: Telemetry
    failpoints: AllFailpoints


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sources:
    """The sources from which a lane learns of a partition: what this process has seen, the broker, both topics, and the log's
    history."""

    table: PartitionTable
    broker: Broker
    metadata: MetadataLog
    state: RequestingStateLog
    lineages: LineageSource


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Actor:
    """The role in which a lane acts, and what it may do.

    ``guard`` says why nothing may be deleted, ``ownership`` whether this process may act for its broker and topic id; with
    ``observe_only`` nothing is changed at all.
    """

    broker_id: BrokerId
    guard: MayDelete
    ownership: Ownership
    observe_only: bool = False
