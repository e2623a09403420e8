"""A delete of a topic that nothing is known of yet goes to the broker once it is known, and once only (issue 17).

aiokafka's own test deletes from a topic that is 0.2 s old, and aiokafka does not retry after REQUEST_TIMED_OUT as Java's client
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v10.request import MetadataRequest
from kio.schema.metadata.v10.response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta
from structlog.testing import capture_logs

from tests.support.gateway_world import World
from tests.unit.services.gateway.test_asked_and_answered import (
    ASKED_AT,
    Between,
    deletes,
    led_in,
    nothing,
    world_before,
)
from tests.unit.services.gateway.test_offset_rewrites import DELETE_RECORDS, LOCAL_START, row_after
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway import delete_records_rewrite
from tiersidecar.services.gateway.exchange import UpstreamClosedError

METADATA, VERSION, OFFSET = 3, 2, 50
HERE, ELSEWHERE = 1, 2


@dataclass(slots=True)
class Metadata:
    """What the broker tells the client of the topic; ``meanwhile`` happens ``after_s`` later, or on the way."""

    world: World
    leader_id: int = HERE
    error: ErrorCode = ErrorCode.none
    meanwhile: Between = nothing
    after_s: float = 0.0
    topic_id: Uuid | None = None
    asked: int = 0

    def __call__(self, version: int, body: bytes) -> bytes:
        request, _ = read_message(MetadataRequest, body)
        assert (version, request.allow_auto_topic_creation) == (10, False), "who deletes makes no topic"
        assert [str(one.name) for one in request.topics or ()] == [self.world.partition.topic]
        self.asked += 1
        if self.after_s:
            asyncio.get_running_loop().call_later(self.after_s, self.meanwhile, self.world)
        else:
            self.meanwhile(self.world)
        row = MetadataResponsePartition(
            error_code=ErrorCode.none, partition_index=i32(0), leader_id=KioBrokerId(self.leader_id)
        )
        topic = MetadataResponseTopic(
            error_code=self.error,
            name=TopicName(self.world.partition.topic),
            topic_id=UUID(bytes=bytes(self.topic_id or self.world.partition.topic_id)),
            partitions=() if self.error else (row,),
        )
        none = i32Timedelta.parse(timedelta(0))
        return write_message(
            MetadataResponse(throttle_time=none, brokers=(), controller_id=KioBrokerId(HERE), topics=(topic,))
        )


async def deleted(
    world: World,
    rewrite: Any,
    told: Metadata,
    between: Between = nothing,
    *,
    offset: int = OFFSET,
    error: ErrorCode = ErrorCode.none,
) -> Any:
    """The row that the client gets of a delete that the broker answers with ``error``."""
    world.upstream.answers[METADATA] = told
    answered = {"low_watermark": -1 if error else LOCAL_START, "error_code": error}
    asked, wait = {"offset": offset}, timedelta(seconds=1)
    return await row_after(world, rewrite, DELETE_RECORDS, VERSION, asked, answered, between, timeout=wait)


def becomes_known(world: World) -> None:
    world.tiered.is_ready, world.tiered.known = True, [world.partition]


def turns_out_not_tiered(world: World) -> None:
    world.tiered.is_ready, world.tiered.known = True, []


def is_elected(world: World) -> None:
    led_in(world, ASKED_AT + 1)
    world.tiered.leader_epoch = LeaderEpoch(ASKED_AT + 1)


def is_set_back(world: World) -> None:
    world.state.partition_states[world.partition] = PartitionState(start_generation=1)


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_records_rewrite, "_NEW_TOPIC_WAIT_S", 0.5)


@pytest.mark.parametrize("after_s", [0.0, 0.2])
async def test_it_is_sent_once_the_topic_is_known_and_carried_out(after_s: float) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.is_ready = False
        told = Metadata(world, meanwhile=becomes_known, after_s=after_s)
        row = await deleted(world, rewrite, told)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, OFFSET)
        assert told.asked == 1
        assert [one.offset for one in sidecar.proposed] == [OFFSET]


async def test_while_the_state_topic_is_read_it_waits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_read(partition: TopicIdPartition) -> PartitionState:
        raise MetadataNotReadyError(subject=str(partition))

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        monkeypatch.setattr(world.state, "partition_state", not_read)
        told = Metadata(world, meanwhile=lambda world: monkeypatch.undo(), after_s=0.1)
        row = await deleted(world, rewrite, told)
        assert row.error_code is ErrorCode.none
        assert len(sidecar.proposed) == 1


async def test_of_a_topic_that_is_known_nobody_asks() -> None:
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        row = await deleted(world, rewrite, told := Metadata(world))
        assert (row.error_code, told.asked) == (ErrorCode.none, 0)


async def test_a_topic_that_does_not_become_known_in_time_is_asked_for_again() -> None:
    """The broker has deleted its own part, as always; who asks again, has the rest deleted."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.is_ready = False
        with capture_logs() as logs:
            row = await deleted(world, rewrite, Metadata(world))
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (ErrorCode.request_timed_out, -1, [])
        unknown = [entry for entry in logs if entry["event"] == "gateway.new_topic.unknown"]
        assert [entry["topics"] for entry in unknown] == [[world.partition.topic]]


