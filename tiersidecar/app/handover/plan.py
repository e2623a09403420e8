"""The plan of a hand-over as a file: the contents that brokers' files must have, and what is compared afterwards."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tiersidecar.adapters.broker_files import write_durably
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.domain.errors import CorruptDataError, HandoverError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, parse_uuid, topic_name_fault
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.readable import cut_text, duration_text, moment_text
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.metadata.serde import read_event, write_event

VERSION = 1
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_OLD_MS = 86_400_000
"""A plan foretells what a broker does at its time: a day on, retention alone has made it another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSegment:
    """A finished segment at the time of the plan; ends are inclusive.

    ``goes`` is why the native broker will delete it, empty if it will not.  ``object_bytes`` are the sizes of .log, .indexes
    and .rsm-manifest, -1 for one that is missing.
    """

    uuid: Uuid
    start_offset: int
    end_offset: int
    size_bytes: int
    object_bytes: tuple[int, int, int]
    goes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDigest:
    """SHA-256 over all records from ``start_offset`` up to, not including, ``stop_offset``, and how many there are."""

    start_offset: int
    stop_offset: int
    count: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPiece:
    """The offsets, [``start_offset``, ``stop_offset``), that a log gets back from one remote segment, as its events have it."""

    start_offset: Offset
    stop_offset: Offset
    segment: RemoteLogSegmentMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """``log_start_offset`` and ``leader_epochs`` are what its replicas' files must say; ``high_watermark`` is as of the plan,
    ``copied_stop`` the offset behind the last copy.  ``replicas`` are the ids of the brokers that have one, all of which have
    files to change; none where none has."""

    owner: TopicIdPartition
    log_start_offset: Offset
    leader_epochs: tuple[EpochEntry, ...]
    high_watermark: Offset
    copied_stop: Offset
    replicas: tuple[int, ...] = ()
    segments: tuple[PlannedSegment, ...] = ()
    records: RecordsDigest | None = None
    foretold_start: Offset | None = None
    """Where a native broker raises the log start to; None in the plan of a takeover."""
    pieces: tuple[PlannedPiece, ...] = ()
    """Pieces that go back to the brokers' disks, ascending, from ``log_start_offset`` to ``copied_stop``; each broker takes
    what is below its own first segment."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Offsets, [from, to), that no piece has, and that were given up."""
    broker_log_start_offset: Offset | None = None
    """Where the leader's log began; a replica's that begins later has lost records since, which users may have deleted."""
    committed: RecordsDigest | None = None
    """Digest as ``records``, without those of aborted transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``to_native`` and ``back_to_local`` say which way; neither of them is from native.  ``plugin`` are the settings, by the
    names of server.properties, with which a broker finds our objects and events.  ``brokers`` are addresses by node id."""

    made_ms: int
    cluster_id: str
    partitions: tuple[PlannedPartition, ...]
    to_native: bool = True
    plugin: Mapping[str, str] = field(default_factory=dict)
    back_to_local: bool = False
    brokers: Mapping[int, str] = field(default_factory=dict)

    @property
    def changes_files(self) -> bool:
        """Return whether brokers' files are changed: then every replica is named."""
        return self.to_native or self.back_to_local

    def of_topic_partition(self) -> dict[tuple[str, int], PlannedPartition]:
        """Return the planned partitions by topic and partition."""
        return {(one.owner.topic, one.owner.partition): one for one in self.partitions}


def fault_of_age(plan: Plan, now_ms: int) -> str:
    """Return why the plan is too old to be carried out, or from a clock that is wrong; empty if it is not."""
    age_ms = now_ms - plan.made_ms
    if age_ms > _OLD_MS:
        return (
            f"the plan is {duration_text(age_ms)} old: what was copied, trimmed or deleted since is not in it. Plan again, or "
            "give --old-plan"
        )
    if age_ms < -_OLD_MS:
        return (
            f"the plan is of the future, {moment_text(plan.made_ms)}: a clock is wrong. Correct it, or give --old-plan"
        )
    return ""


