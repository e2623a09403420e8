"""``tiersidecar trash``: what is decided to be deleted and not done yet: list it, delete it now, write it back as files."""

from __future__ import annotations

import asyncio
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

from tiersidecar.app.commands.carry_out import Intent, Manner, carry_out
from tiersidecar.app.commands.complaints import complain
from tiersidecar.app.commands.options import AsJson, ConfigFile, DryRun, Yes
from tiersidecar.app.commands.tables import table
from tiersidecar.app.commands.undelete import parse_target
from tiersidecar.app.config.config import load_config
from tiersidecar.app.logging import configure_logging
from tiersidecar.decide.trash import purged_deletes
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import TiersidecarError, TrashError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.readable import printable
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import BY_NAME, TrashEntry, TrashKind

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session

trash = typer.Typer(
    name="trash", help="What is decided to be deleted, and is not yet.", no_args_is_help=True, rich_markup_mode=None
)


class ExportFormat(StrEnum):
    """``RAW``: record batches, as the broker's segment files have them.  ``NDJSON``: one JSON document a record."""

    RAW = "raw"
    NDJSON = "ndjson"


@trash.command("ls", short_help="List what is in the trash.")
def ls(
    config_file: ConfigFile,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only of this topic.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List what was decided to be deleted and is not yet, with who decided it, why, and when it is due.

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
    """Delete what is in the trash of a topic or partition now, without waiting until it is due. It cannot be undone.

    The leader's sidecar does it in its next round. What is decided later waits as ever.
    """
    topic, partition = parse_target(target)
    manner = Manner(config_file=config_file, yes=yes, dry_run=dry_run, as_json=as_json)
    carry_out(lambda session: look_at_purge(session, topic, partition, topic_id), manner)


@trash.command("export", short_help="Write a deleted topic's remote log back as files.")
def export(
    topic_id: Annotated[str, typer.Option("--topic-id", metavar="ID", help="As `trash ls` shows it.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", file_okay=False, help="Directory; made if missing.")],
    config_file: ConfigFile,
    form: Annotated[ExportFormat, typer.Option("--format", help="raw: record batches; ndjson: a line a record.")] = (
        ExportFormat.RAW
    ),
) -> None:
    """Write what is remote of a topic into files, a directory a partition, at its offsets.

    raw gives segment files that begin with their base offset, as kafka-dump-log reads them.
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
        configure_logging(config.logging.model_copy(update={"level": "error"}))

        async def run() -> None:
            from tiersidecar.app.commands.session import open_session

            async with open_session(config, with_metadata=True) as session:
                await act(session)

        asyncio.run(run())
    except TiersidecarError as error:
        raise typer.Exit(complain(error, console, config_file)) from None


def _parsed(topic_id: str) -> Uuid:
    try:
        return parse_uuid(topic_id)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


async def listed(session: Session, topic: str | None) -> list[dict[str, Any]]:
    """Every entry, with what it holds back of the store."""
    partitions = sorted(tip for tip in session.state.trash_partitions() if topic in (None, tip.topic))
    rows = []
    for tip in partitions:
        segments = (await session.remote_segments([tip]))[tip]
        state = session.state.partition_state(tip)
        counted = set[Uuid]()
        for entry in session.state.trash(tip):
            held = [
                one
                for one in waiting(entry, segments, start_offset=state.highest_start)
                if one.remote_log_segment_id.uuid not in counted
            ]
            counted |= {one.remote_log_segment_id.uuid for one in held}
            rows.append(_row(session, tip, entry, held, is_void=entry.is_undone(state.start_generation)))
    return rows


def waiting(
    entry: TrashEntry, segments: Iterable[RemoteLogSegmentMetadata], *, start_offset: int
) -> list[RemoteLogSegmentMetadata]:
    """Of ``segments`` those that are finished and that the entry speaks of, below the start where it speaks of offsets."""
    finished = [one for one in segments if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    covered = [one for one in finished if entry.covers(one, Lineage.of([]))]
    if entry.kind in BY_NAME or entry.kind in {TrashKind.TOPIC, TrashKind.DISABLE}:
        return covered
    return [one for one in covered if one.end_offset < start_offset]


def _row(
    session: Session,
    tip: TopicIdPartition,
    entry: TrashEntry,
    held: Sequence[RemoteLogSegmentMetadata],
    *,
    is_void: bool,
) -> dict[str, Any]:
    is_due = TrashTime(now_ms=session.clock.now_ms()).is_due(entry)
    state = "undone" if is_void else "purged" if entry.is_purged else "due" if is_due else "waiting"
    return {
        "topic": tip.topic,
        "topic_id": format_uuid(tip.topic_id),
        "partition": tip.partition,
        "kind": entry.kind.value,
        "up_to": entry.up_to if entry.up_to >= 0 else None,
        "segments": len(held),
        "bytes": sum(one.segment_size_in_bytes for one in held),
        "state": state,
        "decided": _iso(entry.decided_ms),
        "due": _iso(entry.due_ms),
        "by": entry.all_by,
        "deciders": [
            {"by": one.by, "decided": _iso(one.decided_ms), "up_to": one.up_to if one.up_to >= 0 else None}
            for one in entry.decisions
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
    """What is in the trash of it."""
    wanted = None if topic_id is None else _parsed(topic_id)
    partitions = [
        tip
        for tip in sorted(session.state.trash_partitions())
        if tip.topic == topic and partition in (None, tip.partition) and wanted in (None, tip.topic_id)
    ]
    if not partitions:
        raise TrashError(subject=topic, reason="nothing of it is in the trash")
    steps, entries = [], {tip: _unpurged(session, tip) for tip in partitions}
    for tip, known in entries.items():
        if not known:
            continue
        segments = (await session.remote_segments([tip]))[tip]
        start_offset = session.state.partition_state(tip).highest_start
        going = {
            one.remote_log_segment_id: one
            for entry in known
            for one in waiting(entry, segments, start_offset=start_offset)
        }
        size_bytes = sum(one.segment_size_in_bytes for one in going.values())
        steps.append(
            f"{tip} ({format_uuid(tip.topic_id)}): {len(going)} remote segments ({size_bytes} bytes) are deleted now, for good"
        )

    async def apply() -> None:
        for tip, known in entries.items():
            await _purge(session, tip, known)

    return Intent(facts={"topic": topic, "partitions": len(partitions)}, steps=tuple(steps), apply=apply)


async def _purge(session: Session, tip: TopicIdPartition, entries: Sequence[TrashEntry]) -> None:
    """What users deleted is final first: a delete of theirs that comes now shares no entry with it."""
    from tiersidecar.ports.state_log import PartitionState

    known = session.state.partition_state(tip)
    final = purged_deletes(entries, known.user_deletes)
    if final:
        said = PartitionState(start_generation=known.start_generation, user_deletes=final)
        await session.state.publish_partition_state(tip, said)
    await session.state.put_into_trash(tip, [replace(entry, purged_ms=entry.decided_ms) for entry in entries])


def _unpurged(session: Session, tip: TopicIdPartition) -> list[TrashEntry]:
    generation = session.state.partition_state(tip).start_generation
    return [one for one in session.state.trash(tip) if not one.is_purged and not one.is_undone(generation)]
