"""The retain lane of the role ``tier``: what expires and what is trimmed.

What gives local data up in strict mode, by plain constructor calls.
"""

from __future__ import annotations

import asyncio

from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.pauses import PauseKind
from tiersidecar.formats.aiven.keys import recorded_keys
from tiersidecar.reading.segment_presence import SegmentPresence
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.copy_admission import CopyQuota
from tiersidecar.tasks.delete_guard import MayDelete
from tiersidecar.tasks.expire import ExpireTask
from tiersidecar.tasks.group_reads import GroupReads
from tiersidecar.tasks.in_flight import InFlight
from tiersidecar.tasks.local_start import LocalStart
from tiersidecar.tasks.log_start_watch import LogStartWatch, LostLogs
from tiersidecar.tasks.proposals import ProposalsTask
from tiersidecar.tasks.read_back import ReadBack
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.retain import RetainTask
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.topic_deletion import TopicDeletion
from tiersidecar.tasks.topic_owners import ClaimLook
from tiersidecar.tasks.trim import TrimTask
from tiersidecar.tasks.trim_gate import TrimGate
from tiersidecar.tasks.unproven import Unproven


def build_trim_gate(parts: Parts) -> TrimGate:
    """What groups have not read yet."""
    return TrimGate(
        table=parts.table,
        reads=GroupReads(table=parts.table, broker=parts.broker, clock=parts.clock),
        clock=parts.clock,
        telemetry=parts.telemetry,
    )


def build_trim(parts: Parts, role: TierParts, *, checks: TopicChecks, gate: TrimGate, quota: CopyQuota) -> TrimTask:
    """What is read back before a trim goes at the rates of copying."""
    return TrimTask(
        table=parts.table,
        broker=parts.broker,
        metadata=parts.metadata,
        state=parts.state,
        lineages=parts.lineages,
        checks=checks,
        verifier=ReadBack(
            log_dirs=parts.log_dirs,
            remote=SegmentStream(
                store=parts.store,
                blocking=parts.blocking,
                key_prefix=parts.config.store.key_prefix,
                key_ring=parts.key_ring,
                most_chunk_bytes=parts.config.store.chunk_size,
                most_index_bytes=parts.config.read.index_max_bytes,
            ),
            quota=quota,
            pace=parts.tuning.upload_pace,
        ),
        gate=gate,
        unproven=Unproven(table=parts.table, clock=parts.clock, ids=parts.ids, telemetry=parts.telemetry),
        guard=DeleteGuard(parts, role),
        blocking=parts.blocking,
        clock=parts.clock,
        telemetry=parts.telemetry,
        failpoints=parts.failpoints,
        observe_only=parts.config.mode is Mode.OBSERVE,
        ownership=role.ownership,
    )


def build_expire(
    parts: Parts, role: TierParts, *, in_flight: InFlight, remover: SegmentRemover, checks: TopicChecks
) -> ExpireTask:
    """By plain constructor calls."""
    config, guard = parts.config, DeleteGuard(parts, role)
    return ExpireTask(
        table=parts.table,
        broker=parts.broker,
        metadata=parts.metadata,
        presence=SegmentPresence(parts.store, config.store.key_prefix),
        state=parts.state,
        lineages=parts.lineages,
        in_flight=in_flight,
        remover=remover,
        checks=checks,
        guard=guard,
        local_start=LocalStart(
            table=parts.table,
            broker=parts.broker,
            state=parts.state,
            clock=parts.clock,
            failpoints=parts.failpoints,
            ownership=role.ownership,
        ),
        delays=trash_delays(config),
        by=f"broker {parts.identity.broker_id}",
        limits=ExpiryLimits(max_share=config.deletes_max_share_per_round, max_bytes=config.deletes_max_bytes_per_round),
        blocking=parts.blocking,
        clock=parts.clock,
        trash_clock=parts.trash_clock,
        telemetry=parts.telemetry,
        failpoints=parts.failpoints,
        interval_s=config.remote_log_manager_task_interval_ms / 1000,
        observe_only=config.mode is Mode.OBSERVE,
        ownership=role.ownership,
    )


