"""Find the readers of a topic that its brokers know, for the notes of ``tiersidecar enable``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tiersidecar.decide.enable_harm import (
    GroupKind,
    Harm,
    Hurt,
    Member,
    PlannedPartition,
    ReadingGroup,
    decide_harm,
    harm_text,
    kind_of,
    planned_start,
)
from tiersidecar.decide.switching import SwitchPlan
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.policy import AS_TOTAL
from tiersidecar.domain.segments import LeaderView

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session

_MOST_SHOWN = 20
NOT_KNOWN = (
    "Kafka's protocol does not show clients that read without a group or keep their offsets elsewhere: look at the "
    "brokers' request log, or at their JMX metrics"
)


async def readers_of(
    session: Session, topic: str, views: Sequence[LeaderView], plan: SwitchPlan
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the readers as a JSON document, and as notes for the operator."""
    try:
        partitions = await _planned(session, topic, views, plan)
        groups = await _groups(session, topic, partitions)
    except (BrokerRefusedError, BrokerUnreachableError) as error:
        says = f"the groups that read it are not known: {error}"
        return {"readers": {"groups": None, "problem": says, "not_known": NOT_KNOWN}}, (says, NOT_KNOWN)
    is_limited = any(limit >= 0 for limit in _local_limits(plan))
    policy = session.policy(topic, views[0].topic_id_partition.topic_id) or session.config.unnamed_policy
    harms = decide_harm(groups, partitions, is_limited=is_limited, holds=policy.holds)
    hurt = [harm for harm in harms if harm.hurt is not Hurt.NOT]
    notes = [f"hurt {one.hurt}: {harm_text(one)}" for one in hurt[:_MOST_SHOWN]]
    notes += [f"and {len(hurt) - _MOST_SHOWN} more groups: --json has all"] if len(hurt) > _MOST_SHOWN else []
    notes.append(f"{len(harms)} groups have read it, {len(hurt)} of them would be hurt or may be")
    if topic.endswith(("-changelog", "-repartition")):
        notes.append(
            "its name is that of a Kafka Streams application's internal topic, which it reads from the brokers"
        )
    document = {"groups": [_document(harm) for harm in harms], "problem": None, "not_known": NOT_KNOWN}
    return {"readers": document}, (*notes, NOT_KNOWN)


def _document(harm: Harm) -> dict[str, Any]:
    return {**asdict(harm), "kind": harm.kind.value, "hurt": harm.hurt.value}


def _local_limits(plan: SwitchPlan) -> tuple[int, int]:
    """Return the local limits by time and size, in effect; AS_TOTAL is replaced by the total limit."""
    time_ms = plan.retention_ms if plan.local_retention_ms == AS_TOTAL else plan.local_retention_ms
    size_bytes = plan.retention_bytes if plan.local_retention_bytes == AS_TOTAL else plan.local_retention_bytes
    return time_ms, size_bytes


async def _planned(
    session: Session, topic: str, views: Sequence[LeaderView], plan: SwitchPlan
) -> list[PlannedPartition]:
    """Return approximately where the brokers' logs would begin: trims end at segments, and by size all records count as equal
    in size."""
    from tiersidecar.ports.broker import OffsetSpec

    limit_ms, limit_bytes = _local_limits(plan)
    epochs = {view.topic_id_partition: view.leader_epoch for view in views}
    spec = session.clock.now_ms() - max(limit_ms, 0)
    starts, ends, by_time, sizes = await asyncio.gather(
        session.broker.list_offsets(epochs, OffsetSpec.EARLIEST),
        session.broker.list_offsets(epochs, OffsetSpec.LATEST),
        session.broker.list_offsets(epochs, spec),
        session.broker.describe_log_sizes(topic),
    )
    found = []
    for topic_id_partition in epochs:
        for answer in (starts[topic_id_partition], ends[topic_id_partition], by_time[topic_id_partition]):
            if answer.error is not None:
                raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        kept = planned_start(
            starts[topic_id_partition].offset,
            ends[topic_id_partition].offset,
            by_time[topic_id_partition].offset if limit_ms >= 0 else None,
            sizes.get(topic_id_partition.partition),
            limit_bytes,
        )
        found.append(
            PlannedPartition(
                partition=topic_id_partition.partition,
                log_start_offset=starts[topic_id_partition].offset,
                keeps_from=kept,
                end=ends[topic_id_partition].offset,
            )
        )
    return found


async def _groups(session: Session, topic: str, partitions: Sequence[PlannedPartition]) -> list[ReadingGroup]:
    """Return each group that has an offset of the topic, or for which that could not be found out."""
    from tiersidecar.ports.broker import GroupType

    groups = session.broker.groups
    listed = await groups.list_groups()
    wanted = [(topic, one.partition) for one in partitions]
    shares = [name for name, kind in listed.items() if kind is GroupType.SHARE]
    committed = await groups.committed_offsets([name for name in listed if name not in shares], wanted)
    begun = await groups.share_start_offsets(shares, wanted)
    answers = {**committed, **begun}
    reading = [name for name, answer in answers.items() if answer.offsets or answer.error or answer.begun]
    log_starts = {one.partition: one.log_start_offset for one in partitions}
    members = await groups.members(reading)
    streams = await _is_streams(session, reading)
    return [
        ReadingGroup(
            name=name,
            kind=GroupKind.SHARE if name in begun else streams[name],
            # A share group that has acknowledged nothing may have its first records from the log's start on.
            offsets={partition: log_starts[partition] for _, partition in answers[name].begun}
            | {partition: offset for (_, partition), offset in answers[name].offsets.items()},
            members=tuple(Member(client_id=client_id, host=host) for client_id, host in members.get(name, ())),
            error=answers[name].error or "",
        )
        for name in reading
    ]


async def _is_streams(session: Session, groups: Sequence[str]) -> dict[str, GroupKind]:
    topics = {view.topic_id_partition.topic for view in await session.broker.describe_partitions()} if groups else ()
    return {group: kind_of(group, topics) for group in groups}
