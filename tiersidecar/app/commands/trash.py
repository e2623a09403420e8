"""``tiersidecar trash``: list what was given up and is not deleted yet, delete it now, or export it as files."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.complaints import complain, log_errors_alone
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Yes, parse_target
from tiersidecar.app.commands.tables import table
from tiersidecar.app.config.config import load_config
from tiersidecar.decide.trash import purged_deletes
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.errors import TiersidecarError, TrashError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.offsets import Lineage
from tiersidecar.domain.readable import printable
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import BY_NAME, TrashEntry, TrashKind

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session

trash = typer.Typer(
    name="trash",
    help="Data that will be deleted and can still be restored.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class ExportFormat(StrEnum):
    """Form of exported files: ``RAW`` is record batches as in segment files, ``NDJSON`` a JSON document per record."""

    RAW = "raw"
    NDJSON = "ndjson"


@trash.command("ls", short_help="List what is in the trash.")
def ls(
    config_file: ConfigFile,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only of this topic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List what will be deleted, with author, reason and due time.

    A deleted topic is listed with its id, which `trash export` takes.
    """

    async def look(session: Session) -> None:
        rows = await listed(session, topic)
        typer.echo(json.dumps({"entries": rows}, indent=2, ensure_ascii=False) if as_json else _table(rows))

    _run(config_file, look)


