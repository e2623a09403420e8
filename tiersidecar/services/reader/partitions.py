"""Serve the lists of topics, partitions and segments that can be read here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from aiohttp import web

from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.services.reader.callers import Callers
from tiersidecar.services.reader.problems import not_found
from tiersidecar.services.reader.routes import FROM_OFFSET, LIMIT_SEGMENTS, partition_of, topic_of


class PartitionCatalogue(Protocol):
    def partitions(self) -> Collection[TopicIdPartition]:
        """Return the partitions whose remote log metadata this process keeps; of one name only the living topic id."""


def topics_of(catalogue: PartitionCatalogue) -> dict[str, list[TopicIdPartition]]:
    """Return partitions by topic, both in order."""
    topics: dict[str, list[TopicIdPartition]] = {}
    for partition in sorted(catalogue.partitions(), key=lambda one: (one.topic, one.partition)):
        topics.setdefault(partition.topic, []).append(partition)
    return topics


def partitions_of(catalogue: PartitionCatalogue, topic: str) -> list[TopicIdPartition]:
    """Return the partitions of ``topic`` that this process knows.

    Raises:
        ProblemError: 404, it knows none.
    """
    partitions = [one for one in catalogue.partitions() if one.topic == topic]
    if not partitions:
        raise not_found(f"topic {topic} has no remote partitions here")
    return sorted(partitions, key=lambda one: one.partition)


def partition_named(catalogue: PartitionCatalogue, topic: str, number: int) -> TopicIdPartition:
    """Return one partition.

    Raises:
        ProblemError: 404.
    """
    for partition in catalogue.partitions():
        if partition.topic == topic and partition.partition == number:
            return partition
    raise not_found(f"partition {topic}-{number} has no remote segments here")


class PartitionsOperations:
    """Answers from memory, for callers that the broker lets read."""

    def __init__(self, *, path: ReadPath, catalogue: PartitionCatalogue, callers: Callers) -> None:
        self._path = path
        self._catalogue = catalogue
        self._callers = callers

    async def authorized_partition(self, request: web.Request) -> TopicIdPartition:
        """Return the partition of the request's path, once the broker has let the caller read it.

        Raises:
            ProblemError: 400, 401, 403, 404; only callers that may read it learn whether it exists.
        """
        topic, number = topic_of(request), partition_of(request)
        await self._callers.require_read(request, topic)
        return partition_named(self._catalogue, topic, number)

    async def list_topics(self, request: web.Request) -> web.StreamResponse:
        """Serve ``list_topics``."""
        topics = topics_of(self._catalogue)
        readable = await self._callers.readable(request, list(topics))
        return web.json_response({"topics": [_topic_document(topic, topics[topic]) for topic in readable]})

    async def list_partitions(self, request: web.Request) -> web.StreamResponse:
        """Serve ``list_partitions``."""
        topic = topic_of(request)
        await self._callers.require_read(request, topic)
        partitions = partitions_of(self._catalogue, topic)
        documents = [await self._partition_document(partition) for partition in partitions]
        return web.json_response({**_topic_document(topic, partitions), "partitions": documents})

    async def list_segments(self, request: web.Request) -> web.StreamResponse:
        """Serve ``list_segments``."""
        partition = await self.authorized_partition(request)
        offset, limit = FROM_OFFSET.read(request), LIMIT_SEGMENTS.read(request)
        documents: list[dict[str, object]] = []
        async for segment in self._path.lookup.segments(partition, lambda one: one.end_offset >= offset):
            documents.append(_segment_document(segment))
            if len(documents) == limit:
                break
        return web.json_response({"segments": documents})

    async def _partition_document(self, partition: TopicIdPartition) -> dict[str, object]:
        document: dict[str, object] = {"partition": partition.partition}
        try:
            bounds = await self._path.reader.bounds(partition)
        except MetadataNotReadyError:
            # A partition that is still being replayed hides none of the others.
            return {**document, "ready": False}
        return {
            **document,
            "ready": True,
            "start_offset": bounds.start,
            "end_offset": bounds.end,
            "segments": self._path.metadata.segment_count(partition),
            "size_bytes": self._path.metadata.remote_log_size_bytes(partition),
        }


def _topic_document(topic: str, partitions: Sequence[TopicIdPartition]) -> dict[str, object]:
    topic_id = format_uuid(partitions[0].topic_id)
    return {"topic": topic, "topic_id": topic_id, "partitions": len(partitions)}


def _segment_document(segment: RemoteLogSegmentMetadata) -> dict[str, object]:
    return {
        "id": format_uuid(segment.remote_log_segment_id.uuid),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "size_bytes": segment.segment_size_in_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "leader_epochs": [{"epoch": epoch, "start_offset": start} for epoch, start in segment.segment_leader_epochs],
        "broker_id": segment.broker_id,
    }
