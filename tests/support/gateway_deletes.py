"""DeleteRecords through the gateway's rewrite, against a broker that answers both steps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.gateway_world import World
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite

DELETE_RECORDS, VERSION = 21, 2
LOCAL_START, MARK = 200, 220
"""Offsets of the broker's log: its start, and the high watermark."""
Between = Callable[[World], None]
NO_WAIT, WAIT = timedelta(0), timedelta(seconds=1)
OTHERS = "not-tiered"
Row = tuple[ErrorCode, int]
"""Error and low watermark."""
Key = tuple[str, int]
Deletes = Mapping[Key, int]


def nothing(world: World) -> None:
    return None


@dataclass(slots=True)
class Broker:
    """Answers the second request, that with numbers; ``meanwhile`` happens before that.  ``answers`` has what is not the common
    answer."""

    world: World
    answers: Mapping[Key, Row] = field(default_factory=dict)
    meanwhile: Between = nothing
    asked: list[Deletes] = field(default_factory=list)
    timeout: timedelta = WAIT
    throttle: timedelta = NO_WAIT

    def __post_init__(self) -> None:
        self.world.upstream.answers[DELETE_RECORDS] = self._delete
        self.world.broker.last_stable_offsets[self.world.partition] = MARK

    def _delete(self, version: int, body: bytes) -> bytes:
        request: Any = read_message(load_request_schema(DELETE_RECORDS, version), body)[0]
        assert request.timeout == self.timeout, "the client's own"
        self.asked.append(asked_of(request))
        self.meanwhile(self.world)
        rows = dict[Key, Row]()
        for key, offset in self.asked[-1].items():
            rows[key] = self.answers.get(key, (ErrorCode.none, max(offset, LOCAL_START)))
            if rows[key][0] is ErrorCode.none and key[0] == self.world.partition.topic:
                self.world.broker.log_starts[replace(self.world.partition, partition=key[1])] = Offset(rows[key][1])
        return response_of(rows, throttle=self.throttle)


def asked_of(request: Any) -> Deletes:
    return {(topic.name, row.partition_index): row.offset for topic in request.topics for row in topic.partitions}


def request_of(asked: Deletes, timeout: timedelta) -> bytes:
    schema: Any = load_request_schema(DELETE_RECORDS, VERSION)
    rows = {key: {"offset": offset} for key, offset in asked.items()}
    return write_message(schema(topics=_topics(schema, rows), timeout=timeout))


def response_of(answered: Mapping[Key, Row], *, throttle: timedelta = NO_WAIT) -> bytes:
    schema: Any = load_response_schema(DELETE_RECORDS, VERSION)
    rows = {key: {"error_code": error, "low_watermark": low} for key, (error, low) in answered.items()}
    return write_message(schema(topics=_topics(schema, rows), throttle_time=throttle))


def _topics(schema: Any, rows: Mapping[Key, dict[str, Any]]) -> tuple[Any, ...]:
    topic_type = schema.__dataclass_fields__["topics"].type.__args__[0]
    row_type = topic_type.__dataclass_fields__["partitions"].type.__args__[0]
    topics = dict[str, list[Any]]()
    for (topic, partition), values in rows.items():
        topics.setdefault(topic, []).append(row_type(partition_index=partition, **values))
    return tuple(topic_type(name=name, partitions=tuple(those)) for name, those in topics.items())


@dataclass(slots=True, kw_only=True)
class Asked:
    """Outcome of a request; ``first`` is what goes to the broker in its place, which answers that with ``refuses``.
    ``is_passed``: the client gets the broker's own bytes."""

    rows: dict[Key, Row] = field(default_factory=dict)
    first: Deletes = field(default_factory=dict)
    throttle_s: float = 0.0
    is_passed: bool = False


async def asked_for(
    world: World,
    rewrite: DeleteRecordsRewrite,
    between: Between = nothing,
    *,
    offset: int = -1,
    also: Deletes | None = None,
    refuses: Mapping[Key, ErrorCode] | None = None,
    timeout: timedelta = WAIT,
    throttle: timedelta = NO_WAIT,
) -> Asked:
    """Ask for the world's partition to be deleted up to ``offset``, and for ``also``; ``between`` happens before the broker has
    answered the first step."""
    asked = {(world.partition.topic, 0): offset, **(also or {})}
    exchange = world.exchange(DELETE_RECORDS, VERSION, request_of(asked, timeout))
    sent = b"".join(rewrite.prepare(exchange) or (bytes(exchange.request),))
    request: Any = read_message(load_request_schema(DELETE_RECORDS, VERSION), sent)[0]
    is_mixed = any(world.tiered.topic_id(topic) is None for topic, _ in asked) and not world.tiered.may_be
    late = "what comes while it waits for a replica that is late came after the delete"
    assert is_mixed or request.timeout == NO_WAIT, late
    between(world)
    errors = {key: (refuses or {}).get(key, ErrorCode.none) for key in asked_of(request)}
    first = response_of(
        {key: (error, -1 if error else LOCAL_START) for key, error in errors.items()}, throttle=throttle
    )
    pieces = await rewrite.rewrite(exchange, memoryview(first))
    answered: Any = read_message(
        load_response_schema(DELETE_RECORDS, VERSION), first if pieces is None else b"".join(pieces)
    )[0]
    return Asked(
        first=asked_of(request),
        rows={
            (topic.name, row.partition_index): (row.error_code, row.low_watermark)
            for topic in answered.topics
            for row in topic.partitions
        },
        throttle_s=answered.throttle_time.total_seconds(),
        is_passed=pieces is None,
    )


def audited(logs: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
    """Return topic, offset and outcome of each event."""
    events = [entry for entry in logs if entry["event"] == "gateway.audit.delete"]
    return [(entry["topic"], entry["offset"], entry["outcome"]) for entry in events]
