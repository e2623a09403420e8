"""Faults of one segment, by its metadata and the objects that were listed under its keys.

The events are seen at two cuts: ``before`` the listing began, and ``after`` it ended.  Anything copied, expired or deleted
meanwhile differs between the two, and is no finding (U12): an object must be there only if its segment was finished before
and still is after, and must be gone only if its segment's deletion was finished before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tiersidecar.decide.reconcile_findings import Finding, FindingKind, Graces
from tiersidecar.domain.segments import NO_LOG_END
from tiersidecar.domain.states import RemoteLogSegmentState as State

LOG, INDEXES, MANIFEST = KINDS = "log", "indexes", "rsm-manifest"
"""The objects of a segment, by suffix, as :class:`tiersidecar.formats.aiven.keys.ObjectKind` has them."""

_WAS_OURS = (
    ", which was this cluster's: the topic was deleted, perhaps just now, and the sidecars delete its remote data after "
    "deletes.topic.grace.ms and the trash's delay"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object as it was listed."""

    key: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFacts:
    """Result of reading the manifest.

    ``fault`` says why it cannot be read, ``contradiction`` where it differs from the metadata; both empty: it fits, and
    the other two objects must have these sizes.  ``is_gone``: it was deleted since the listing.
    """

    fault: str = ""
    contradiction: str = ""
    log_bytes: int = -1
    indexes_bytes: int = -1
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """One segment.  ``before`` and ``after`` are None where no event is known at that cut.

    ``since_ms`` is the time of its last event; ``keys`` is what the metadata name, by kind, empty without any;
    ``is_topic_known`` whether the cluster has a topic of this id, and ``is_topic_owned`` whether the store says that the id was
    this cluster's; ``has_topics_name``, of a segment without events, whether its key names the topic of this id, under a prefix
    of ours.  ``known_until`` is the highest end offset that any event of the partition names, -1 without events.
    ``remote_size_bytes`` is the custom metadata's, or -1; ``is_plain`` that no chunk can have been transformed, so that
    the .log has exactly ``segment_size_bytes``.
    """

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int = -1
    before: State | None = None
    after: State | None = None
    since_ms: int = -1
    segment_size_bytes: int = -1
    remote_size_bytes: int = -1
    is_plain: bool = False
    is_topic_known: bool = True
    is_topic_owned: bool = False
    has_topics_name: bool = True
    known_until: int = NO_LOG_END
    keys: dict[str, str] = field(default_factory=dict)
    objects: dict[str, Listed] = field(default_factory=dict)
    manifest: ManifestFacts | None = None

    @property
    def is_live(self) -> bool:
        """Return whether the segment is finished, before and after."""
        return self.before is State.COPY_SEGMENT_FINISHED and self.after is State.COPY_SEGMENT_FINISHED


def needs_manifest(row: SegmentRow) -> bool:
    """Return whether the manifest is worth a request: of a live segment, and listed."""
    return row.is_live and row.is_topic_known and MANIFEST in row.objects


def decide_segment(row: SegmentRow, graces: Graces, now_ms: int, metadata_doubt: str = "") -> tuple[Finding, ...]:
    """Return all that is wrong with it, one finding per object at most; ``metadata_doubt``: why metadata may lack events."""
    if row.after is not None:
        return tuple(_with_metadata(row, graces, now_ms))
    kind, detail = _without_metadata(row, metadata_doubt)
    return tuple(_leftovers(row, kind, f"no event names its segment{detail}", graces, now_ms))


def _without_metadata(row: SegmentRow, metadata_doubt: str) -> tuple[FindingKind, str]:
    """Return the finding without events: COPY_SEGMENT_STARTED is durable before any object, so it is another's, or they are
    lost."""
    # A bucket may be shared: an object of no topic of this cluster may be another cluster's, and no orphan.
    if not row.is_topic_known:
        return FindingKind.UNKNOWN_TOPIC_ID, ", and no topic has this id"
    if not row.has_topics_name:
        return FindingKind.FOREIGN_OBJECT, ", and the topic of this id has another name than the key says"
    if metadata_doubt:
        return FindingKind.LOST_METADATA, f", but {metadata_doubt}"
    if row.known_until < 0:
        return FindingKind.LOST_METADATA, ", but there are none of its whole partition"
    if row.start_offset > row.known_until:
        return FindingKind.LOST_METADATA, f", but those of its partition end at offset {row.known_until}"
    return FindingKind.ORPHAN_OBJECT, ""


