"""``tiersidecar erase``: rewrite a topic's remote log without the records of given keys, and prove it."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiersidecar.app.commands.carry_out import Intent, Manner, StepProgress, carry_out
from tiersidecar.app.commands.options import ConfigFile, quantity
from tiersidecar.app.commands.plain_text import scratch_of_command
from tiersidecar.decide.erasure import Erasing, ErasureStep
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tiersidecar.app.commands.session import Session
    from tiersidecar.app.erase_partition import ErasedSegment, PartitionErasure
    from tiersidecar.app.erase_run import Eraser

_SHOWN = 50
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

ELSEWHERE = (
    "the logs of the brokers: what a segment file has below its log's start goes with the file, and until then a next leader "
    "may copy it again with the rest of the file",
    "pins: links to segment files, until what they hold is remote and unpinned",
    "caches of gateways and read services: chunks of the old segments, until half a minute after these are deleted; on the "
    "disk of one that does not run, until it is started again; of `tiersidecar serve`, until other chunks take their place",
    "clusters that have mounted the bucket, and copies of the bucket",
    "earlier versions of objects, where the bucket keeps versions or holds deletes",
)
"""Where copies may remain that no command of the sidecar reaches."""

ELSEWHERE_OF_COMPACTED = (
    "the logs of the brokers, of which nothing is trimmed: what has one of the keys goes there once the brokers' cleaner has "
    "passed a later record, such as a tombstone, of that key; what has it and is not copied yet is copied with the rest",
    *ELSEWHERE[1:],
)
"""The same for a compacted topic."""


class KeyFormat(StrEnum):
    """How a line of the file gives a key."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


KeysFile = Annotated[
    Path,
    typer.Option(
        "--keys", metavar="FILE", exists=True, dir_okay=False, readable=True, help="The keys, one on each line."
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Directory for one rewritten segment at a time; else the system's for such files.",
    ),
]
Settle = Annotated[
    int,
    typer.Option(
        metavar="TIME",
        parser=quantity("ms", 0),
        help="Time for brokers to write where their logs start: more than log.flush.start.offset.checkpoint.interval.ms. For "
        "compacted topics the time in which the cleaner ends what it had begun: 30 s or more.",
    ),
]


