"""``tiersidecar recover``: make the metadata topic and the state topic anew from what lies in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.options import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiersidecar.app.commands.session import Session
    from tiersidecar.app.recover_run import Recoverer

_SHOWN_STEPS = 50
UNREAD = (
    "the last snapshots of some partitions cannot be used (see the notes): without them, what was deleted or trashed may "
    "come back. Restore them from the bucket's versions, or use the release that wrote them; --despite-contradictions goes "
    "on by the ones before them, or by manifests alone"
)
UNKNOWN_PLACES = (
    "segments were copied to places that the configuration does not name: {places}. Put these back under places, with their "
    "former buckets and prefixes, and run it again; --despite-contradictions leaves out what is there"
)
RUNNING = (
    "sidecars run beside brokers {nodes}: stop them first, for what they delete meanwhile could come back. A stopped one "
    "counts as running until three times its lease.duration.ms have passed"
)

CarryOut = Annotated[bool, typer.Option("--carry-out", help="Do it; without this option only show what would be done.")]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable. Default: all.")
]
Despite = Annotated[
    bool,
    typer.Option(
        "--despite-contradictions",
        help="Continue although the topics contradict the store: their segments stay, and the deletes of both apply. Also "
        "continue without places that are not configured.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def recover(
    config_file: ConfigFile,
    topic: Topics = None,
    carry_it_out: CarryOut = False,
    despite_contradictions: Despite = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild lost remote log metadata and state from snapshots and manifests in the store.

    Stop the sidecars first. Segments in a snapshot are restored with all fields, and with the trash, users' deletes, pauses and
    remote log starts. Segments that were copied later, or have no snapshot, are restored from their manifests, in all places of
    the configuration. Existing records are kept. Segments that cannot be proved are named and skipped, and nothing that was
    deleted comes back. Nothing is changed without --carry-out; with it, the exit code is 3 if segments are missing.
    """
    manner = Manner(
        config_file=config_file, yes=carry_it_out, dry_run=not carry_it_out, as_json=as_json, makes_topics=carry_it_out
    )
    carry_out(
        lambda session: look_at_store(
            session, topic or (), manner.progress, despite=despite_contradictions, acts=carry_it_out
        ),
        manner,
    )


async def look_at_store(
    session: Session, topics: Sequence[str], say: Callable[[str], None], *, despite: bool, acts: bool = False
) -> Intent:
    """Return what the store has, and what is published because of it; if it ``acts``, not beside sidecars."""
    from tiersidecar.app.recover_run import Recoverer

    if acts and (running := running_sidecars(session)):
        return Intent(facts={"sidecars": list(running)}, refusal=RUNNING.format(nodes=", ".join(map(str, running))))
    recoverer = Recoverer(session, topics, say)
    report = await recoverer.plan()
    steps = list(report.steps())
    if len(steps) > _SHOWN_STEPS:
        steps = [*steps[:_SHOWN_STEPS], f"and {len(steps) - _SHOWN_STEPS} topics more"]
    refusal = ""
    if report.has_contradictions and not despite:
        refusal = (
            "the topics hold data that contradict the store (see the notes): it may be another store, or other topics. Look at "
            "them with `tiersidecar reconcile`; --despite-contradictions leaves those segments as they are, and does the rest"
        )
    elif report.unknown_places and not despite:
        refusal = UNKNOWN_PLACES.format(places=", ".join(sorted(report.unknown_places)))
    elif report.unread and not despite:
        refusal = UNREAD
    return Intent(
        facts=report.facts(),
        steps=tuple(steps),
        refusal=refusal,
        notes=tuple(report.notes()),
        details=report.details(),
        apply=lambda: _do(recoverer),
        complete=report.is_complete,
    )


def running_sidecars(session: Session) -> Sequence[int]:
    """Return brokers whose sidecar holds the lease of its tier role.

    What one deletes while the store is looked at would come back: its objects were listed, and its events are forgotten.
    """
    from tiersidecar.app.process_status import sidecars_of

    leases = session.state.known_leases()
    return [sidecar.node_id for sidecar in sidecars_of(leases, session.clock.now_ms()) if not sidecar.is_over]


async def _do(recoverer: Recoverer) -> Mapping[str, Any]:
    report = await recoverer.apply()
    return {"published": report.facts(), "complete": report.is_complete}
