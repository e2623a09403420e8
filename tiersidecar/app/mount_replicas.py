"""Empty logs in the log dirs of a node of a mount, where there are none yet.

A node of a read-only mount may have run, and have lost some of its disks: its logs stay empty however long it runs, so
those that are left show by themselves whether they are as they were seeded, and only what is missing is made again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiersidecar.adapters.node_files import fresh_name, require_no_link
from tiersidecar.app.mount_file import MountPlan
from tiersidecar.domain.cluster_topics import NewPartition
from tiersidecar.domain.errors import MountRefusedError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.formats.kafka.cluster_metadata import find_topics
from tiersidecar.formats.kafka.log_dir_files import PARTITION_METADATA, read_partition_metadata
from tiersidecar.formats.kafka.server_properties import NodePlaces

METADATA_LOG = "__cluster_metadata-0"
_LOG, _SNAPSHOT = ".log", ".checkpoint"
_MADE_BY_FORMAT = f"{0:020d}-"
"""The beginning of the name of a snapshot at offset 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file to be made, or to be replaced by ``data`` once what it was is kept as ``backup``."""

    path: Path
    data: bytes
    backup: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The node's replicas whose logs begin above 0: ``count``, how many are ``present``, and the ``files`` that the others
    lack.  ``are_used``: a broker has run with some of those that are present, or has left other partitions' logs where the
    metadata log is lost.  ``left_out`` are topics of the plan that the cluster does not have any more."""

    count: int = 0
    present: int = 0
    files: Sequence[NewFile] = ()
    are_used: bool = False
    left_out: Sequence[str] = ()


def has_metadata(node: NodePlaces) -> bool:
    """Return whether the node's metadata log has a record, or a snapshot of what it had: then the node has run.

    Raises:
        OSError: it cannot be looked at.
    """
    directory = Path(node.metadata_log_dir) / METADATA_LOG
    if any(path.stat().st_size > 0 for path in directory.glob(f"*{_LOG}")):
        return True
    return any(not path.name.startswith(_MADE_BY_FORMAT) for path in directory.glob(f"*-*{_SNAPSHOT}"))


def look_at_replicas(plan: MountPlan, node: NodePlaces) -> Replicas:
    """Return what is there of the node's replicas, and what is to be made; changes nothing.

    Raises:
        MountRefusedError: something is in the way, or the node has run with other topics than the plan's.
        OSError: a directory cannot be looked at.
        CorruptDataError: a ``partition.metadata`` is none.
    """
    missing: dict[TopicIdPartition, list[NewFile]] = {}
    held = {log_dir: len(_partition_dirs(Path(log_dir))) for log_dir in node.log_dirs}
    has_run = has_metadata(node)
    made, removed = _topics_made(plan, node) if plan.is_read_only and has_run else (set[Uuid](), set[Uuid]())
    # A broker puts aside the logs of what its metadata do not name.  Directories of that name may be of users' topics by now.
    left_out = {topic.topic_id: topic.name for topic in plan.topics if topic.topic_id not in made - removed}
    if not made | removed:
        left_out = {}
    present, seeded = 0, {METADATA_LOG}
    are_used = False
    for owner, one in plan.partitions():
        if node.node_id not in one.replicas or one.start_offset == 0 or owner.topic_id in left_out:
            continue
        seeded.add(str(owner))
        directory = _directory_of(owner, node, held)
        wanted = _replica_files(owner, one, directory)
        if plan.is_read_only and _is_used(directory, wanted):
            _require_as_seeded(directory, owner, one)
            present, are_used = present + 1, True
            continue
        _require_nothing_else(directory, wanted)
        if files := [file for file in wanted if not file.path.exists()]:
            missing[owner] = files
        else:
            present += 1
    if missing and plan.is_read_only and has_run and not made | removed:
        raise MountRefusedError(
            reason=f"{Path(node.metadata_log_dir) / METADATA_LOG} has no topic of this plan, by name and id: this node has run "
            "without them. Use the plan by which the cluster was seeded"
        )
    return Replicas(
        count=present + len(missing),
        present=present,
        files=[file for files in missing.values() for file in files],
        are_used=are_used or (not has_run and _has_logs_beside(seeded, node)),
        left_out=sorted(left_out.values()),
    )


