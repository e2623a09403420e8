"""One run of ``handover restore`` on one broker: look, stage, carry out, undo or discard."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tiersidecar.adapters.broker_backup import Backup, FileChange, fault_of_owner
from tiersidecar.adapters.broker_files import locked_log_dirs, require_broker_user
from tiersidecar.adapters.clock import SystemClock
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.app.commands.tables import size, table
from tiersidecar.app.config.config import Config
from tiersidecar.app.handover.broker_properties import property_faults
from tiersidecar.app.handover.files import LogDirChanges, misplaced_replicas, node_id_of, planned_changes
from tiersidecar.app.handover.places import (
    are_waiting,
    discard,
    leave_places,
    nodes_of,
    own_partitions,
    place_faults,
    places_taken,
    return_faults,
    running_brokers,
    take_places,
)
from tiersidecar.app.handover.plan import fault_of_age, read_plan
from tiersidecar.app.handover.restore import LackingReplica, lacking_replicas, room_faults, stage
from tiersidecar.app.handover.staged import (
    Staged,
    StagedPartition,
    digest_of_plan,
    faults_of_all,
    read_staged,
    staged_path,
    write_staged,
)
from tiersidecar.domain.errors import HandoverError
from tiersidecar.domain.ids import TopicIdPartition

STAGED_FILE = "staged.json"
_FORMER, _UNDONE = "former", "{}.undone-{}"
"""Former contents of checkpoints; once they are given back, the broker may run, and it can be carried out anew."""
_BORDERS, _PLANNED = "borders", "planned"
"""Two steps of them: as the broker left them, before segments take their places, and before the planned ones are written."""
Say = Callable[[str], None]


class Deed(StrEnum):
    """The action of a run."""

    LOOK = "look"
    STAGE = "stage"
    CARRY_OUT = "carry-out"
    UNDO = "undo"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """The operator's request; ``staged`` are the files of other brokers.  ``reads_all`` compares all digests once more."""

    plan_file: Path
    deed: Deed
    staged: tuple[Path, ...] = ()
    backup: Path | None = None
    properties: Path | None = None
    takes_old: bool = False
    reads_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Findings and deeds of a run.  ``files`` were written, renamed or removed, None where none was; so were
    ``checkpoints``."""

    node_id: int
    deed: Deed
    replicas: tuple[LackingReplica, ...] = ()
    faults: tuple[str, ...] = field(default=())
    files: int | None = None
    checkpoints: int | None = None
    staged_file: str = ""


async def run_restore(config: Config, request: RestoreRequest, say: Say) -> Restored:
    """Run the request, if nothing is in the way.

    Raises:
        HandoverError: the plan, a log dir or what was staged cannot be used.
        StoreError, CorruptDataError: a segment could not be read as it is to be.
    """
    run = _Run(config, request, say)
    match request.deed:
        case Deed.LOOK:
            return run.look()
        case Deed.STAGE:
            return await run.stage()
        case Deed.CARRY_OUT:
            return run.carry_out()
        case Deed.UNDO:
            return run.undo()
        case Deed.DISCARD:
            return run.discard()


class _Run:
    def __init__(self, config: Config, request: RestoreRequest, say: Say) -> None:
        self._config, self._request, self._say = config, request, say
        self._plan = read_plan(request.plan_file)
        if not self._plan.back_to_local:
            raise HandoverError(subject=str(request.plan_file), reason="it is not a plan of `handover back-to-local`")
        self._plan_sha256 = digest_of_plan(request.plan_file)
        self._log_dirs = [Path(one) for one in config.log_dirs]
        nodes = {node_id_of(self._plan, log_dir) for log_dir in self._log_dirs}
        if len(nodes) != 1:
            raise HandoverError(subject="log.dirs", reason=f"they are of several brokers: {', '.join(map(str, nodes))}")
        (self._node_id,) = nodes
        name = f"{request.plan_file.name}.broker-{self._node_id}"
        self._directory = request.backup or request.plan_file.with_name(name)
        self._staged_file = self._directory / STAGED_FILE

    def look(self) -> Restored:
        replicas, faults = self._seen()
        return self._found(replicas=tuple(replicas), faults=tuple(faults))

    async def stage(self) -> Restored:
        replicas, faults = self._seen()
        faults += self._carried_out()
        if faults:
            return self._found(replicas=tuple(replicas), faults=tuple(faults))
        with _alone(self._directory, self._log_dirs):
            known = self._known(replicas)
            written = dict(known)

            def done(one: StagedPartition) -> None:
                written[one.owner] = one
                write_staged(self._staged(tuple(written.values())), self._staged_file)

            write_staged(self._staged(tuple(known.values())), self._staged_file)
            todo = [one for one in replicas if one.planned.owner not in known]
            await stage(self._config, todo, done, self._say)
        files = sum(len(written[one.planned.owner].files) for one in todo)
        return self._found(replicas=tuple(replicas), files=files, staged_file=str(self._staged_file))

    def carry_out(self) -> Restored:
        staged = self._read_staged()
        with self._alone_and_locked():
            changes = planned_changes(self._plan, self._log_dirs)
            others = [
                read_staged(path) for path in self._request.staged if path.resolve() != self._staged_file.resolve()
            ]
            partitions = own_partitions(self._plan, staged, self._log_dirs)
            borders, planned = self._backup(_BORDERS), self._backup(_PLANNED)
            faults = [
                *changes.faults,
                *self._request_faults(),
                *faults_of_all(self._plan, self._plan_sha256, [staged, *others]),
                *place_faults(changes, staged, reads_all=self._request.reads_all),
                *running_brokers(self._plan.brokers, nodes_of(self._plan)),
                *([] if borders.is_made else self._without_backup(staged)),
            ]
            if faults:
                return self._found(faults=tuple(faults))
            planned.check(changes.files)
            files, todo = 0, changes.files
            if are_waiting(partitions) or (not borders.is_made and any(one.before != one.after for one in todo)):
                # The log start as it is stays until the last segment has its place: below it they are only room on a disk.
                borders.save(changes.borders)
                borders.apply(changes.borders)
                files, todo = take_places(partitions), _behind(changes)
            checkpoints = planned.apply(todo)
        return self._found(files=files, checkpoints=checkpoints)

    def _without_backup(self, staged: Staged) -> list[str]:
        """Return why nothing can be undone any more; empty if it can, or if all is done."""
        if not are_waiting(staged.partitions):
            return []
        return [
            f"{taken}; and there is no backup of it. Start the broker, which deletes what is below its log start, and stage "
            "it again"
            for taken in places_taken(staged)
        ]

    def undo(self) -> Restored:
        partitions = own_partitions(self._plan, self._read_staged(), self._log_dirs)
        with self._alone_and_locked():
            borders, planned = self._backup(_BORDERS), self._backup(_PLANNED)
            if not borders.is_made:
                raise HandoverError(subject=str(self._directory), reason="nothing was carried out by this plan")
            borders.require_stopped()
            if faults := tuple(return_faults(partitions)):
                return self._found(faults=faults)
            given = planned.undo() if planned.is_made else 0
            files = leave_places(partitions)
            # One after the other: what one backup gives back is nothing that the other one knows.
            if planned.is_made:
                self._set_aside(f"{_FORMER}/{_PLANNED}")
            checkpoints = max(given, borders.undo())
            self._set_aside(_FORMER)
        return self._found(files=files, checkpoints=checkpoints)

    @contextmanager
    def _alone_and_locked(self) -> Iterator[None]:
        with _alone(self._directory, self._log_dirs), locked_log_dirs(self._log_dirs):
            yield

    def _set_aside(self, name: str) -> None:
        try:
            (self._directory / name).rename(self._directory / _UNDONE.format(name, SystemClock().now_ms()))
        except OSError as error:
            raise HandoverError(subject=str(self._directory), reason=explain_os_error(error)) from error

    def discard(self) -> Restored:
        with _alone(self._directory, self._log_dirs):
            if (self._directory / _FORMER).exists():
                return self._found(faults=(self._was_carried_out(),))
            files = discard(self._plan, self._log_dirs)
            if self._staged_file.exists():
                write_staged(self._staged(()), self._staged_file)
            return self._found(files=files)

    def _seen(self) -> tuple[list[LackingReplica], list[str]]:
        faults = self._request_faults()
        replicas = lacking_replicas(self._plan, self._log_dirs, faults)
        seen = {(one.planned.owner.topic, one.planned.owner.partition) for one in replicas}
        if not faults:
            faults += misplaced_replicas(self._plan, self._node_id, seen)
            known = self._known(replicas) if self._staged_file.exists() else {}
            faults += room_faults([one for one in replicas if one.planned.owner not in known])
        return replicas, faults

    def _carried_out(self) -> list[str]:
        """Return why nothing is staged any more; empty while nothing was carried out."""
        faults = list[str]()
        if self._staged_file.exists():
            staged = read_staged(self._staged_file)
            if staged.node_id == self._node_id and staged.plan_sha256 == self._plan_sha256:
                faults += places_taken(staged)
        if (self._directory / _FORMER).exists():
            faults.append(self._was_carried_out())
        return faults

    def _was_carried_out(self) -> str:
        return (
            f"{self._directory / _FORMER} is there: this was carried out, at least in part. Go on with --carry-out, or --undo "
            "it; once the broker has run since, move that directory away"
        )

    def _request_faults(self) -> list[str]:
        request = self._request
        faults = (
            []
            if request.properties is None
            else property_faults(request.properties, self._plan, self._config, undo=False)
        )
        age = fault_of_age(self._plan, SystemClock().now_ms())
        return [*faults, *([age] if age and not request.takes_old else [])]

    def _known(self, replicas: Sequence[LackingReplica]) -> dict[TopicIdPartition, StagedPartition]:
        """Return replicas that an earlier run has staged, and that begin where they did."""
        if not self._staged_file.exists():
            return {}
        staged = read_staged(self._staged_file)
        if staged.plan_sha256 != self._plan_sha256 or staged.node_id != self._node_id:
            return {}
        found = {}
        for replica in replicas:
            one = staged.of(replica.planned.owner)
            is_same = (
                one is not None and one.local_start == replica.local_start and one.directory == str(replica.directory)
            )
            if (
                one is not None
                and is_same
                and all(staged_path(replica.directory, file).is_file() for file in one.files)
            ):
                found[one.owner] = one
        return found

    def _staged(self, partitions: tuple[StagedPartition, ...]) -> Staged:
        return Staged(
            plan_sha256=self._plan_sha256,
            cluster_id=self._plan.cluster_id,
            node_id=self._node_id,
            partitions=partitions,
        )

    def _read_staged(self) -> Staged:
        staged = read_staged(self._staged_file)
        if (staged.cluster_id, staged.node_id) != (self._plan.cluster_id, self._node_id):
            raise HandoverError(subject=str(self._staged_file), reason="it is of another broker")
        if staged.plan_sha256 != self._plan_sha256:
            raise HandoverError(
                subject=str(self._staged_file), reason="it belongs to another plan: stage again with this plan"
            )
        return staged

    def _backup(self, name: str) -> Backup:
        return Backup(
            self._directory / _FORMER / name,
            cluster_id=self._plan.cluster_id,
            node_id=self._node_id,
            log_dirs=self._log_dirs,
            made_for=self._plan_sha256,
        )

    def _found(self, **values: Any) -> Restored:
        return Restored(node_id=self._node_id, deed=self._request.deed, **values)


def _behind(changes: LogDirChanges) -> tuple[FileChange, ...]:
    """Return the planned changes, from where the borders are written."""
    written = {one.path: one.after for one in changes.borders}
    return tuple(replace(one, before=written.get(one.path, one.before)) for one in changes.files)


@contextmanager
def _alone(directory: Path, log_dirs: Sequence[Path]) -> Iterator[None]:
    """Hold the log dirs for one run at a time, by the broker's user.

    Raises:
        HandoverError: another one runs, or this is another user.
    """
    try:
        for log_dir in log_dirs:
            require_broker_user(log_dir)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if fault := fault_of_owner(directory.stat()):
            raise HandoverError(subject=str(directory), reason=fault)
        with ExitStack() as stack:
            # What another has put there is neither followed nor emptied.
            descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            file = stack.enter_context(os.fdopen(descriptor, "r+b"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise HandoverError(subject=str(directory), reason="another `handover restore` works there") from None
            yield
    except OSError as error:
        raise HandoverError(subject=str(directory), reason=explain_os_error(error)) from error


def restored_text(found: Restored) -> str:
    """Return as text what each replica lacks, and what was done."""
    lines = []
    if found.replicas:
        rows = [
            (
                str(one.planned.owner),
                one.planned.log_start_offset,
                one.local_start,
                len(one.pieces),
                size(one.size_bytes),
                one.local.log_dir,
            )
            for one in found.replicas
        ]
        lines.append(table(("partition", "log start then", "begins now at", "segments", "lacks", "log dir"), rows))
    done = {
        Deed.LOOK: "nothing was changed; --stage writes what is missing",
        Deed.STAGE: f"{found.files} files staged; {found.staged_file} goes to the other brokers",
        Deed.CARRY_OUT: f"{found.files} files in their places, {found.checkpoints} checkpoints written",
        Deed.UNDO: f"{found.files} files taken out, {found.checkpoints} checkpoints given back",
        Deed.DISCARD: f"{found.files} files removed",
    }
    lines.append(f"broker {found.node_id}: {'nothing was changed' if found.faults else done[found.deed]}")
    return "\n".join(lines)


def restored_document(found: Restored) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "broker_id": found.node_id,
        "deed": found.deed,
        "partitions": [
            {
                "topic": one.planned.owner.topic,
                "partition": one.planned.owner.partition,
                "log_start_offset": one.planned.log_start_offset,
                "local_start": one.local_start,
                "segments": len(one.pieces),
                "missing_bytes": one.size_bytes,
                "log_dir": one.local.log_dir,
            }
            for one in found.replicas
        ],
        "files": found.files,
        "checkpoints": found.checkpoints,
        "staged": found.staged_file or None,
        "faults": list(found.faults),
    }
