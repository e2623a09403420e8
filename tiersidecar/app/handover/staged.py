"""Files that ``handover restore --stage`` has written for one broker, listed in a file: those of all brokers are needed before
any takes its place.

A replica that begins where the brokers trimmed to, and starts beside one that has all, gives the other its log start once it
leads: what was restored is deleted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiersidecar.adapters.broker_files import write_durably
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.restored_segment import STAGED, RestoredFile
from tiersidecar.app.handover.plan import Plan
from tiersidecar.domain.errors import HandoverError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid, parse_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.readable import cut_text
from tiersidecar.formats.kafka.log_dir_files import LogFileKind, parse_log_file

_VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPartition:
    """The files of one replica, in their order; ``local_start`` is the base offset of the first segment that it had."""

    owner: TopicIdPartition
    directory: str
    local_start: Offset
    files: tuple[RestoredFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """All staged files of one broker.  ``plan_sha256`` is of the plan's file."""

    plan_sha256: str
    cluster_id: str
    node_id: int
    partitions: tuple[StagedPartition, ...]

    def of(self, owner: TopicIdPartition) -> StagedPartition | None:
        """Return the files of one replica, None where they are not all written."""
        return next((one for one in self.partitions if one.owner == owner), None)


def digest_of_plan(path: Path) -> str:
    """Return the SHA-256 of the plan's file.

    Raises:
        HandoverError: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error


def faults_of_all(plan: Plan, plan_sha256: str, staged: Sequence[Staged]) -> Iterator[str]:
    """Yield replicas of the plan that have not all that they lack."""
    by_node = {one.node_id: one for one in staged if one.plan_sha256 == plan_sha256}
    for one in staged:
        if one.plan_sha256 != plan_sha256:
            yield f"what was staged for broker {one.node_id} is by another plan"
    for partition in plan.partitions:
        lacking = [
            node for node in partition.replicas if node not in by_node or by_node[node].of(partition.owner) is None
        ]
        if lacking:
            yield (
                f"{partition.owner}: the replicas of brokers {', '.join(map(str, lacking))} are not staged: run `handover "
                "restore --stage` there, and give the staged.json of every broker by --staged"
            )


def write_staged(staged: Staged, path: Path) -> None:
    """Write or replace the file.

    Raises:
        HandoverError: it cannot be written.
    """
    document = {
        "version": _VERSION,
        "plan_sha256": staged.plan_sha256,
        "cluster_id": staged.cluster_id,
        "node_id": staged.node_id,
        "partitions": [
            {
                "topic": one.owner.topic,
                "topic_id": format_uuid(one.owner.topic_id),
                "partition": one.owner.partition,
                "directory": one.directory,
                "local_start": one.local_start,
                "files": [[file.name, file.size_bytes, file.sha256, file.modified_ns] for file in one.files],
            }
            for one in staged.partitions
        ],
    }
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_durably(path, json.dumps(document, indent=1).encode(), mode=0o666)  # another broker's user reads it
    except OSError as error:
        raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error


def read_staged(path: Path) -> Staged:
    """Read the list of one broker.

    Raises:
        HandoverError: there is none, or it is not one of this release.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != _VERSION:
            raise HandoverError(subject=str(path), reason=f"its version is {document['version']}, must be {_VERSION}")
        return Staged(
            plan_sha256=str(document["plan_sha256"]),
            cluster_id=str(document["cluster_id"]),
            node_id=int(document["node_id"]),
            partitions=tuple(_partition(one) for one in document["partitions"]),
        )
    except OSError as error:
        raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"it is not what `handover restore --stage` writes: {cut_text(repr(error))}"
        raise HandoverError(subject=str(path), reason=reason) from error


def _partition(row: Mapping[str, Any]) -> StagedPartition:
    local_start = Offset(int(row["local_start"]))
    return StagedPartition(
        owner=TopicIdPartition(
            topic_id=parse_uuid(row["topic_id"]), topic=str(row["topic"]), partition=int(row["partition"])
        ),
        directory=str(row["directory"]),
        local_start=local_start,
        files=tuple(_file(local_start, *one) for one in row["files"]),
    )


def _file(local_start: Offset, name: str, size_bytes: int, sha256: str, modified_ns: int) -> RestoredFile:
    """Return the file.  Its name is one of a segment's file, below what the broker had: no other is ever renamed or removed.

    Raises:
        ValueError: it is not.
    """
    parsed = parse_log_file(name)
    if parsed is None or parsed.offset >= local_start or _SHA256.fullmatch(sha256) is None:
        raise ValueError(f"{name} is not a file of a segment below {local_start}")
    return RestoredFile(name=name, size_bytes=int(size_bytes), sha256=sha256, modified_ns=int(modified_ns))


def staged_path(directory: Path, file: RestoredFile) -> Path:
    """Return where a file lies until it takes its place."""
    return directory / f"{file.name}{STAGED}"


def in_order(files: Sequence[RestoredFile]) -> list[RestoredFile]:
    """Return them in order: those that a broker passes over without their .log first, for it removes an index that has none."""
    return sorted(files, key=lambda one: one.name.endswith(f".{LogFileKind.LOG}"))
