"""``tiersidecar mount``: set the topics of a cluster that is gone up in a new one, at the same offsets, from its bucket."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.carry_out import Intent, Manner, StepProgress, carry_out
from tiersidecar.app.commands.complaints import complain, log_errors_alone
from tiersidecar.app.commands.options import ConfigFile, moment_ms
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.domain.errors import MountRefusedError, TiersidecarError
from tiersidecar.domain.readable import moment_text, printable

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
    from tiersidecar.app.mount_file import MountPlan
    from tiersidecar.app.mount_findings import Findings, Wanted
    from tiersidecar.app.mount_publish import MountPublisher

_SHOWN = 20
READ_ONLY = (
    "{plan} is the plan of a read-only mount: the source stays the owner, and there is nothing to publish. Start the nodes, "
    "and beside each broker a gateway whose configuration names the source"
)
mount = typer.Typer(
    name="mount",
    help="Set up the topics of a lost cluster in a new one, at the same offsets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The file that `mount plan` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
CarryOut = Annotated[bool, typer.Option("--carry-out", help="Do it; without this option only show what would be done.")]


def _brokers(text: str) -> tuple[int, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(name.isdecimal() for name in names) or len(set(names)) != len(names):
        raise typer.BadParameter(f"{text!r} is not a list of node ids, such as 1,2,3")
    return tuple(int(name) for name in names)


ClusterSnapshotKey = Annotated[
    str | None,
    typer.Option(
        "--cluster-snapshot",
        metavar="KEY",
        help="Settings and groups by this object: KEY.PREFIX.tiersidecar/clusters/ID/TIME-BROKER.snapshot. Else the plan's, or "
        "the latest.",
    ),
]


@mount.command("plan", short_help="Write what can be mounted into a file.")
def plan(
    config_file: ConfigFile,
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="ID,...", help="Node ids of the new cluster's brokers, such as 1,2,3.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write; it must not exist.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Only this topic, even if it was deleted; repeatable. Default: all that were not.",
        ),
    ] = None,
    former_cluster: Annotated[
        str | None,
        typer.Option(
            "--former-cluster",
            metavar="ID",
            help='The cluster whose data it is; needed if several share the bucket. "": natively tiered, unclaimed data.',
        ),
    ] = None,
    cluster_snapshot: ClusterSnapshotKey = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, max=100, help="Replicas of each partition. Default: as before, or 3.")
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="TIME",
            parser=moment_ms,
            help="Restore the state at this earlier time (ISO 8601), not the end of what was copied.",
        ),
    ] = None,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="For a cluster that only serves what another, running cluster copies and owns.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the bucket, and write what can be mounted into a file: topics, offsets, leader epochs, replicas.

    No broker is contacted, and nothing in the bucket is changed. You may edit settings of topics and replicas in the file. Seed
    all nodes of the new cluster with the same file.
    """
    from tiersidecar.app.mount_file import require_new_plan, write_plan
    from tiersidecar.app.mount_findings import Wanted

    wanted = Wanted(
        brokers=_brokers(brokers),
        topics=tuple(topic or ()),
        former_cluster_id=former_cluster,
        cluster_snapshot=cluster_snapshot,
        replication_factor=replication_factor,
        at_ms=at,
        is_read_only=read_only,
    )
    if read_only and at is not None:
        raise typer.BadParameter("a read-only mount follows its source: it has no --at", param_hint="--read-only")
    console = Console(stderr=True, highlight=False)
    try:
        require_new_plan(out)
        config = load_config(config_file, os.environ)
        config.require_one_place("`tiersidecar mount`")
        log_errors_alone(config.logging)
        progress = StepProgress()
        with progress.on(console, "looking through the bucket"):
            found = run_to_end(_find(config, wanted, progress))
        write_plan(found.plan, out)
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None
    document = _found_document(found, out)
    if as_json:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for name, value in document.items():
        if name not in ("partitions_by_topic", "deleted_topics", "notes"):
            console.print(f"{name.replace('_', ' ')}: {_safe(value)}", soft_wrap=True)
    for row in document["partitions_by_topic"]:
        console.print(_safe(_row_text(row)), soft_wrap=True)
    for note in document["notes"]:
        console.print(f"[yellow]note:[/yellow] {_safe(note)}", soft_wrap=True)


