"""A delete of offset -1 is of the high watermark at its moment, whatever the broker's start has become since (issue 17).

A committer's test on real brokers: of a delete that one replica was late for, the broker told REQUEST_TIMED_OUT after its wait.
Meanwhile 200 records had come, were copied, and the local start was trimmed to 126; the high watermark had been 101.  The
gateway took the start for what was deleted, and 25 records were lost that came after the delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.support.gateway_world import World
from tests.unit.services.gateway.test_asked_and_answered import Between, deletes, nothing, world_before
from tests.unit.services.gateway.test_deletes_of_new_topics import becomes_known_later, is_set_back, make_new
from tests.unit.services.gateway.test_offset_rewrites import (
    DELETE_RECORDS,
    LIST_OFFSETS,
    LOCAL_START,
    row_after,
    topics,
)
from tiersidecar.formats.wire.messages import read_message, write_message

VERSION, MARK = 2, 220
NO_WAIT = timedelta(0)


@dataclass(slots=True)
class Broker:
    """Tells the high watermark, and answers the second delete; ``meanwhile`` happens before that."""

    world: World
    mark: int = MARK
    error: ErrorCode = ErrorCode.none
    mark_error: ErrorCode = ErrorCode.none
    meanwhile: Between = nothing
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world.upstream.answers |= {LIST_OFFSETS: self._tell_mark, DELETE_RECORDS: self._delete}

    def _tell_mark(self, version: int, body: bytes) -> bytes:
        request: Any = read_message(load_request_schema(LIST_OFFSETS, version), body)[0]
        assert [row.timestamp for topic in request.topics for row in topic.partitions] == [-1]
        assert request.isolation_level == 0, "the last stable offset may be lower"
        row = {"error_code": self.mark_error, "offset": -1 if self.mark_error else self.mark, "timestamp": -1}
        return self._answer(LIST_OFFSETS, version, {**row, "leader_epoch": 0})

    def _delete(self, version: int, body: bytes) -> bytes:
        request: Any = read_message(load_request_schema(DELETE_RECORDS, version), body)[0]
        assert request.timeout == timedelta(seconds=1), "the client's own"
        self.asked += [row.offset for topic in request.topics for row in topic.partitions]
        self.meanwhile(self.world)
        low = self.mark if self.error is ErrorCode.none else -1
        if low >= 0:
            self.world.broker.log_starts[self.world.partition] = low
        return self._answer(DELETE_RECORDS, version, {"low_watermark": low, "error_code": self.error})

    def _answer(self, api_key: int, version: int, row: dict[str, Any]) -> bytes:
        schema: Any = load_response_schema(api_key, version)
        return write_message(schema(throttle_time=NO_WAIT, topics=topics(schema, self.world.partition.topic, row)))


async def deleted(
    world: World, rewrite: Any, between: Between = nothing, *, error: ErrorCode = ErrorCode.none
) -> tuple[Any, Sequence[int]]:
    """The row that the client gets, and the offsets of the request that goes first; ``error`` is the broker's to that."""
    answered = {"low_watermark": -1 if error else LOCAL_START, "error_code": error}
    sent, asked, wait = list[bytes](), {"offset": -1}, timedelta(seconds=1)
    row = await row_after(world, rewrite, DELETE_RECORDS, VERSION, asked, answered, between, timeout=wait, sent=sent)
    request: Any = read_message(load_request_schema(DELETE_RECORDS, VERSION), sent[0])[0]
    assert request.timeout == NO_WAIT, "what comes while it waits for a replica that is late came after the delete"
    return row, [one.offset for topic in request.topics for one in topic.partitions]


async def test_it_is_asked_for_up_to_0_first_and_then_with_its_number() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        with capture_logs() as logs:
            row, first = await deleted(world, rewrite)
        assert (first, broker.asked) == ([0], [MARK])
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, MARK)
        assert [one.offset for one in sidecar.proposed] == [MARK]
        told = [(entry["offset"], entry["outcome"]) for entry in logs if entry["event"] == "gateway.audit.delete"]
        assert told == [(MARK, "none")]


