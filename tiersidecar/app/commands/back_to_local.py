"""``tiersidecar handover back-to-local`` and ``restore``: a topic's remote records go back to the brokers' disks."""

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
from tiersidecar.app.commands.carry_out import Intent, Manner, StepProgress, carry_out
from tiersidecar.app.commands.complaints import FAILED, complain, log_errors_alone
from tiersidecar.app.commands.looking import DONE
from tiersidecar.app.commands.options import ConfigFile
from tiersidecar.app.config.config import load_config
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.readable import printable

if TYPE_CHECKING:  # adapters are slow to import, and --help needs none
    from tiersidecar.app.commands.session import Session
    from tiersidecar.app.handover.restore_run import Restored

GivenUp = StrEnum("GivenUp", {"GAP": "gap"})


def back_to_local(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics that go back together.")],
    config_file: ConfigFile,
    accept: Annotated[
        list[GivenUp] | None,
        typer.Option("--accept", help="Accept the loss of this, if it is an obstacle; repeatable."),
    ] = None,
    write_plan: Annotated[
        Path | None,
        typer.Option("--write-plan", metavar="FILE", help="Write the plan for `handover restore` and `verify`."),
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(
            "--records",
            metavar="HOST:PORT",
            help="Read all records through this gateway, in both isolation levels, and store digests for `verify --records`.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what goes back to the brokers' disks, whether there is enough space, and what must be done first.

    `handover restore` writes the segments on each broker, as in the plan. This command changes nothing, and deletes no objects.
    """
    if write_plan is not None and write_plan.exists():
        raise typer.BadParameter(f"{write_plan} exists: give another name, or remove it", param_hint="--write-plan")
    acts = write_plan is not None
    manner = Manner(config_file=config_file, yes=acts, dry_run=not acts, as_json=as_json, makes_topics=acts)
    carry_out(lambda session: _look(session, topics, bool(accept), write_plan, records, manner), manner)


async def _look(
    session: Session, topics: Sequence[str], accepts_gaps: bool, path: Path | None, records: str | None, manner: Manner
) -> Intent:
    from tiersidecar.app.handover.back_to_local import look_back_to_local, return_document, return_text, write_return
    from tiersidecar.app.handover.replicas import replica_obstacles
    from tiersidecar.app.handover.steps import steps_back_to_local

    names = list(dict.fromkeys(topics))
    look = await look_back_to_local(session, names, manner.progress, accepts_gaps=accepts_gaps)
    if not manner.as_json:
        typer.echo(return_text(look))
    obstacles = [*look.obstacles(), *await replica_obstacles(session, names)]

    async def write() -> Mapping[str, Any]:
        assert path is not None, "there are steps to apply only with a file to write"
        plan = await write_return(session, look, path, records, manner.progress)
        return {"plan": str(path), "planned_partitions": len(plan.partitions)}

    return Intent(
        facts={"topics": ", ".join(names), "goes_back_bytes": sum(one.missing_bytes for one in look.partitions)},
        details=return_document(look),
        notes=(*(f"first: {one}" for one in obstacles if path is None), *look.remedies(), *look.notes),
        refusal="; ".join(obstacles) if path is not None else "",
        steps=steps_back_to_local(look, path),
        apply=write,
    )


def restore(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The file that `back-to-local` wrote.")],
    config_file: ConfigFile,
    stage: Annotated[
        bool, typer.Option("--stage", help="Write the segments beside the broker's; the broker may run.")
    ] = False,
    carry_it_out: Annotated[
        bool, typer.Option("--carry-out", help="Move all staged files into place; all brokers must be stopped.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Remove the files again, before the broker has run.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Remove what is staged.")] = False,
    staged: Annotated[
        list[Path] | None,
        typer.Option("--staged", metavar="FILE", help="The staged.json of another broker; all are needed. Repeatable."),
    ] = None,
    backup: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where staged.json and former contents are saved; default: beside the plan."),
    ] = None,
    broker_properties: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The broker's server.properties, whose log.dirs are compared; needed to carry out."
        ),
    ] = None,
    old_plan: Annotated[bool, typer.Option("--old-plan", help="Accept a plan that is older than a day.")] = False,
    digests: Annotated[
        bool, typer.Option("--digests", help="Read every staged file once more before it is moved.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write the plan's segments that this broker's log dirs lack (log.dirs of the configuration); by default show them.

    Run --stage on every broker, stop all of them by SIGTERM, then run --carry-out on every broker before the first one starts:
    a replica adopts the former log start of another one that starts with it, and then deletes the restored segments.
    """
    from tiersidecar.app.handover.restore_run import Deed, RestoreRequest, run_restore

    chosen = [
        deed
        for deed, is_wanted in (
            (Deed.STAGE, stage),
            (Deed.CARRY_OUT, carry_it_out),
            (Deed.UNDO, undo),
            (Deed.DISCARD, discard),
        )
        if is_wanted
    ]
    if len(chosen) > 1:
        raise typer.BadParameter("give one of --stage, --carry-out, --undo and --discard")
    if carry_it_out and broker_properties is None:
        raise typer.BadParameter("--carry-out needs --broker-properties, the broker's server.properties")
    console, progress = Console(stderr=True, highlight=False), StepProgress()
    try:
        config = load_config(config_file, os.environ)
        log_errors_alone(config.logging)
        request = RestoreRequest(
            plan_file=plan_file,
            deed=chosen[0] if chosen else Deed.LOOK,
            staged=tuple(staged or ()),
            backup=backup,
            properties=broker_properties,
            takes_old=old_plan,
            reads_all=digests,
        )
        with progress.on(console, "looking at the log dirs"):
            found = run_to_end(run_restore(config, request, progress))
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console)) from None
    _print(found, console, as_json=as_json)
    raise typer.Exit(FAILED if found.faults else DONE)


def _print(found: Restored, console: Console, *, as_json: bool) -> None:
    from tiersidecar.app.handover.restore_run import restored_document, restored_text

    if as_json:
        typer.echo(json.dumps(restored_document(found), indent=2, ensure_ascii=False))
        return
    typer.echo(restored_text(found))
    for fault in found.faults:
        console.print(f"[red]refused:[/red] {escape(printable(fault))}", soft_wrap=True)
