"""Responses held against the service's own OpenAPI description."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from jsonschema import Draft202012Validator

_OF_HTTP_ITSELF = frozenset({HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
"""Answered before any operation is chosen."""


class Description:
    """An OpenAPI document whose operations are all GETs."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        Draft202012Validator.check_schema(document["components"]["schemas"])
        self._document = document
        self._paths = {_pattern(path): item["get"] for path, item in document["paths"].items()}

    def operation_of(self, path: str) -> str | None:
        """Return the operation's id, None where there is no such path."""
        operation = self._operation(path)
        return None if operation is None else str(operation["operationId"])

    def _operation(self, path: str) -> Mapping[str, Any] | None:
        return next((one for pattern, one in self._paths.items() if pattern.fullmatch(path)), None)

    def check(self, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Fail unless the answer to a GET of ``path`` (still percent-encoded) is one that the document has."""
        operation = self._operation(path)
        media_type = headers["Content-Type"].partition(";")[0]
        if operation is None or status in _OF_HTTP_ITSELF:
            assert media_type == "application/problem+json"
            self._validate({"$ref": "#/components/schemas/Problem"}, json.loads(body))
            return
        assert str(status) in operation["responses"], f"{status} of {path} is not described"
        response = operation["responses"][str(status)]
        assert media_type in response["content"], f"{media_type} of {path} is not described"
        for name in response.get("headers", ()):
            assert headers.get(name, "0").isdecimal(), f"{name}: {headers[name]}"
        schema = response["content"][media_type].get("schema")
        if schema is not None:
            documents = body.splitlines() if media_type.endswith("ndjson") else [body]
            for document in documents:
                self._validate(schema, json.loads(document))

    def _validate(self, schema: Mapping[str, Any], document: Any) -> None:
        Draft202012Validator({**schema, "components": self._document["components"]}).validate(document)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(
        "".join("[^/]+" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{\w+\})", path))
    )
