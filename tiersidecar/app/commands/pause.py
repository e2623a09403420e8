"""``tiersidecar pause`` and ``resume``: stop copies, or deletes and trims, of one topic or of all topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Yes
from tiersidecar.decide.pauses import PausePlan, decide_pause, decide_resume
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.policy import ALL_TOPICS, Pause, PausedThing, PauseKind, pause_sentence

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session

_PAUSED = {
    PauseKind.COPIES: "no further segment is copied; in strict mode the brokers' disks grow, in race mode only pins keep what "
    "the brokers' retention deletes",
    PauseKind.DELETES: "nothing is trimmed, expired or deleted, neither remote data nor on the brokers' disks, which grow",
}
_RESUMED = {
    PauseKind.COPIES: "copying continues",
    PauseKind.DELETES: "trims and expiry continue, by the same rules and the same guard; what is due is deleted",
}

Topic = Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="One topic; or give --all.")]
All = Annotated[bool, typer.Option("--all", help="All topics, including those created later.")]
Copies = Annotated[bool, typer.Option("--copies", help="Only copies to the store.")]
Deletes = Annotated[bool, typer.Option("--deletes", help="Only deletes, remote ones and trims of the brokers' disks.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="The reason, shown by status, explain and the log.")]


def pause(
    config_file: ConfigFile,
    topic: Topic = None,
    everything: All = False,
    copies: Copies = False,
    deletes: Deletes = False,
    reason: Reason = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Stop copies, or deletes and trims, or both, until `tiersidecar resume`.

    The pause is a record in the state topic. All sidecars of the cluster obey it, including those started later. A segment that
    is being copied or deleted is finished. Reads and pins continue. An existing pause is kept with its reason.
    """
    _require_one(topic, everything=everything)
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    wanted = _kinds(copies=copies, deletes=deletes)
    carry_out(lambda session: look_at_pause(session, topic, wanted, reason), manner, with_metadata=False)


def resume(
    config_file: ConfigFile,
    topic: Topic = None,
    everything: All = False,
    copies: Copies = False,
    deletes: Deletes = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """End a pause: that of this topic, or with --all only the pause of all topics.

    Expiry and its guard decide again: if a large share has become due meanwhile, the guard stops expiry.
    """
    _require_one(topic, everything=everything)
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    wanted = _kinds(copies=copies, deletes=deletes)
    carry_out(lambda session: look_at_resume(session, topic, wanted), manner, with_metadata=False)


def _require_one(topic: str | None, *, everything: bool) -> None:
    if (topic is None) != everything:
        raise typer.BadParameter("give a TOPIC, or --all for all topics", param_hint="TOPIC")


def _kinds(*, copies: bool, deletes: bool) -> tuple[PauseKind, ...]:
    """Return the kinds that were requested; neither option means both."""
    asked = {PauseKind.COPIES: copies, PauseKind.DELETES: deletes}
    return tuple(kind for kind, is_asked in asked.items() if is_asked or not any(asked.values()))


async def look_at_pause(session: Session, topic: str | None, kinds: Sequence[PauseKind], reason: str) -> Intent:
    """Return what is paused already, and what will be."""
    from tiersidecar.app.commands.session import operator

    things = await _things(session, topic, kinds)
    known = session.state.pauses()
    now_ms, by = session.clock.now_ms(), operator("pause")
    wanted = [Pause(thing=thing, topic=topic or ALL_TOPICS, since_ms=now_ms, by=by, reason=reason) for thing in things]
    plan = decide_pause(known, wanted)
    return Intent(
        facts={"topic": topic or ALL_TOPICS},
        details=_details(known),
        steps=tuple(f"{one.topic}: {_PAUSED[one.thing.kind]}{things[one.thing]}" for one in plan.begin),
        notes=(*(f"already so: {pause_sentence(one)}" for one in known), *await _brokers_that_go_on(session)),
        apply=lambda: _publish(session, plan),
    )


async def look_at_resume(session: Session, topic: str | None, kinds: Sequence[PauseKind]) -> Intent:
    """Return what is paused, and what will continue."""
    topic_id = await _topic_id(session, topic)
    known = session.state.pauses()
    plan = decide_resume(known, topic_id, kinds, topic or "")
    return Intent(
        facts={"topic": topic or ALL_TOPICS},
        details=_details(known),
        steps=tuple(f"{one.topic}: {_RESUMED[one.thing.kind]}" for one in plan.end),
        notes=tuple(f"still so: {pause_sentence(one)}" for one in plan.left),
        apply=lambda: _publish(session, plan),
    )


async def _things(session: Session, topic: str | None, kinds: Sequence[PauseKind]) -> dict[PausedThing, str]:
    """Return what is to be paused, and what to say of it.  Topics that had the name and are gone, whose remote data is still
    to be deleted, count by that deletion, whether or not there is one of the name now.

    Raises:
        BrokerRefusedError: there is no such topic, and nothing of one is left to be paused.
    """
    if topic is None:
        return {PausedThing(kind=kind): "" for kind in kinds}
    views = await session.broker.describe_partitions([topic])
    live = [views[0].topic_id_partition.topic_id] if views else []
    gone = dict.fromkeys(
        topic_id_partition.topic_id
        for topic_id_partition in session.state.partitions()
        if topic_id_partition.topic == topic and topic_id_partition.topic_id not in live
    )
    things = {PausedThing(kind=kind, topic_id=topic_id): "" for topic_id in live for kind in kinds}
    if PauseKind.DELETES in kinds:
        things |= {
            PausedThing(kind=PauseKind.DELETES, topic_id=topic_id): f" (the deleted topic {format_uuid(topic_id)})"
            for topic_id in gone
        }
    if not things:
        await session.partitions(topic)  # says so
    return things


async def _topic_id(session: Session, topic: str | None) -> Uuid | None:
    """Return the topic's id; a deleted topic is found by its pause, which also stops the deletion of its remote data."""
    if topic is None:
        return None
    paused = [one.thing.topic_id for one in session.state.pauses() if one.topic == topic]
    views = await session.broker.describe_partitions([topic])
    if not views and paused:
        return paused[-1]
    return (await session.partitions(topic))[0].topic_id_partition.topic_id


def _details(known: Sequence[Pause]) -> dict[str, object]:
    return {
        "paused": [
            {
                "topic": one.topic,
                "kind": one.thing.kind.value,
                "since_ms": one.since_ms,
                "by": one.by,
                "reason": one.reason,
            }
            for one in known
        ],
    }


async def _brokers_that_go_on(session: Session) -> tuple[str, ...]:
    """Return notes on brokers whose sidecar is of a release that does not know pauses."""
    described = await session.broker.describe_cluster()
    leases = {one.broker_id: one for one in session.state.known_leases()}
    deaf = sorted(
        broker
        for broker in described.brokers
        if broker not in session.config.deletes_brokers_without_sidecar
        and not ((lease := leases.get(broker)) is not None and lease.obeys_pauses)
    )
    if not deaf:
        return ()
    names = ", ".join(map(str, deaf))
    return (f"broker {names}: no sidecar that obeys pauses has been seen; one of a former release ignores them",)


async def _publish(session: Session, plan: PausePlan) -> None:
    for one in plan.begin:
        await session.state.publish_pause(one)
    for one in plan.end:
        await session.state.forget_pause(one)
