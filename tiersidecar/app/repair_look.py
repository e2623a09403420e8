"""Look, before repair decides, at one partition's metadata and the objects of one finding, as they are now.

Marks record which leftovers were seen when, so that a later run deletes only what has been a leftover since.  Each run that
marks writes one object of JSON lines below ``<key.prefix>.tiersidecar/reconcile/marks/``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import structlog

from tiersidecar.app.repair_recopy import RecopyDesk, owner_of
from tiersidecar.decide.reconcile_findings import ACTIONS, Action, Finding, FindingKind
from tiersidecar.decide.reconcile_offsets import readable_offsets
from tiersidecar.decide.reconcile_repair import ManifestState, RepairView
from tiersidecar.decide.recopy import without
from tiersidecar.domain.errors import CorruptDataError, ObjectTooLargeError
from tiersidecar.domain.ids import RemoteLogSegmentId, format_uuid, parse_uuid
from tiersidecar.domain.offsets import ByteRange, Lineage
from tiersidecar.domain.own_objects import MARKS, MOST_MARKS_BYTES
from tiersidecar.domain.segments import NO_LOG_END, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.formats.aiven.keys import ObjectKind, plugin_keys
from tiersidecar.formats.aiven.manifest import Manifest
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody, Store, StoredObject
from tiersidecar.reading.remote_objects import SegmentPresence

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An object as it was when it was marked."""

    key: str
    size_bytes: int
    modified_ms: int
    marked_ms: int


async def read_marks(store: Store, key_prefix: str) -> dict[str, Mark]:
    """Read the newest of each key; an unreadable line marks nothing, nor does an object that no run has put."""
    found: dict[str, Mark] = {}
    names = [stored.key async for stored in store.list_objects(f"{key_prefix}{MARKS}")]
    for name in names:
        try:
            data = await store.fetch_object(name, max_bytes=MOST_MARKS_BYTES)
        except ObjectTooLargeError as error:
            log.warning("repair.marks.unreadable", key=name, reason=error.reason)
            continue
        for line in data.splitlines():
            mark = _read_mark(line)
            if mark is not None and (mark.key not in found or found[mark.key].marked_ms < mark.marked_ms):
                found[mark.key] = mark
    return found


def _read_mark(line: bytes) -> Mark | None:
    try:
        mark = Mark(**json.loads(line))
    except (RecursionError, TypeError, ValueError):
        return None
    numbers = mark.size_bytes, mark.modified_ms, mark.marked_ms
    return mark if type(mark.key) is str and all(type(one) is int for one in numbers) else None


async def put_marks(
    store: Store, key_prefix: str, marks: Sequence[Mark], *, name: str, most_bytes: int = MOST_MARKS_BYTES
) -> None:
    """Write the marks of one run, in as many objects as readers need."""
    lines = (json.dumps(asdict(mark), ensure_ascii=False).encode() + b"\n" for mark in marks)
    for number, document in enumerate(_documents(lines, most_bytes)):
        suffix = f"-{number}" if number else ""
        await store.put_object(f"{key_prefix}{MARKS}{name}{suffix}.jsonl", BytesBody(document))


def _documents(lines: Iterable[bytes], most_bytes: int) -> Iterator[bytes]:
    document = bytearray()
    for line in lines:
        if document and len(document) + len(line) > most_bytes:
            yield bytes(document)
            document.clear()
        document += line
    yield bytes(document)


async def drop_marks(store: Store, key_prefix: str, *, older_than_ms: int) -> None:
    """Remove marks so old that what they name is gone, or is marked anew."""
    old = [
        stored.key async for stored in store.list_objects(f"{key_prefix}{MARKS}") if stored.modified_ms < older_than_ms
    ]
    await store.delete_objects(old)