def _directory_of(owner: TopicIdPartition, node: NodePlaces, held: dict[str, int]) -> Path:
    """Return where the replica is; if nowhere, in the log dir that has the fewest, which ``held`` counts."""
    found = [Path(log_dir) / str(owner) for log_dir in node.log_dirs if os.path.lexists(Path(log_dir) / str(owner))]
    if not found:
        least = min(held, key=lambda log_dir: (held[log_dir], node.log_dirs.index(log_dir)))
        held[least] += 1
        return Path(least) / str(owner)
    (directory, *more) = found
    if more:
        raise MountRefusedError(reason=f"{directory} is in {more[0].parent} too")
    require_no_link(directory)
    return directory


def _partition_dirs(log_dir: Path) -> list[str]:
    with os.scandir(log_dir) as found:
        return [one.name for one in found if one.is_dir(follow_symlinks=False)]


def _has_logs_beside(seeded: Collection[str], node: NodePlaces) -> bool:
    return any(
        name not in seeded and any((Path(log_dir) / name).glob(f"*{_LOG}"))
        for log_dir in node.log_dirs
        for name in _partition_dirs(Path(log_dir))
    )


def _replica_files(owner: TopicIdPartition, one: NewPartition, directory: Path) -> list[NewFile]:
    """Return an empty log from N on, and whose it is.  The broker makes the rest."""
    topic_id = f"version: 0\ntopic_id: {format_uuid(owner.topic_id)}".encode()
    return [
        NewFile(path=directory / f"{one.start_offset:020d}{_LOG}", data=b""),
        NewFile(path=directory / PARTITION_METADATA, data=topic_id),
    ]


def _is_used(directory: Path, wanted: Sequence[NewFile]) -> bool:
    """Return whether a broker has been here: it makes indexes and a checkpoint beside what was seeded."""
    if not directory.exists():
        return False
    ours = {path for one in wanted for path in (one.path, fresh_name(one.path))}
    return any(path not in ours for path in directory.iterdir())


def _require_as_seeded(directory: Path, owner: TopicIdPartition, one: NewPartition) -> None:
    """Check that a broker's log is of this topic, begins where it was seeded, and holds nothing."""
    for path in directory.iterdir():
        require_no_link(path)
    metadata = directory / PARTITION_METADATA
    if not metadata.exists():
        raise MountRefusedError(reason=f"{directory} has no {PARTITION_METADATA}: its topic is unknown")
    topic_id = read_partition_metadata(metadata.read_bytes(), where=str(metadata))
    if topic_id != owner.topic_id:
        raise MountRefusedError(
            reason=f"{directory} is of the topic with the id {format_uuid(topic_id)}, and the plan's has "
            f"{format_uuid(owner.topic_id)}: use the plan by which the cluster was seeded"
        )
    logs = {path.name: path.stat().st_size for path in sorted(directory.glob(f"*{_LOG}"))}
    if any(logs.values()):
        raise MountRefusedError(
            reason=f"{directory} holds records that a client has written, and a seed overwrites none. Set the "
            "cluster up anew: empty the log dirs of all nodes, format them, and seed them by a new plan"
        )
    if list(logs) != [f"{one.start_offset:020d}{_LOG}"]:
        raise MountRefusedError(
            reason=f"{directory} has an empty log that does not begin where it was seeded ({', '.join(logs) or 'no file'}), "
            "as a broker makes it where the seeded one was lost. Nothing is in it: remove this directory, and seed again"
        )


def _require_nothing_else(directory: Path, wanted: Sequence[NewFile]) -> None:
    if not directory.exists():
        return
    contents = {one.path.name: one.data for one in wanted}
    half_written = {fresh_name(one.path) for one in wanted}
    for path in directory.iterdir():
        if path in half_written:
            continue
        require_no_link(path)
        if path.name not in contents or path.read_bytes() != contents[path.name]:
            raise MountRefusedError(
                reason=f"{directory} is there already, with {path.name}: a broker has been started here. Set the cluster up "
                "anew: empty the log dirs of all nodes and format them"
            )


def _topics_made(plan: MountPlan, node: NodePlaces) -> tuple[set[Uuid], set[Uuid]]:
    """Return which of the plan's topics were made in the node's cluster, and which deleted there: none where it was seeded by
    another plan, or has not heard of them yet."""
    directory = Path(node.metadata_log_dir) / METADATA_LOG
    wanted = {topic.topic_id: topic.name for topic in plan.topics}
    made, removed = set[Uuid](), set[Uuid]()
    for path in (*directory.glob(f"*{_LOG}"), *directory.glob("*.checkpoint")):
        require_no_link(path)
        if path.stat().st_size == 0:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = find_topics(content, wanted)
        made |= found[0]
        removed |= found[1]
    return made, removed
