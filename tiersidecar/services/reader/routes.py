"""Define the resources of the read service as a table, and parse their parameters.

From the table the application and its OpenAPI description are built.  A name, number or choice is checked against its bounds
before anything is done with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from aiohttp import web

from tiersidecar.domain.ids import Uuid, parse_uuid
from tiersidecar.services.reader.ndjson import BytesFormat
from tiersidecar.services.reader.problems import bad_request

MAX_OFFSET = 2**63 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def topic_of(request: web.Request) -> str:
    """Return the path's topic: one that Kafka could have (``Topic.validate``), so that it is safe wherever it is printed.

    Raises:
        ProblemError: 400.
    """
    topic = request.match_info["topic"]
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise bad_request("the path holds no legal topic name")
    return topic


def partition_of(request: web.Request) -> int:
    """Return the path's partition.

    Raises:
        ProblemError: 400.
    """
    return _number("partition", request.match_info["partition"], least=0, most=2**31 - 1)


def segment_of(request: web.Request) -> Uuid:
    """Return the path's segment id.

    Raises:
        ProblemError: 400.
    """
    try:
        return parse_uuid(request.match_info["segment"])
    except ValueError as error:
        raise bad_request("the path holds no segment id") from error


def refuse_others(request: web.Request, allowed: Collection[str]) -> None:
    """Refuse parameters that are not allowed or repeated: they would be ignored silently.

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
        """Return its JSON schema, for the OpenAPI description."""
        schema: dict[str, object] = {"type": "integer", "format": "int64", "minimum": self.least, "maximum": self.most}
        return schema if self.default is None else {**schema, "default": self.default}

    def read(self, request: web.Request) -> int:
        """Return the number, or the default.

        Raises:
            ProblemError: 400; also when it is missing and there is no default.
        """
        number = self.read_if_given(request)
        if number is None:
            raise bad_request(f"parameter {self.name} is missing")
        return number

    def read_if_given(self, request: web.Request) -> int | None:
        """Return the number like :meth:`read`, but None when it is missing."""
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
        """Return its JSON schema, for the OpenAPI description."""
        return {"type": "string", "enum": [choice.value for choice in self.choices], "default": self.default.value}

    def read(self, request: web.Request) -> str:
        """Return the word.

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


JSON = "application/json"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"

MAX_READ_BYTES = 16 * 1024 * 1024


class Isolation(StrEnum):
    """Kafka's isolation levels."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Tier(StrEnum):
    """What is read of a partition."""

    ALL = "all"
    REMOTE = "remote"


class IndexName(StrEnum):
    """A segment's indexes, as paths name them."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    TRANSACTION = "transaction"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    LEADER_EPOCH = "leader-epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One resource, read by GET."""

    path: str
    operation: str
    summary: str
    media_type: str = JSON
    parameters: tuple[Parameter, ...] = ()
    response_headers: tuple[tuple[str, str], ...] = ()
    is_public: bool = False
    is_ranged: bool = False

    @property
    def query_names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.parameters)

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


OFFSET = NumberParameter(name="offset", description="First offset to read.", is_required=True)
MAX_BYTES = NumberParameter(
    name="max_bytes",
    description="Answer with at most so many bytes (the first batch may be larger); without it, stream to the end.",
    least=1,
    most=MAX_READ_BYTES,
)
STOP_OFFSET = NumberParameter(name="stop_offset", description="Stop before this offset.")
LIMIT_RECORDS = NumberParameter(
    name="limit", description="At most so many records.", least=1, most=10_000_000, default=1000
)
ISOLATION = ChoiceParameter(
    name="isolation",
    description="read_committed leaves out records of aborted transactions, and ends before those still undecided.",
    choices=Isolation,
    default=Isolation.READ_UNCOMMITTED,
)
TIER = ChoiceParameter(
    name="tier",
    description="remote reads the remote tier alone, and ends where it does; all goes on in the broker's log.",
    choices=Tier,
    default=Tier.ALL,
)
FORMAT = ChoiceParameter(
    name="format",
    description='How keys, values and header values are written; with utf8, what is not UTF-8 is {"base64": …}.',
    choices=BytesFormat,
    default=BytesFormat.BASE64,
)
TIMESTAMP = NumberParameter(
    name="timestamp",
    description="Milliseconds since 1970; or Kafka's -1 (latest), -2 (earliest), -3 (the record with the largest timestamp).",
    least=-3,
    is_required=True,
)
FROM_OFFSET = NumberParameter(name="offset", description="Segments that end at this offset or later.", default=0)
LIMIT_SEGMENTS = NumberParameter(name="limit", description="At most so many segments.", least=1, most=1000, default=100)

_PARTITION = "/topics/{topic}/partitions/{partition}"
_SEGMENT = f"{_PARTITION}/segments/{{segment}}"

ROUTES: tuple[Route, ...] = (
    Route(path="/openapi.json", operation="describe", summary="This description.", is_public=True),
    Route(path="/topics", operation="list_topics", summary="Topics that the caller may read."),
    Route(
        path="/topics/{topic}/partitions",
        operation="list_partitions",
        summary="A topic's partitions, with the offsets that the remote tier holds (start inclusive, end exclusive).",
    ),
    Route(
        path=f"{_PARTITION}/segments",
        operation="list_segments",
        summary="A partition's remote segments, ascending; end offsets are inclusive.",
        parameters=(FROM_OFFSET, LIMIT_SEGMENTS),
    ),
    Route(
        path=f"{_SEGMENT}/log",
        operation="read_segment_log",
        summary="A segment's .log as the broker had it, or one range of its bytes.",
        media_type=OCTETS,
        is_ranged=True,
    ),
    Route(
        path=f"{_SEGMENT}/indexes/{{kind}}",
        operation="read_segment_index",
        summary="One of a segment's indexes, in Kafka's file format; a transaction index without entries is empty.",
        media_type=OCTETS,
    ),
    Route(
        path=f"{_PARTITION}/batches",
        operation="read_batches",
        summary="Record batches as Kafka stores them, beginning with the one that holds the offset.",
        media_type=OCTETS,
        parameters=(OFFSET, MAX_BYTES, STOP_OFFSET, TIER),
        response_headers=(
            ("Kafka-First-Offset", "Base offset of the first batch; absent when there is none."),
            ("Kafka-Next-Offset", "Where to read on; only with max_bytes."),
        ),
    ),
    Route(
        path=f"{_PARTITION}/records",
        operation="read_records",
        summary="Records, one JSON document per line.",
        media_type=NDJSON,
        parameters=(OFFSET, LIMIT_RECORDS, STOP_OFFSET, ISOLATION, FORMAT, TIER),
    ),
    Route(
        path=f"{_PARTITION}/offsets",
        operation="find_offset",
        summary="The first record at or after a timestamp; its offset is null when there is none.",
        parameters=(TIMESTAMP,),
    ),
)
