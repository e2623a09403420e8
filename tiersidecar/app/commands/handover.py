"""``tiersidecar handover``: move a topic between the sidecar and native tiering without an upload, and prove it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.back_to_local import back_to_local, restore
from tiersidecar.app.commands.carry_out import Intent, Manner, StepProgress, carry_out
from tiersidecar.app.commands.complaints import FAILED, complain, log_errors_alone
from tiersidecar.app.commands.looking import DONE, FOUND
from tiersidecar.app.commands.options import ConfigFile
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.decide.handover import ACCEPTABLE
from tiersidecar.domain.errors import HandoverError, TiersidecarError
from tiersidecar.domain.readable import duration_text, moment_text, printable

if TYPE_CHECKING:  # adapters are slow to import, and --help needs none
    from tiersidecar.app.commands.session import Session
    from tiersidecar.app.handover.plan import Plan
    from tiersidecar.app.handover.run import HandoverLook
    from tiersidecar.app.handover.verify import VerifiedPartition

handover = typer.Typer(
    name="handover",
    help="Move topics between the sidecar and native tiering.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@handover.callback()
def _group() -> None:
    """Move topics between the sidecar and native tiering."""


GivenUp = StrEnum("GivenUp", {one.name: one.value for one in sorted(ACCEPTABLE)})  # type: ignore[misc]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics to hand over together.")]
WritePlan = Annotated[
    Path | None,
    typer.Option(
        "--write-plan",
        metavar="FILE",
        help="Write the plan for `handover files` and `verify`; by default it is only shown.",
    ),
]
Accept = Annotated[
    list[GivenUp] | None, typer.Option("--accept", help="Accept the loss of this, if it is an obstacle; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Records = Annotated[
    str | None,
    typer.Option(
        "--records",
        metavar="HOST:PORT",
        help="Read all records through this gateway and store their digest in the plan, for `verify --records`.",
    ),
]
BrokerFileOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--broker-properties",
        metavar="FILE",
        help="A broker's server.properties, for values that the broker does not show (whether it is blind). Repeatable.",
    ),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The file that `--write-plan` wrote.")]


def _is_new(plan_file: Path | None) -> bool:
    """Return whether a plan is to be written.

    Raises:
        typer.BadParameter: over another one.
    """
    if plan_file is not None and plan_file.exists():
        raise typer.BadParameter(f"{plan_file} exists: give another name, or remove it", param_hint="--write-plan")
    return plan_file is not None


_RUNNING = (
    "sidecars run beside brokers {nodes}: stop them first, for what they copy, trim or delete meanwhile is not in the plan. A "
    "stopped one counts as running until three times its lease.duration.ms have passed. A gateway (--roles gateway) may run"
)


@handover.command("to-native", short_help="Predict what a native broker keeps and deletes; write the plan.")
def to_native(
    topics: Topics,
    config_file: ConfigFile,
    accept: Accept = None,
    write_plan: WritePlan = None,
    records: Records = None,
    broker_properties: BrokerFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Predict what brokers with native tiering would keep and delete of these topics, and list what must be done first.

    With the files that brokers have after a trim, they would delete most of the remote data: the last column shows what. The
    plan has the right contents for these files; `handover files` writes them while the brokers are stopped. Nothing is changed
    without --write-plan. With it, segments that a native broker would not find get another COPY_SEGMENT_FINISHED.
    """
    acts = _is_new(write_plan)
    manner = Manner(config_file=config_file, yes=acts, dry_run=not acts, as_json=as_json, makes_topics=acts)
    accepted = [one.value for one in accept or ()]
    files = broker_properties or []
    carry_out(lambda session: _look_to_native(session, topics, accepted, write_plan, records, manner, files), manner)


async def _look_to_native(
    session: Session,
    topics: Sequence[str],
    accepted: Sequence[str],
    path: Path | None,
    records: str | None,
    manner: Manner,
    files: Sequence[Path] = (),
) -> Intent:
    from tiersidecar.app.handover.replicas import replica_obstacles
    from tiersidecar.app.handover.run import document_of, look_to_native, partitions_text, settings_notes
    from tiersidecar.app.handover.settings import read_broker_files
    from tiersidecar.app.handover.steps import steps_to_native
    from tiersidecar.decide.handover import Obstacle

    given_up = frozenset(Obstacle(one) for one in accepted)
    names = list(dict.fromkeys(topics))
    look = await look_to_native(session, names, given_up, manner.progress, read_broker_files(files))
    if not manner.as_json and look.partitions:
        typer.echo(partitions_text(look))
    obstacles = [*look.obstacles(), *await replica_obstacles(session, [topic.topic for topic in look.topics])]
    refusal = "; ".join(obstacles) if obstacles and path is not None else ""
    if path is not None and not refusal and look.running:
        refusal = _RUNNING.format(nodes=", ".join(map(str, look.running)))
    notes = [*(f"first: {one}" for one in obstacles if path is None), *look.remedies(), *settings_notes(look)]
    steps = steps_to_native(look, path)
    return Intent(
        facts=_facts(look),
        details=document_of(look),
        notes=tuple(notes),
        refusal=refusal,
        steps=steps,
        apply=lambda: _write(session, look, path, records, manner.progress),
    )


