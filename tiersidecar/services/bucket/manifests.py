"""Segments as a bucket shows them: from a listing, and from what each manifest says of its segment.

A manifest goes up last, so it seals a segment.  It repeats what the metadata topic says, all but the custom metadata.  What it
says is believed only as far as its key and the sizes of the objects beside it agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId
from tiersidecar.domain.offsets import EpochEntry, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import ObjectKind, ParsedObjectKey, parse_object_key
from tiersidecar.formats.aiven.manifest import Manifest, ManifestSegment
from tiersidecar.ports.store import StoredObject

_MOST_OFFSET = (1 << 63) - 2
_MOST_INT64, _MOST_INT32 = (1 << 63) - 1, (1 << 31) - 1
_MOST_PARTITIONS = 100_000
"""Per topic: clients get every number up to the highest, so one manifest could make a list of two billion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedManifest:
    """A manifest that a listing has, with the sizes in bytes of the objects beside it; None for one that is missing."""

    key: str
    parsed: ParsedObjectKey
    modified_ms: int
    size_bytes: int
    log_bytes: int | None
    indexes_bytes: int | None

    @property
    def segment_id(self) -> RemoteLogSegmentId:
        return self.parsed.segment_id

    @property
    def missing(self) -> str:
        """Return what is not there beside the manifest; empty where all is."""
        absent = [name for name, size in ((".log", self.log_bytes), (".indexes", self.indexes_bytes)) if size is None]
        return " and ".join(absent)


class ListingFold:
    """Takes the objects of a listing, ascending by key, and gives a manifest with what came right before it.

    Of one segment ``.indexes`` sorts before ``.log``, and both before ``.rsm-manifest``.
    """

    def __init__(self, key_prefix: str) -> None:
        self._key_prefix = key_prefix
        self._stem, self._sizes = "", dict[ObjectKind, int]()
        self.objects = 0

    def take(self, stored: StoredObject) -> ListedManifest | None:
        """Return the manifest that ``stored`` is; None for every other object."""
        self.objects += 1
        parsed = parse_object_key(stored.key, self._key_prefix)
        if parsed is None:
            return None
        stem = stored.key.removesuffix(parsed.kind)
        if stem != self._stem:
            self._stem, self._sizes = stem, {}
        if parsed.kind is not ObjectKind.MANIFEST:
            self._sizes[parsed.kind] = stored.size_bytes
            return None
        return ListedManifest(
            key=stored.key,
            parsed=parsed,
            modified_ms=stored.modified_ms,
            size_bytes=stored.size_bytes,
            log_bytes=self._sizes.get(ObjectKind.LOG),
            indexes_bytes=self._sizes.get(ObjectKind.INDEXES),
        )


def segment_of(listed: ListedManifest, manifest: Manifest) -> RemoteLogSegmentMetadata:
    """Return the segment, finished, as its event would have it.

    Raises:
        CorruptDataError: naming what the manifest lacks, or contradicts.
    """
    said = manifest.segment
    if said is None:
        raise _refused(listed, "it does not say which segment it is of (remoteLogSegmentMetadata is missing)")
    _check_key(listed, said)
    _check_numbers(listed, said)
    _check_objects(listed, manifest)
    try:
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=said.remote_log_segment_id,
            start_offset=said.start_offset,
            end_offset=said.end_offset,
            max_timestamp_ms=said.max_timestamp_ms,
            broker_id=BrokerId(said.broker_id),
            event_timestamp_ms=said.event_timestamp_ms,
            segment_size_in_bytes=manifest.chunk_index.original_file_size,
            segment_leader_epochs=_epochs(listed, said),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            # By the ranges, which reads go by; the flag is missing below Kafka 4.0.
            txn_index_empty=manifest.indexes.transaction is None,
        )
    except ValueError as error:
        raise _refused(listed, str(error)) from error


def in_event_order(segments: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    """Sort by event time: of two that cover the same offsets, the later one is read, as after a replay of their events."""
    return sorted(
        segments,
        key=lambda segment: (segment.event_timestamp_ms, segment.start_offset, segment.remote_log_segment_id.uuid),
    )


def as_started(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Return the same as its first event has it."""
    return replace(segment, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)


def _check_key(listed: ListedManifest, said: ManifestSegment) -> None:
    if said.remote_log_segment_id != listed.segment_id:
        raise _refused(listed, f"it is the manifest of {_name(said.remote_log_segment_id)}")
    if said.start_offset != listed.parsed.start_offset:
        raise _refused(listed, f"it says that the segment starts at offset {said.start_offset}")


def _check_numbers(listed: ListedManifest, said: ManifestSegment) -> None:
    """Check the numbers: JSON's have no bound; those of Kafka's protocol, and of the picture's rows, do."""
    number = said.remote_log_segment_id.topic_id_partition.partition
    if number >= _MOST_PARTITIONS:
        raise _refused(listed, f"partition {number}: a topic has {_MOST_PARTITIONS} here at most")
    for name, value, least, most in (
        ("endOffset", said.end_offset, 0, _MOST_OFFSET),
        ("maxTimestampMs", said.max_timestamp_ms, -1, _MOST_INT64),
        ("eventTimestampMs", said.event_timestamp_ms, 0, _MOST_INT64),
        ("brokerId", said.broker_id, 0, _MOST_INT32),
        *(("a leader epoch", one.epoch, 0, _MOST_INT32) for one in said.segment_leader_epochs),
    ):
        if not least <= value <= most:
            raise _refused(listed, f"{name} is not between {least} and {most}")


def _name(segment_id: RemoteLogSegmentId) -> str:
    return f"segment {segment_id} of {segment_id.topic_id_partition.qualified}"


def _check_objects(listed: ListedManifest, manifest: Manifest) -> None:
    if listed.missing:
        raise _refused(listed, f"missing beside it: {listed.missing}")
    expected = manifest.chunk_index.transformed_size
    if listed.log_bytes != expected:
        raise _refused(listed, f"its .log has {listed.log_bytes} bytes, the manifest speaks of {expected}")


def _epochs(listed: ListedManifest, said: ManifestSegment) -> tuple[EpochEntry, ...]:
    """Return them ascending, the first one's start raised to the segment's, as events have them."""
    entries = said.segment_leader_epochs
    if not entries:
        raise _refused(listed, "it names no leader epoch")
    head = EpochEntry(entries[0].epoch, Offset(max(entries[0].start_offset, said.start_offset)))
    found = (head, *entries[1:])
    starts = [entry.start_offset for entry in found]
    is_ordered = all(before < after for before, after in pairwise(starts))
    is_once = len({entry.epoch for entry in found}) == len(found)  # "0" and "00" are two keys of JSON
    if not is_ordered or not is_once or starts[-1] > said.end_offset:
        epochs = ", ".join(f"{epoch} from {start}" for epoch, start in found[:8])
        raise _refused(listed, f"its leader epochs are out of order or lie outside its offsets: {epochs}")
    return found


def _refused(listed: ListedManifest, reason: str) -> CorruptDataError:
    return CorruptDataError(where=listed.key, position=0, reason=reason)