def write_plan(plan: Plan, path: Path) -> None:
    """Write the file; one that is there is not replaced.

    Raises:
        HandoverError: it is there, or cannot be written.
    """
    document = {
        "version": VERSION,
        "made_ms": plan.made_ms,
        "cluster_id": plan.cluster_id,
        "to_native": plan.to_native,
        "plugin": dict(plan.plugin),
        **(
            {"back_to_local": True, "brokers": {str(one): at for one, at in plan.brokers.items()}}
            if plan.back_to_local
            else {}
        ),
        "partitions": [_document(one) for one in plan.partitions],
    }
    try:
        if os.path.lexists(path):
            raise HandoverError(subject=str(path), reason="the file exists: give another name, or remove it")
        write_durably(path, json.dumps(document, indent=1).encode(), mode=0o666)  # a broker's user reads it
    except OSError as error:
        raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        HandoverError: there is none, or it is not one of this release.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["version"] != VERSION:
            raise HandoverError(subject=str(path), reason=f"its version is {document['version']}, must be {VERSION}")
        back_to_local = "back_to_local" in document and _flag(document, "back_to_local")
        to_native = _flag(document, "to_native") and not back_to_local
        return Plan(
            made_ms=_integer(document["made_ms"], _INT64_MAX),
            cluster_id=str(document["cluster_id"]),
            to_native=to_native,
            plugin={str(name): str(value) for name, value in document["plugin"].items()},
            partitions=tuple(
                _partitions(
                    document["partitions"], changes_files=to_native or back_to_local, back_to_local=back_to_local
                )
            ),
            back_to_local=back_to_local,
            brokers={int(one): str(at) for one, at in document.get("brokers", {}).items()},
        )
    except OSError as error:
        raise HandoverError(subject=str(path), reason=explain_os_error(error)) from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
        CorruptDataError,
    ) as error:
        reason = f"it is not a plan of a hand-over: {cut_text(repr(error))}"
        raise HandoverError(subject=str(path), reason=reason) from error


def _document(partition: PlannedPartition) -> dict[str, Any]:
    return {
        "topic": partition.owner.topic,
        "topic_id": format_uuid(partition.owner.topic_id),
        "partition": partition.owner.partition,
        "log_start_offset": partition.log_start_offset,
        "leader_epochs": [list(entry) for entry in partition.leader_epochs],
        "high_watermark": partition.high_watermark,
        "copied_stop": partition.copied_stop,
        "replicas": list(partition.replicas),
        "records": _digest_row(partition.records),
        "segments": [
            [format_uuid(one.uuid), one.start_offset, one.end_offset, one.size_bytes, list(one.object_bytes), one.goes]
            for one in partition.segments
        ],
        "foretold_start": partition.foretold_start,
        "gaps": [list(gap) for gap in partition.gaps],
        "broker_log_start_offset": partition.broker_log_start_offset,
        "committed": _digest_row(partition.committed),
        "pieces": [
            [
                one.start_offset,
                one.stop_offset,
                b64encode(write_event(one.segment, knows_txn_index_empty=True)).decode(),
            ]
            for one in partition.pieces
        ],
    }


def _digest_row(records: RecordsDigest | None) -> list[Any] | None:
    return None if records is None else [records.start_offset, records.stop_offset, records.count, records.sha256]


def _partitions(
    rows: Iterable[Mapping[str, Any]], *, changes_files: bool, back_to_local: bool
) -> Iterator[PlannedPartition]:
    """Yield all planned partitions, each once.

    Raises:
        ValueError: one is named twice, or no broker could have what it says.
    """
    seen = set[tuple[str, int]]()
    for row in rows:
        planned = _partition(row)
        at = planned.owner.topic, planned.owner.partition
        if at in seen:
            raise ValueError(f"{planned.owner} is named twice")
        seen.add(at)
        if back_to_local and planned.broker_log_start_offset is None:
            raise ValueError(f"{planned.owner}: it does not say where the brokers' log began: plan again")
        if fault := _fault_of(planned, changes_files=changes_files):
            raise ValueError(f"{planned.owner}: {fault}")
        yield planned


