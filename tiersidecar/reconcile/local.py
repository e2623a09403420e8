"""Run reconcile in this process, for stores of up to a million objects: with the rules and the report of the Spark job.

1. Events up to the topic's end now are folded.  2. The objects are listed.  3. Events that came meanwhile are folded too,
marked late.  4. Segments are joined with the objects by key, and what is not plainly in order is decided.  All of it is in
memory: about a kilobyte per segment with its events, and a third of one per object.
"""

from __future__ import annotations

import gc
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

from tiersidecar.decide.reconcile_findings import Finding, FindingKind, place_out_of_reach
from tiersidecar.decide.reconcile_offsets import LineSegment, PartitionLine, decide_offsets
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.own_objects import OWN_DIRECTORY
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import LAYOUT_PATTERN, ObjectKind
from tiersidecar.formats.metadata import hot
from tiersidecar.ports.store import PROBE_NAME, Store, StoredObject
from tiersidecar.reconcile.inputs import KnownTopic, ReconcileSettings, Seen
from tiersidecar.reconcile.listing import list_ranges, ranges_between
from tiersidecar.reconcile.segment_check import OBJECT_COLUMNS, SegmentCheck, epochs_of, preceding_of
from tiersidecar.reconcile.segment_rows import event_fields, folded_segment

RawEvent = tuple[int, int, bytes | None]
"""Partition of the metadata topic, offset, value."""

_COLUMNS = (
    "api_key", "uuid", "state", "broker_id", "event_timestamp_ms", "topic", "topic_id", "partition", "start_offset",
    "end_offset", "segment_size_bytes", "epochs", "object_prefix", "remote_size_bytes",
)  # fmt: skip
_API_KEY, _UUID, _STATE, _TOPIC_ID, _PARTITION, _PREFIX = 0, 1, 2, 6, 7, 12


