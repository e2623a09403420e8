"""Fetch and ListOffsets as the caller, and what the broker may say to them."""

from __future__ import annotations

from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.adapters.kafka import answers
from tests.unit.adapters.kafka.scripted_peer import NO_WAIT, VERSIONS, Conversation, Script, scripted_peer
from tiersidecar.adapters.kafka.authorizer import CallerListener, open_authorizer
from tiersidecar.adapters.kafka.local_reads import BrokerLocalReads
from tiersidecar.domain.errors import BrokerRefusedError, HistoryChangedError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.broker import Credentials

ANONYMOUS = Credentials()
PARTITION = TopicIdPartition(topic_id=Uuid(answers.TOPIC_ID.bytes), topic="t", partition=3)


def broker(error_code: ErrorCode = ErrorCode.none, *, offset: int = 77, parts_at: int | None = None) -> Script:
    """Fetch gets five bytes and an aborted transaction, or ``error_code``; ListOffsets 100 for -1, 40 for -2, or ``offset``.
    From ``parts_at`` on the log is another one than that of a reader who names epoch 4."""

    async def script(talk: Conversation) -> None:
        await talk.tell_versions({**VERSIONS, 1: (4, 18)})
        while True:
            header, request = await talk.hear()
            made = answers.schema(header)
            if header.api_key == 1:
                (topic,) = request.topics
                (wanted,) = topic.partitions
                assert (topic.topic_id, wanted.partition, wanted.fetch_offset) == (
                    UUID(bytes=PARTITION.topic_id),
                    3,
                    42,
                )
                assert (request.max_bytes, request.isolation_level, request.max_wait) == (1000, 1, NO_WAIT)
                failed = error_code is not ErrorCode.none
                parts = parts_at is not None and wanted.last_fetched_epoch == 4
                ends = {"diverging_epoch": made.EpochEndOffset(epoch=3, end_offset=parts_at)} if parts else {}
                row = made.PartitionData(
                    partition_index=3,
                    error_code=error_code,
                    high_watermark=-1 if failed else 100,
                    last_stable_offset=-1 if failed else 90,
                    log_start_offset=-1 if failed else 40,
                    aborted_transactions=None if failed else (made.AbortedTransaction(producer_id=9, first_offset=30),),
                    records=None if failed else b"" if parts else b"bytes",
                    **ends,
                )
                found = made.FetchableTopicResponse(topic_id=topic.topic_id, partitions=(row,))
                talk.answer(
                    header,
                    made.FetchResponse(throttle_time=NO_WAIT, error_code=ErrorCode.none, responses=(found,)),
                )
            else:
                (topic,) = request.topics
                (wanted,) = topic.partitions
                told = {-1: 100, -2: 40}.get(wanted.timestamp, offset)
                row = made.ListOffsetsPartitionResponse(
                    partition_index=3,
                    error_code=ErrorCode.none if wanted.timestamp < 0 else error_code,
                    timestamp=5000,
                    offset=told,
                    leader_epoch=6,
                )
                found = made.ListOffsetsTopicResponse(name=topic.name, partitions=(row,))
                talk.answer(header, made.ListOffsetsResponse(throttle_time=NO_WAIT, topics=(found,)))

    return script


async def test_a_fetch_gives_records_bounds_and_aborted_transactions() -> None:
    async with (
        scripted_peer(broker()) as peer,
        open_authorizer(CallerListener(bootstrap_servers=peer.address)) as authorizer,
    ):
        fetched = await BrokerLocalReads(authorizer).fetch(
            ANONYMOUS, PARTITION, 42, max_bytes=1000, read_committed=True
        )
        assert fetched.records == b"bytes"
        assert (fetched.high_watermark, fetched.last_stable_offset, fetched.aborted) == (100, 90, ((9, Offset(30)),))


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(broker(parts_at=30), id="the broker's log is another one from 30 on"),
        pytest.param(broker(ErrorCode.offset_out_of_range), id="it has not heard of the epoch"),
    ],
)
async def test_a_log_that_does_not_go_on_where_the_reader_is_gives_nothing(broken: Script) -> None:
    """Finding 8: what a new leader has never follows what a deposed one had."""
    async with (
        scripted_peer(broken) as peer,
        open_authorizer(CallerListener(bootstrap_servers=peer.address)) as authorizer,
    ):
        with pytest.raises(HistoryChangedError):
            await BrokerLocalReads(authorizer).fetch(
                ANONYMOUS, PARTITION, 42, max_bytes=1000, read_committed=True, last_fetched_epoch=LeaderEpoch(4)
            )


async def test_out_of_range_says_what_there_is() -> None:
    """The broker's answer does not: the bounds are asked for."""
    async with (
        scripted_peer(broker(ErrorCode.offset_out_of_range)) as peer,
        open_authorizer(CallerListener(bootstrap_servers=peer.address)) as authorizer,
    ):
        with pytest.raises(OffsetOutOfRangeError) as error:
            await BrokerLocalReads(authorizer).fetch(ANONYMOUS, PARTITION, 42, max_bytes=1000, read_committed=True)
        assert (error.value.offset, error.value.start, error.value.stop) == (42, 40, 100)


@pytest.mark.parametrize("error_code", [ErrorCode.topic_authorization_failed, ErrorCode.not_leader_or_follower])
async def test_what_the_broker_refuses_is_refused(error_code: ErrorCode) -> None:
    async with (
        scripted_peer(broker(error_code)) as peer,
        open_authorizer(CallerListener(bootstrap_servers=peer.address)) as authorizer,
    ):
        reads = BrokerLocalReads(authorizer)
        with pytest.raises(BrokerRefusedError, match=error_code.name.upper()):
            await reads.fetch(ANONYMOUS, PARTITION, 42, max_bytes=1000, read_committed=True)
        with pytest.raises(BrokerRefusedError, match=error_code.name.upper()):
            await reads.find_offset(ANONYMOUS, PARTITION, 5000)


async def test_an_offset_for_a_timestamp() -> None:
    async with (
        scripted_peer(broker()) as peer,
        open_authorizer(CallerListener(bootstrap_servers=peer.address)) as authorizer,
    ):
        found = await BrokerLocalReads(authorizer).find_offset(ANONYMOUS, PARTITION, 5000)
        assert (found.offset, found.timestamp_ms, found.leader_epoch) == (77, 5000, 6)