_GOES_IF_COVERED = {FindingKind.ORPHAN_OBJECT, FindingKind.OFFSET_OVERLAP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """``metadata`` is the segment's, where an event names it; ``stored`` the object, where it is there."""

    view: RepairView
    metadata: RemoteLogSegmentMetadata | None
    stored: StoredObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The facts about a partition at the time of the look.

    Of the segments ``doubted`` something is damaged: they stand for no other.  ``leader_epoch`` is the partition's now, None
    where no leader is known: while no segment of that epoch is remote, it may have cut the lineage that the segments give.
    ``is_native``: the broker itself tiers the topic; ``not_ours``: why its data are not this cluster's.
    """

    segments: Iterable[RemoteLogSegmentMetadata]
    state: PartitionState
    trash: Iterable[TrashEntry]
    leader_epoch: int | None
    doubted: Iterable[str]
    is_native: bool
    not_ours: str


class PartitionLook:
    """One partition at one moment."""

    def __init__(
        self, facts: PartitionFacts, *, presence: SegmentPresence, marks: Mapping[str, Mark], desk: RecopyDesk
    ) -> None:
        self._segments = {format_uuid(segment.remote_log_segment_id.uuid): segment for segment in facts.segments}
        self._state, self._trash, self._leader_epoch = facts.state, list(facts.trash), facts.leader_epoch
        self._presence, self._marks, self._desk = presence, marks, desk
        self._doubted, self._is_native, self._not_ours = set(facts.doubted), facts.is_native, facts.not_ours

    @property
    def leader_epoch(self) -> int | None:
        """Return the partition's now, None where no leader is known."""
        return self._leader_epoch

    def give_up(self, segment_id: str) -> None:
        """Note that it is to go: no other may go because of it."""
        self._doubted.add(segment_id)

    async def look(self, finding: Finding) -> Look:
        """Look how it is now.

        Raises:
            StoreError: the store is away.
        """
        metadata = self._segments.get(finding.segment_id)
        stored = await self._presence.head(finding.key) if finding.key else None
        manifest_state, fault, manifest = ManifestState.ABSENT, "", None
        if stored is not None:
            manifest_state, fault, manifest = await self._manifest_beside(finding)
        concerns_data = ACTIONS[finding.kind] is Action.RECOPY
        asked = await self._desk.standing(finding) if concerns_data else None
        mark = self._marks.get(finding.key)
        is_marked = mark is not None and stored is not None and _is_unchanged(mark, stored)
        view = RepairView(
            state=None if metadata is None else metadata.state,
            since_ms=-1 if metadata is None else metadata.event_timestamp_ms,
            object_size_bytes=None if stored is None else stored.size_bytes,
            modified_ms=-1 if stored is None else stored.modified_ms,
            not_ours=self._not_ours or _keys_fault(metadata),
            is_native=self._is_native,
            manifest=manifest_state,
            manifest_fault=fault,
            is_covered=finding.kind in _GOES_IF_COVERED
            and await self._is_covered(finding.segment_id, metadata, manifest),
            is_in_trash=metadata is not None and any(one.covers(metadata, self._lineage) for one in self._trash),
            is_readable=concerns_data and metadata is None and self._is_readable(finding),
            marked_ms=mark.marked_ms if mark is not None and is_marked else None,
            is_whole=concerns_data and metadata is not None and await self._presence.is_whole(metadata),
            is_asked=asked is not None,
            why_unrecoverable="" if asked is None else await self._desk.why_unrecoverable(asked),
        )
        return Look(view=view, metadata=metadata, stored=stored)

    async def _manifest_beside(self, finding: Finding) -> tuple[ManifestState, str, Manifest | None]:
        key = f"{finding.key.rpartition('.')[0]}.{ObjectKind.MANIFEST}"
        manifest, fault = await self._presence.read_manifest(key)
        if fault:
            return ManifestState.UNREADABLE, fault, None
        if manifest is None:
            return ManifestState.ABSENT, "", None
        said = manifest.segment
        named = RemoteLogSegmentId(topic_id_partition=owner_of(finding), uuid=parse_uuid(finding.segment_id))
        if said is not None and (said.remote_log_segment_id, said.start_offset) != (named, finding.start_offset):
            other = f"{said.remote_log_segment_id} from offset {said.start_offset}"
            return ManifestState.OF_ANOTHER, f"the manifest {key} is of segment {other}", None
        return ManifestState.OWN, "", manifest

    async def _is_covered(
        self, segment_id: str, metadata: RemoteLogSegmentMetadata | None, manifest: Manifest | None
    ) -> bool:
        """Return whether other segments hold all records of the segment, which the metadata or only a manifest know."""
        said = metadata or (None if manifest is None else manifest.segment)
        if said is None or self._leader_epoch != self._lineage.latest_epoch:
            return False
        if not self._lineage.contains_segment(said.segment_leader_epochs, said.end_offset, NO_LOG_END):
            return False
        next_offset: int = said.start_offset
        for other_id, other in self._standing.items():
            if other_id == segment_id or other_id in self._doubted or _is_replaced_by(other, metadata):
                continue
            if other.start_offset <= next_offset <= other.end_offset and await self._presence.is_whole(other):
                next_offset = other.end_offset + 1
                if next_offset > said.end_offset:
                    return True
        return False

    def _is_readable(self, finding: Finding) -> bool:
        finished = (segment for segment in self._segments.values() if segment.state is State.COPY_SEGMENT_FINISHED)
        held = readable_offsets(self._lineage, ((one.segment_leader_epochs, one.end_offset) for one in finished))
        return not without(ByteRange(finding.start_offset, finding.end_offset + 1), held)

    @cached_property
    def _lineage(self) -> Lineage:
        """Return the lineage by all segments that were ever finished, those too whose deletion has begun."""
        finished = (segment for segment in self._segments.values() if segment.state is not State.COPY_SEGMENT_STARTED)
        return Lineage.of(sorted({entry for one in finished for entry in one.segment_leader_epochs}))

    @cached_property
    def _standing(self) -> dict[str, RemoteLogSegmentMetadata]:
        """Return segments that others may go for, ascending: finished, wholly of the lineage, and neither to be expired as a
        whole nor in the trash."""
        start = self._state.start_in(self._lineage)
        return {
            key: segment
            for key, segment in self._segments.items()
            if segment.state is State.COPY_SEGMENT_FINISHED
            and segment.is_within(self._lineage)
            and segment.end_offset >= start
            if not any(entry.covers(segment, self._lineage) for entry in self._trash)
        }


def _is_replaced_by(other: RemoteLogSegmentMetadata, metadata: RemoteLogSegmentMetadata | None) -> bool:
    """Return whether readers use ``metadata`` in place of ``other``, which may hold what an erasure took out of it."""
    return (
        metadata is not None
        and (other.start_offset, other.end_offset) == (metadata.start_offset, metadata.end_offset)
        and other.event_timestamp_ms < metadata.event_timestamp_ms
    )


def _keys_fault(metadata: RemoteLogSegmentMetadata | None) -> str:
    try:
        if metadata is not None:
            plugin_keys(metadata)
    except CorruptDataError as error:
        return f"its custom metadata are another plugin's, so that the place of its objects is unknown: {error}"
    return ""


def _is_unchanged(mark: Mark, stored: StoredObject) -> bool:
    return (mark.size_bytes, mark.modified_ms) == (stored.size_bytes, stored.modified_ms)
