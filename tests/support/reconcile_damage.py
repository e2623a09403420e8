"""A bucket and its metadata, damaged in every way that reconcile knows, each damage with the finding that it must lead to."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from tiersidecar.decide.reconcile_findings import FindingKind as K
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import ObjectKind, planned_keys
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.formats.metadata.serde import write_event

Expected = tuple[str, str]
"""Kind, and the object's key or the segment's id or the offsets."""


@dataclass(slots=True)
class Damages:
    """Damages ``root`` and the metadata topic, and remembers what must be found; ``backup`` has what was taken away.

    Real segments are taken from ``segments``, which are of one partition, one for each damage.
    """

    root: Path
    backup: Path
    segments: list[RemoteLogSegmentMetadata]
    seed: int
    now_ms: int
    expected: list[Expected] = field(default_factory=list)
    events: list[MetadataEvent] = field(default_factory=list)
    spans: dict[Expected, tuple[int, int]] = field(default_factory=dict)
    """The offsets that each damage to data concerns, inclusive, by what is expected."""

    _gaps: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _taken: RemoteLogSegmentMetadata = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.segments = sorted(self.segments, key=lambda segment: segment.start_offset)[1:-1]
        self._random.shuffle(self.segments)

    # -- objects of live segments

    def missing_object(self) -> None:
        key = self._object(self._random.choice(list(ObjectKind)))
        (self.root / key).unlink()
        self._expect_of_data(K.MISSING_OBJECT, key)

    def size_mismatch(self) -> None:
        path = self.root / (key := self._object(self._random.choice([ObjectKind.LOG, ObjectKind.INDEXES])))
        data = path.read_bytes()
        path.write_bytes(self._random.choice([data[:-1], data + b"\0", b""]))
        self._expect_of_data(K.SIZE_MISMATCH, key)

    def unreadable_manifest(self) -> None:
        path = self.root / (key := self._object(ObjectKind.MANIFEST))
        data = path.read_bytes()
        path.write_bytes(self._random.choice([b"", data[: len(data) // 2], b"\xff" + data, b"[]"]))
        self._expect_of_data(K.UNREADABLE_MANIFEST, key)

    def contradicting_manifest(self) -> None:
        path = self.root / (key := self._object(ObjectKind.MANIFEST))
        document = json.loads(path.read_bytes())
        said = document["remoteLogSegmentMetadata"]
        match self._random.randrange(3):
            case 0:
                said["endOffset"] += 1
            case 1:
                said["remoteLogSegmentId"]["id"] = format_uuid(self._uuid())
            case _:
                said["segmentLeaderEpochs"] = {"77": said["startOffset"]}
        path.write_bytes(json.dumps(document, separators=(",", ":")).encode())
        self.expected.append((K.CONTRADICTING_MANIFEST, key))

    # -- objects of no live segment

    def orphan_object(self) -> None:
        segment = self._invented(self._any())
        key = self._put(segment, self._random.choice([ObjectKind.LOG, ObjectKind.INDEXES]))
        self.expected.append((K.ORPHAN_OBJECT, key))

    def object_after_delete(self) -> None:
        segment = self._invented(self._any())
        self._publish(segment, State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED)
        self.expected.append((K.OBJECT_AFTER_DELETE, self._put(segment, self._random.choice(list(ObjectKind)))))

    def foreign_object(self) -> None:
        name = format_uuid(self._uuid())
        segment = planned_keys(self._any()).log
        key = self._random.choice(
            [
                f"{name}.txt",
                f"somewhere/{name}/x.log",
                f"{segment}.{name}.bak",
                f"{segment.rpartition('/')[0]}/{name}.log",
            ]
        )
        self._write(key)
        self.expected.append((K.FOREIGN_OBJECT, key))

    def unknown_topic_id(self) -> None:
        owner = TopicIdPartition(topic_id=self._uuid(), topic="gone", partition=self._random.randrange(5))
        segment = self._invented(self._any(), owner)
        if self._random.random() < 0.5:
            self.expected.append((K.UNKNOWN_TOPIC_ID, self._put(segment, ObjectKind.LOG)))
            return
        self._publish(segment, State.COPY_SEGMENT_FINISHED)
        for kind in ObjectKind:
            self._put(segment, kind)
        self.expected.append((K.UNKNOWN_TOPIC_ID, format_uuid(segment.remote_log_segment_id.uuid)))

    # -- states

    def stuck_copy(self) -> None:
        segment = self._invented(self._any())
        self._publish(segment)
        if self._random.random() < 0.5:
            self._put(segment, ObjectKind.LOG)
        self.expected.append((K.STUCK_COPY, format_uuid(segment.remote_log_segment_id.uuid)))

    def dangling_delete(self) -> None:
        segment = self._invented(self._any())
        states = [State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_STARTED]
        self._publish(segment, *self._random.choice([states, states[1:]]))
        if self._random.random() < 0.5:
            self._put(segment, ObjectKind.LOG)
        self.expected.append((K.DANGLING_DELETE, format_uuid(segment.remote_log_segment_id.uuid)))

    # -- offsets

    def offset_gap(self) -> None:
        segment = next(one for one in reversed(self.segments) if not self._is_beside_a_gap(one))
        self.segments.remove(segment)
        self._gaps.append(segment)
        self._update(segment, State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED)
        for key in planned_keys(segment).in_upload_order:
            (self.root / key).unlink()
        self.expected.append((K.OFFSET_GAP, f"{segment.start_offset}-{segment.end_offset}"))
        self.spans[self.expected[-1]] = (segment.start_offset, segment.end_offset)

    def offset_overlap(self) -> None:
        original = self.segments.pop()
        twin = self._invented(original)
        self._publish(twin, State.COPY_SEGMENT_FINISHED)
        for ours, theirs in zip(
            planned_keys(twin).in_upload_order, planned_keys(original).in_upload_order, strict=True
        ):
            old = format_uuid(original.remote_log_segment_id.uuid).encode()
            new = format_uuid(twin.remote_log_segment_id.uuid).encode()
            (self.root / ours).write_bytes((self.root / theirs).read_bytes().replace(old, new))
        self.expected.append((K.OFFSET_OVERLAP, format_uuid(original.remote_log_segment_id.uuid)))

    # -- doing it

    def do(self, counts: Mapping[str, int]) -> None:
        """Do so many of each, in an order of the seed's."""
        names = [name for name, count in counts.items() for _ in range(count)]
        self._random.shuffle(names)
        # Gaps first: what is invented later may look like any segment that is left, and would fill them.
        names.sort(key=lambda name: name != "offset_gap")
        for name in names:
            getattr(self, name)()

    async def publish(self, client_settings: Mapping[str, Any], topic: str, partitions: int) -> None:
        """Write the events that :meth:`do` has made."""
        async with AIOKafkaProducer(**client_settings, acks="all") as producer:
            sent = []
            for event in self.events:
                assert isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate)
                owner = event.remote_log_segment_id.topic_id_partition
                value = write_event(event, knows_txn_index_empty=True)
                number = metadata_partition(owner, partitions)
                sent.append(await producer.send(topic, value, partition=number))
            await asyncio.gather(*sent)

    def restore(self, kind: K) -> None:
        """Return what an operator would bring back: objects of this kind of damage, from versions of the bucket."""
        for found, key in self.expected:
            if found is kind:
                (self.root / key).write_bytes((self.backup / key).read_bytes())

    def lost_below(self, offset: int) -> dict[Expected, tuple[int, int]]:
        """Return damages to data that no broker has any more, if its log begins at ``offset``."""
        return {expected: span for expected, span in self.spans.items() if span[0] < offset}

    def _is_beside_a_gap(self, one: RemoteLogSegmentMetadata) -> bool:
        """Return whether it is: two gaps side by side would be one."""
        return any(
            gap.end_offset + 1 == one.start_offset or one.end_offset + 1 == gap.start_offset for gap in self._gaps
        )

    def _any(self) -> RemoteLogSegmentMetadata:
        return self._random.choice(self.segments)

    def _object(self, kind: ObjectKind) -> str:
        """Return an object of a real segment that nothing else happens to."""
        self._taken = self.segments.pop()
        keys = planned_keys(self._taken)
        key = dict(zip(ObjectKind, keys.in_upload_order, strict=True))[kind]
        self._save(key)
        return key

    def _expect_of_data(self, kind: K, key: str) -> None:
        self.expected.append((kind, key))
        self.spans[(kind, key)] = (self._taken.start_offset, self._taken.end_offset)

    def _save(self, key: str) -> None:
        target = self.backup / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((self.root / key).read_bytes())

    def _uuid(self) -> Uuid:
        return Uuid(self._random.randbytes(16))

    def _invented(
        self, like: RemoteLogSegmentMetadata, owner: TopicIdPartition | None = None
    ) -> RemoteLogSegmentMetadata:
        """Return a segment that no broker has copied."""
        segment_id = RemoteLogSegmentId(topic_id_partition=owner or like.topic_id_partition, uuid=self._uuid())
        return replace(like, remote_log_segment_id=segment_id, state=State.COPY_SEGMENT_STARTED, custom_metadata=None)

    def _publish(self, segment: RemoteLogSegmentMetadata, *states: State) -> None:
        self.events.append(replace(segment, event_timestamp_ms=self.now_ms))
        self._update(segment, *states)

    def _update(self, segment: RemoteLogSegmentMetadata, *states: State) -> None:
        for state in states:
            self.events.append(
                RemoteLogSegmentMetadataUpdate(
                    remote_log_segment_id=segment.remote_log_segment_id,
                    broker_id=segment.broker_id,
                    event_timestamp_ms=self.now_ms,
                    state=state,
                )
            )

    def _put(self, segment: RemoteLogSegmentMetadata, kind: ObjectKind) -> str:
        key = dict(zip(ObjectKind, planned_keys(segment).in_upload_order, strict=True))[kind]
        self._write(key)
        return key

    def _write(self, key: str) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._random.randbytes(50))


def shown(findings: Sequence[Mapping[str, Any]]) -> list[Expected]:
    """Return findings as :attr:`Damages.expected` has them."""
    by_segment = {K.STUCK_COPY, K.DANGLING_DELETE, K.OFFSET_OVERLAP}
    found: list[Expected] = []
    for row in findings:
        kind = K(row["kind"])
        if kind is K.OFFSET_GAP:
            found.append((kind, f"{row['start_offset']}-{row['end_offset']}"))
        else:
            found.append((kind, row["segment_id"] if kind in by_segment or not row["key"] else row["key"]))
    return sorted(found)