def build_retain(parts: Parts, role: TierParts, *, expire: ExpireTask, trim: TrimTask) -> RetainTask:
    """Likewise."""
    return RetainTask(
        expire=expire,
        trim=trim,
        guard=DeleteGuard(parts, role),
        slots=asyncio.Semaphore(parts.config.remote_log_manager_expiration_thread_pool_size),
    )


def trash_delays(config: Config) -> TrashDelays:
    """As configured."""
    return TrashDelays(retention_ms=config.delete_delay, user_ms=config.user_delete_delay)


def build_remover(parts: Parts, role: TierParts) -> SegmentRemover:
    """Likewise."""
    return SegmentRemover(
        metadata_log=parts.metadata,
        store=parts.store,
        keys_of=lambda metadata: recorded_keys(metadata, parts.config.store.key_prefix).in_upload_order,
        clock=parts.clock,
        failpoints=parts.failpoints,
        telemetry=parts.telemetry,
        broker_id=parts.identity.broker_id,
        ownership=role.ownership,
    )


def build_topic_deletion(parts: Parts, role: TierParts, *, remover: SegmentRemover) -> TopicDeletion:
    """Likewise."""
    return TopicDeletion(
        table=parts.table,
        broker=parts.broker,
        metadata=parts.metadata,
        state=parts.state,
        remover=remover,
        guard=DeleteGuard(parts, role),
        blocking=parts.blocking,
        clock=parts.clock,
        trash_clock=parts.trash_clock,
        failpoints=parts.failpoints,
        broker_id=parts.identity.broker_id,
        witness=parts.config.remote_log_metadata_topic_name,
        grace_s=parts.config.deletes_topic_grace_ms / 1000,
        delays=trash_delays(parts.config),
        observe_only=parts.config.mode is Mode.OBSERVE,
    )


def build_proposals(parts: Parts, role: TierParts) -> ProposalsTask:
    """Likewise."""
    return ProposalsTask(
        proposals=parts.proposals,
        table=parts.table,
        policies=parts.policies,
        broker=parts.broker,
        state=parts.state,
        ownership=role.ownership,
        sound=build_lost_logs(parts),
        cluster_id=parts.identity.cluster_id,
        broker_id=parts.identity.broker_id,
        delays=trash_delays(parts.config),
        clock=parts.clock,
        trash_clock=parts.trash_clock,
        telemetry=parts.telemetry,
    )


def build_lost_logs(parts: Parts) -> LostLogs:
    """Likewise."""
    claims = ClaimLook(
        store=parts.store, key_prefix=parts.config.store.key_prefix, cluster_id=parts.identity.cluster_id
    )
    return LostLogs(
        table=parts.table, metadata=parts.metadata, state=parts.state, claims=claims, lineages=parts.lineages
    )


def build_log_start_watch(parts: Parts) -> LogStartWatch:
    """Likewise."""
    return LogStartWatch(
        table=parts.table, broker=parts.broker, state=parts.state, clock=parts.clock, telemetry=parts.telemetry
    )


class DeleteGuard(MayDelete):
    """The switch in the configuration, the metadata topic's own doubts, operators' pauses, and, for what is remote, the other
    sidecars."""

    def __init__(self, parts: Parts, role: TierParts) -> None:
        self._config, self._metadata, self._state, self._role = parts.config, parts.metadata, parts.state, role

    @property
    def reason_not_to_delete(self) -> str:
        if not self._config.deletes_enabled:
            return "deletes.enabled is false"
        return self._metadata.halted_reason or self._paused(None)

    @property
    def reason_not_to_delete_remote(self) -> str:
        return self.reason_not_to_delete or self._role.remote_delete_blocker()

    def reason_not_to_delete_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete or self._paused(topic_id)

    def reason_not_to_delete_remote_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete_remote or self._paused(topic_id)

    def _paused(self, topic_id: Uuid | None) -> str:
        """What nobody has read yet may be a pause."""
        try:
            return self._state.why_paused(topic_id, PauseKind.DELETES)
        except MetadataNotReadyError as error:
            return str(error)