class LocalEvents:
    """Takes events and folds them: about a kilobyte for each segment."""

    def __init__(self) -> None:
        self.count = 0
        self.unreadable: list[Finding] = []
        self._segments: dict[tuple[Uuid, int, Uuid], list[tuple[int, bool, tuple[Any, ...]]]] = {}
        self._deletions: dict[tuple[Uuid, int], list[tuple[int, bool, int]]] = {}

    def add(self, events: Iterable[RawEvent], *, is_late: bool) -> None:
        """Take ``events``, of each partition in the order of their offsets; ``is_late``: they came after the listing began."""
        for log_partition, offset, value in events:
            *fields, fault = event_fields(value or b"", (log_partition, offset))
            self.count += 1
            if fault is not None:
                detail = f"metadata partition {log_partition} offset {offset}: {fault}"
                self.unreadable.append(Finding(kind=FindingKind.UNREADABLE_EVENT, detail=detail))
            owner = fields[_TOPIC_ID], fields[_PARTITION]
            if fields[_API_KEY] in (hot.ADDED, hot.UPDATED):
                self._segments.setdefault((*owner, fields[_UUID]), []).append((offset, is_late, tuple(fields)))
            elif fields[_API_KEY] == hot.PARTITION_DELETE:
                self._deletions.setdefault(owner, []).append((offset, is_late, fields[_STATE]))

    def prefixes(self) -> set[str]:
        """Return the object prefixes that segments were recorded under."""
        return {
            fields[_PREFIX] for rows in self._segments.values() for _, _, fields in rows if fields[_PREFIX] is not None
        }

    def segments(self, key_prefix: str, *, at_most: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield a row for each segment that an event added, in whatever state, as :func:`folded_segment` has them, with
        ``stem``, its objects' key without the suffix, and ids as text in ``topic_id_text`` and ``segment_id``.

        ``at_most`` gives about as many of them, evenly chosen.
        """
        step = 1 if at_most is None else max(1, len(self._segments) // at_most)
        for (topic_id, partition, uuid), events in islice(self._segments.items(), 0, None, step):
            rows = [
                {"log_offset": offset, "is_late": is_late, **dict(zip(_COLUMNS, fields, strict=True))}
                for offset, is_late, fields in events
            ]
            row = folded_segment(rows, self._deletions.get((topic_id, partition), ()))
            if row is not None:
                row["topic_id_text"], row["segment_id"] = format_uuid(topic_id), format_uuid(uuid)
                prefix = key_prefix if row["object_prefix"] is None else row["object_prefix"]
                place = f"{row['topic']}-{row['topic_id_text']}/{partition}"
                row["stem"] = f"{prefix}{place}/{row['start_offset']:020d}-{row['segment_id']}"
                yield row


_RANGES = 32
_SAMPLE = 32 * _RANGES
"""The number of segments whose keys cut the listing into ranges of about the same size."""
_ROWS_AT_ONCE = 1000
_FOREIGN = "foreign"
_LARGEST_OFFSET = 2**63 - 1
_FINISHED, _GOING, _GONE = State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED

Say = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalInputs:
    """Where events come from.  ``late_events`` is asked after the listing; ``metadata_doubt`` when all events are read, with
    the numbers of segments of known and of unknown topics: why they may not be all, or not this cluster's."""

    early_events: AsyncIterator[Sequence[RawEvent]]
    late_events: Callable[[], AsyncIterator[Sequence[RawEvent]]]
    topics: Sequence[KnownTopic]
    metadata_doubt: Callable[[int, int], str] = lambda known, foreign: ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocallyReconciled(Seen):
    """The facts and findings of a run."""

    findings: Sequence[Finding]


class _Topic(NamedTuple):
    """The cluster's facts about a topic id."""

    topic: str = ""
    is_known: bool = False
    is_owned: bool = False
    is_compacted: bool = False


async def reconcile_locally(
    store: Store, settings: ReconcileSettings, inputs: LocalInputs, say: Say, *, now_ms: Callable[[], int]
) -> LocallyReconciled:
    """Find everything.  ``say`` gets a line for each step that begins, for people; ``settings.open_store`` is not asked.

    Raises:
        StoreError: the store could not be listed, or asked, to the end.
    """
    with _without_collector():
        return await _reconcile(store, settings, inputs, say, now_ms)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hold off the cycle collector, which would walk the millions of objects again and again: a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _reconcile(
    store: Store, settings: ReconcileSettings, inputs: LocalInputs, say: Say, now_ms: Callable[[], int]
) -> LocallyReconciled:
    events = LocalEvents()
    say("reading the metadata topic")
    async for some in inputs.early_events:
        events.add(some, is_late=False)
    objects, away = await _listed(store, settings, events, say)
    settings = settings.without(away)
    say("reading what was published meanwhile")
    async for some in inputs.late_events():
        events.add(some, is_late=True)
    facts = {one.topic_id: _Topic(one.topic, not one.is_gone, one.is_gone, one.is_compacted) for one in inputs.topics}
    say("folding")
    segments = [_with_topic(row, facts) for row in events.segments(settings.key_prefix)]
    known = sum(row["is_topic_known"] for row in segments)
    doubt = inputs.metadata_doubt(known, len(segments) - known)
    decided_ms = now_ms()
    unknown = settings.places_out_of_reach(recorded := events.prefixes())
    prefixes = settings.prefixes | recorded - unknown
    by_stem = _by_stem(objects, prefixes, settings.prefixes)
    rows = _joined([row for row in segments if row["object_prefix"] not in unknown], by_stem, facts, prefixes, settings)
    check = SegmentCheck(
        graces=settings.graces,
        now_ms=decided_ms,
        open_store=lambda: nullcontext(store),
        reads_manifests=settings.reads_manifests,
        is_plain=settings.is_plain,
        deep=settings.deep,
        metadata_doubt=doubt,
    )
    findings = await _checked(check, rows, len(by_stem), say)
    findings += _offset_findings(segments, settings, decided_ms)
    findings += events.unreadable
    elsewhere = Counter(
        row["object_prefix"] for row in segments if row["object_prefix"] in unknown and row["after"] != _GONE
    )
    for prefix in sorted(elsewhere.keys() | settings.away.keys()):
        findings.append(place_out_of_reach(prefix, elsewhere[prefix], settings.away))
    live = [row for row in segments if row["after"] == _FINISHED]
    orphans = [finding for finding in findings if finding.kind is FindingKind.ORPHAN_OBJECT]
    return LocallyReconciled(
        findings=findings,
        event_count=events.count,
        segment_count=len(segments),
        live_segment_count=len(live),
        live_bytes=sum(row["segment_size_bytes"] for row in live),
        object_count=len(objects),
        object_bytes=sum(one.size_bytes for one in objects),
        orphan_count=len(orphans),
        orphan_bytes=sum(orphan.found_bytes for orphan in orphans),
        metadata_doubt=doubt,
    )


async def _listed(
    store: Store, settings: ReconcileSettings, events: LocalEvents, say: Say
) -> tuple[list[StoredObject], dict[str, str]]:
    """Return what the store has, and why places stopped answering, by their prefixes, of which nothing is returned."""
    stems = sorted(row["stem"] for row in events.segments(settings.key_prefix, at_most=_SAMPLE))
    recorded = events.prefixes()
    prefixes = settings.prefixes | recorded - settings.places_out_of_reach(recorded)
    ranges = ranges_between(prefixes, stems[:: max(1, len(stems) // _RANGES)])
    say(f"listing the store in {len(ranges)} ranges")
    found: list[StoredObject] = []
    away: dict[str, str] = {}
    async with aclosing(list_ranges(store, ranges, away)) as parts:
        async for part in parts:
            found += part
            say(f"listing the store: {len(found):,} objects")
    return [stored for stored in found if not stored.key.startswith(tuple(away))], away


def _with_topic(row: Row, facts: Mapping[str, _Topic]) -> Row:
    topic = facts.get(row["topic_id_text"], _Topic())
    row |= {"is_topic_known": topic.is_known, "is_topic_owned": topic.is_owned, "is_compacted": topic.is_compacted}
    return row


def _by_stem(objects: Iterable[StoredObject], prefixes: Set[str], own_prefixes: Set[str]) -> dict[str, Row]:
    """Return bytes and times of the objects of each segment; one that is not of the layout is a row under its whole key.  What
    is the sidecars' own, under one of ``own_prefixes``, is left out."""
    quoted = "|".join(re.escape(prefix) for prefix in sorted(prefixes, reverse=True))
    layout = re.compile(f"(?:{quoted}){LAYOUT_PATTERN}")
    own = tuple(prefix + name for prefix in own_prefixes for name in (OWN_DIRECTORY, PROBE_NAME))
    names = dict(zip(map(str, ObjectKind), OBJECT_COLUMNS, strict=True))
    found: dict[str, Row] = defaultdict(dict)
    for stored in objects:
        if layout.fullmatch(stored.key):
            stem, _, suffix = stored.key.rpartition(".")
            name = names[suffix]
        elif stored.key.startswith(own):
            continue
        else:
            stem, name = stored.key, _FOREIGN
        row = found[stem]
        row[f"{name}_bytes"], row[f"{name}_ms"] = stored.size_bytes, stored.modified_ms
    return found


_NO_OBJECTS = {f"{name}_{unit}": None for name in (*OBJECT_COLUMNS, _FOREIGN) for unit in ("bytes", "ms")}


def _joined(
    segments: Sequence[Row],
    by_stem: Mapping[str, Row],
    facts: Mapping[str, _Topic],
    prefixes: Set[str],
    settings: ReconcileSettings,
) -> Iterator[Row]:
    """Yield what may have findings, with the columns that :class:`SegmentCheck` asks for."""
    known_until: dict[tuple[str, int], int] = {}
    for row in segments:
        place = row["topic_id_text"], row["partition"]
        known_until[place] = max(known_until.get(place, -1), row["end_offset"])
    preceding = preceding_of(segments) if settings.deep else {}
    stems = set()
    for row in segments:
        stems.add(row["stem"])
        joined = {
            **_NO_OBJECTS,
            **row,
            **by_stem.get(row["stem"], {}),
            "topic_id": row["topic_id_text"],
            "has_topics_name": True,
            "known_until": known_until[row["topic_id_text"], row["partition"]],
            "preceding": preceding.get(row["stem"]),
        }
        if not _is_in_order(joined, settings):
            yield joined
    naming = _Naming(facts, prefixes)
    for stem, objects in by_stem.items():
        if stem not in stems:
            named = naming.named(stem)
            place = named["topic_id"], named["partition"]
            yield {**_NO_OBJECTS, **objects, **named, "known_until": known_until.get(place, -1)}


def _is_in_order(row: Row, settings: ReconcileSettings) -> bool:
    """Return whether no rule can find anything in it."""
    sizes = [row[f"{name}_bytes"] for name in OBJECT_COLUMNS]
    if row["foreign_bytes"] is not None:
        return False
    if row["after"] == _GONE and sizes == [None, None, None]:
        return True
    if settings.reads_manifests or settings.deep or None in sizes or not row["is_topic_known"]:
        return False
    if row["before"] != _FINISHED or row["after"] != _FINISHED:
        return False
    adds_up = row["remote_size_bytes"] in (None, sum(sizes))
    return adds_up and (not settings.is_plain or sizes[0] == row["segment_size_bytes"])


class _Naming:
    """Reads the facts about objects without any event from their keys.

    Where prefixes begin alike, a key can be read in two ways, of which the topic's id is the same: its topic is the one of that
    id, and the key must begin with a prefix of ours and that topic's name.
    """

    def __init__(self, facts: Mapping[str, _Topic], prefixes: Set[str]) -> None:
        self._facts, self._prefixes = facts, sorted(prefixes)
        quoted = "|".join(re.escape(prefix) for prefix in sorted(prefixes, reverse=True))
        self._layout = re.compile(f"(?:{quoted}){LAYOUT_PATTERN}")

    def named(self, stem: str) -> Row:
        """Return the columns of an object's row that its segment's events would have."""
        said = self._layout.fullmatch(f"{stem}.{ObjectKind.LOG}")
        topic_id = said["topic_id"] if said else ""
        start_offset = int(said["offset"]) if said else -1
        topic = self._facts.get(topic_id, _Topic())
        begins = tuple(f"{prefix}{topic.topic}-{topic_id}/" for prefix in self._prefixes)
        return {
            "stem": stem,
            "topic": topic.topic if topic.is_known else (said["topic"] if said else ""),
            "topic_id": topic_id,
            "partition": int(said["partition"]) if said else -1,
            "start_offset": start_offset if start_offset <= _LARGEST_OFFSET else -1,
            "segment_id": said["uuid"] if said else "",
            "after": None,
            "before": None,
            "remote_size_bytes": None,
            "is_topic_known": topic.is_known,
            "is_topic_owned": topic.is_owned,
            "has_topics_name": topic_id in self._facts and stem.startswith(begins),
            "preceding": None,
        }


async def _checked(check: SegmentCheck, rows: Iterator[Row], count: int, say: Say) -> list[Finding]:
    found: list[Finding] = []
    done = 0
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        say(f"comparing: {done:,} of {count:,} segments")
        found += await check.check(some)
        done += len(some)
    return found


def _offset_findings(segments: Iterable[Row], settings: ReconcileSettings, now_ms: int) -> Iterator[Finding]:
    lines: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in segments:
        if row["is_topic_known"] and row["after"] in (_FINISHED, _GOING):
            lines[row["topic_id_text"], row["partition"]].append(row)
    for rows in lines.values():
        if not _is_chain(rows):
            yield from decide_offsets(_line(rows), settings.graces, now_ms)


def _is_chain(rows: list[Row]) -> bool:
    """Return whether segments simply follow each other: then no rule of offsets can find anything."""
    rows.sort(key=lambda row: row["start_offset"])
    return all(after["start_offset"] == row["end_offset"] + 1 for row, after in pairwise(rows))


def _line(rows: Sequence[Row]) -> PartitionLine:
    first = rows[0]
    return PartitionLine(
        topic=first["topic"],
        topic_id=first["topic_id_text"],
        partition=first["partition"],
        segments=[_line_segment(row) for row in rows],
        is_compacted=first["is_compacted"],
    )


def _line_segment(row: Row) -> LineSegment:
    return LineSegment(
        segment_id=row["segment_id"],
        start_offset=row["start_offset"],
        end_offset=row["end_offset"],
        epochs=epochs_of(row["epochs"]),
        broker_id=row["broker_id"],
        started_at=row["started_at"],
        finished_at=-1 if row["finished_at"] is None else row["finished_at"],
        since_ms=row["since_ms"],
        is_going=row["after"] == _GOING,
    )
