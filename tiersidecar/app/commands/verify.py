"""``tiersidecar verify``: read remote segments back from the store, and report whether each is sound.

Exit codes: 0 all are sound, 3 one is not, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tiersidecar.adapters.ending_loop import run_to_end
from tiersidecar.app.commands.looking import DONE, FOUND, look
from tiersidecar.app.commands.options import ConfigFile, parse_target, quantity
from tiersidecar.app.config.config import Config
from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.domain.readable import printable, size_text

if TYPE_CHECKING:  # adapters are slow to import, and --help needs none
    from tiersidecar.app.verify_run import Listener
    from tiersidecar.reconcile.verify import Verified

Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="TOPIC, TOPIC/PARTITION, or SEGMENT: an id as `tiersidecar ls` shows it."),
]
Rate = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE", parser=quantity("bytes", at_least=1), help="Maximum rate of reads per second, such as 50MiB."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON for each segment once it is checked.")]


def verify(target: Target, config_file: ConfigFile, rate: Rate = None, as_json: AsJson = False) -> None:
    """Read remote segments back from the store, whole, and check everything that can be checked.

    The manifest must agree with the metadata, and all objects must have their sizes. Every chunk must decode, and every batch
    must have the right checksum, offsets and leader epoch. Index entries must match their batches. Transaction index and
    producer snapshot must have everything that the batches imply. These are the checks of `reconcile --deep`. Changes nothing.
    Exit codes: 0 all are sound, 3 one is not, 1 failed, 2 wrong usage.
    """
    topic, partition = parse_target(target)

    def act(config: Config) -> int:
        from tiersidecar.app.verify_run import Target as Wanted
        from tiersidecar.app.verify_run import verify_segments

        wanted = Wanted(name=topic, partition=partition, may_be_segment=partition is None and _is_id(topic))
        with _listening(as_json=as_json) as listener:
            not_sound = run_to_end(verify_segments(config, wanted, rate, listener))
        return FOUND if not_sound else DONE

    look(config_file, act)


def _is_id(text: str) -> bool:
    try:
        return format_uuid(parse_uuid(text)) == text
    except ValueError:
        return False


@contextmanager
def _listening(*, as_json: bool) -> Iterator[Listener]:
    """Print results on standard output; progress (on a terminal) and totals on standard error."""
    from tiersidecar.app.verify_run import Listener

    console = Console(stderr=True, highlight=False)
    progress = Progress(
        TextColumn("{task.fields[done]} of {task.fields[count]} segments"),
        BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    running = progress.add_task("", done=0, count=0)
    verdicts: list[str] = []
    read_bytes = 0

    def begin(count: int, total_bytes: int) -> None:
        progress.update(running, total=total_bytes, count=count)

    def read(count: int) -> None:
        nonlocal read_bytes
        read_bytes = count
        progress.update(running, completed=count)

    def verified(one: Verified) -> None:
        verdicts.append(one.verdict)
        progress.update(running, done=len(verdicts))
        typer.echo(json.dumps(document(one), ensure_ascii=False) if as_json else text(one))

    with progress:
        yield Listener(begin=begin, read=read, verified=verified)
    if not as_json:
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
        read_text = f"{size_text(read_bytes)} read"
        console.print(f"{len(verdicts)} segments{f': {counts}' if counts else ''}; {read_text}", soft_wrap=True)


def document(one: Verified) -> dict[str, Any]:
    """Return a segment as ``--json`` prints it: sizes in bytes, offsets inclusive."""
    topic_id_partition = one.segment.topic_id_partition
    return {
        "topic": topic_id_partition.topic,
        "topic_id": format_uuid(topic_id_partition.topic_id),
        "partition": topic_id_partition.partition,
        "segment_id": format_uuid(one.segment.remote_log_segment_id.uuid),
        "start_offset": one.segment.start_offset,
        "end_offset": one.segment.end_offset,
        "size_bytes": one.segment.segment_size_in_bytes,
        "read_bytes": one.read_bytes,
        "verdict": one.verdict.value,
        "findings": [
            {"kind": found.kind.value, "key": found.key, "detail": found.detail, "action": found.action.value}
            for found in one.findings
        ],
    }


def text(one: Verified) -> str:
    """Return a line for the segment, and one for each finding."""
    topic_id_partition, segment = one.segment.topic_id_partition, one.segment
    name = (
        f"{topic_id_partition.topic}/{topic_id_partition.partition} {format_uuid(segment.remote_log_segment_id.uuid)}"
    )
    size = size_text(segment.segment_size_in_bytes)
    lines = [f"{one.verdict:10}  {name}  offsets {segment.start_offset} to {segment.end_offset}, {size}"]
    lines += [f"  {found.kind}: {found.key}: {found.detail} -> {found.action}" for found in one.findings]
    return "\n".join(map(printable, lines))