def _facts(look: HandoverLook) -> dict[str, Any]:
    plans = [seen.plan for seen in look.partitions]
    return {
        "topics": ", ".join(topic.topic for topic in look.topics),
        "segments_kept": sum(len(plan.prepared.kept) for plan in plans),
        "segments_deleted": sum(len(plan.prepared.deletions) for plan in plans),
        "lost_if_switched_on_as_it_is": sum(len(plan.lost_naively) for plan in plans),
    }


async def _write(
    session: Session, look: HandoverLook, path: Path | None, records: str | None, say: StepProgress
) -> Mapping[str, Any]:
    from tiersidecar.app.handover.run import make_plan

    assert path is not None, "there are steps to apply only with a file to write"
    plan = await make_plan(session, look, path, records, say)
    return {"plan": str(path), "planned_partitions": len(plan.partitions)}


handover.command("back-to-local", short_help="Plan how remote records go back to the brokers' disks.")(back_to_local)
handover.command("restore", short_help="Write the missing segments to a stopped broker, by such a plan.")(restore)


@handover.command("from-native", short_help="Show the steps to take over from native tiering.")
def from_native(
    topics: Topics,
    config_file: ConfigFile,
    write_plan: WritePlan = None,
    records: Records = None,
    broker_properties: BrokerFileOption = None,
    as_json: AsJson = False,
) -> None:
    """Show whether native tiering can be switched off for these topics without deleting their remote data, and the steps.

    Kafka allows `remote.storage.enable` to be switched off only together with the deletion of the remote data. A broker whose
    metadata manager reads no events finds nothing to delete. Nothing is changed; with --write-plan, `handover verify` compares
    afterwards.
    """
    acts = _is_new(write_plan)
    manner = Manner(config_file=config_file, yes=acts, dry_run=not acts, as_json=as_json, makes_topics=acts)
    files = broker_properties or []
    carry_out(lambda session: _look_from_native(session, topics, write_plan, records, manner, files), manner)


async def _look_from_native(
    session: Session,
    topics: Sequence[str],
    path: Path | None,
    records: str | None,
    manner: Manner,
    files: Sequence[Path] = (),
) -> Intent:
    from tiersidecar.app.handover.run import settings_notes
    from tiersidecar.app.handover.settings import read_broker_files
    from tiersidecar.app.handover.steps import steps_from_native
    from tiersidecar.app.handover.takeover import look_from_native, takeover_document, takeover_text, write_takeover

    names = list(dict.fromkeys(topics))
    look = await look_from_native(session, names, manner.progress, read_broker_files(files))
    if not manner.as_json and look.partitions:
        typer.echo(takeover_text(look))
    obstacles = list(look.obstacles())
    refusal = "; ".join(obstacles) if path is not None else ""

    async def write() -> Mapping[str, Any]:
        assert path is not None, "there are steps to apply only with a file to write"
        await write_takeover(session, look, path, records, manner.progress)
        return {"plan": str(path), "planned_partitions": len(look.partitions)}

    return Intent(
        facts={"topics": ", ".join(look.topics), "segments": sum(len(one.finished) for one in look.partitions)},
        details=takeover_document(look),
        notes=(
            *look.warnings(),
            *(f"first: {one}" for one in obstacles if path is None),
            *settings_notes(look.cluster),
        ),
        refusal=refusal,
        steps=steps_from_native(look, path),
        apply=write,
    )