def _fault_of(planned: PlannedPartition, *, changes_files: bool) -> str:
    """Return why no log can be as planned; empty if one can."""
    if changes_files and not planned.replicas:
        return "it names no replicas"
    if planned.log_start_offset > planned.high_watermark:
        return f"it starts at {planned.log_start_offset}, beyond its end {planned.high_watermark}"
    if any(
        after.epoch <= before.epoch or after.start_offset <= before.start_offset
        for before, after in pairwise(planned.leader_epochs)
    ):
        return "its leader epochs do not ascend"
    return _fault_of_pieces(planned)


def _fault_of_pieces(planned: PlannedPartition) -> str:
    reached = planned.log_start_offset
    for one in planned.pieces:
        if one.segment.topic_id_partition != planned.owner:
            return f"a piece of it is of {one.segment.topic_id_partition}"
        if not reached <= one.start_offset < one.stop_offset <= planned.high_watermark:
            return f"its pieces are not in order at offset {one.start_offset}"
        if not one.segment.start_offset <= one.start_offset < one.stop_offset <= one.segment.next_offset:
            return f"its piece [{one.start_offset}, {one.stop_offset}) is not of the segment that it names"
        reached = one.stop_offset
    return ""


def _integer(value: object, most: int, *, least: int = 0) -> int:
    """Return a whole number from ``least`` to ``most``, as JSON has it."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is no whole number from {least} to {most}")
    return value


def _flag(document: Mapping[str, object], name: str) -> bool:
    value = document[name]
    if type(value) is not bool:
        raise ValueError(f"{name} is {value!r}, must be true or false")
    return value


def _offset(value: object) -> Offset:
    return Offset(_integer(value, _INT64_MAX))


def _topic(value: object) -> str:
    topic = str(value)
    if fault := topic_name_fault(topic):
        raise ValueError(fault)
    return topic


def _partition(row: Mapping[str, Any]) -> PlannedPartition:
    return PlannedPartition(
        owner=TopicIdPartition(
            topic_id=parse_uuid(row["topic_id"]),
            topic=_topic(row["topic"]),
            partition=_integer(row["partition"], _INT32_MAX),
        ),
        log_start_offset=_offset(row["log_start_offset"]),
        leader_epochs=tuple(
            EpochEntry(LeaderEpoch(_integer(epoch, _INT32_MAX)), _offset(start))
            for epoch, start in row["leader_epochs"]
        ),
        high_watermark=_offset(row["high_watermark"]),
        copied_stop=_offset(row["copied_stop"]),
        replicas=tuple(_integer(one, _INT32_MAX) for one in row["replicas"]),
        records=None if row["records"] is None else _digest(*row["records"]),
        segments=tuple(_segment(*one) for one in row["segments"]),
        foretold_start=None if row.get("foretold_start") is None else _offset(row["foretold_start"]),
        broker_log_start_offset=(
            None if row.get("broker_log_start_offset") is None else _offset(row["broker_log_start_offset"])
        ),
        committed=None if row.get("committed") is None else _digest(*row["committed"]),
        pieces=tuple(_piece(*one) for one in row.get("pieces", ())),
        gaps=tuple((_offset(start), _offset(stop)) for start, stop in row.get("gaps", ())),
    )


def _piece(start: object, stop: object, event: str) -> PlannedPiece:
    segment = read_event(b64decode(event, validate=True), where="a piece")
    if not isinstance(segment, RemoteLogSegmentMetadata):
        raise CorruptDataError(where="a piece", position=0, reason="it names no segment")
    return PlannedPiece(start_offset=_offset(start), stop_offset=_offset(stop), segment=segment)


def _digest(start: object, stop: object, count: object, sha256: object) -> RecordsDigest:
    return RecordsDigest(
        start_offset=_offset(start),
        stop_offset=_offset(stop),
        count=_integer(count, _INT64_MAX),
        sha256=str(sha256),
    )


def _segment(
    uuid: str, start: object, end: object, size_bytes: object, object_bytes: Sequence[object], goes: object
) -> PlannedSegment:
    log, indexes, manifest = (_integer(one, _INT64_MAX, least=-1) for one in object_bytes)
    return PlannedSegment(
        uuid=parse_uuid(uuid),
        start_offset=_offset(start),
        end_offset=_offset(end),
        size_bytes=_integer(size_bytes, _INT64_MAX),
        object_bytes=(log, indexes, manifest),
        goes=str(goes),
    )