def erase(
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic's name.")],
    keys_file: KeysFile,
    config_file: ConfigFile,
    key_format: Annotated[KeyFormat, typer.Option(help="How a line gives a key.")] = KeyFormat.TEXT,
    scratch: Scratch = None,
    settle: Settle = "75s",  # type: ignore[assignment]
    carry: Annotated[
        bool, typer.Option("--carry-out", help="Do it; without this option only show what would be done.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Erase all records with given keys from the remote log of a topic.

    Every remote segment is read. Those that have such records are rewritten without them under new ids: all other records keep
    offset, time, headers and producer. The old segments go into the trash for user.delete.delay, or until `trash purge`. They
    are not read any more, and no undelete brings them back. What brokers still hold locally is not rewritten: the report names
    it, and the command can be run again once it is trimmed. Of a compacted topic all that is remote is rewritten, and what is
    copied later is left to another run. Exit code 3: done, but segments remain that may have such records.
    """
    keys = read_keys(keys_file, key_format)
    progress = StepProgress()
    manner = Manner(
        config_file=config_file, yes=carry, dry_run=not carry, as_json=as_json, makes_topics=carry, progress=progress
    )
    with scratch_of_command(scratch, "tiersidecar-erase-", manner.console) as directory:
        wanted = Wanted(topic=topic, keys=keys, scratch=directory, progress=progress, settle_s=settle / 1000)
        carry_out(lambda session: look_at_erasure(session, wanted), manner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The operator's request."""

    topic: str
    keys: Mapping[bytes, int]
    """With the line of the file that names each first: reports name lines, never keys."""
    scratch: Path
    progress: Callable[[str], None] = field(default=lambda text: None)
    settle_s: float = 0.0


def read_keys(path: Path, form: KeyFormat) -> dict[bytes, int]:
    """Return the keys of a file, each with the first line that names it.

    Raises:
        typer.BadParameter: a line is empty, blank or none of this format, or there is none; the file begins with a byte-order
            mark, or has a NUL as text.
    """
    keys: dict[bytes, int] = {}
    try:
        for number, line in enumerate(_lines(path), start=1):
            keys.setdefault(_key(line, number, form), number)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--keys") from None
    if not keys:
        raise typer.BadParameter(f"{path} names no key", param_hint="--keys")
    return keys


def _lines(path: Path) -> Iterator[bytes]:
    for line in path.read_bytes().removesuffix(b"\n").split(b"\n"):
        yield line.removesuffix(b"\r")


def _key(line: bytes, number: int, form: KeyFormat) -> bytes:
    if not line:
        raise typer.BadParameter(f"line {number} is empty", param_hint="--keys")
    if number == 1 and line.startswith(_BYTE_ORDER_MARKS):
        raise typer.BadParameter("line 1 begins with a byte-order mark: save the file without it", param_hint="--keys")
    if b"\0" in line:
        raise typer.BadParameter(f"line {number} has a NUL: give such a key as hex or base64", param_hint="--keys")
    if form is not KeyFormat.TEXT and not line.strip():
        raise typer.BadParameter(f"line {number} is blank", param_hint="--keys")
    try:
        match form:
            case KeyFormat.TEXT:
                line.decode()
                return line
            case KeyFormat.HEX:
                return bytes.fromhex(line.decode("ascii"))
            case KeyFormat.BASE64:
                return base64.b64decode(line, validate=True)
    except (ValueError, binascii.Error) as error:
        # The line itself is nothing for a log or a terminal.
        reason = f"line {number} is no key in the format {form}: {type(error).__name__}"
        raise typer.BadParameter(reason, param_hint="--keys") from None


async def look_at_erasure(session: Session, wanted: Wanted) -> Intent:
    """Return which segments have such records, and what becomes of each."""
    from tiersidecar.app.erase_run import Eraser

    facts = {"topic": wanted.topic, "keys": len(wanted.keys)}
    if refused := await _refusal(session, wanted):
        return Intent(facts=facts, refusal=refused)
    eraser = Eraser(
        session,
        wanted.keys.keys(),
        wanted.scratch,
        progress=wanted.progress,
        failpoints=_failpoints(),
        settle_s=wanted.settle_s,
    )
    found = await eraser.look(wanted.topic)
    not_found = sorted(line for key, line in wanted.keys.items() if key not in eraser.found_keys)
    doing = [step for one in found for step in one.of(Erasing.REWRITE, Erasing.RETIRE)]
    steps = [_sentence(one, step) for one in found for step in one.of(Erasing.REWRITE, Erasing.RETIRE)]
    return Intent(
        facts=facts
        | {
            "keys_found": len(wanted.keys) - len(not_found),
            "segments": sum(len(one.records) for one in found),
            "records": sum(sum(one.records.values()) for one in found),
            "rewrite": sum(step.erasing is Erasing.REWRITE for step in doing),
            "retire": sum(step.erasing is Erasing.RETIRE for step in doing),
        },
        steps=tuple(_most(steps)),
        notes=(*_missing(not_found), *_most(_notes(found))),
        details={
            "keys_not_found_lines": not_found,
            "partitions": [_partition(one) for one in found],
            "remaining": (remaining := _all_remaining(found)),
            "not_looked_at": [_local(one) for one in found],
            "held_by_brokers": [_held(one) for one in found],
            "copies_may_remain": list(ELSEWHERE_OF_COMPACTED if _is_compacted(found) else ELSEWHERE),
        },
        apply=lambda: _do(session, eraser, found, wanted.topic),
        complete=not steps and not remaining,
    )


def _failpoints() -> Any:
    from tiersidecar.adapters.failpoints import EnvironmentFailpoints

    return EnvironmentFailpoints.from_environment()


async def _refusal(session: Session, wanted: Wanted) -> str:
    """Return why nothing of the topic may be erased; "" if it may."""
    from tiersidecar.app.deletion_doubts import is_native, reason_not_to_delete
    from tiersidecar.decide.topics import is_compacted
    from tiersidecar.domain.lease import reason_to_wait_for_sidecars
    from tiersidecar.domain.policy import PauseKind
    from tiersidecar.tasks.rewriting_commands import CLEANER_FINISHES_WITHIN_S, LEAST_SETTLE_S

    topic = wanted.topic
    view = (await session.partitions(topic))[0]
    topic_id = view.topic_id_partition.topic_id
    policy = session.policy(topic, topic_id)
    configs = (await session.broker.describe_topic_configs([topic])).get(topic, {})
    if policy is None:
        return f"topic {topic} is not tiered"
    if policy.delete_remote:
        return "all that is remote of the topic is being deleted"
    if is_compacted(configs) and not session.config.compaction_enabled:
        return "cleanup.policy has compact, and compacted topics are tiered with compaction.enabled alone"
    if is_compacted(configs) and wanted.settle_s < LEAST_SETTLE_S:
        return (
            f"--settle is {wanted.settle_s:g} s, and a compacted topic needs {LEAST_SETTLE_S} s at least: the cleaner may "
            f"finish what it had begun up to {CLEANER_FINISHES_WITHIN_S} s after it last looked whether a command acts"
        )
    if await is_native(session, topic):
        return "the broker tiers the topic itself: its segments are its own"
    if not session.config.deletes_enabled:
        return "deletes.enabled is false in the configuration: an erasure deletes"
    if reason := (reason_not_to_delete(session) or "") or session.state.why_paused(topic_id, PauseKind.COPIES):
        return reason
    # One of a former release knows nothing of this kind of entry in the trash, and could take what is replaced for live.
    brokers = (await session.broker.describe_cluster()).brokers
    return reason_to_wait_for_sidecars(brokers, session.state.lease, session.config.deletes_brokers_without_sidecar)


def _sentence(partition: PartitionErasure, step: ErasureStep) -> str:
    segment, count = step.segment, partition.records[step.segment.remote_log_segment_id.uuid]
    what = (
        "rewritten without them under a new id"
        if step.erasing is Erasing.REWRITE
        else "other segments hold its offsets without them"
    )
    return (
        f"partition {partition.owner.partition}: segment {_name(segment)}, offsets {segment.start_offset} to "
        f"{segment.end_offset}: {count} records; {what}, then it goes into the trash"
    )


def _missing(lines: Sequence[int]) -> Iterator[str]:
    if lines:
        some = ", ".join(map(str, lines[:_SHOWN])) + (f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else "")
        yield f"no record that was read has the key of line {some} of the file"


def _notes(found: Sequence[PartitionErasure]) -> Iterator[str]:
    for one in found:
        name = f"partition {one.owner.partition}"
        for segment, reason in _remaining(one):
            yield f"{name}: left alone, segment {_name(segment)}: {reason}"
        in_trash = one.of(Erasing.IN_TRASH)
        if in_trash:
            yield f"{name}: {len(in_trash)} segments with such records are in the trash: {in_trash[0].reason}"
        if one.seen.is_compacted:
            yield (
                f"{name}: what is copied from offset {one.seen.remote_end} on is not erased: run this command again then. The "
                "brokers keep the log themselves; write a tombstone for each key, and their cleaner takes its records out"
            )
        elif one.seen.local_start >= 0:
            yield (
                f"{name}: from offset {one.seen.local_start} on the brokers hold the log themselves; nothing of it is erased "
                "until it is remote and trimmed: then run this command again"
            )
        else:
            yield f"{name}: what the brokers hold of the log themselves is not erased, and where that begins is not known"


def _remaining(partition: PartitionErasure) -> list[tuple[RemoteLogSegmentMetadata, str]]:
    """Return segments that have, or may have, such records and are left alone."""
    return [*((step.segment, step.reason) for step in partition.of(Erasing.LEAVE)), *partition.unread]


def _all_remaining(found: Sequence[PartitionErasure]) -> list[dict[str, Any]]:
    return [
        {"partition": one.owner.partition, **_offsets(segment), "reason": reason}
        for one in found
        for segment, reason in _remaining(one)
    ]


def _local(partition: PartitionErasure) -> dict[str, Any]:
    """Return from where on nothing is looked at: of a compacted topic what is not remote yet, of others what the brokers hold
    themselves; None where that is not known."""
    seen = partition.seen
    start = seen.remote_end if seen.is_compacted else seen.local_start
    return {"partition": partition.owner.partition, "from_offset": start if start >= 0 else None}


def _held(partition: PartitionErasure) -> dict[str, Any]:
    """Return from where on the brokers hold the log themselves, whatever was erased remotely; None where that is not known."""
    start = partition.seen.local_start
    return {"partition": partition.owner.partition, "from_offset": start if start >= 0 else None}


def _is_compacted(found: Iterable[PartitionErasure]) -> bool:
    return any(one.seen.is_compacted for one in found)


def _partition(partition: PartitionErasure) -> dict[str, Any]:
    return {
        "partition": partition.owner.partition,
        "local_start_offset": partition.seen.local_start,
        "log_start_offsets": {str(broker): start for broker, start in sorted(partition.seen.log_starts.items())},
        "segments_read": len(partition.records),
        "segments": [
            {**_offsets(step.segment), "records": partition.records[step.segment.remote_log_segment_id.uuid]}
            | {"step": step.erasing.value, "reason": step.reason}
            for step in partition.steps
        ],
        "unread": [{**_offsets(segment), "reason": reason} for segment, reason in partition.unread],
    }


def _offsets(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    return {
        "segment_id": _name(segment),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "bytes": segment.segment_size_in_bytes,
    }


async def _do(session: Session, eraser: Eraser, found: Sequence[PartitionErasure], topic: str) -> Mapping[str, Any]:
    """Apply, and return the proof."""
    result = await eraser.apply(found)
    found = result.found
    remaining = _all_remaining(found) + [
        {"partition": step.segment.topic_id_partition.partition, **_offsets(step.segment), "reason": reason}
        for step, reason in result.left
    ]
    return {
        "complete": not remaining,
        "erased_records": sum(one.records for one in result.erased),
        "erased": [_proof(one) for one in result.erased],
        "remaining": remaining,
        "trash": list(_trash(session, found)),
        "not_looked_at": [_local(one) for one in found],
        "then": f"tiersidecar trash purge {topic}  # does not wait until they are due",
    }


def _proof(one: ErasedSegment) -> dict[str, Any]:
    old, rewritten = one.step.segment, one.rewritten
    proof: dict[str, Any] = {
        "partition": old.topic_id_partition.partition,
        **_offsets(old),
        "step": one.step.erasing.value,
        "records": one.records,
    }
    if one.new is not None and rewritten is not None:
        proof |= {
            "new_segment_id": _name(one.new),
            "new_bytes": one.new.segment_size_in_bytes,
            "records_kept": rewritten.tally.records_kept,
            "batches": rewritten.tally.batches_kept,
            "batches_untouched": rewritten.tally.untouched_batches,
            "sha256_before": rewritten.digest_before,
            "sha256_after": rewritten.digest_after,
            "read_back": True,
        }
    return proof


def _trash(session: Session, found: Iterable[PartitionErasure]) -> Iterator[dict[str, Any]]:
    from tiersidecar.app.erase_partition import erasures_in_trash

    for one in found:
        for entry in erasures_in_trash(session, one):
            due = datetime.fromtimestamp(entry.due_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
            yield {
                "partition": one.owner.partition,
                "segment_ids": sorted(format_uuid(uuid) for uuid in entry.segments),
                "due": due,
            }


def _name(segment: RemoteLogSegmentMetadata) -> str:
    return format_uuid(segment.remote_log_segment_id.uuid)


def _most(lines: Iterable[str]) -> list[str]:
    shown = list(lines)
    return shown if len(shown) <= _SHOWN else [*shown[:_SHOWN], f"and {len(shown) - _SHOWN} more"]