async def _find(config: Config, wanted: Wanted, say: StepProgress) -> Findings:
    from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
    from tiersidecar.app.builders.store import open_key_ring
    from tiersidecar.app.builders.untouched_store import open_store_untouched
    from tiersidecar.app.mount_plan import MountPlanner
    from tiersidecar.ports.telemetry import NoTelemetry
    from tiersidecar.reading.index_blobs import IndexBlobReader
    from tiersidecar.reading.remote_objects import ManifestCache

    clock, prefix = SystemClock(), config.store.key_prefix
    async with (
        ThreadBlocking(max_threads=2) as blocking,
        open_store_untouched(config, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()) as store,
    ):
        manifests = ManifestCache(
            store=store, blocking=blocking, key_prefix=prefix, key_ring=open_key_ring(config), max_bytes=1
        )
        planner = MountPlanner(
            store=store,
            key_prefix=prefix,
            blobs=IndexBlobReader(store=store, blocking=blocking, manifests=manifests),
            blocking=blocking,
            clock=clock,
            say=say,
        )
        try:
            return await planner.find(wanted)
        finally:
            await manifests.aclose()


def _found_document(found: Findings, out: Path) -> dict[str, Any]:
    from tiersidecar.app.mount_report import deleted_rows, notes_of, rows_of

    rows = rows_of(found)
    return {
        "plan": str(out),
        "former_cluster": found.plan.former_cluster_id,
        "read_only": found.plan.is_read_only,
        "topics": len(found.plan.topics),
        "partitions": sum(len(topic.partitions) for topic in found.plan.topics),
        "segments": sum(row["segments"] for row in rows),
        "as_of": None if found.plan.at_ms is None else moment_text(found.plan.at_ms),
        "groups": 0 if found.cluster is None else len(found.cluster.groups),
        "groups_as_of": None if found.cluster is None else moment_text(found.cluster.written_ms),
        "partitions_by_topic": rows,
        "deleted_topics": deleted_rows(found),
        "notes": notes_of(found),
    }


def _row_text(row: dict[str, Any]) -> str:
    ends = ", ".join(f"{one['partition']}: {one['start']} to {one['end']}" for one in row["ends"][:_SHOWN])
    more = f" and {len(row['ends']) - _SHOWN} more" if len(row["ends"]) > _SHOWN else ""
    return f"{row['topic']}: {len(row['ends'])} partitions, {row['segments']:,} segments, offsets {ends}{more}"


@mount.command("seed", short_help="Prepare a node before its first start.")
def seed(
    plan_file: PlanFile,
    properties: Annotated[
        Path,
        typer.Option(
            "--server-properties", "-s", metavar="FILE", help="The server.properties with which the node will start."
        ),
    ],
    carry_it_out: CarryOut = False,
    as_json: AsJson = False,
) -> None:
    """Put the plan's topics into a formatted node that has never run: a controller's first records, a broker's empty logs.

    Run it on each node of the new cluster, as root or the brokers' user, after `kafka-storage.sh format` and before the first
    start. A node that is running, or has run, is refused. The command creates only what is missing, and may be repeated. A node
    of a read-only mount may have run: logs from lost disks are created again once the new disks are formatted.
    """
    from tiersidecar.app.mount_file import read_plan
    from tiersidecar.app.mount_seed import look_at_node, sow, stopped_node

    console = Console(stderr=True, highlight=False)
    try:
        wanted = read_plan(plan_file)
        with stopped_node(properties):
            found = look_at_node(wanted, properties)
            if carry_it_out:
                sow(found)
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console)) from None
    document = {
        "node": found.node.node_id,
        "cluster": found.cluster_id,
        "partitions": found.partitions,
        "partitions_there_already": found.present,
        "topics_deleted_here": list(found.left_out),
        "controller_there_already": found.is_controller_seeded,
        "steps": found.steps,
        "done": carry_it_out,
    }
    if as_json:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    console.print(f"node {found.node.node_id} of cluster {_safe(found.cluster_id)}", soft_wrap=True)
    for number, step in enumerate(found.steps, 1):
        console.print(f"{number}. {_safe(step)}", soft_wrap=True)
    if found.left_out:
        more = f" and {len(found.left_out) - _SHOWN:,} more" if len(found.left_out) > _SHOWN else ""
        named = _safe(", ".join(found.left_out[:_SHOWN]))
        console.print(f"left out, since this cluster has no such topic any more: {named}{more}", soft_wrap=True)
    console.print(_outcome(bool(found.steps), done=carry_it_out), soft_wrap=True)


def _outcome(has_steps: bool, *, done: bool) -> str:
    if not has_steps:
        return "nothing to do"
    return "[green]done[/green]" if done else "nothing was changed: --carry-out does it"


