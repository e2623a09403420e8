"""Events of the metadata topic as lines: values in, text out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tiersidecar.app.commands.tables import moment, size
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, format_uuid
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An event, and where and when it was written; ``problem`` in its stead where it cannot be read."""

    partition: int
    offset: int
    time_ms: int
    event: MetadataEvent | None
    problem: str = ""

    @property
    def owner(self) -> TopicIdPartition | None:
        """Whose event it is."""
        if self.event is None:
            return None
        if isinstance(self.event, RemotePartitionDeleteMetadata):
            return self.event.topic_id_partition
        return self.event.remote_log_segment_id.topic_id_partition

    def is_of(self, topic: str | None, partition: int | None) -> bool:
        """Whether it is asked for; what cannot be read always is."""
        owner = self.owner
        if owner is None or topic is None:
            return True
        return owner.topic == topic and partition in (None, owner.partition)


@dataclass(slots=True)
class EventLines:
    """Knows the offsets of segments whose begin it has seen: updates do not tell them."""

    _known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=dict)

    def document(self, recorded: Recorded) -> dict[str, Any]:
        """One event as JSON."""
        event, owner = recorded.event, recorded.owner
        where = {
            "time_ms": recorded.time_ms,
            "metadata_partition": recorded.partition,
            "metadata_offset": recorded.offset,
        }
        if event is None or owner is None:
            return {**where, "kind": "unreadable", "problem": recorded.problem}
        of = {"topic": owner.topic, "topic_id": format_uuid(owner.topic_id), "partition": owner.partition}
        said = {"state": event.state.name, "broker_id": event.broker_id, "event_ms": event.event_timestamp_ms}
        if isinstance(event, RemotePartitionDeleteMetadata):
            return {**where, "kind": "partition-delete", **of, **said}
        begin = self._begin(event)
        found = {
            **where,
            "kind": "segment" if isinstance(event, RemoteLogSegmentMetadata) else "segment-update",
            **of,
            "segment_id": format_uuid(event.remote_log_segment_id.uuid),
            **said,
        }
        if begin is None:
            return found
        return found | {
            "start_offset": begin.start_offset,
            "end_offset": begin.end_offset,
            "size_bytes": begin.segment_size_in_bytes,
            "max_timestamp_ms": begin.max_timestamp_ms,
            "leader_epochs": [[entry.epoch, entry.start_offset] for entry in begin.segment_leader_epochs],
        }

    def text(self, recorded: Recorded) -> str:
        """One event as a line for people."""
        said = self.document(recorded)
        head = f"{moment(recorded.time_ms)}  {recorded.partition}@{recorded.offset}"
        if said["kind"] == "unreadable":
            return f"{head}  cannot be read: {said['problem']}"
        parts = [head, f"{said['topic']}/{said['partition']}", said["state"], f"broker {said['broker_id']}"]
        if "start_offset" in said:
            parts += [f"offsets {said['start_offset']} to {said['end_offset']}", str(size(said["size_bytes"]))]
        return "  ".join([*parts, said.get("segment_id", "")]).rstrip()

    def _begin(self, event: Any) -> RemoteLogSegmentMetadata | None:
        if isinstance(event, RemoteLogSegmentMetadata):
            self._known[event.remote_log_segment_id] = event
        return self._known.get(event.remote_log_segment_id)
