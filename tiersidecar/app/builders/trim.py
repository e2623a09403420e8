"""What gives local data up in strict mode, by plain constructor calls."""

from __future__ import annotations

from tiersidecar.app.builders.retain import DeleteGuard
from tiersidecar.app.builders.tier_parts import TierParts
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.parts import Parts
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.copy_quota import CopyQuota
from tiersidecar.tasks.group_reads import GroupReads
from tiersidecar.tasks.read_back import ReadBack
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.trim import TrimTask
from tiersidecar.tasks.trim_gate import TrimGate
from tiersidecar.tasks.unproven import Unproven


def build_trim_gate(parts: Parts) -> TrimGate:
    """What groups have not read yet."""
    return TrimGate(
        board=parts.board,
        reads=GroupReads(board=parts.board, broker=parts.broker, clock=parts.clock),
        clock=parts.clock,
        telemetry=parts.telemetry,
    )


def build_trim(parts: Parts, role: TierParts, *, checks: TopicChecks, gate: TrimGate, quota: CopyQuota) -> TrimTask:
    """What is read back before a trim goes at the rates of copying."""
    return TrimTask(
        board=parts.board,
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
        unproven=Unproven(board=parts.board, clock=parts.clock, ids=parts.ids, telemetry=parts.telemetry),
        guard=DeleteGuard(parts, role),
        blocking=parts.blocking,
        clock=parts.clock,
        telemetry=parts.telemetry,
        failpoints=parts.failpoints,
        observe_only=parts.config.mode is Mode.OBSERVE,
        ownership=role.ownership,
    )
