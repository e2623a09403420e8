"""The OpenAPI 3.1 description, made from the table of routes."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from tiersidecar.services.reader.parameters import Parameter
from tiersidecar.services.reader.problems import PROBLEM_TYPE
from tiersidecar.services.reader.routes import IndexName, Route
from tiersidecar.services.reader.schemas import SCHEMAS, content_schema

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
    """The description of ``routes``."""
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
    # Credentials are optional as far as HTTP goes: the broker decides what a caller without any may read.
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