async def test_what_not_all_followers_had_in_time_is_no_more_than_it_was_then() -> None:
    """The start has been trimmed further while the broker waited for them."""
    async with world_before(nothing) as world:
        world.broker.log_starts[world.partition] = 240
        rewrite, sidecar = deletes(world)
        Broker(world, error=ErrorCode.request_timed_out)
        row, _ = await deleted(world, rewrite)
        assert row.error_code is ErrorCode.request_timed_out
        assert [one.offset for one in sidecar.proposed] == [MARK]


async def test_who_has_waited_for_a_late_replica_has_not_to_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is proposed all the same: else nothing remote was deleted until the replica is back."""

    async def never_said(*_: object) -> None:
        await asyncio.Event().wait()

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        monkeypatch.setattr(rewrite, "_until_said", never_said)
        Broker(world, error=ErrorCode.request_timed_out)
        async with asyncio.timeout(2):
            row, _ = await deleted(world, rewrite)
        assert (row.error_code, len(sidecar.proposed)) == (ErrorCode.request_timed_out, 1)


@pytest.mark.parametrize("error", [ErrorCode.topic_authorization_failed, ErrorCode.policy_violation])
async def test_who_may_not_delete_is_told_so_and_no_more_is_asked(error: ErrorCode) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world)
        row, _ = await deleted(world, rewrite, error=error)
        assert (row.error_code, broker.asked, sidecar.proposed) == (error, [], [])


async def test_what_is_refused_the_second_time_is_refused() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world, error=ErrorCode.topic_authorization_failed)
        row, _ = await deleted(world, rewrite)
        assert (row.error_code, broker.asked, sidecar.proposed) == (ErrorCode.topic_authorization_failed, [MARK], [])


async def test_where_the_broker_does_not_tell_it_nothing_is_deleted() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        broker = Broker(world, mark_error=ErrorCode.leader_not_available)
        row, _ = await deleted(world, rewrite)
        assert (row.error_code, row.low_watermark) == (ErrorCode.leader_not_available, -1)
        assert (broker.asked[1:], sidecar.proposed) == ([], [])
        assert set(broker.asked) <= {0}


async def test_the_second_answer_proves_nothing_of_what_has_changed_since() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        Broker(world, meanwhile=is_set_back)
        row, _ = await deleted(world, rewrite)
        assert (row.error_code, sidecar.proposed) == (ErrorCode.request_timed_out, [])


async def test_a_topic_that_is_new_is_deleted_from_as_well() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        make_new(world)
        Broker(world)
        row, _ = await deleted(world, rewrite, becomes_known_later)
        assert (row.error_code, [one.offset for one in sidecar.proposed]) == (ErrorCode.none, [MARK])


async def test_what_is_not_tiered_goes_as_it_is() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known = []
        answered = {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}
        row = await row_after(world, rewrite, DELETE_RECORDS, VERSION, {"offset": -1}, answered)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (ErrorCode.none, LOCAL_START, [])


@pytest.mark.parametrize(
    ("silent_to", "audited"),
    [
        pytest.param(LIST_OFFSETS, [], id="the high watermark: no delete was sent"),
        pytest.param(DELETE_RECORDS, [(-1, "unknown")], id="the delete: it may be carried out yet"),
    ],
)
async def test_a_broker_that_does_not_answer_again_is_asked_again_by_the_client(
    silent_to: int, audited: list[tuple[int, str]]
) -> None:
    def never(version: int, body: bytes) -> bytes:
        raise TimeoutError

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        Broker(world)
        world.upstream.answers[silent_to] = never
        with capture_logs() as logs:
            row, _ = await deleted(world, rewrite)
        assert (row.error_code, sidecar.proposed) == (ErrorCode.request_timed_out, [])
        told = [(entry["offset"], entry["outcome"]) for entry in logs if entry["event"] == "gateway.audit.delete"]
        assert told == audited
