"""Seeds a node of the new cluster before its first start: replicas whose logs begin at N, and a controller's first records.

It only makes what is not there, in the files of a node that is formatted and does not run: what it would change is looked at
first, and a second run goes on where the first one ended.  A node that has run is refused, but for one of a read-only mount:
there it gets the replicas that were on the disks it has lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from tiersidecar.adapters.node_files import (
    acting_as_owner,
    locked_log_dir,
    put_file,
    require_no_link,
    sync_directory,
)
from tiersidecar.app.mount_file import MountPlan
from tiersidecar.app.mount_replicas import METADATA_LOG, NewFile, Replicas, has_metadata, look_at_replicas
from tiersidecar.domain.errors import CorruptDataError, MountRefusedError
from tiersidecar.formats.kafka.cluster_metadata import append_records, write_producer_ids_record, write_topic_records
from tiersidecar.formats.kafka.log_dir_files import META_PROPERTIES, MetaProperties, read_meta_properties
from tiersidecar.formats.kafka.server_properties import NodePlaces, read_node_places

_FIRST_RECORDS = ("bootstrap.checkpoint", f"{METADATA_LOG}/00000000000000000000-0000000000.checkpoint")
"""Where ``kafka-storage format`` puts what an empty metadata log begins with: up to 4.3, and in the releases after it.  Where
the first is there, the second has the quorum's voters alone."""
_BACKUP = ".before-mount"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """The files to write on a node.  ``partitions`` are those whose replica it has and whose log begins above 0, ``present``
    those of them that were seeded before.  ``left_out`` are topics of the plan that the node's cluster does not have any
    more."""

    node: NodePlaces
    cluster_id: str
    partitions: int = 0
    present: int = 0
    files: Sequence[NewFile] = field(default_factory=tuple)
    is_controller_seeded: bool = False
    is_read_only: bool = False
    left_out: Sequence[str] = field(default_factory=tuple)

    @property
    def steps(self) -> list[str]:
        """Return what is done, for people."""
        found = []
        if new := self.partitions - self.present:
            dirs = ", ".join(sorted({str(one.path.parent.parent) for one in self.files if not one.backup}))
            where = "above all offsets of the source" if self.is_read_only else "where the copied data end"
            found.append(f"make the directories of {new:,} partitions in {dirs}, whose logs begin {where}")
        found += [
            f"put the topics into {one.path}, and keep what it was as {one.backup}" for one in self.files if one.backup
        ]
        return found


def look_at_node(plan: MountPlan, properties: Path) -> Seed:
    """Return what to write on the node whose ``server.properties`` this is; changes nothing.

    Raises:
        MountRefusedError: the node runs, has run (and not by the plan of a read-only mount), is not formatted, or something
            is in the way.
    """
    try:
        node = read_node_places(properties.read_bytes(), where=str(properties))
        meta = _meta_properties(node)
        _require_unknown_cluster(plan, meta)
        _require_not_run(plan, node)
        replicas = look_at_replicas(plan, node) if node.is_broker else Replicas()
        _require_not_used(plan, node, replicas)
        records = _records_of_controller(plan, node, replicas) if node.is_controller else []
    except (OSError, CorruptDataError) as error:
        raise MountRefusedError(reason=str(error)) from error
    return Seed(
        node=node,
        cluster_id=meta.cluster_id,
        partitions=replicas.count,
        present=replicas.present,
        files=(*replicas.files, *records),
        is_controller_seeded=node.is_controller and not records,
        is_read_only=plan.is_read_only,
        left_out=replicas.left_out,
    )


def sow(seed: Seed) -> None:
    """Write it.  Each file is durable before the next; the controller's comes last.

    Raises:
        MountRefusedError: the node runs by now, or a file cannot be written.
    """
    try:
        for one in seed.files:
            _write(one)
    except OSError as error:
        raise MountRefusedError(reason=str(error)) from error


@contextmanager
def stopped_node(properties: Path) -> Iterator[None]:
    """Hold the locks that the node itself would take, so that it cannot start meanwhile, and act as the owner of its files.

    Raises:
        MountRefusedError: it runs, or its files cannot be read.
    """
    with ExitStack() as held:
        try:
            node = read_node_places(properties.read_bytes(), where=str(properties))
            directories = [Path(path) for path in sorted({*node.log_dirs, node.metadata_log_dir})]
            held.enter_context(acting_as_owner(directories))
            _meta_properties(node)  # before a lock is made: the file may name any directory
            for path in directories:
                held.enter_context(locked_log_dir(path))
        except (OSError, CorruptDataError) as error:
            raise MountRefusedError(reason=str(error)) from error
        yield


