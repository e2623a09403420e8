"""Define the resources of the read service as a table, from which application and OpenAPI description are built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.services.reader.ndjson import BytesFormat
from tiersidecar.services.reader.parameters import ChoiceParameter, NumberParameter, Parameter

JSON = "application/json"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"

MAX_READ_BYTES = 16 * 1024 * 1024


class Isolation(StrEnum):
    """Kafka's isolation levels."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


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
        parameters=(OFFSET, MAX_BYTES, STOP_OFFSET),
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
        parameters=(OFFSET, LIMIT_RECORDS, STOP_OFFSET, ISOLATION, FORMAT),
    ),
    Route(
        path=f"{_PARTITION}/offsets",
        operation="find_offset",
        summary="The first record at or after a timestamp; its offset is null when there is none.",
        parameters=(TIMESTAMP,),
    ),
)
