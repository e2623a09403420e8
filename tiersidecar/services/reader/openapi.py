"""Build the OpenAPI 3.1 description from the table of routes.

The tests compare every response with its JSON Schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from tiersidecar.formats.kafka.record_batches import TimestampType
from tiersidecar.services.reader.problems import PROBLEM_TYPE
from tiersidecar.services.reader.routes import MAX_OFFSET, IndexName, Parameter, Route

Schema = dict[str, object]


def _object(properties: Schema, *, optional: frozenset[str] = frozenset()) -> Schema:
    """Return the schema of an object with exactly these members, of which ``optional`` may be absent."""
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
    """Return the schema of a successful answer, of ``read_records`` that of each line; bytes have none."""
    name = _OF_OPERATIONS.get(operation)
    return {} if name is None else {"schema": _ref(name)}


_PATH_SCHEMAS: dict[str, dict[str, object]] = {
    "topic": {"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,249}$"},
    "partition": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "segment": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{22}$"},
    "kind": {"type": "string", "enum": [kind.value for kind in IndexName]},
}
_RANGE: dict[str, object] = {
    "name": "Range",
    "in": "header",
    "required": False,
    "description": "One range of bytes (RFC 9110); several, or another unit, are answered with all of it.",
    "schema": {"type": "string", "pattern": "^bytes=([0-9]+-[0-9]*|-[0-9]+)$"},
}
_PROBLEMS = {
    HTTPStatus.BAD_REQUEST: "A parameter that cannot be used.",
    HTTPStatus.UNAUTHORIZED: "The broker asks for credentials that it accepts.",
    HTTPStatus.FORBIDDEN: "The broker does not let the caller READ the topic.",
    HTTPStatus.NOT_FOUND: "No such topic or partition here.",
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: "No such offset (start_offset and end_offset say what there is) or byte range.",
    HTTPStatus.TOO_MANY_REQUESTS: "Shed: too many reads, or the fetch quota is used up. Retry-After says when.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "What is stored does not pass its checks, or an unexpected error.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Store, broker or metadata are away for the moment. Retry-After says when.",
}
_PROBLEMS_OF_PUBLIC_ROUTES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.TOO_MANY_REQUESTS})
_SECURITY_SCHEMES: dict[str, object] = {
    "password": {"type": "http", "scheme": "basic", "description": "Kafka's SASL username and password."},
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "What the broker takes by OAUTHBEARER, or a token of the service's configuration.",
    },
    "certificate": {"type": "mutualTLS"},
}


def openapi_document(routes: Sequence[Route], *, version: str) -> dict[str, object]:
    """Return the description of ``routes``."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "tiersidecar read service", "version": version},
        "paths": {route.path: {"get": _operation(route)} for route in routes},
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


def _operation(route: Route) -> dict[str, object]:
    ranged = [_RANGE] if route.is_ranged else []
    operation: dict[str, object] = {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": [*map(_path_parameter, route.path_names), *map(_query_parameter, route.parameters), *ranged],
        "responses": {**_successes(route), **_problem_responses(route)},
    }
    # HTTP leaves credentials optional: the broker decides what a caller without any may read.
    return (
        operation if route.is_public else {**operation, "security": [*({name: []} for name in _SECURITY_SCHEMES), {}]}
    )


def _path_parameter(name: str) -> dict[str, object]:
    return {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}


def _query_parameter(parameter: Parameter) -> dict[str, object]:
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _successes(route: Route) -> dict[str, object]:
    whole = _success(route)
    partial = {**whole, "description": "The bytes that Content-Range names."}
    return {"200": whole, "206": partial} if route.is_ranged else {"200": whole}


def _success(route: Route) -> dict[str, object]:
    headers = {
        name: {"description": description, "schema": {"type": "integer"}}
        for name, description in route.response_headers
    }
    success: dict[str, object] = {
        "description": route.summary,
        "content": {route.media_type: content_schema(route.operation)},
    }
    return {**success, "headers": headers} if headers else success


def _problem_responses(route: Route) -> dict[str, object]:
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        str(status.value): {"description": description, "content": content}
        for status, description in _PROBLEMS.items()
        if not route.is_public or status in _PROBLEMS_OF_PUBLIC_ROUTES
    }
