"""``tiersidecar ls`` and ``explain``: the segments of a partition, and why each is where it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tiersidecar.app.commands.asking import Answer, KnownSidecar, ask, find_sidecars
from tiersidecar.app.commands.looking import DONE, FOUND, LookAsJson, Sidecar, Timeout, look_at_sidecars
from tiersidecar.app.commands.options import ConfigFile, Target, parse_target
from tiersidecar.app.commands.tables import moment, size, table
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import NoSidecarError

_ABOUT = {"copy": "remote", "trim": "local", "expiry": "kept"}


def ls(
    target: Target,
    config_file: ConfigFile,
    as_json: LookAsJson = False,
    sidecar: Sidecar = None,
    timeout: Timeout = 5.0,
) -> None:
    """List segments: where each is, its offsets, times and sizes.

    Exits with 3 if the leader's sidecar of a partition did not answer.
    """

    def act(config: Config) -> int:
        topic, partition = parse_target(target)
        known = find_sidecars(config, sidecar or ())
        partitions = [partition] if partition is not None else _partitions(known, topic, timeout)
        found = [_of_leader(known, f"/segments?topic={quote(topic)}&partition={one}", timeout) for one in partitions]
        documents = [one for one in found if isinstance(one, Mapping)]
        if as_json:
            typer.echo(json.dumps({"partitions": documents}, indent=2, ensure_ascii=False))
        else:
            typer.echo("\n\n".join(segments_text(document) for document in documents))
        return _complain(topic, partitions, found)

    look_at_sidecars(config_file, act)


def explain(
    target: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION", help="A partition.")],
    config_file: ConfigFile,
    offset: Annotated[
        int | None, typer.Argument(metavar="OFFSET", min=0, help="Only the segment with this offset.")
    ] = None,
    as_json: LookAsJson = False,
    sidecar: Sidecar = None,
    timeout: Timeout = 5.0,
) -> None:
    """Show why a segment is still local, not remote yet, or gone: each rule with its figures, and when that changes.

    Without an offset, it shows the first segment of each kind. The answer comes from the sidecar that decides.
    """

    def act(config: Config) -> int:
        topic, partition = parse_target(target)
        if partition is None:
            raise typer.BadParameter(f"{target} has no partition: TOPIC/PARTITION", param_hint="TOPIC/PARTITION")
        asked = "" if offset is None else f"&offset={offset}"
        known = find_sidecars(config, sidecar or ())
        found = _of_leader(known, f"/explain?topic={quote(topic)}&partition={partition}{asked}", timeout)
        if isinstance(found, Mapping):
            typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else explanation_text(found))
        return _complain(topic, [partition], [found])

    look_at_sidecars(config_file, act)


def _partitions(known: Sequence[KnownSidecar], topic: str, timeout_s: float) -> list[int]:
    answers = ask(known, f"/status?topic={quote(topic)}", timeout_s)
    rows = [row for one in answers if one.code == 200 and one.document for row in one.document["partitions"]]
    if not rows:
        silent = "".join(f"; {one}" for one in _silent(answers))
        raise NoSidecarError(
            reason=f"no sidecar that answers has a tiered topic {topic}: `tiersidecar topics` lists them{silent}"
        )
    return sorted({row["partition"] for row in rows})


def _of_leader(known: Sequence[KnownSidecar], path: str, timeout_s: float) -> Mapping[str, Any] | str:
    """Return the leader's document, or the reason why there is none."""
    return leaders_answer(ask(known, path, timeout_s))


def leaders_answer(answers: Sequence[Answer]) -> Mapping[str, Any] | str:
    """Return the document of the leader's sidecar, or the reasons why there is none, its own first."""
    for answer in answers:
        if answer.code == 200 and answer.document is not None:
            return answer.document
    problems = [(answer.code, answer.problem or str((answer.document or {}).get("problem", ""))) for answer in answers]
    own = [text for code, text in problems if code not in (0, 404)]
    named = [text for code, text in problems if code == 404 and "is led by" in text]
    reasons = own or [*named[:1], *_silent(answers)] or [text for _, text in problems if text][:1]
    return "; ".join(reasons) or "no sidecar leads it"


def _silent(answers: Sequence[Answer]) -> list[str]:
    """Return why each of those has no answer, or one that does not count."""
    names = (
        (one, one.sidecar.address if one.sidecar.node_id is None else f"broker {one.sidecar.node_id}")
        for one in answers
    )
    return [f"{name}: {one.problem}" for one, name in names if one.code == 0]


def _complain(topic: str, partitions: Sequence[int], found: Sequence[Mapping[str, Any] | str]) -> int:
    missing = [(one, why) for one, why in zip(partitions, found, strict=True) if isinstance(why, str)]
    for partition, why in missing:
        typer.echo(f"{topic}/{partition}: no sidecar has the answer: {why}", err=True)
    return FOUND if missing else DONE


def segments_text(document: Mapping[str, Any]) -> str:
    """Return the segments of a partition as a table below a line with their counts."""
    rows = document["segments"]
    columns = ("state", "first", "last", "size", "newest record", "copied or changed", "written", "segment id")
    lines = [
        (
            row["state"] + (", pinned" if row["pinned"] and row["state"] != "pinned" else ""),
            row["start_offset"],
            row["end_offset"],
            size(row["size_bytes"]),
            moment(row["max_timestamp_ms"]),
            moment(row["remote_event_ms"]),
            moment(row["modified_ms"]),
            row["segment_id"],
        )
        for row in rows
    ]
    counts = {
        state: sum(row["state"] == state for row in rows) for state in dict.fromkeys(row["state"] for row in rows)
    }
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    head = f"{document['topic']}/{document['partition']}: {len(rows)} segments" + (f" ({total})" if total else "")
    return f"{head}\n{table(columns, lines)}" if rows else head


def explanation_text(document: Mapping[str, Any]) -> str:
    """Return a paragraph for each segment, with a line for each rule."""
    if document["missing"]:
        return f"{document['topic']}/{document['partition']}: {document['missing']}"
    return "\n\n".join(_account_text(one) for one in document["accounts"]) or "it has no segment"


def _account_text(account: Mapping[str, Any]) -> str:
    row, count = account["segment"], account["segments"]
    offsets = (
        f"from offset {row['start_offset']}"
        if row["end_offset"] is None
        else f"offsets {row['start_offset']} to {row['end_offset']}"
    )
    more = f", the first of {count} such segments" if count > 1 else ""
    head = f"{offsets} ({size(row['size_bytes'])}): {row['state']}{more}"
    return "\n".join([head, *(f"  {_ABOUT[one['about']]}: {_finding_text(one)}" for one in account["findings"])])


def _finding_text(finding: Mapping[str, Any]) -> str:
    when = moment(finding["changes_ms"])
    return str(finding["says"]) + (
        f" -> until {when}" if when else " -> with the next round" if finding["is_due"] else ""
    )
