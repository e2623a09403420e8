"""JSON Schemas of what the read service answers; every response of its tests is held against them."""

from __future__ import annotations

from tiersidecar.formats.kafka.record_batches import TimestampType
from tiersidecar.services.reader.parameters import MAX_OFFSET

Schema = dict[str, object]


def _object(properties: Schema, *, optional: frozenset[str] = frozenset()) -> Schema:
    """With exactly these members, of which ``optional`` may be absent."""
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
        "additionalProperties": False,
    }


def _list_of(name: str) -> Schema:
    return {"type": "array", "items": _ref(name)}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _integer(least: int, most: int = MAX_OFFSET) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}


_OFFSET = _integer(0)
_TIMESTAMP = _integer(-(2**63))
_EPOCH = _integer(-1, 2**31 - 1)
_UUID: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{22}$"}
_TOPIC: Schema = {"topic": {"type": "string"}, "topic_id": _UUID}
_BYTES: Schema = {
    "description": 'Text as format says; null where the record has none; {"base64": …} where it is not UTF-8.',
    "oneOf": [
        {"type": "string"},
        {"type": "null"},
        _object({"base64": {"type": "string", "contentEncoding": "base64"}}),
    ],
}

SCHEMAS: dict[str, Schema] = {
    "Topic": _object({**_TOPIC, "partitions": _integer(1, 2**31 - 1)}),
    "Topics": _object({"topics": _list_of("Topic")}),
    "Partition": _object(
        {
            "partition": _integer(0, 2**31 - 1),
            "ready": {
                "type": "boolean",
                "description": "False: metadata are still being replayed, the rest is not known.",
            },
            "start_offset": _OFFSET,
            "end_offset": {**_OFFSET, "description": "Exclusive."},
            "segments": _integer(0),
            "size_bytes": _integer(0),
        },
        optional=frozenset({"start_offset", "end_offset", "segments", "size_bytes"}),
    ),
    "Partitions": _object({**_TOPIC, "partitions": _list_of("Partition")}),
    "LeaderEpoch": _object({"epoch": _EPOCH, "start_offset": _OFFSET}),
    "Segment": _object(
        {
            "id": _UUID,
            "start_offset": _OFFSET,
            "end_offset": {**_OFFSET, "description": "Inclusive."},
            "size_bytes": _integer(0),
            "max_timestamp_ms": _TIMESTAMP,
            "leader_epochs": _list_of("LeaderEpoch"),
            "broker_id": _integer(-1, 2**31 - 1),
        }
    ),
    "Segments": _object({"segments": _list_of("Segment")}),
    "FoundOffset": _object(
        {"offset": _or_null(_OFFSET), "timestamp_ms": _or_null(_TIMESTAMP), "leader_epoch": _or_null(_EPOCH)}
    ),
    "RecordHeader": _object({"key": {"type": "string"}, "value": _BYTES}),
    "Record": _object(
        {
            "offset": _OFFSET,
            "timestamp_ms": _TIMESTAMP,
            "timestamp_type": {"type": "string", "enum": [one.value for one in TimestampType]},
            "leader_epoch": _EPOCH,
            "key": _BYTES,
            "value": _BYTES,
            "headers": _list_of("RecordHeader"),
        }
    ),
    "Description": {"type": "object", "required": ["openapi", "info", "paths", "components"]},
    "Problem": _object(
        {
            "type": {"type": "string", "pattern": "^urn:tiersidecar:problem:[a-z-]+$"},
            "title": {"type": "string"},
            "status": _integer(400, 599),
            "detail": {"type": "string"},
            "start_offset": _OFFSET,
            "end_offset": _OFFSET,
        },
        optional=frozenset({"start_offset", "end_offset"}),
    ),
}

_OF_OPERATIONS = {
    "describe": "Description",
    "list_topics": "Topics",
    "list_partitions": "Partitions",
    "list_segments": "Segments",
    "find_offset": "FoundOffset",
    "read_records": "Record",
}


def content_schema(operation: str) -> Schema:
    """What a successful answer consists of: of ``read_records`` each line; nothing is said of bytes."""
    name = _OF_OPERATIONS.get(operation)
    return {} if name is None else {"schema": _ref(name)}
