"""``tiersidecar undelete`` and ``release``: restore what is in the trash, and let retention continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Target, Yes, moment_ms, parse_target
from tiersidecar.decide.undelete import Range, UndeleteView, Undeletion, decide_undelete, may_be_on_its_way, unavailable
from tiersidecar.domain.errors import TrashError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.lease import decision_ms, reason_to_wait_for_sidecars
from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.policy import RetentionMode, TieringMode
from tiersidecar.domain.segments import LeaderView
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import REPLACED

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
    from tiersidecar.ports.state_log import PartitionState, SeenGeneration

ANSWER_TIMEOUT_S = 15.0
"""Time limit for the confirmation of the leader's sidecar, which looks several times a second."""
_MARGIN_S = 5.0
"""Time for an abandoned request to end, and for the broker to write what it had received."""
_LOOK_AGAIN_S = 0.1
_MEANWHILE = "another has moved or set back its start meanwhile; look again"
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without this option only show what would be done.")]


def undelete(
    target: Target,
    config_file: ConfigFile,
    to_offset: Annotated[
        int | None,
        typer.Option("--to-offset", metavar="X", min=0, help="The first offset to be readable again; one partition."),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(
            "--since", metavar="TIME", parser=moment_ms, help="Undo what was decided from then on (ISO 8601)."
        ),
    ] = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Restore what expiry, users' deletes or `disable --delete-remote` gave up, as long as it is in the trash.

    The remote log start is set back, and a hold keeps retention from moving it again until `tiersidecar release`. A topic whose
    remote data was being deleted becomes detached: remote data stays readable. Nothing is changed without --apply.
    """
    topic, partition = parse_target(target)
    if to_offset is not None and (partition is None or since is not None):
        raise typer.BadParameter("--to-offset needs one partition, TOPIC/PARTITION, and excludes --since")
    manner = Manner(config_file=config_file, yes=apply, dry_run=not apply, as_json=as_json)
    wanted = Wanted(topic=topic, partition=partition, to_offset=to_offset, since_ms=since)
    carry_out(lambda session: look_at_undeletion(session, wanted), manner)


def release(
    target: Target, config_file: ConfigFile, yes: Yes = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """End the hold that undelete put on a topic or partition: retention moves its start again."""
    topic, partition = parse_target(target)
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_release(session, topic, partition), manner, with_metadata=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The operator's request; without ``partition`` it concerns all partitions."""

    topic: str
    partition: int | None
    to_offset: int | None = None
    since_ms: int | None = None


async def views_of(session: Session, topic: str, partition: int | None) -> Sequence[LeaderView]:
    """Return the partitions of a target.

    Raises:
        BrokerRefusedError: there is none.
    """
    if partition is None:
        return await session.partitions(topic)
    return [await session.partition(topic, partition)]


async def look_at_undeletion(session: Session, wanted: Wanted) -> Intent:
    """Return what is in the trash, and what the undelete restores."""
    views = await views_of(session, wanted.topic, wanted.partition)
    plans = {view: await _plan(session, view, wanted) for view in views}
    facts = {"topic": wanted.topic, "partitions": [_facts(session, view, plan) for view, plan in plans.items()]}
    if reason := await _reason_to_wait(session):
        return Intent(facts=facts, refusal=reason)
    refusals = [plan.refusal for plan in plans.values() if plan.refusal]
    if refusals and len(refusals) == len(plans):
        return Intent(facts=facts, refusal=refusals[0])
    needed = {view: plan for view, plan in plans.items() if plan.is_needed}
    steps, is_deleting = [], needed and _is_deleting(session, views[0])
    if is_deleting:
        steps.append("state topic: detached; the topic is no longer tiered, and remote data stays readable")
    for view, plan in needed.items():
        size_bytes = sum(segment.segment_size_in_bytes for segment in plan.segments)
        steps.append(
            f"partition {view.topic_id_partition.partition}: the log starts at {plan.offset} again; "
            f"{len(plan.segments)} remote segments ({size_bytes} bytes) come back, and a hold keeps retention off them"
        )
    notes = [_hole(session, view, begin, stop) for view, plan in needed.items() for begin, stop in plan.holes]
    notes += [
        f"partition {view.topic_id_partition.partition}: {plan.replaced} segments that an erasure replaced do not come back"
        for view, plan in needed.items()
        if plan.replaced
    ]
    if any(_may_be_on_its_way(session, view) for view in needed):
        wait_s = _most_on_its_way_s(session)
        notes.append(
            f"a deletion of some of it may be on its way: what comes back is looked at {wait_s:.0f} s later, when none comes "
            "any more"
        )
    return Intent(
        facts=facts, steps=tuple(steps), notes=tuple(notes), apply=lambda: _undelete(session, views[0], needed)
    )


def _is_race(session: Session, view: LeaderView) -> bool:
    topic_id_partition = view.topic_id_partition
    policy = session.policy(topic_id_partition.topic, topic_id_partition.topic_id)
    return policy is None or policy.mode is RetentionMode.RACE


def _hole(session: Session, view: LeaderView, begin: int, stop: int) -> str:
    name = f"partition {view.topic_id_partition.partition}: "
    if _is_race(session, view):
        return f"{name}only pins of the leader's sidecar may have offsets {begin} to {stop - 1}; it says so afterwards"
    return f"{name}offsets {begin} to {stop - 1} are in neither tier any more"


async def _reason_to_wait(session: Session) -> str:
    """Return why to wait: a leader's sidecar of a former release would still delete what is to be restored."""
    described = await session.broker.describe_cluster()
    without = session.config.deletes_brokers_without_sidecar
    return reason_to_wait_for_sidecars(described.brokers, session.state.lease, without)


async def _plan(session: Session, view: LeaderView, wanted: Wanted) -> Undeletion:
    from tiersidecar.ports.broker import OffsetSpec

    topic_id_partition = view.topic_id_partition
    segments = (await session.remote_segments([topic_id_partition]))[topic_id_partition]
    finished = [segment for segment in segments if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    lineage = Lineage.of(sorted({entry for one in finished for entry in one.segment_leader_epochs}))
    log_start = await session.offset(view, OffsetSpec.EARLIEST)
    known = session.state.partition_state(topic_id_partition)
    return decide_undelete(
        UndeleteView(
            entries=session.state.trash(topic_id_partition),
            generation=known.start_generation,
            start_offset=max(known.highest_start, 0),
            segments=segments,
            lineage=lineage,
            log_start_offset=log_start,
            user_deletes=known.user_deletes,
            may_be_pinned=_is_race(session, view),
            now_ms=decision_ms(session.clock.now_ms(), [session.state.lease(str(view.leader_id))]),
            to_offset=wanted.to_offset,
            since_ms=wanted.since_ms,
        )
    )


def _facts(session: Session, view: LeaderView, plan: Undeletion) -> dict[str, Any]:
    known = session.state.partition_state(view.topic_id_partition)
    return {
        "partition": view.topic_id_partition.partition,
        "remote_log_start_offset": known.highest_start,
        "offset": plan.offset,
        "segments": len(plan.segments),
        "bytes": sum(segment.segment_size_in_bytes for segment in plan.segments),
        "entries": len(session.state.trash(view.topic_id_partition)),
        "refusal": plan.refusal or None,
    }


def _is_deleting(session: Session, view: LeaderView) -> bool:
    state = session.topic_state(view.topic_id_partition.topic_id)
    return state is not None and state.mode == TieringMode.DELETING


async def _undelete(session: Session, first: LeaderView, needed: dict[LeaderView, Undeletion]) -> dict[str, Any]:
    """End the deletion of the topic first, or it would be decided again; then set the start back, which voids decisions."""
    topic_id = first.topic_id_partition.topic_id
    state = session.topic_state(topic_id)
    if state is not None and _is_deleting(session, first):
        await session.state.publish_topic_state(topic_id, replace(state, mode=TieringMode.DETACHED.value))
    may_come = any([await _set_back(session, view, plan) for view, plan in needed.items()])
    quiet_s = session.clock.monotonic_s() + (_most_on_its_way_s(session) if may_come else 0)
    answers = {view: await _answer(session, view) for view in needed}
    while session.clock.monotonic_s() < quiet_s:
        await session.clock.sleep(_LOOK_AGAIN_S)
    found = [await _look_what_came_back(session, view, plan, answers[view]) for view, plan in needed.items()]
    lost = "; ".join(one.lost for one in found if one.lost)
    if lost:
        raise TrashError(subject=f"topic {first.topic_id_partition.topic}", reason=lost)
    return {"undeleted": len(needed), "came_back": [one.facts for one in found]}


def _may_be_on_its_way(session: Session, view: LeaderView) -> bool:
    from tiersidecar.app.builders.retain import trash_delays
    from tiersidecar.decide.pressure_trim import DiskPressurePolicy

    latest_ms = decision_ms(session.clock.now_ms(), session.state.known_leases())
    entries = session.state.trash(view.topic_id_partition)
    # A full disk does not wait until something is due.
    goes_for_room = session.config.disk_pressure_policy is not DiskPressurePolicy.KEEP
    return goes_for_room or may_be_on_its_way(entries, latest_ms=latest_ms, delays=trash_delays(session.config))


def _most_on_its_way_s(session: Session) -> float:
    """Return how long after the undelete a deletion may still arrive, in seconds.

    A leader's sidecar may have sent it right after its last look, and may have ended since.  docs/operations/retention.md
    describes what this leaves.
    """
    from tiersidecar.tasks.local_start import ASKED_WITHIN_S
    from tiersidecar.tasks.removal import BEGUN_WITHIN_S

    trimmed_within_s = ASKED_WITHIN_S + session.config.broker.request_timeout_ms / 1000
    return max(BEGUN_WITHIN_S, trimmed_within_s) + _MARGIN_S


async def _set_back(session: Session, view: LeaderView, plan: Undeletion) -> bool:
    """Set the start back; return whether a deletion of the partition may be on its way."""
    from tiersidecar.app.commands.session import operator
    from tiersidecar.ports.state_log import Hold, PartitionState

    topic_id_partition = view.topic_id_partition
    await session.state.catch_up()
    known, entries = session.state.partition_state(topic_id_partition), session.state.trash(topic_id_partition)
    may_come = _may_be_on_its_way(session, view)
    if any(one.id.generation != known.start_generation + 1 for one in plan.kept):
        raise TrashError(subject=str(topic_id_partition), reason=_MEANWHILE)
    hold = Hold(
        serial=_next_serial(known),
        is_held=True,
        until=_held_until(known),
        since_ms=session.clock.now_ms(),
        by=operator("undelete"),
        reason="undelete",
    )
    await session.state.publish_partition_state(
        topic_id_partition,
        PartitionState(
            remote_log_start_offset=plan.offset,
            remote_log_start_epoch=view.leader_epoch,
            start_generation=known.start_generation + 1,
            hold=hold,
            user_deletes=plan.user_deletes,
            undone=plan.undone,
            kept=plan.kept,
        ),
    )
    now = session.state.partition_state(topic_id_partition)
    if (now.start_generation, now.remote_log_start_offset) != (known.start_generation + 1, plan.offset):
        raise TrashError(subject=str(topic_id_partition), reason=_MEANWHILE)
    undone = [entry for entry in entries if entry.kind not in REPLACED]
    await session.state.take_out_of_trash(topic_id_partition, undone)
    if meanwhile := [delete.offset for delete in now.user_deletes if delete not in plan.user_deletes]:
        reason = f"a user has deleted what is below offset {max(meanwhile)} meanwhile; that is not undone, look again"
        raise TrashError(subject=str(topic_id_partition), reason=reason)
    return may_come


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The restored part of a partition; ``lost`` names what was not, although it existed at the first look."""

    facts: Mapping[str, Any]
    lost: str = ""


async def _look_what_came_back(
    session: Session, view: LeaderView, plan: Undeletion, seen: SeenGeneration | None
) -> _Found:
    """Compare with the plan: a deletion that the leader sent before it read the undelete cannot be undone."""
    from tiersidecar.ports.broker import OffsetSpec

    topic_id_partition = view.topic_id_partition
    segments = [
        segment
        for segment in (await session.remote_segments([topic_id_partition]))[topic_id_partition]
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]
    stop = max(await session.offset(view, OffsetSpec.EARLIEST), 0)
    missing = unavailable(segments, plan.offset, stop, () if seen is None else seen.pinned)
    facts = {
        "partition": topic_id_partition.partition,
        "from_offset": plan.offset,
        "missing": [list(one) for one in missing],
        "confirmed": seen is not None,
    }
    offsets = ", ".join(f"{begin} to {end - 1}" for begin, end in _beyond(missing, plan.holes))
    name = f"partition {topic_id_partition.partition}"
    lost = f"{name}: offsets {offsets} were due, and deleted while this was done; the rest came back"
    return _Found(facts=facts, lost=lost if offsets else "")


def _beyond(missing: Sequence[Range], expected: Sequence[Range]) -> list[Range]:
    """Return the missing ranges that were not announced."""
    return [one for one in missing if not any(begin <= one[0] and one[1] <= stop for begin, stop in expected)]


async def _answer(session: Session, view: LeaderView) -> SeenGeneration | None:
    """Return the leader's confirmation; None if none arrives in time, because its sidecar is away or busy with a deletion.

    Before its next deletion the sidecar reads the state topic.
    """
    topic_id_partition, clock = view.topic_id_partition, session.clock
    wanted = session.state.partition_state(topic_id_partition).start_generation
    until_s = clock.monotonic_s() + ANSWER_TIMEOUT_S
    while clock.monotonic_s() < until_s:
        await session.state.catch_up()
        seen = session.state.partition_state(topic_id_partition).seen
        if seen is not None and seen.generation >= wanted and seen.leader_epoch >= view.leader_epoch:
            return seen
        await clock.sleep(_LOOK_AGAIN_S)
    return None


def _held_until(known: PartitionState) -> Offset:
    """Return the former start, or the end of a former hold if that is higher (after users' deletes)."""
    lasting = known.hold.until if known.hold is not None and known.hold.is_held else NO_OFFSET
    return max(lasting, known.highest_start)


def _next_serial(known: PartitionState) -> int:
    return 1 if known.hold is None else known.hold.serial + 1


async def look_at_release(session: Session, topic: str, partition: int | None) -> Intent:
    """Return the holds that exist."""
    views = await views_of(session, topic, partition)
    held = [
        view.topic_id_partition
        for view in views
        if (hold := session.state.partition_state(view.topic_id_partition).hold) is not None and hold.is_held
    ]
    steps = tuple(
        f"partition {topic_id_partition.partition}: retention moves its start again" for topic_id_partition in held
    )
    facts = {"topic": topic, "held": [topic_id_partition.partition for topic_id_partition in held]}

    return Intent(facts=facts, steps=steps, apply=lambda: end_holds(session, held))


async def end_holds(session: Session, partitions: Sequence[TopicIdPartition]) -> None:
    """End the holds of ``partitions``."""
    from tiersidecar.ports.state_log import PartitionState

    for topic_id_partition in partitions:
        hold = session.state.partition_state(topic_id_partition).hold
        if hold is not None and hold.is_held:
            over = replace(hold, serial=hold.serial + 1, is_held=False)
            await session.state.publish_partition_state(topic_id_partition, PartitionState(hold=over))
