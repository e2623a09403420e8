"""The retain lane of the role ``tier``: what expires and what is trimmed.

What gives local data up in strict mode, by plain constructor calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.store_base import VerifyReadBack
from tiersidecar.app.parts import Parts
from tiersidecar.decide.expiry_view import ExpiryLimits
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.contained_read_back import ContainedReadBack
from tiersidecar.tasks.copy_admission import CopyQuota
from tiersidecar.tasks.expire import ExpireTask
from tiersidecar.tasks.expiry_look import ExpirySettings
from tiersidecar.tasks.log_start_watch import LogStartWatch, LostLogs
from tiersidecar.tasks.ownership import InFlight
from tiersidecar.tasks.proposals import ProposalsTask
from tiersidecar.tasks.read_back import ReadBack
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.retain import RetainTask
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.topic_deletion import TopicDeletion
from tiersidecar.tasks.topic_owners import ClaimLook
from tiersidecar.tasks.trim import TrimTask
from tiersidecar.tasks.trim_compacted import CompactedTrims
from tiersidecar.tasks.trim_gate import GroupReads, TrimGate


def build_trim_gate(parts: Parts) -> TrimGate:
    """Return what groups have not read yet."""
    return TrimGate(
        table=parts.table,
        reads=GroupReads(table=parts.table, broker=parts.broker, clock=parts.clock),
        clock=parts.clock,
        telemetry=parts.telemetry,
    )


def build_trim(parts: Parts, role: TierParts, *, checks: TopicChecks, gate: TrimGate, quota: CopyQuota) -> TrimTask:
    """Return what is read back before a trim goes at the rates of copying."""
    remote = SegmentStream(
        store=parts.store,
        blocking=parts.blocking,
        key_prefix=parts.config.store.key_prefix,
        key_ring=parts.key_ring,
        most_chunk_bytes=parts.config.store.chunk_size,
        most_index_bytes=parts.config.read.index_max_bytes,
    )
    return TrimTask(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        checks=checks,
        verifier=ReadBack(
            log_dirs=parts.log_dirs,
            remote=remote,
            quota=quota,
            pace=parts.tuning.upload_pace,
            trusts_checksums=parts.config.store.verify_read_back is VerifyReadBack.CHECKSUM,
        ),
        gate=gate,
        compacted=CompactedTrims(
            sources=parts.sources,
            edges=parts.edges,
            cleaner=parts.pins,
            verifier=ContainedReadBack(
                log_dirs=parts.log_dirs,
                remote=remote,
                quota=quota,
                pace=parts.tuning.upload_pace,
                blocking=parts.blocking,
            ),
            is_enabled=parts.config.compaction_trim_enabled,
        ),
    )


def build_expire(
    parts: Parts,
    role: TierParts,
    *,
    in_flight: InFlight,
    remover: SegmentRemover,
    checks: TopicChecks,
    has_failed: Callable[[TopicIdPartition], bool],
) -> ExpireTask:
    """Build it by plain constructor calls."""
    config = parts.config
    limits = ExpiryLimits(max_share=config.deletes_max_share_per_round, max_bytes=config.deletes_max_bytes_per_round)
    return ExpireTask(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        settings=ExpirySettings(
            limits=limits,
            delays=trash_delays(config),
            interval_s=config.remote_log_manager_task_interval_ms / 1000,
            has_failed=has_failed,
        ),
        presence=SegmentPresence(parts.store, config.store.key_prefix),
        in_flight=in_flight,
        remover=remover,
        checks=checks,
    )


def build_retain(parts: Parts, role: TierParts, *, expire: ExpireTask, trim: TrimTask) -> RetainTask:
    """Build the lane that trims and expires."""
    return RetainTask(
        expire=expire,
        trim=trim,
        guard=role.actor.guard,
        slots=asyncio.Semaphore(parts.config.remote_log_manager_expiration_thread_pool_size),
    )


def trash_delays(config: Config) -> TrashDelays:
    """Return the configured delays."""
    return TrashDelays(retention_ms=config.delete_delay, user_ms=config.user_delete_delay)


def build_remover(parts: Parts, role: TierParts) -> SegmentRemover:
    """Build the remover of segments."""
    return SegmentRemover(
        metadata_log=parts.metadata,
        store=parts.store,
        key_prefix=parts.config.store.key_prefix,
        clock=parts.clock,
        failpoints=parts.failpoints,
        telemetry=parts.telemetry,
        broker_id=parts.identity.broker_id,
        ownership=role.actor.ownership,
    )


def build_topic_deletion(parts: Parts, role: TierParts, *, remover: SegmentRemover) -> TopicDeletion:
    """Build the deletion of the data of deleted topics."""
    return TopicDeletion(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        remover=remover,
        witness=parts.config.remote_log_metadata_topic_name,
        grace_s=parts.config.deletes_topic_grace_ms / 1000,
        delays=trash_delays(parts.config),
    )


def build_proposals(parts: Parts, role: TierParts) -> ProposalsTask:
    """Build the task that answers the gateways' proposals."""
    return ProposalsTask(
        sources=parts.sources,
        edges=parts.edges,
        actor=role.actor,
        proposals=parts.proposals,
        policies=parts.policies,
        sound=build_lost_logs(parts),
        cluster_id=parts.identity.cluster_id,
        delays=trash_delays(parts.config),
    )


def build_lost_logs(parts: Parts) -> LostLogs:
    """Build the watch for lost logs."""
    claims = ClaimLook(
        store=parts.store, key_prefix=parts.config.store.key_prefix, cluster_id=parts.identity.cluster_id
    )
    return LostLogs(
        table=parts.table, metadata=parts.metadata, state=parts.state, claims=claims, lineages=parts.lineages
    )


def build_log_start_watch(parts: Parts) -> LogStartWatch:
    """Build the watch over log start offsets."""
    return LogStartWatch(
        table=parts.table, broker=parts.broker, state=parts.state, clock=parts.clock, telemetry=parts.telemetry
    )