def _with_metadata(row: SegmentRow, graces: Graces, now_ms: int) -> Iterator[Finding]:
    age_ms = now_ms - row.since_ms
    is_ours = row.is_topic_known or row.is_topic_owned
    match row.after:
        case State.DELETE_SEGMENT_STARTED | State.DELETE_SEGMENT_FINISHED if not is_ours:
            yield from _of_unknown_topic(row, graces, age_ms)
        case State.COPY_SEGMENT_STARTED if row.is_topic_known:
            if age_ms >= graces.copy_ms:
                yield _of(row, FindingKind.STUCK_COPY, age_ms, "its copy was started and has not finished")
        case State.DELETE_SEGMENT_STARTED:
            if row.before is State.DELETE_SEGMENT_STARTED and age_ms >= graces.finding_ms:
                yield _of(row, FindingKind.DANGLING_DELETE, age_ms, "its deletion was started and has not finished")
        case State.DELETE_SEGMENT_FINISHED:
            if row.before is State.DELETE_SEGMENT_FINISHED:
                detail = "its segment's deletion is finished"
                yield from _leftovers(row, FindingKind.OBJECT_AFTER_DELETE, detail, graces, now_ms)
        case _:
            if age_ms < graces.finding_ms:
                return
            if not row.is_topic_known:
                # Nothing that is read here says when the topic went: it may have been a moment ago.
                whose = _WAS_OURS if row.is_topic_owned else ""
                yield _of(row, FindingKind.UNKNOWN_TOPIC_ID, age_ms, f"the cluster has no topic of this id{whose}")
            elif row.is_live:
                yield from _of_live(row, age_ms)


def _of_unknown_topic(row: SegmentRow, graces: Graces, age_ms: int) -> Iterator[Finding]:
    """Yield findings for an unknown topic: another cluster, whose metadata were mirrored here, may own the objects."""
    is_gone = row.after is State.DELETE_SEGMENT_FINISHED and not row.objects
    if not is_gone and row.before is row.after and age_ms >= graces.finding_ms:
        detail = "the cluster has no topic of this id, and nothing says that the id was this cluster's"
        yield _of(row, FindingKind.UNKNOWN_TOPIC_ID, age_ms, detail)


def _of_live(row: SegmentRow, age_ms: int) -> Iterator[Finding]:
    missing = [kind for kind in KINDS if kind not in row.objects and not _is_gone(row, kind)]
    for kind in missing:
        yield _of(row, FindingKind.MISSING_OBJECT, age_ms, f"the {kind} object is not in the store", key=row.keys[kind])
    facts = row.manifest
    manifest_key = row.keys[MANIFEST]
    if facts is not None and facts.fault:
        yield _of(row, FindingKind.UNREADABLE_MANIFEST, age_ms, facts.fault, key=manifest_key)
    elif facts is not None and facts.contradiction:
        yield _of(row, FindingKind.CONTRADICTING_MANIFEST, age_ms, facts.contradiction, key=manifest_key)
    else:
        yield from _sizes(row, age_ms)


def _is_gone(row: SegmentRow, kind: str) -> bool:
    return kind == MANIFEST and row.manifest is not None and row.manifest.is_gone


def _sizes(row: SegmentRow, age_ms: int) -> Iterator[Finding]:
    facts = row.manifest
    if facts is not None and not facts.is_gone:
        expected = {LOG: facts.log_bytes, INDEXES: facts.indexes_bytes}
    else:
        expected = {LOG: row.segment_size_bytes} if row.is_plain else {}
    wrong = False
    for kind, size_bytes in expected.items():
        listed = row.objects.get(kind)
        if listed is not None and listed.size_bytes != size_bytes:
            wrong = True
            yield _sized(row, listed, size_bytes, age_ms, f"the {kind} object has another size than it must have")
    if not wrong and row.remote_size_bytes >= 0 and len(row.objects) == len(KINDS):
        together = sum(listed.size_bytes for listed in row.objects.values())
        if together != row.remote_size_bytes:
            detail = (
                f"the three objects have {together} bytes together, the custom metadata say {row.remote_size_bytes}"
            )
            log = row.objects[LOG]
            yield _sized(row, log, log.size_bytes + row.remote_size_bytes - together, age_ms, detail)


def _leftovers(row: SegmentRow, kind: FindingKind, detail: str, graces: Graces, now_ms: int) -> Iterator[Finding]:
    for listed in row.objects.values():
        age_ms = now_ms - listed.modified_ms
        since_event_ms = age_ms if row.since_ms < 0 else now_ms - row.since_ms
        if min(age_ms, since_event_ms) >= graces.finding_ms:
            yield _of(row, kind, age_ms, detail, key=listed.key, found_bytes=listed.size_bytes)


def _sized(row: SegmentRow, listed: Listed, expected_bytes: int, age_ms: int, detail: str) -> Finding:
    return _of(
        row, FindingKind.SIZE_MISMATCH, age_ms, detail,
        key=listed.key, found_bytes=listed.size_bytes, expected_bytes=expected_bytes,
    )  # fmt: skip


def _of(
    row: SegmentRow,
    kind: FindingKind,
    age_ms: int,
    detail: str,
    *,
    key: str = "",
    found_bytes: int = -1,
    expected_bytes: int = -1,
) -> Finding:
    return Finding(
        kind=kind,
        topic=row.topic,
        topic_id=row.topic_id,
        partition=row.partition,
        segment_id=row.segment_id,
        key=key,
        start_offset=row.start_offset,
        end_offset=row.end_offset,
        expected_bytes=expected_bytes,
        found_bytes=found_bytes,
        age_ms=age_ms,
        detail=detail,
    )