@pytest.mark.parametrize(
    ("leader_id", "metadata_error", "error"),
    [
        pytest.param(HERE, ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_or_partition, id="no topic"),
        pytest.param(
            HERE, ErrorCode.topic_authorization_failed, ErrorCode.topic_authorization_failed, id="no right to see it"
        ),
        pytest.param(ELSEWHERE, ErrorCode.none, ErrorCode.not_leader_or_follower, id="another broker's"),
    ],
)
async def test_what_the_broker_refuses_anyway_is_refused_at_once(
    leader_id: int, metadata_error: ErrorCode, error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else anybody would learn by waiting which topics exist."""
    monkeypatch.setattr(delete_records_rewrite, "_NEW_TOPIC_WAIT_S", 600.0)
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.is_ready = False
        told = Metadata(world, leader_id=leader_id, error=metadata_error)
        async with asyncio.timeout(10):
            row = await deleted(world, rewrite, told, error=error)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (error, -1, [])


@pytest.mark.parametrize("between", [is_elected, is_set_back])
async def test_the_answer_proves_nothing_of_what_has_changed_since(between: Callable[[World], None]) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.is_ready = False
        row = await deleted(world, rewrite, Metadata(world, meanwhile=becomes_known), between)
        assert (row.error_code, sidecar.proposed) == (ErrorCode.request_timed_out, [])


async def test_a_topic_that_turns_out_not_to_be_tiered_is_the_broker_s_alone() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.is_ready = False
        row = await deleted(world, rewrite, Metadata(world, meanwhile=turns_out_not_tiered, after_s=0.1))
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, LOCAL_START)
        assert sidecar.proposed == []


async def test_right_after_sasl_tokens_nothing_goes_before_it() -> None:
    """The answer to that request tells that the tokens are over (KIP-43)."""
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.is_ready, world.connection.login.is_raw = False, True
        row = await deleted(world, rewrite, told := Metadata(world))
        assert (row.error_code, told.asked, sidecar.proposed) == (ErrorCode.request_timed_out, 0, [])


@pytest.mark.parametrize("after_s", [0.0, 0.1])
async def test_a_delete_of_a_topic_that_was_made_anew_meanwhile_goes_to_no_broker(after_s: float) -> None:
    """The connection ends, and whoever means the new topic asks again."""
    async with world_before(nothing) as world:
        rewrite, _ = deletes(world)
        world.tiered.is_ready = False
        former = Uuid(b"the former topic")
        with pytest.raises(UpstreamClosedError, match="made anew"):
            await deleted(world, rewrite, Metadata(world, meanwhile=becomes_known, after_s=after_s, topic_id=former))