def _meta_properties(node: NodePlaces) -> MetaProperties:
    """Return the properties of all its directories, which must be of one node of one cluster."""
    found = None
    for path in dict.fromkeys((*node.log_dirs, node.metadata_log_dir)):
        file = Path(path) / META_PROPERTIES
        if not file.is_file():
            raise MountRefusedError(reason=f"{path} is not formatted: run `kafka-storage.sh format` first")
        meta = read_meta_properties(file.read_bytes(), where=str(file))
        if meta.node_id != node.node_id:
            raise MountRefusedError(reason=f"{file} is of node {meta.node_id}, not {node.node_id}")
        if found is not None and found.cluster_id != meta.cluster_id:
            raise MountRefusedError(reason=f"{file} is of cluster {meta.cluster_id}, another one of {found.cluster_id}")
        found = meta
    assert found is not None, "a node has a directory"
    return found


def _require_unknown_cluster(plan: MountPlan, meta: MetaProperties) -> None:
    if meta.cluster_id == plan.former_cluster_id:
        raise MountRefusedError(
            reason=f"it is formatted with the id of the former cluster, {meta.cluster_id}: then nothing keeps that one's "
            "sidecars, should they come back, from writing to the bucket. Format it with a new id"
        )


def _require_not_run(plan: MountPlan, node: NodePlaces) -> None:
    """Refuse a node that has run, unless its mounted logs stay empty: a log from N on would pass for one with records."""
    if not plan.is_read_only and has_metadata(node):
        raise MountRefusedError(
            reason=f"the node of {node.metadata_log_dir} has been started: its metadata log is not empty. A mount sets up a "
            "cluster that has never run: empty the log dirs of all nodes and format them"
        )


def _require_not_used(plan: MountPlan, node: NodePlaces, replicas: Replicas) -> None:
    """Refuse a node that has run, also where its metadata log was on a lost disk: the logs of other partitions show it."""
    if not plan.is_read_only and replicas.are_used:
        raise MountRefusedError(
            reason=f"the metadata log of {node.metadata_log_dir} is empty, and logs of a broker that has run are in "
            f"{', '.join(node.log_dirs)}. A mount sets up a cluster that has never run: empty the log dirs of all nodes and "
            "format them"
        )


def _records_of_controller(plan: MountPlan, node: NodePlaces, replicas: Replicas) -> list[NewFile]:
    """Return those of a controller that has not run; one that has run has the topics in its metadata."""
    if has_metadata(node):
        return []
    if replicas.are_used:
        raise MountRefusedError(
            reason=f"the metadata log of {node.metadata_log_dir} is lost, and logs of a broker that has run are left: it would "
            "put aside all that new metadata do not name. Where other controllers have the metadata, empty this node's "
            "other log dirs too, format them and seed again; else set the cluster up anew"
        )
    return _first_records(plan, node)


def _first_records(plan: MountPlan, node: NodePlaces) -> list[NewFile]:
    """Return the file with which the metadata log begins; none if the topics are in it already."""
    directory = Path(node.metadata_log_dir)
    paths = [directory / name for name in _FIRST_RECORDS if (directory / name).is_file()]
    if not paths:
        raise MountRefusedError(reason=f"{directory} has no first records: run `kafka-storage.sh format` first")
    path = paths[0]
    backup = directory / f"{path.name}{_BACKUP}"
    require_no_link(path)
    require_no_link(backup)
    now = path.read_bytes()
    before = backup.read_bytes() if backup.is_file() else now
    topics = chain.from_iterable(write_topic_records(topic) for topic in plan.topics)
    ids = [write_producer_ids_record(plan.next_producer_id)] if plan.next_producer_id else []
    wanted = append_records(before, [*topics, *ids], where=str(path))
    if now == wanted:
        return []
    if now != before:
        raise MountRefusedError(
            reason=f"{path} is neither as it was formatted ({backup}) nor as this plan makes it: another plan was used. Put "
            "the backup back, or format the node again"
        )
    return [NewFile(path=path, data=wanted, backup=backup)]


def _write(one: NewFile) -> None:
    one.path.parent.mkdir(exist_ok=True)
    if one.backup is not None and not one.backup.exists():
        put_file(one.backup, one.path.read_bytes(), like=one.path)
    put_file(one.path, one.data, like=one.path if one.backup else None)
    sync_directory(one.path.parent.parent)
