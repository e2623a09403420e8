"""What makes a process its broker's tier role: the lease, and the claims on topic ids."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.tasks.ownership import UNQUESTIONED, LeasedOwnership, Ownership
from tiersidecar.tasks.tier_lease import Contender, TierLease
from tiersidecar.tasks.topic_owners import TopicOwners


@dataclass(frozen=True, slots=True, kw_only=True)
class TierParts:
    """``lease`` is None in ``mode: observe``: nothing is written there, and nobody need be alone for that."""

    ownership: Ownership
    remote_delete_blocker: Callable[[], str]
    lease: TierLease | None


def build_tier_parts(parts: Parts) -> TierParts:
    """By plain constructor calls."""
    config, identity = parts.config, parts.identity
    if config.mode is not Mode.ENFORCE:
        return TierParts(ownership=UNQUESTIONED, remote_delete_blocker=lambda: "", lease=None)
    lease = TierLease(
        contender=Contender(
            cluster_id=identity.cluster_id,
            broker_id=identity.broker_id,
            instance=identity.instance,
            incarnation=identity.incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=parts.status.version,
            duration_ms=config.lease_duration_ms,
            status_address=str(config.status.advertised_by(identity.host_name or socket.gethostname())),
        ),
        leases=parts.state,
        broker=parts.broker,
        without_sidecar=config.deletes_brokers_without_sidecar,
        clock=parts.clock,
        trash_clock=parts.trash_clock,
        telemetry=parts.telemetry,
    )
    owners = TopicOwners(
        store=parts.store,
        state=parts.state,
        metadata=parts.metadata,
        table=parts.table,
        key_prefix=config.store.key_prefix,
        clock=parts.clock,
        cluster_id=identity.cluster_id,
        broker_id=identity.broker_id,
        incarnation=identity.incarnation,
    )
    return TierParts(
        ownership=LeasedOwnership(lease, owners),
        remote_delete_blocker=lambda: lease.remote_delete_blocker,
        lease=lease,
    )