@trash.command("purge", short_help="Delete what is in the trash now.")
def purge(
    target: Annotated[str, typer.Argument(metavar="TOPIC[/PARTITION]", help="A topic, also a deleted one.")],
    config_file: ConfigFile,
    topic_id: Annotated[
        str | None, typer.Option("--topic-id", metavar="ID", help="Only of the topic with this id.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete the trash of a topic or partition now, without waiting until it is due. This cannot be undone.

    The leader's sidecar does it in its next round. Data that is deleted later waits as usual.
    """
    topic, partition = parse_target(target)
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_purge(session, topic, partition, topic_id), manner)


@trash.command("export", short_help="Write a deleted topic's remote log back as files.")
def export(
    topic_id: Annotated[str, typer.Option("--topic-id", metavar="ID", help="As `trash ls` shows it.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", file_okay=False, help="Directory; created if missing.")],
    config_file: ConfigFile,
    form: Annotated[ExportFormat, typer.Option("--format", help="raw: record batches; ndjson: a line per record.")] = (
        ExportFormat.RAW
    ),
) -> None:
    """Write the remote data of a topic into files, in a directory per partition, with its offsets.

    raw writes segment files named by their base offset, as kafka-dump-log reads them.
    """

    async def write(session: Session) -> None:
        from tiersidecar.app.trash_export import export_topic

        for line in await export_topic(session, _parsed(topic_id), to, as_ndjson=form is ExportFormat.NDJSON):
            typer.echo(printable(line))

    _run(config_file, write)


def _run(config_file: Path, act: Callable[[Session], Awaitable[None]]) -> None:
    console = Console(stderr=True, highlight=False)
    try:
        config = load_config(config_file, os.environ)
        log_errors_alone(config.logging)

        async def run() -> None:
            from tiersidecar.app.commands.session import open_session

            async with open_session(config, with_metadata=True) as session:
                await act(session)

        run_to_end(run())
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None


def _parsed(topic_id: str) -> Uuid:
    try:
        return parse_uuid(topic_id)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


async def listed(session: Session, topic: str | None) -> list[dict[str, Any]]:
    """Return a row for each entry, with the segments that it keeps in the store."""
    partitions = sorted(
        topic_id_partition
        for topic_id_partition in session.state.trash_partitions()
        if topic in (None, topic_id_partition.topic)
    )
    rows = []
    for topic_id_partition in partitions:
        segments = (await session.remote_segments([topic_id_partition]))[topic_id_partition]
        state = session.state.partition_state(topic_id_partition)
        counted = set[Uuid]()
        for entry in session.state.trash(topic_id_partition):
            held = [
                segment
                for segment in waiting(entry, segments, start_offset=state.highest_start)
                if segment.remote_log_segment_id.uuid not in counted
            ]
            counted |= {segment.remote_log_segment_id.uuid for segment in held}
            rows.append(_row(session, topic_id_partition, entry, held, is_void=entry.is_undone(state.start_generation)))
    return rows


def waiting(
    entry: TrashEntry, segments: Iterable[RemoteLogSegmentMetadata], *, start_offset: int
) -> list[RemoteLogSegmentMetadata]:
    """Return the finished segments that the entry covers; for an entry with an offset, those below the start."""
    finished = [segment for segment in segments if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    covered = [one for one in finished if entry.covers(one, Lineage.of([]))]
    if entry.kind in BY_NAME or entry.kind in {TrashKind.TOPIC, TrashKind.DISABLE}:
        return covered
    return [one for one in covered if one.end_offset < start_offset]


def _row(
    session: Session,
    topic_id_partition: TopicIdPartition,
    entry: TrashEntry,
    held: Sequence[RemoteLogSegmentMetadata],
    *,
    is_void: bool,
) -> dict[str, Any]:
    is_due = TrashTime(now_ms=session.clock.now_ms()).is_due(entry)
    state = "undone" if is_void else "purged" if entry.is_purged else "due" if is_due else "waiting"
    return {
        "topic": topic_id_partition.topic,
        "topic_id": format_uuid(topic_id_partition.topic_id),
        "partition": topic_id_partition.partition,
        "kind": entry.kind.value,
        "up_to": entry.up_to if entry.up_to >= 0 else None,
        "segments": len(held),
        "bytes": sum(segment.segment_size_in_bytes for segment in held),
        "state": state,
        "decided": _iso(entry.decided_ms),
        "due": _iso(entry.due_ms),
        "by": entry.all_by,
        "deciders": [
            {
                "by": decision.by,
                "decided": _iso(decision.decided_ms),
                "up_to": decision.up_to if decision.up_to >= 0 else None,
            }
            for decision in entry.decisions
        ],
        "reason": entry.reason,
    }


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat().replace("+00:00", "Z")


_COLUMNS = ("topic", "partition", "kind", "up_to", "segments", "bytes", "state", "due", "topic_id", "by", "reason")


def _table(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "the trash is empty"
    return table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])


async def look_at_purge(session: Session, topic: str, partition: int | None, topic_id: str | None) -> Intent:
    """Return what is in the trash of the topic or partition."""
    wanted = None if topic_id is None else _parsed(topic_id)
    partitions = [
        topic_id_partition
        for topic_id_partition in sorted(session.state.trash_partitions())
        if topic_id_partition.topic == topic
        and partition in (None, topic_id_partition.partition)
        and wanted in (None, topic_id_partition.topic_id)
    ]
    if not partitions:
        raise TrashError(subject=topic, reason="nothing of it is in the trash: `tiersidecar trash ls` lists what is")
    steps, entries = (
        [],
        {topic_id_partition: _unpurged(session, topic_id_partition) for topic_id_partition in partitions},
    )
    for topic_id_partition, known in entries.items():
        if not known:
            continue
        segments = (await session.remote_segments([topic_id_partition]))[topic_id_partition]
        start_offset = session.state.partition_state(topic_id_partition).highest_start
        going = {
            one.remote_log_segment_id: one
            for entry in known
            for one in waiting(entry, segments, start_offset=start_offset)
        }
        size_bytes = sum(one.segment_size_in_bytes for one in going.values())
        steps.append(
            f"{topic_id_partition} ({format_uuid(topic_id_partition.topic_id)}): {len(going)} remote segments "
            f"({size_bytes} bytes) are deleted now, for good"
        )

    async def apply() -> None:
        for topic_id_partition, known in entries.items():
            await _purge(session, topic_id_partition, known)

    return Intent(facts={"topic": topic, "partitions": len(partitions)}, steps=tuple(steps), apply=apply)


async def _purge(session: Session, topic_id_partition: TopicIdPartition, entries: Sequence[TrashEntry]) -> None:
    """Make users' deletes final first, so that a new delete shares no entry with them; then mark the entries as purged."""
    from tiersidecar.ports.state_log import PartitionState

    known = session.state.partition_state(topic_id_partition)
    final = purged_deletes(entries, known.user_deletes)
    if final:
        said = PartitionState(start_generation=known.start_generation, user_deletes=final)
        await session.state.publish_partition_state(topic_id_partition, said)
    await session.state.put_into_trash(
        topic_id_partition, [replace(entry, purged_ms=entry.decided_ms) for entry in entries]
    )


def _unpurged(session: Session, topic_id_partition: TopicIdPartition) -> list[TrashEntry]:
    generation = session.state.partition_state(topic_id_partition).start_generation
    return [
        one for one in session.state.trash(topic_id_partition) if not one.is_purged and not one.is_undone(generation)
    ]
