"""``tiersidecar enable`` and ``disable``: take over the broker's own retention, and restore it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Topic, Yes, quantity
from tiersidecar.app.commands.readers import readers_of
from tiersidecar.app.commands.undelete import end_holds
from tiersidecar.decide.switching import (
    KnownTiering,
    PartitionFacts,
    SwitchPlan,
    WantedTiering,
    cluster_retention,
    copied_bytes,
    copied_stop,
    decide_disable,
    decide_enable,
    parts_of_history,
    restored_retention,
)
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import RetentionMode, TieringMode
from tiersidecar.domain.segments import LeaderView, RemoteLogSegmentMetadata
from tiersidecar.domain.trash import TrashKind

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session


def _limit(name: str, unit: str, least: int, text: str) -> Any:
    return typer.Option(name, metavar="TIME" if unit == "ms" else "SIZE", parser=quantity(unit, least), help=text)


def enable(
    topic: Topic,
    config_file: ConfigFile,
    mode: Annotated[
        RetentionMode, typer.Option(help="strict: only the sidecar deletes; race: the broker continues to delete.")
    ] = (RetentionMode.STRICT),
    retention_ms: Annotated[
        int | None, _limit("--retention-ms", "ms", -1, "Total retention by time; default: what the broker keeps today.")
    ] = None,
    retention_bytes: Annotated[
        int | None,
        _limit(
            "--retention-bytes",
            "bytes",
            -1,
            "Total retention by size, per partition; default: what the broker keeps today.",
        ),
    ] = None,
    local_retention_ms: Annotated[
        int | None, _limit("--local-retention-ms", "ms", -2, "Retention on the broker's disk by time.")
    ] = None,
    local_retention_bytes: Annotated[
        int | None, _limit("--local-retention-bytes", "bytes", -2, "Retention on the broker's disk by size.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Tier a topic: its retention becomes the total one, and in strict mode only the sidecar deletes from then on.

    The broker's own settings are recorded first, and disable restores them. Before the question, the command names the groups
    that would be hurt: those that have not read what local retention removes from the brokers' disks.
    """
    wanted = WantedTiering(
        mode=mode,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        local_retention_ms=local_retention_ms,
        local_retention_bytes=local_retention_bytes,
    )
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_enabling(session, topic, wanted), manner, with_metadata=False)


