"""Keys: ``<key.prefix><topic>-<topicId>/<partition>/<startOffset, 20 digits>-<segmentId>.<suffix>`` (``ObjectKeyFactory``).

The prefix is put in front as it is: a slash only where it has one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, parse_uuid
from tiersidecar.domain.ids import format_uuid as text_of
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.custom_metadata import read_custom_metadata


class ObjectKind(StrEnum):
    """The objects of a segment, by suffix, in the order in which they are put: the manifest seals it (S-283)."""

    LOG = "log"
    INDEXES = "indexes"
    MANIFEST = "rsm-manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKeys:
    """The three keys of one segment."""

    log: str
    indexes: str
    manifest: str

    @property
    def in_upload_order(self) -> tuple[str, str, str]:
        return self.log, self.indexes, self.manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedObjectKey:
    """The parts of a key."""

    segment_id: RemoteLogSegmentId
    start_offset: Offset
    kind: ObjectKind


_BELOW_2_31 = (
    "0|[1-9][0-9]{0,8}|1[0-9]{9}|20[0-9]{8}|21[0-3][0-9]{7}|214[0-6][0-9]{6}|2147[0-3][0-9]{5}|21474[0-7][0-9]{4}"
    "|214748[0-2][0-9]{3}|2147483[0-5][0-9]{2}|21474836[0-3][0-9]|214748364[0-7]"
)
LAYOUT_PATTERN = (
    rf"(?P<topic>[a-zA-Z0-9._-]{{1,249}})-(?P<topic_id>[a-zA-Z0-9_-]{{21}}[AQgw])/(?P<partition>{_BELOW_2_31})"
    r"/(?P<offset>[0-9]{20})-(?P<uuid>[a-zA-Z0-9_-]{21}[AQgw])\.(?P<kind>log|indexes|rsm-manifest)"
)
"""A key without its prefix, in syntax that Python, Java and RE2 share but for the names of groups.

22 characters hold 132 bits: the last one of an id ends in four zeros.  So what fits is written as it is read.
"""

_KEY = re.compile(LAYOUT_PATTERN)


def main_path(segment_id: RemoteLogSegmentId, start_offset: int) -> str:
    """A key without prefix and suffix."""
    return f"{segment_id.topic_id_partition.qualified}/{start_offset:020d}-{text_of(segment_id.uuid)}"


def planned_keys(metadata: RemoteLogSegmentMetadata, key_prefix: str = "") -> ObjectKeys:
    """The keys to write a segment under."""
    stem = key_prefix + main_path(metadata.remote_log_segment_id, metadata.start_offset)
    return _keys(stem, stem)


def plugin_keys(metadata: RemoteLogSegmentMetadata, key_prefix: str = "") -> ObjectKeys:
    """Return the keys where the plugin looks for a segment: prefix and path by its custom metadata, where they have them.

    The manifest's key never comes from there: it is looked up under the configured prefix, whatever it was when the segment was
    written (``reading.manifests.recorded_keys`` are the keys of what was written).

    Raises:
        CorruptDataError: custom metadata that cannot be read.
    """
    path = main_path(metadata.remote_log_segment_id, metadata.start_offset)
    recorded = read_custom_metadata(metadata.custom_metadata, where=f"custom metadata of {path}")
    prefix = key_prefix if recorded.object_prefix is None else recorded.object_prefix
    return _keys(prefix + (recorded.object_key or path), key_prefix + path)


def parse_object_key(key: str, key_prefix: str = "") -> ParsedObjectKey | None:
    """The inverse of :func:`planned_keys`; None for a key that is not of this layout or not under the prefix."""
    match = _KEY.fullmatch(key.removeprefix(key_prefix)) if key.startswith(key_prefix) else None
    if match is None:
        return None
    topic, topic_id, partition, offset, uuid, kind = match.groups()
    return ParsedObjectKey(
        segment_id=RemoteLogSegmentId(
            topic_id_partition=_partition_of(topic, topic_id, partition), uuid=parse_uuid(uuid)
        ),
        start_offset=Offset(int(offset)),
        kind=ObjectKind(kind),
    )


@lru_cache(maxsize=64)
def _partition_of(topic: str, topic_id: str, partition: str) -> TopicIdPartition:
    """In a listing those of one partition are neighbours."""
    return TopicIdPartition(topic_id=parse_uuid(topic_id), topic=topic, partition=int(partition))


def _keys(stem: str, manifest_stem: str) -> ObjectKeys:
    return ObjectKeys(
        log=f"{stem}.{ObjectKind.LOG}",
        indexes=f"{stem}.{ObjectKind.INDEXES}",
        manifest=f"{manifest_stem}.{ObjectKind.MANIFEST}",
    )