@mount.command("publish", short_help="Take over the bucket's data, in the running new cluster.")
def publish(
    plan_file: PlanFile,
    config_file: ConfigFile,
    carry_it_out: CarryOut = False,
    despite_contradictions: Annotated[
        bool,
        typer.Option(
            "--despite-contradictions",
            help="Continue although last snapshots cannot be read, or the topics contradict the store.",
        ),
    ] = False,
    cluster_snapshot: ClusterSnapshotKey = None,
    former_cluster_is_gone: Annotated[
        bool,
        typer.Option(
            "--former-cluster-is-gone",
            help="Continue although its sidecars have written snapshots to this bucket in the last ten minutes.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Claim the bucket's data for this cluster, publish the remote segments, end open transactions, restore consumer groups.

    Run it after the brokers have started, and before sidecars and clients start. From then on the former cluster's sidecars
    write nothing, even if they come back. It may be repeated: what is already there is kept. It is refused while the former
    cluster seems to be alive, since it would end that cluster's tiering.
    """
    from tiersidecar.app.mount_file import read_plan
    from tiersidecar.app.mount_publish import MountPublisher

    console = Console(stderr=True, highlight=False)
    try:
        wanted = read_plan(plan_file)
        if wanted.is_read_only:
            raise MountRefusedError(reason=READ_ONLY.format(plan=plan_file))
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console)) from None
    manner = Manner(
        config_file=config_file, yes=carry_it_out, dry_run=not carry_it_out, as_json=as_json, makes_topics=carry_it_out
    )
    carry_out(
        lambda session: _look_at_cluster(
            MountPublisher(
                session,
                wanted,
                manner.progress,
                former_is_gone=former_cluster_is_gone,
                cluster_snapshot=cluster_snapshot,
            ),
            session,
            wanted,
            despite=despite_contradictions,
            acts=carry_it_out,
        ),
        manner,
    )


async def _look_at_cluster(
    publisher: MountPublisher, session: Session, wanted: MountPlan, *, despite: bool, acts: bool
) -> Intent:
    """Return what is published; if it ``acts``, not beside sidecars."""
    from tiersidecar.app.commands.recover import RUNNING, UNREAD, running_sidecars

    session.config.require_one_place("`tiersidecar mount`")
    if acts and (running := running_sidecars(session)):
        return Intent(facts={"sidecars": list(running)}, refusal=RUNNING.format(nodes=", ".join(map(str, running))))
    found = await publisher.look()
    facts = {"topics": len(wanted.topics), "former_cluster": wanted.former_cluster_id}
    if found.faults or found.report is None:
        more = f" (and {len(found.faults) - _SHOWN} more)" if len(found.faults) > _SHOWN else ""
        return Intent(facts=facts, refusal="; ".join(found.faults[:_SHOWN]) + more)
    report = found.report
    refusal = UNREAD if report.unread and not despite else ""
    if report.has_contradictions and not despite:
        refusal = "the topics hold data that contradict the store (see the notes)"
    cluster, to_claim = found.claims.cluster, len(found.claims.to_claim)
    groups = 0 if cluster is None else len(cluster.groups)
    steps = [
        f"have {len(found.leaderless):,} partitions led by their first live replica" if found.leaderless else "",
        f"make the data of {to_claim:,} topics this cluster's in the store" if to_claim else "",
        *report.steps(),
        "end the transactions that are open where the logs continue, and record that everything below is remote",
        f"commit the offsets of {groups:,} consumer groups, where they have none here" if groups else "",
    ]
    notes = [*report.notes()]
    if found.written:
        notes.append(f"{found.written:,} partitions have been written to already")
    if cluster is None:
        notes.append("the bucket has no offsets of consumer groups: they begin by auto.offset.reset")
    else:
        notes.append(f"groups are as of {moment_text(cluster.written_ms)} or later: only changes are written")
    return Intent(
        facts={**facts, **report.facts(), "groups": groups},
        steps=tuple(step for step in steps if step),
        refusal=refusal,
        notes=tuple(notes),
        details=report.details(),
        apply=publisher.apply,
    )


@mount.command("snapshot", short_help="Write topics and group offsets to the store now.")
def snapshot(config_file: ConfigFile, as_json: AsJson = False) -> None:
    """Write a snapshot of the tiered topics' settings and the consumer groups' committed offsets to the store now.

    A sidecar does this regularly (snapshots.cluster.interval.ms). Use the command when you need a current one, such as before a
    rehearsal.
    """
    from tiersidecar.app.cluster_snapshot_now import put_cluster_snapshot

    console = Console(stderr=True, highlight=False)
    try:
        config = load_config(config_file, os.environ)
        log_errors_alone(config.logging)
        with console.status("asking the cluster"):
            document = run_to_end(put_cluster_snapshot(config))
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None
    if as_json:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for name, value in document.items():
        console.print(f"{name.replace('_', ' ')}: {_safe(value)}", soft_wrap=True)


def _safe(value: object) -> str:
    return escape(printable(str(value)))