@handover.command("files", short_help="Change a stopped broker's files by the plan, with --undo.")
def files(
    plan_file: PlanFile,
    config_file: ConfigFile,
    carry_it_out: Annotated[
        bool, typer.Option("--carry-out", help="Change the files; without this option only show what would be changed.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the former contents of the files.")] = False,
    backup: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where former contents are saved; default: beside the plan.")
    ] = None,
    broker_properties: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The broker's server.properties, which is compared with plan and log.dirs; needed to change or undo.",
        ),
    ] = None,
    old_plan: Annotated[bool, typer.Option("--old-plan", help="Accept a plan that is older than a day.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write log starts and leader epochs into a broker's log dirs (log.dirs of the configuration) while it is stopped.

    Stop all brokers with a replica by SIGTERM, and run it on each of them before the first one starts again: a replica adopts
    the former log start of another one that starts with it. The command holds the broker's lock, and refuses if the broker is
    running, was killed, or has another history than the plan.
    """
    if carry_it_out and undo:
        raise typer.BadParameter("give --carry-out or --undo, not both")
    if (carry_it_out or undo) and broker_properties is None:
        raise typer.BadParameter("--carry-out and --undo need --broker-properties, the broker's server.properties")
    console = Console(stderr=True, highlight=False)
    try:
        config = load_config(config_file, os.environ)
        code = _files(
            config,
            plan_file,
            backup,
            broker_properties,
            as_json=as_json,
            acts=carry_it_out,
            undo=undo,
            takes_old=old_plan,
            console=console,
        )
    except TiersidecarError as error:
        code = complain(error, console)
    raise typer.Exit(code)


def _files(
    config: Config,
    plan_file: Path,
    backup: Path | None,
    properties: Path | None,
    *,
    as_json: bool,
    acts: bool,
    undo: bool,
    takes_old: bool,
    console: Console,
) -> int:
    from tiersidecar.adapters.broker_backup import Backup
    from tiersidecar.adapters.broker_files import locked_log_dirs
    from tiersidecar.adapters.clock import SystemClock
    from tiersidecar.app.handover.broker_properties import property_faults
    from tiersidecar.app.handover.files import planned_changes
    from tiersidecar.app.handover.plan import fault_of_age, read_plan
    from tiersidecar.app.handover.texts import files_document, files_text

    plan, now_ms = read_plan(plan_file), SystemClock().now_ms()
    if plan.back_to_local:  # checkpoints without segments would be a log with a hole
        raise HandoverError(
            subject=str(plan_file), reason="it is a plan of `handover back-to-local`: `handover restore` carries it out"
        )
    log_dirs = [Path(one) for one in config.log_dirs]
    faults = [] if properties is None else property_faults(properties, plan, config, undo=undo)
    if not undo and not takes_old and (fault := fault_of_age(plan, now_ms)):
        faults.append(fault)
    with locked_log_dirs(log_dirs):
        changes = planned_changes(plan, log_dirs)
        saved = Backup(
            backup or plan_file.with_name(f"{plan_file.name}.broker-{changes.node_id}"),
            cluster_id=plan.cluster_id,
            node_id=changes.node_id,
            log_dirs=log_dirs,
        )
        if undo and not faults:
            return _say_done(saved.undo(), "given back", as_json=as_json, console=console)
        faults = faults if undo else [*changes.faults, *faults]
        written = saved.apply(changes.files) if acts and not faults else None
    if as_json:
        document = files_document(changes, faults, written) | {"plan_age_ms": now_ms - plan.made_ms}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        age = duration_text(max(now_ms - plan.made_ms, 0))
        typer.echo(f"the plan is of {moment_text(plan.made_ms)}, {age} ago")
        typer.echo(files_text(changes, faults, written))
        for fault in faults:
            console.print(f"[red]refused:[/red] {escape(printable(fault))}", soft_wrap=True)
    return FAILED if faults else DONE


def _say_done(count: int, what: str, *, as_json: bool, console: Console) -> int:
    if as_json:
        typer.echo(json.dumps({"written": count, "faults": []}, indent=2))
    else:
        console.print(f"{count} files {what}", soft_wrap=True)
    return DONE


@handover.command("verify", short_help="Compare events, objects and records with the plan.")
def verify(
    plan_file: PlanFile,
    config_file: ConfigFile,
    records: Annotated[
        bool, typer.Option("--records", help="Read all records from the broker, and compare them with the plan's.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a hand-over: every segment that had to stay is finished, and its three objects have their sizes.

    With --records, all records up to the end of the plan are read through the broker and compared with those that the gateway
    returned before. Exit codes: 0 as predicted, 3 not, 1 failed, 2 wrong usage.
    """
    from tiersidecar.app.handover.plan import read_plan
    from tiersidecar.app.handover.texts import verified_document, verified_text

    console, progress = Console(stderr=True, highlight=False), StepProgress()
    try:
        plan = read_plan(plan_file)
        config = load_config(config_file, os.environ)
        log_errors_alone(config.logging)
        with progress.on(console, "connecting to the broker and reading the sidecars' topics"):
            found = run_to_end(_verify(config, plan, progress, reads_records=records))
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None
    typer.echo(json.dumps(verified_document(found), indent=2) if as_json else verified_text(found))
    raise typer.Exit(FOUND if any(one.faults for one in found) else DONE)


async def _verify(config: Config, plan: Plan, say: StepProgress, *, reads_records: bool) -> list[VerifiedPartition]:
    from tiersidecar.app.commands.session import open_session
    from tiersidecar.app.config.top_level import Mode
    from tiersidecar.app.handover.verify import verify_plan
    from tiersidecar.app.handover.verify_return import verify_return

    looking = config.model_copy(update={"mode": Mode.OBSERVE})  # makes no topic
    async with open_session(looking, with_metadata=False) as session:
        if plan.back_to_local:
            return await verify_return(session, plan, say, reads_records=reads_records)
        return await verify_plan(session, plan, say, reads_records=reads_records)
