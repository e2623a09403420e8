"""The parts of a process in its broker's tier role: the lease, the claims on topic ids, and what may be deleted."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.policy import PauseKind
from tiersidecar.tasks.edges import Actor
from tiersidecar.tasks.ownership import UNQUESTIONED, LeasedOwnership, MayDelete, Ownership
from tiersidecar.tasks.tier_lease import Contender, TierLease
from tiersidecar.tasks.topic_owners import Claimant, TopicOwners


@dataclass(frozen=True, slots=True, kw_only=True)
class TierParts:
    """``lease`` is None in ``mode: observe``: nothing is written there, so no process need be alone."""

    actor: Actor
    remote_delete_blocker: Callable[[], str]
    lease: TierLease | None


def build_tier_parts(parts: Parts) -> TierParts:
    """Build it by plain constructor calls."""
    config, identity = parts.config, parts.identity
    if config.mode is not Mode.ENFORCE:
        return _tier_parts(parts, UNQUESTIONED, lambda: "", None)
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
        claimant=Claimant(
            cluster_id=identity.cluster_id, broker_id=identity.broker_id, incarnation=identity.incarnation
        ),
        place_of_topic=config.place_of_topic,
    )
    return _tier_parts(parts, LeasedOwnership(lease, owners), lambda: lease.remote_delete_blocker, lease)


def _tier_parts(
    parts: Parts, ownership: Ownership, remote_delete_blocker: Callable[[], str], lease: TierLease | None
) -> TierParts:
    actor = Actor(
        broker_id=parts.identity.broker_id,
        guard=DeleteGuard(parts, remote_delete_blocker),
        ownership=ownership,
        observe_only=parts.config.mode is Mode.OBSERVE,
    )
    return TierParts(actor=actor, remote_delete_blocker=remote_delete_blocker, lease=lease)


class DeleteGuard(MayDelete):
    """The switch in the configuration, the metadata topic's own doubts, operators' pauses, and, for what is remote, the other
    sidecars."""

    def __init__(self, parts: Parts, remote_delete_blocker: Callable[[], str]) -> None:
        self._config, self._metadata, self._state = parts.config, parts.metadata, parts.state
        self._remote_delete_blocker = remote_delete_blocker

    @property
    def reason_not_to_delete(self) -> str:
        if not self._config.deletes_enabled:
            return "deletes.enabled is false"
        return self._metadata.halted_reason or self._paused(None)

    @property
    def reason_not_to_delete_remote(self) -> str:
        return self.reason_not_to_delete or self._remote_delete_blocker()

    def reason_not_to_delete_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete or self._paused(topic_id)

    def reason_not_to_delete_remote_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete_remote or self._paused(topic_id)

    def _paused(self, topic_id: Uuid | None) -> str:
        """Return why deletes are paused; while not all is read, that a pause may be unread."""
        try:
            return self._state.why_paused(topic_id, PauseKind.DELETES)
        except MetadataNotReadyError as error:
            return str(error)
