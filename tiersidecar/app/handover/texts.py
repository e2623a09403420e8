"""Output of ``handover files`` and ``verify``: tables for people, documents for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tiersidecar.app.commands.tables import table
from tiersidecar.app.handover.files import LogDirChanges
from tiersidecar.app.handover.verify import VerifiedPartition
from tiersidecar.formats.kafka.log_dir_files import read_leader_epochs

_EPOCHS_SHOWN = 4


def files_text(changes: LogDirChanges, faults: Sequence[str], written: int | None) -> str:
    """Return log start and leader epochs of each replica, now and then; ``written`` is None where nothing was."""
    return "\n".join(_files_lines(changes, faults, written))


def _files_lines(changes: LogDirChanges, faults: Sequence[str], written: int | None) -> Iterator[str]:
    rows = [
        (
            str(one.partition.owner),
            "none" if one.former_start is None else one.former_start,
            one.partition.log_start_offset,
            _epochs_text(one.epochs.before),
            _epochs_text(one.epochs.after),
        )
        for one in changes.partitions
    ]
    broker = f"broker {changes.node_id}"
    if rows:
        yield table(("partition", "log start now", "then", "leader epochs now", "then"), rows)
    else:
        yield f"{broker} has no replica of the plan's partitions"
    if written is not None:
        yield f"{broker}: {written} files written"
    elif not faults:
        left = sum(one.before != one.after for one in changes.files)
        yield f"{broker}: {left} files to write; --carry-out writes them"


def _epochs_text(data: bytes) -> str:
    entries = read_leader_epochs(data)
    shown = ", ".join(f"{epoch} from {start}" for epoch, start in entries[:_EPOCHS_SHOWN])
    more = len(entries) - _EPOCHS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def files_document(changes: LogDirChanges, faults: Sequence[str], written: int | None) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "broker_id": changes.node_id,
        "partitions": [
            {
                "topic": one.partition.owner.topic,
                "partition": one.partition.owner.partition,
                "log_start_offset": {"now": one.former_start, "then": one.partition.log_start_offset},
                "changes_epochs": one.epochs.before != one.epochs.after,
            }
            for one in changes.partitions
        ],
        "to_write": sum(one.before != one.after for one in changes.files),
        "written": written,
        "faults": list(faults),
    }


def verified_text(found: Sequence[VerifiedPartition]) -> str:
    """Return counts of each partition, and below them what the plan did not foretell."""
    columns = ("partition", "kept", "gone as predicted", "still to go", "copied since", "records compared")
    rows = [(str(one.owner), one.kept, one.gone, one.waiting, one.added, one.records) for one in found]
    faults = [f"{one.owner}: {fault}" for one in found for fault in one.faults]
    return "\n".join([table(columns, rows), *(faults or ["as the plan predicted"])])


def verified_document(found: Sequence[VerifiedPartition]) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "partitions": [
            {
                "topic": one.owner.topic,
                "partition": one.owner.partition,
                "kept": one.kept,
                "gone": one.gone,
                "waiting": one.waiting,
                "added": one.added,
                "records": one.records,
                "faults": list(one.faults),
            }
            for one in found
        ],
        "is_as_foretold": not any(one.faults for one in found),
    }