def disable(
    topic: Topic,
    config_file: ConfigFile,
    delete_remote: Annotated[
        bool,
        typer.Option("--delete-remote", help="Delete all remote data of the topic, once delete.delay is over."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Stop tiering a topic, and restore the broker's own retention.

    Remote data stays readable and expires as before. Refused if the restored retention would delete what is not remote.
    """
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_disabling(session, topic, delete_remote=delete_remote), manner)


async def look_at_enabling(session: Session, topic: str, wanted: WantedTiering) -> Intent:
    """Return the broker's settings, and what enabling changes."""
    views = await session.partitions(topic)
    topic_id = views[0].topic_id_partition.topic_id
    if topic in session.config.internal_topics:
        return Intent(facts={"topic": topic}, refusal="it is internal and cannot be tiered")
    effective = (await session.broker.describe_topic_configs([topic])).get(topic, {})
    overrides = await session.broker.describe_topic_overrides(topic)
    known = _known(session, topic, topic_id)
    tiers_compacted = session.config.compaction_enabled
    plan = decide_enable(wanted, known, effective, overrides, tiers_compacted=tiers_compacted)
    steps = _state_steps(session, topic, topic_id, plan, TieringMode(wanted.mode.value)) + _setting_steps(plan)
    says_who = bool(steps) and not plan.refusal and wanted.mode is RetentionMode.STRICT
    readers, hurt = await readers_of(session, topic, views, plan) if says_who else ({}, ())
    return Intent(
        facts=_facts(topic, known, plan),
        steps=() if plan.refusal else steps,
        refusal=plan.refusal,
        notes=(*_notes(wanted), *hurt),
        details=readers,
        apply=lambda: _apply(session, topic, topic_id, plan, TieringMode(wanted.mode.value)),
    )


async def look_at_disabling(session: Session, topic: str, *, delete_remote: bool) -> Intent:
    """Return what is not remote yet, and what disabling changes."""
    views = await session.partitions(topic)
    topic_id = views[0].topic_id_partition.topic_id
    known = _known(session, topic, topic_id)
    former = known.former_settings if known is not None else {}
    cluster = cluster_retention(await session.broker.describe_broker_configs(views[0].leader_id))
    facts = await _partition_facts(session, topic, views, former, cluster)
    overrides = await session.broker.describe_topic_overrides(topic)
    plan = decide_disable(known, overrides, facts, cluster=cluster)
    mode = TieringMode.DELETING if delete_remote else TieringMode.DETACHED
    steps = _state_steps(session, topic, topic_id, plan, mode) + _setting_steps(plan)
    notes = _notes_of_disabling(known, delete_remote=delete_remote)
    partitions = [view.topic_id_partition for view in views]
    return Intent(
        facts=_facts(topic, known, plan),
        steps=() if plan.refusal else steps,
        refusal=plan.refusal,
        notes=notes,
        apply=lambda: _disable(session, topic, partitions, plan, mode),
    )


async def _disable(
    session: Session, topic: str, partitions: Sequence[TopicIdPartition], plan: SwitchPlan, mode: TieringMode
) -> None:
    """Apply the plan; a deletion of everything also ends the holds of an undelete."""
    if mode is TieringMode.DELETING:
        await _call_off_former(session, topic_id=partitions[0].topic_id)
    await _apply(session, topic, partitions[0].topic_id, plan, mode)
    if plan.former_settings:
        # They are back: enabling tiering again notes what is there then, even a -1 that a user has set.
        settled = _state(topic, replace(plan, former_settings={}), mode)
        await session.state.publish_topic_state(partitions[0].topic_id, settled)
    if mode is TieringMode.DELETING:
        await end_holds(session, partitions)


async def _call_off_former(session: Session, topic_id: Uuid) -> None:
    """Remove the trash entries of an earlier deletion of everything that was revoked: by them this one would be due at once,
    since no sidecar may have removed them yet."""
    state = session.topic_state(topic_id)
    if state is not None and state.mode == TieringMode.DELETING:
        return
    for topic_id_partition in [
        partition for partition in session.state.trash_partitions() if partition.topic_id == topic_id
    ]:
        former = [one for one in session.state.trash(topic_id_partition) if one.kind is TrashKind.DISABLE]
        await session.state.take_out_of_trash(topic_id_partition, former)


async def _apply(session: Session, topic: str, topic_id: Uuid, plan: SwitchPlan, mode: TieringMode) -> None:
    """Publish the state, then change the broker's settings: the former settings must be durable before they change, and the
    sidecars must stop trimming before the broker deletes again."""
    await session.state.publish_topic_state(topic_id, _state(topic, plan, mode))
    if plan.changes:
        await session.broker.alter_topic_configs(topic, plan.changes)


def _state(topic: str, plan: SwitchPlan, mode: TieringMode) -> Any:
    from tiersidecar.ports.state_log import TopicState

    return TopicState(
        topic=topic,
        mode=mode.value,
        retention_ms=plan.retention_ms,
        retention_bytes=plan.retention_bytes,
        local_retention_ms=plan.local_retention_ms,
        local_retention_bytes=plan.local_retention_bytes,
        former_settings=plan.former_settings,
    )


def _known(session: Session, topic: str, topic_id: Uuid) -> KnownTiering | None:
    policy, state = session.policy(topic, topic_id), session.topic_state(topic_id)
    if policy is None:
        return None
    return KnownTiering(
        is_on=state is None or state.mode in (TieringMode.STRICT, TieringMode.RACE),
        mode=policy.mode,
        retention_ms=policy.retention_ms,
        retention_bytes=policy.retention_bytes,
        local_retention_ms=policy.local_retention_ms,
        local_retention_bytes=policy.local_retention_bytes,
        former_settings={} if state is None else state.former_settings,
    )


async def _partition_facts(
    session: Session,
    topic: str,
    views: tuple[LeaderView, ...],
    former: Mapping[str, str | None],
    cluster: Mapping[str, str | None],
) -> list[PartitionFacts]:
    from tiersidecar.ports.broker import OffsetSpec

    retention_ms = restored_retention(former, cluster, "retention.ms")
    remote = await _whole_segments(session, [view.topic_id_partition for view in views])
    sizes = await session.broker.describe_log_sizes(topic)
    found = []
    for view in views:
        topic_id_partition = view.topic_id_partition
        log_start = await session.offset(view, OffsetSpec.EARLIEST)
        high_watermark = await session.offset(view, OffsetSpec.LATEST)
        kept_from, is_bound = log_start, False
        if retention_ms >= 0:
            kept_from, is_bound = await _kept_from(session, view, remote[topic_id_partition], log_start, retention_ms)
        parts = parts_of_history(
            remote[topic_id_partition], await _epoch_ends(session, view, remote[topic_id_partition], log_start)
        )
        stop = copied_stop(parts, log_start)
        found.append(
            PartitionFacts(
                partition=topic_id_partition.partition,
                log_start_offset=log_start,
                high_watermark=high_watermark,
                copied_stop=stop,
                kept_from=high_watermark if kept_from < 0 else kept_from,
                is_kept_from_bound=is_bound,
                local_bytes=sizes.get(topic_id_partition.partition),
                remote_bytes_still_local=copied_bytes(parts, log_start, stop),
            )
        )
    return found


async def _kept_from(
    session: Session,
    view: LeaderView,
    segments: Iterable[RemoteLogSegmentMetadata],
    log_start_offset: Offset,
    retention_ms: int,
) -> tuple[Offset, bool]:
    """Return the first offset that ``retention_ms`` keeps, -1 where it keeps none; and whether an earlier one may be it.

    Until a broker deletes the files below its log start (``log.retention.check.interval.ms``), its search by time ends in the
    first of them that has a young enough record, and finds nothing (``UnifiedLog.fetchOffsetByTimestamp``).  Asked for what is
    younger than all that was trimmed, it answers.
    """
    since_ms = session.clock.now_ms() - retention_ms
    found = await session.offset(view, since_ms)
    trimmed_ms = [one.max_timestamp_ms for one in segments if one.end_offset < log_start_offset]
    if found >= 0 or max(trimmed_ms, default=-1) < since_ms:
        return found, False
    return await session.offset(view, max(trimmed_ms) + 1), True


async def _epoch_ends(
    session: Session, view: LeaderView, segments: Sequence[RemoteLogSegmentMetadata], log_start_offset: Offset
) -> dict[int, Offset]:
    """Return where the leader's log ends each epoch of ``segments``.

    Epochs that its log does not have are left out: an unclean election may have undone what was copied in them.  Segments that
    end below ``log_start_offset`` do not matter here.

    Raises:
        BrokerRefusedError: another broker leads by now, or this one in another epoch.
    """
    from tiersidecar.ports.broker import EpochAsked

    topic_id_partition, ends = view.topic_id_partition, dict[int, Offset]()
    asked = {
        one.epoch for each in segments if each.end_offset >= log_start_offset for one in each.segment_leader_epochs
    }
    for epoch in sorted(asked):
        question = EpochAsked(current_epoch=view.leader_epoch, epoch=epoch)
        answer = (await session.broker.end_of_epochs({topic_id_partition: question}))[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="OffsetForLeaderEpoch", subject=str(topic_id_partition), error=answer.error)
        if answer.epoch == epoch:
            ends[epoch] = answer.end_offset
    return ends


async def _whole_segments(
    session: Session, partitions: Sequence[TopicIdPartition]
) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    """Return the remote segments, without those to be copied again: the store has lost a part of them, and the broker's copy
    may be the only one."""
    from tiersidecar.ports.state_records import segments_of

    remote = await session.remote_segments(partitions)
    lost = {
        topic_id_partition: segments_of(session.state.recopies(topic_id_partition)) for topic_id_partition in partitions
    }
    return {
        topic_id_partition: [
            one for one in remote[topic_id_partition] if one.remote_log_segment_id.uuid not in lost[topic_id_partition]
        ]
        for topic_id_partition in partitions
    }


def _state_steps(session: Session, topic: str, topic_id: Uuid, plan: SwitchPlan, mode: TieringMode) -> tuple[str, ...]:
    if session.topic_state(topic_id) == _state(topic, plan, mode):
        return ()
    texts = {
        TieringMode.STRICT: "the sidecars copy it, and trim what is remote",
        TieringMode.RACE: "the sidecars copy it, and the broker deletes by its own retention",
        TieringMode.DETACHED: "the sidecars no longer copy or trim it; remote data stays readable and expires",
        TieringMode.DELETING: "the sidecars delete all its remote data, once delete.delay is over",
    }
    return (f"state topic: {mode.value}; {texts[mode]}",)


def _setting_steps(plan: SwitchPlan) -> tuple[str, ...]:
    return tuple(
        f"broker: {name} is removed from the topic" if value is None else f"broker: {name} of the topic becomes {value}"
        for name, value in plan.changes.items()
    )


def _facts(topic: str, known: KnownTiering | None, plan: SwitchPlan) -> dict[str, Any]:
    tiered = "no" if known is None else known.mode.value if known.is_on else "switched off"
    return {
        "topic": topic,
        "tiered": tiered,
        "retention_ms": plan.retention_ms,
        "retention_bytes": plan.retention_bytes,
        "local_retention_ms": plan.local_retention_ms,
        "local_retention_bytes": plan.local_retention_bytes,
        "former_settings": dict(plan.former_settings),
    }


def _notes(wanted: WantedTiering) -> tuple[str, ...]:
    if wanted.mode is RetentionMode.RACE:
        return (
            "in race mode the broker deletes by its own retention; what was not copied first is missing from the remote tier",
        )
    return ("consumers that read from the broker itself skip what has left its disk",)


def _notes_of_disabling(known: KnownTiering | None, *, delete_remote: bool) -> tuple[str, ...]:
    if known is None:
        return ()
    of_data = (
        "all records that only the store has are lost after delete.delay; until then undelete restores them"
        if delete_remote
        else "records that only the store has can be read through the sidecars only; enable resumes tiering"
    )
    if known.former_settings:
        return (of_data,)
    not_known = (
        "the topic was tiered by the configuration alone: no former settings of the broker's are known to restore"
    )
    return (of_data, not_known)
