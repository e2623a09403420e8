"""The refusals of a read-only service without groups, in the errors of each API: a client learns why, and stops trying."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tiersidecar.formats.wire.cursor import Buffer
from tiersidecar.services.bucket.answers import Asked, has, items, made

T = TypeVar("T")

READ_ONLY = "tiersidecar serve shows a bucket, and takes no writes: write to the cluster that fills it"
NO_GROUPS = "tiersidecar serve has no consumer groups: assign partitions, and keep offsets outside Kafka"

NO_ACKS = 0


def refuse_produce(asked: Asked) -> list[Buffer] | None:
    """Refuse; None where the client asked for no answer (``acks=0``)."""
    request = asked.message()
    if request.acks == NO_ACKS:
        return None
    topic_type = items(asked.response_type, "responses")
    row_type = items(topic_type, "partition_responses")
    responses = [
        made(
            topic_type,
            name=getattr(topic, "name", None),
            topic_id=getattr(topic, "topic_id", None),
            partition_responses=tuple(
                made(
                    row_type,
                    index=row.index,
                    error_code=ErrorCode.topic_authorization_failed,
                    error_message=READ_ONLY,
                )
                for row in topic.partition_data
            ),
        )
        for topic in request.topic_data
    ]
    return asked.answered(responses=tuple(responses))


def refuse_coordinator(asked: Asked) -> list[Buffer]:
    """Refuse to name the coordinator of a group, or of a transaction."""
    request = asked.message()
    is_group = getattr(request, "key_type", 0) == 0
    refusal = {
        "error_code": ErrorCode.group_authorization_failed
        if is_group
        else ErrorCode.transactional_id_authorization_failed,
        "error_message": NO_GROUPS if is_group else READ_ONLY,
    }
    if not has(asked.response_type, "coordinators"):
        return asked.answered(**refusal)
    row_type = items(asked.response_type, "coordinators")
    return asked.answered(
        coordinators=tuple(made(row_type, key=key, **refusal) for key in _once(request.coordinator_keys))
    )


def refuse_group(asked: Asked) -> list[Buffer]:
    """Refuse what a member, or an observer of groups, asks."""
    return asked.answered(error_code=ErrorCode.group_authorization_failed, error_message=NO_GROUPS)


def refuse_writer(asked: Asked) -> list[Buffer]:
    """Return what comes before a write: the id of an idempotent producer."""
    return asked.answered(error_code=ErrorCode.cluster_authorization_failed, error_message=READ_ONLY)


def refuse_commit(asked: Asked) -> list[Buffer]:
    """Refuse OffsetCommit."""
    return _by_partition(asked, ErrorCode.group_authorization_failed)


def refuse_delete_records(asked: Asked) -> list[Buffer]:
    """Refuse DeleteRecords."""
    return _by_partition(asked, ErrorCode.topic_authorization_failed)


def refuse_create_topics(asked: Asked) -> list[Buffer]:
    """Refuse CreateTopics."""
    row_type = items(asked.response_type, "topics")
    rows = [_refused_topic(row_type, name=name) for name in _once(topic.name for topic in asked.message().topics)]
    return asked.answered(topics=tuple(rows))


def refuse_delete_topics(asked: Asked) -> list[Buffer]:
    """Refuse DeleteTopics, by name or by id."""
    request, row_type = asked.message(), items(asked.response_type, "responses")
    if hasattr(request, "topics"):
        topics = _once((topic.name, topic.topic_id) for topic in request.topics)
        rows = [_refused_topic(row_type, name=name, topic_id=topic_id) for name, topic_id in topics]
    else:
        rows = [_refused_topic(row_type, name=name) for name in _once(request.topic_names)]
    return asked.answered(responses=tuple(rows))


def _once(named: Iterable[T]) -> Iterable[T]:
    """Return each once, however often it is named: an empty name is one byte of a request, and a hundred of its response."""
    return dict.fromkeys(named)


def _refused_topic(row_type: Any, **values: object) -> Any:
    return made(row_type, error_code=ErrorCode.topic_authorization_failed, error_message=READ_ONLY, **values)


def _by_partition(asked: Asked, error_code: ErrorCode) -> list[Buffer]:
    topic_type = items(asked.response_type, "topics")
    row_type = items(topic_type, "partitions")
    topics = [
        made(
            topic_type,
            name=getattr(topic, "name", None),
            topic_id=getattr(topic, "topic_id", None),
            partitions=tuple(
                made(row_type, partition_index=row.partition_index, error_code=error_code) for row in topic.partitions
            ),
        )
        for topic in asked.message().topics
    ]
    return asked.answered(topics=tuple(topics))
