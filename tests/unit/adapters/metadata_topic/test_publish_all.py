"""Publishing many events of a partition at once: checked before, written batch by batch, read back at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.metadata_events import DELETED, DELETING, FINISHED, added, segment_id, updated
from tests.unit.adapters.metadata_topic.test_catch_up import US, Behind, Silent
from tiersidecar.adapters.metadata_topic.bulk import record_batches
from tiersidecar.domain.errors import (
    BrokerUnreachableError,
    IllegalTransitionError,
    MetadataNotReadyError,
    PublishTimeoutError,
    UnknownSegmentError,
)
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, SegmentEvent
from tiersidecar.formats.metadata.serde import read_event, write_event

BATCH_BYTES = 32 * 1024


def copied(*numbers: int) -> list[SegmentEvent]:
    """Events of whole copies; the log :class:`Behind` has segment 0."""
    return [
        event
        for number in numbers
        for event in (added(number, 10 * number, 10 * number + 9), updated(number, FINISHED, custom=b"\x01"))
    ]


class Written:
    """A producer to the topic of ``behind``, whose consumer reads what it wrote; ``batches`` are the values of each.

    ``before`` are events of another process, that come before the batch of that number; the batch ``failing`` is refused.
    """

    def __init__(self, behind: Behind, *, failing: int = -1) -> None:
        self._behind, self._failing = behind, failing
        self.batches: list[Sequence[bytes]] = []
        self.before: dict[int, Sequence[SegmentEvent]] = {}
        behind.log._producer = self

    async def send(self, topic: str, **record: object) -> int:
        raise AssertionError("they are sent together")

    async def send_batch(
        self, topic: str, *, partition: int, values: Sequence[bytes], timestamp_ms: int, until_s: float | None = None
    ) -> int:
        assert (topic, partition) == ("metadata", 0)
        number = len(self.batches)
        if number == self._failing:
            raise BrokerUnreachableError(address="broker:1", reason="it went away")
        self.batches.append(values)
        self._behind.topic.write(*self.before.get(number, ()))
        first = len(self._behind.topic.records)
        self._behind.topic.write(*values)
        asyncio.get_running_loop().call_soon(self._behind.topic.read_live, 100_000)
        return first

    @property
    def events(self) -> list[object]:
        return [read_event(value, where="topic") for values in self.batches for value in values]

    async def close(self) -> None: ...


async def test_they_are_written_in_order_and_applied_when_it_is_over() -> None:
    behind = Behind()
    written, events = Written(behind), [*copied(1, 2), updated(0, DELETING)]
    await behind.log.publish_all(events)
    assert written.events == events
    assert len(written.batches) == 1
    assert behind.known_end == 29
    assert [one.state for one in behind.log.list_remote_log_segments(US)] == [DELETING, FINISHED, FINISHED]


async def test_none_of_nothing_is_written() -> None:
    behind = Behind()
    written = Written(behind)
    await behind.log.publish_all([])
    assert written.batches == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        pytest.param(updated(7, FINISHED), UnknownSegmentError, id="an update of a segment that none adds"),
        pytest.param(added(0, 0, 9), IllegalTransitionError, id="one that is finished begins again"),
        pytest.param(updated(1, DELETED), IllegalTransitionError, id="one of the list is deleted at once"),
        pytest.param(added(2, 20, 29), IllegalTransitionError, id="one of the list begins again"),
        pytest.param(updated(7, DELETED), UnknownSegmentError, id="one that is gone is deleted again"),
    ],
)
async def test_if_one_may_not_be_none_is_written(wrong: SegmentEvent, error: type[Exception]) -> None:
    behind = Behind()
    written = Written(behind)
    with pytest.raises(error):
        await behind.log.publish_all([*copied(1, 2), wrong])
    assert written.batches == []


async def test_what_another_process_says_between_two_batches_is_seen() -> None:
    behind = Behind()
    written = Written(behind)
    written.before = {1: [added(999, 9990, 9999), updated(999, DELETING)]}
    with pytest.raises(IllegalTransitionError, match="DELETE_SEGMENT_STARTED to COPY_SEGMENT_STARTED"):
        await behind.log.publish_all(copied(*range(1, 1000)))
    assert len(written.batches) > 2


async def test_the_first_is_named_of_more_than_single_read_backs_remember() -> None:
    behind = Behind()
    written, numbers = Written(behind), range(1, 1200)
    written.before = {0: [event for one in numbers for event in (added(one, 0, 9), updated(one, DELETING))]}
    with pytest.raises(IllegalTransitionError, match=str(segment_id(1))):
        await behind.log.publish_all(copied(*numbers))
    assert len(behind.topic.replica.partitions[0].read_back._fates) == 1024, "and then they are forgotten"


async def test_behind_a_batch_that_was_not_taken_none_is_sent() -> None:
    behind = Behind()
    written = Written(behind, failing=1)
    with pytest.raises(BrokerUnreachableError):
        await behind.log.publish_all(copied(*range(1, 1000)))
    assert len(written.batches) == 1


async def test_it_is_given_up_within_the_time_that_its_caller_has() -> None:
    behind, producer = Behind(), Silent()
    behind.log._producer = producer
    with pytest.raises(PublishTimeoutError) as raised:
        await behind.log.publish_all(copied(1, 2), until_s=behind.log._clock.monotonic_s() + 0.005)
    assert (raised.value.waited_ms, producer.given_up) == (5, 1)


async def test_of_a_partition_that_is_not_ready_nothing_is_written() -> None:
    behind = Behind()
    written = Written(behind)
    behind.topic.replica.assign([])
    with pytest.raises(MetadataNotReadyError):
        await behind.log.publish_all(copied(1))
    assert written.batches == []


@pytest.mark.parametrize("custom_bytes", range(0, 60, 10))
def test_a_segment_is_finished_in_the_batch_that_begins_it(custom_bytes: int) -> None:
    """S-090: whatever ends the writer, none is left as begun, whose objects would be taken for those of a broken copy."""
    events = [replace(event, custom_metadata=bytes(custom_bytes)) for event in copied(*range(1, 2000))]
    batches = list(record_batches(events, lambda event: write_event(event, knows_txn_index_empty=True)))
    assert len(batches) > 3
    assert all(isinstance(read_event(batch[0], where="topic"), RemoteLogSegmentMetadata) for batch in batches)
    assert all(BATCH_BYTES - 1000 < sum(map(len, batch)) <= BATCH_BYTES for batch in batches[:-1])


def test_what_is_larger_than_a_batch_has_one_of_its_own() -> None:
    batches = list(record_batches(copied(1, 2, 3), lambda event: bytes(BATCH_BYTES)))
    assert [len(batch) for batch in batches] == [2, 2, 2]
