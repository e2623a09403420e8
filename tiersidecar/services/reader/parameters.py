"""Parse the parameters of requests: names, numbers and choices, each checked against bounds first."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from aiohttp import web

from tiersidecar.domain.ids import Uuid, parse_uuid
from tiersidecar.services.reader.problems import bad_request

MAX_OFFSET = 2**63 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def topic_of(request: web.Request) -> str:
    """The path's topic: one that Kafka could have (``Topic.validate``), so that it is safe wherever it is printed.

    Raises:
        ProblemError: 400.
    """
    topic = request.match_info["topic"]
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise bad_request("the path holds no legal topic name")
    return topic


def partition_of(request: web.Request) -> int:
    """The path's partition.

    Raises:
        ProblemError: 400.
    """
    return _number("partition", request.match_info["partition"], least=0, most=2**31 - 1)


def segment_of(request: web.Request) -> Uuid:
    """The path's segment id.

    Raises:
        ProblemError: 400.
    """
    try:
        return parse_uuid(request.match_info["segment"])
    except ValueError as error:
        raise bad_request("the path holds no segment id") from error


def refuse_others(request: web.Request, allowed: Collection[str]) -> None:
    """A misspelt parameter would otherwise be ignored without a word, and so would the second of two.

    Raises:
        ProblemError: 400.
    """
    for name in request.query:
        if name not in allowed:
            raise bad_request(f"unknown parameter; known are {', '.join(sorted(allowed)) or 'none'}")
        if len(request.query.getall(name)) > 1:
            raise bad_request(f"parameter {name} is given more than once")


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberParameter:
    """A whole number in the query, from ``least`` to ``most``, both inclusive."""

    name: str
    description: str
    least: int = 0
    most: int = MAX_OFFSET
    default: int | None = None
    is_required: bool = False

    @property
    def schema(self) -> dict[str, object]:
        """Its JSON schema, for the OpenAPI description."""
        schema: dict[str, object] = {"type": "integer", "format": "int64", "minimum": self.least, "maximum": self.most}
        return schema if self.default is None else {**schema, "default": self.default}

    def read(self, request: web.Request) -> int:
        """The number, or the default.

        Raises:
            ProblemError: 400; also when it is missing and there is no default.
        """
        number = self.read_if_given(request)
        if number is None:
            raise bad_request(f"parameter {self.name} is missing")
        return number

    def read_if_given(self, request: web.Request) -> int | None:
        """As :meth:`read`, but None when it is missing."""
        text = request.query.get(self.name)
        return self.default if text is None else _number(self.name, text, least=self.least, most=self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceParameter:
    """One of a few words in the query."""

    name: str
    description: str
    choices: type[StrEnum]
    default: StrEnum
    is_required: bool = False

    @property
    def schema(self) -> dict[str, object]:
        """Its JSON schema, for the OpenAPI description."""
        return {"type": "string", "enum": [choice.value for choice in self.choices], "default": self.default.value}

    def read(self, request: web.Request) -> str:
        """The word.

        Raises:
            ProblemError: 400.
        """
        text = request.query.get(self.name, self.default.value)
        if text not in {choice.value for choice in self.choices}:
            raise bad_request(f"parameter {self.name} must be one of {', '.join(self.choices)}")
        return text


Parameter = NumberParameter | ChoiceParameter


def _number(name: str, text: str, *, least: int, most: int) -> int:
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise bad_request(f"{name} must be a whole number from {least} to {most}")
    return int(text)
