"""From what has been opened to the parts that the roles share: the same for the daemon and for its simulation."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from tiersidecar.app.config import Config
from tiersidecar.app.config_top_level import Role
from tiersidecar.app.identity import Identity
from tiersidecar.app.parts import Parts
from tiersidecar.app.process_status import ProcessStatus
from tiersidecar.app.tuning import Tuning
from tiersidecar.formats.aiven.key_ring import KeyRing
from tiersidecar.ports.broker import Broker
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.failpoints import AllFailpoints
from tiersidecar.ports.log_dirs import LogDirs
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.pins import Pins
from tiersidecar.ports.recopy import RequestingStateLog
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import LineageKeeper
from tiersidecar.reading.manifests import ManifestCache
from tiersidecar.tasks.board import Board
from tiersidecar.tasks.policies import TopicPolicies
from tiersidecar.tasks.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a process has opened, and who it is."""

    config: Config
    tuning: Tuning
    roles: frozenset[Role]
    identity: Identity
    kafka_version: tuple[int, int]
    board: Board
    status: ProcessStatus
    log_dirs: LogDirs
    pins: Pins
    broker: Broker
    store: Store
    key_ring: KeyRing | None
    metadata: MetadataLog
    state: RequestingStateLog
    blocking: Blocking
    clock: Clock
    ids: Ids
    failpoints: AllFailpoints
    telemetry: Telemetry


def assemble(stack: AsyncExitStack, opened: Opened) -> Parts:
    """By plain constructor calls; ``stack`` closes what is made here."""
    manifests = ManifestCache(
        store=opened.store,
        blocking=opened.blocking,
        key_prefix=opened.config.store.key_prefix,
        key_ring=opened.key_ring,
    )
    stack.push_async_callback(manifests.aclose)
    lineages = LineageKeeper(
        metadata=opened.metadata,
        epochs=IndexBlobReader(store=opened.store, blocking=opened.blocking, manifests=manifests),
        live=opened.board,
        clock=opened.clock,
    )
    stack.push_async_callback(lineages.aclose)
    policies = TopicPolicies(
        board=opened.board, state=opened.state, defaults=opened.config.policy_for, unnamed=opened.config.unnamed_policy
    )
    roster = Roster(
        board=opened.board,
        log_dirs=opened.log_dirs,
        broker=opened.broker,
        assignment=opened.metadata,
        policy_for=policies.policy_for,
        broker_id=opened.identity.broker_id,
        clock=opened.clock,
        telemetry=opened.telemetry,
        forget=lineages.forget,
    )
    return Parts(
        config=opened.config,
        tuning=opened.tuning,
        roles=opened.roles,
        identity=opened.identity,
        kafka_version=opened.kafka_version,
        board=opened.board,
        status=opened.status,
        log_dirs=opened.log_dirs,
        pins=opened.pins,
        broker=opened.broker,
        store=opened.store,
        key_ring=opened.key_ring,
        metadata=opened.metadata,
        state=opened.state,
        manifests=manifests,
        lineages=lineages,
        policies=policies,
        roster=roster,
        blocking=opened.blocking,
        clock=opened.clock,
        ids=opened.ids,
        failpoints=opened.failpoints,
        telemetry=opened.telemetry,
    )
