"""The parts that several roles share, as the composition root has opened them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.identity import Identity
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.app.tuning import Tuning
from tiersidecar.domain.mounts import Mount
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.ports.broker import Broker
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.copy_journal import CopyJournal
from tiersidecar.ports.failpoints import AllFailpoints
from tiersidecar.ports.log_dirs import LogDirs
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.pins import Pins
from tiersidecar.ports.proposals import Proposals
from tiersidecar.ports.shares import Shares
from tiersidecar.ports.state_records import RequestingStateLog
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.lineage import LineageKeeper
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.tasks.cluster_snapshots import CommitsAndGroups
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.policies import TopicPolicies
from tiersidecar.tasks.roster import Roster
from tiersidecar.tasks.trash_clock import TrashClock

_LOOK_INTERVAL_MAX_S = 5.0
"""Leaders are asked for at least this often, however rarely the tasks are to run."""
_WHOLE_SCAN_INTERVAL_MAX_S = 30.0
"""All files are read at least this often: a broker unlinks what it deletes a minute after it has renamed it."""


def whole_scan_interval_s(config: Config) -> float:
    """Return seconds between two scans of everything, at most, beside those of what file events name."""
    return min(config.remote_log_manager_task_interval_ms / 1000, _WHOLE_SCAN_INTERVAL_MAX_S)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Opened:
    """The resources that a process has opened, and its identity."""

    config: Config
    tuning: Tuning
    roles: frozenset[Role]
    identity: Identity
    kafka_version: tuple[int, int]
    table: PartitionTable
    status: ProcessStatus
    log_dirs: LogDirs
    pins: Pins
    journal: CopyJournal
    trash_clock: TrashClock
    broker: Broker
    store: Store
    key_ring: DataKeys | None
    metadata: MetadataLog
    state: RequestingStateLog
    proposals: Proposals
    blocking: Blocking
    clock: Clock
    ids: Ids
    failpoints: AllFailpoints
    telemetry: Telemetry
    requests_left_alone: Callable[[], int]
    """How many of the store's were given up and have not ended: what they were to do may still happen."""
    commits: CommitsAndGroups | None = None
    """The commits of consumer groups; None where nothing of them is put into the store."""
    mount: Mount = field(default_factory=Mount)
    """The read-only mount: ``metadata`` and ``state`` are its source's then."""
    shares: Shares | None = None
    """What other processes of the same gateway have taken; None where there are none."""

    @property
    def edges(self) -> Edges:
        """Return what every lane takes of the process."""
        return Edges(
            clock=self.clock,
            trash_clock=self.trash_clock,
            ids=self.ids,
            blocking=self.blocking,
            telemetry=self.telemetry,
            failpoints=self.failpoints,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Parts(Opened):
    """Adds the parts that are made of it for all roles; closed by the opener."""

    manifests: ManifestCache
    lineages: LineageKeeper
    policies: TopicPolicies
    roster: Roster
    read_path: ReadPath | None = None
    """Set in a process with the role ``read`` or ``gateway``."""

    @property
    def sources(self) -> Sources:
        """Return where every lane learns of a partition."""
        return Sources(
            table=self.table,
            broker=self.broker,
            metadata=self.metadata,
            state=self.state,
            lineages=self.lineages,
        )

    @property
    def reads(self) -> ReadPath:
        """Return the read path, which roles that read have."""
        assert self.read_path is not None, "no role of this process reads"
        return self.read_path

    @property
    def look_interval_s(self) -> float:
        """Return seconds between two looks at log dirs and leaders when no file event comes first."""
        return min(self.config.remote_log_manager_task_interval_ms / 1000, _LOOK_INTERVAL_MAX_S)
