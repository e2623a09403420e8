"""Remote and local records as one log: nothing twice, nothing left out, no aborted record shown (S-136, S-155, S-156)."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from tests.support.faulty_store import flip_bit
from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import as_consumed, batches_between, consumed_records, local_batches
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tests.support.remote_runs import RemoteRun, behind, load_run, open_run, segments_of
from tests.support.scripted_local import ScriptedLocal
from tests.unit.reading.test_lineage import FixedLog
from tests.unit.reading.test_remote_log_reader import committed, first_open_offset, only_until
from tests.unit.reading.test_undecided_transactions import without
from tests.unit.services.reader.service import open_service
from tiersidecar.domain.errors import (
    BrokerUnreachableError,
    CorruptDataError,
    HistoryChangedError,
    OffsetBetweenTiersError,
    OffsetOutOfRangeError,
    UndecidedTransactionError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import RemotePartitionDeleteMetadata
from tiersidecar.formats.kafka.records import read_records
from tiersidecar.ports.broker import Credentials, LocalBatches
from tiersidecar.ports.pins import ANYWHERE
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.services.reader.compacted_topics import CompactedTopics
from tiersidecar.services.reader.continuous_log import ContinuousLog, LogRead
from tiersidecar.services.reader.problems import problem_of

ALICE = Credentials(username="alice", password="secret")
HIGH_WATERMARK, LAST_STABLE = 294, 211


def log_over(path: ReadPath, local: ScriptedLocal, pinned_from: int | None = None) -> ContinuousLog:
    pending = None if pinned_from is None else PinnedFrom(pinned_from)
    return ContinuousLog(reader=path.reader, local=local, blocking=InlineBlocking(), pending=pending)


class AllCompacted(CompactedTopics):
    def __init__(self) -> None:
        pass

    async def has(self, topic: str) -> bool:
        return True


class PinnedFrom:
    """``PendingCopies`` with one pin."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset

    async def is_pending(self, partition: TopicIdPartition, *, below: int = ANYWHERE) -> bool:
        return self._base_offset < below


def read_of(partition: TopicIdPartition, offset: int, **others: int | bool | None) -> LogRead:
    return LogRead(caller=ALICE, partition=partition, offset=offset, **others)  # type: ignore[arg-type]


async def streamed(log: ContinuousLog, read: LogRead) -> bytes:
    async with aclosing(log.stream_batches(read)) as parts:
        return b"".join([bytes(part.batches.buffer) async for part in parts])


async def committed_records(log: ContinuousLog, read: LogRead) -> dict[int, object]:
    found: dict[int, object] = {}
    async with aclosing(log.stream_batches(read)) as parts:
        async for part in parts:
            found |= {one.offset: as_consumed(one) for one in committed(part) if one.offset >= read.offset}
    return found


async def transactions(end: int) -> tuple[RemoteRun, TopicIdPartition]:
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    return await only_until(run, partition, end), partition


@pytest.mark.parametrize(("is_reachable", "error"), [(True, OffsetBetweenTiersError), (False, BrokerUnreachableError)])
async def test_nobody_is_sent_away_by_metadata_that_are_behind(is_reachable: bool, error: type[Exception]) -> None:
    """Simulation, cluster seed 801519."""
    run, partition = await transactions(86)
    local = ScriptedLocal(log_start=86, high_watermark=HIGH_WATERMARK)
    late = await behind(run, is_reachable=is_reachable)
    async with open_run(late) as path:
        with pytest.raises(error):
            await streamed(log_over(path, local), read_of(partition, 5))
    async with open_run(await behind(run, is_reachable=is_reachable)) as path:
        if is_reachable:
            assert await log_over(path, local).start_offset(ALICE, partition) == 0
        else:
            with pytest.raises(error):
                await log_over(path, local).start_offset(ALICE, partition)


@pytest.mark.parametrize("end", [43, 86, 133, 180])
async def test_every_offset_is_read_once_whichever_tier_has_it(end: int) -> None:
    run, partition = await transactions(end)
    local = ScriptedLocal(log_start=end, high_watermark=HIGH_WATERMARK)
    async with open_run(run) as path:
        log = log_over(path, local)
        for offset in range(HIGH_WATERMARK + 1):
            expected = batches_between("transactions-0", offset, HIGH_WATERMARK)
            assert await streamed(log, read_of(partition, offset)) == expected, offset
        assert local.callers == {"alice"}, "as the caller, never as the daemon"


@pytest.mark.parametrize("end", [43, 86, 133, 180])
async def test_read_committed_from_every_offset_shows_what_the_consumer_saw_of_the_whole_log(end: int) -> None:
    """At 43 and 86 a transaction is open at the border, and its marker is local."""
    run, partition = await transactions(end)
    expected = consumed_records("transactions-0", "read_committed")
    local = ScriptedLocal(log_start=end, high_watermark=HIGH_WATERMARK, last_stable_offset=LAST_STABLE)
    async with open_run(run) as path:
        log = log_over(path, local)
        for offset in range(LAST_STABLE):
            found = await committed_records(log, read_of(partition, offset, read_committed=True))
            assert found == {at: one for at, one in expected.items() if at >= offset}, offset


@pytest.mark.parametrize("end", [43, 86])
async def test_a_transaction_that_is_still_open_ends_a_committed_read_before_its_first_record(end: int) -> None:
    run, partition = await transactions(end)
    first_open = first_open_offset(end)
    expected = consumed_records("transactions-0", "read_committed")
    local = ScriptedLocal(log_start=end, high_watermark=HIGH_WATERMARK, last_stable_offset=first_open)
    async with open_run(run) as path:
        found = await committed_records(log_over(path, local), read_of(partition, 0, read_committed=True))
        assert found == {at: one for at, one in expected.items() if at < first_open}


async def test_a_stop_offset_on_either_side_of_the_border() -> None:
    run, partition = await transactions(86)
    local = ScriptedLocal(log_start=86, high_watermark=HIGH_WATERMARK)
    async with open_run(run) as path:
        log = log_over(path, local)
        for stop in (40, 86, 87, 200):
            found = await streamed(log, read_of(partition, 3, stop_offset=stop))
            assert found == batches_between("transactions-0", 3, stop)


async def test_bounded_reads_pass_the_border_at_the_next_offset() -> None:
    run, partition = await transactions(86)
    local = ScriptedLocal(log_start=86, high_watermark=HIGH_WATERMARK)
    async with open_run(run) as path:
        log, offset, found = log_over(path, local), 0, b""
        while offset < HIGH_WATERMARK:
            fetched = await log.read_batches(read_of(partition, offset), max_bytes=3000)
            assert fetched.next_offset > offset
            found += b"".join(bytes(one.buffer) for one in fetched.slices)
            offset = fetched.next_offset
        assert found == batches_between("transactions-0", 0, HIGH_WATERMARK)
        at_the_end = await log.read_batches(read_of(partition, offset), max_bytes=3000)
        assert (at_the_end.slices, at_the_end.next_offset) == ((), HIGH_WATERMARK)


async def test_past_the_high_watermark_is_out_of_range_with_both_tiers_bounds() -> None:
    run, partition = await transactions(86)
    local = ScriptedLocal(log_start=86, high_watermark=HIGH_WATERMARK)
    async with open_run(run) as path:
        log = log_over(path, local)
        for reading in (
            streamed(log, read_of(partition, HIGH_WATERMARK + 1)),
            log.read_batches(read_of(partition, HIGH_WATERMARK + 1), max_bytes=100),
        ):
            with pytest.raises(OffsetOutOfRangeError) as error:
                await reading
            assert (error.value.start, error.value.stop) == (0, HIGH_WATERMARK)


class TrimmingLocal(ScriptedLocal):
    """Has its segment copied, and trimmed, just before it is asked for the first time."""

    def __init__(self, run: RemoteRun, whole: RemoteRun) -> None:
        super().__init__(log_start=86, high_watermark=HIGH_WATERMARK)
        self._run, self._whole = run, whole

    async def fetch(self, credentials, topic_id_partition, offset, **others):  # type: ignore[no-untyped-def]
        if not self.fetched:
            self.log_start = 133
            assert isinstance(self._run.metadata, MemoryMetadataLog)
            for event in self._whole.metadata.events:
                if event not in self._run.metadata.events:
                    await self._run.metadata.publish(event)
        return await super().fetch(credentials, topic_id_partition, offset, **others)


@pytest.mark.parametrize("offset", [3, 86, 100])
async def test_what_is_trimmed_between_two_looks_is_read_from_the_remote_tier(offset: int) -> None:
    """S-137: the border moved while the reader was on its way to it."""
    run, partition = await transactions(86)
    whole, _ = await transactions(133)
    async with open_run(run) as path:
        log = log_over(path, TrimmingLocal(run, whole))
        found = await streamed(log, read_of(partition, offset))
        assert found == batches_between("transactions-0", offset, HIGH_WATERMARK)
    run, partition = await transactions(86)
    async with open_run(run) as path:
        log = log_over(path, TrimmingLocal(run, whole))
        fetched = await log.read_batches(read_of(partition, max(offset, 86)), max_bytes=1)
        assert fetched.slices[0].base_offset <= max(offset, 86) < fetched.next_offset


async def test_what_is_between_the_tiers_is_neither_skipped_nor_out_of_range() -> None:
    """U7; cluster seed 0: pins held what the broker had deleted, and readers by HTTP were told 416."""
    run, partition = await transactions(86)
    async with open_run(run) as path:
        log = log_over(path, ScriptedLocal(log_start=100, high_watermark=HIGH_WATERMARK))
        for offset in (0, 86, 99):
            with pytest.raises(OffsetBetweenTiersError) as error:
                await streamed(log, read_of(partition, offset))
            assert (error.value.remote_end, error.value.local_start) == (86, 100)
        with pytest.raises(OffsetBetweenTiersError) as error:
            await log.read_batches(read_of(partition, 90), max_bytes=1)
        assert problem_of(error.value).status == 503


async def test_a_transaction_that_is_open_before_what_is_between_the_tiers_is_no_silent_end() -> None:
    """Found with cluster seed 405: the read ended as if there were no more, and stayed so."""
    run, partition = await transactions(86)
    expected, limit = consumed_records("transactions-0", "read_committed"), first_open_offset(86)
    local = ScriptedLocal(log_start=100, high_watermark=HIGH_WATERMARK)
    async with open_run(run) as path:
        log = log_over(path, local)
        with pytest.raises(OffsetBetweenTiersError):
            await committed_records(log, read_of(partition, 0, read_committed=True))
        found = await committed_records(log, read_of(partition, 0, stop_offset=limit, read_committed=True))
        assert found == {at: one for at, one in expected.items() if at < limit}


async def test_a_border_that_the_remote_tier_passes_while_a_transaction_is_open_there_is_passed_with_it() -> None:
    """The broker has given to the remote tier, and trimmed, what the transaction's end lies in."""
    run, partition = await transactions(86)
    whole, _ = await transactions(180)
    expected = consumed_records("transactions-0", "read_committed")
    async with open_run(run) as path:
        log = log_over(path, TrimmingLocal(run, whole))
        found = await committed_records(log, read_of(partition, 0, stop_offset=180, read_committed=True))
    assert found == {at: one for at, one in expected.items() if at < 180}


async def test_a_transaction_that_ended_in_a_hole_of_the_remote_tier_is_told_as_such() -> None:
    """Simulation, cluster seed 405."""
    run = await load_run("plain")
    partition = run.partition("transactions-0")
    limit = first_open_offset(86)
    async with open_run(await without(run, partition, 86)) as path:
        log = log_over(path, ScriptedLocal(log_start=180, high_watermark=HIGH_WATERMARK))
        with pytest.raises(UndecidedTransactionError) as error:
            await committed_records(log, read_of(partition, 0, read_committed=True))
    problem = problem_of(error.value)
    assert (problem.status, problem.name) == (503, "transaction-undecided")
    assert f"began at {limit} ended in a hole, no segment holds [86, 133)" in problem.detail


class ElectingLocal(ScriptedLocal):
    """A follower that had come to ``election`` is elected while the border is asked about, and writes the same as is golden."""

    def __init__(self, live: FixedLog, election: int) -> None:
        super().__init__(log_start=43, high_watermark=HIGH_WATERMARK, last_stable_offset=LAST_STABLE)
        self._live, self._election = live, election

    async def fetch(self, credentials, topic_id_partition, offset, **others):  # type: ignore[no-untyped-def]
        self._live.epochs = {0: 0, 1: self._election}
        return await super().fetch(credentials, topic_id_partition, offset, **others)


async def test_an_unclean_election_that_shortens_the_remote_tier_meanwhile_leaves_no_offset_out() -> None:
    """Simulation, cluster seed 617: the rest was read from where the remote tier had ended before."""
    run, partition = await transactions(86)
    live = FixedLog({0: 0})
    local = ElectingLocal(live, 58)
    async with open_run(run, live=live) as path:
        found = await committed_records(log_over(path, local), read_of(partition, 0, read_committed=True))
    assert found == consumed_records("transactions-0", "read_committed")
    assert local.fetched[:2] == [86, 58], "asked anew at the new border, whose transactions are others"


@pytest.mark.parametrize("given", [1, 86])
async def test_a_reader_who_has_been_given_what_an_election_undoes_is_told_so(given: int) -> None:
    """Simulation, cluster seed 94: what the new leader has from there on followed, as if it were the same log."""
    run, partition = await transactions(86)
    live, ends = FixedLog({0: 0}), list[int]()

    async def read(log: ContinuousLog) -> None:
        async with aclosing(log.stream_batches(read_of(partition, 0))) as parts:
            async for part in parts:
                ends.append(part.batches.next_offset)
                if ends[-1] >= given:
                    live.epochs = {0: 0, 1: ends[-1] - 1}

    async with open_run(run, live=live) as path:
        with pytest.raises(HistoryChangedError) as error:
            await read(log_over(path, ScriptedLocal(log_start=43, high_watermark=HIGH_WATERMARK)))
    assert given <= ends[-1] <= 86
    problem = problem_of(error.value)
    assert (problem.status, problem.name) == (503, "unavailable")


async def test_what_only_pins_have_is_neither_skipped_nor_out_of_range() -> None:
    """U7; cluster seed 15: nothing is remote, and the broker has deleted what the pins hold."""
    run, partition = await transactions(0)
    await run.metadata.assign([partition])
    local = ScriptedLocal(log_start=100, high_watermark=HIGH_WATERMARK)
    async with open_run(run) as path:
        pinned = log_over(path, local, pinned_from=90)
        with pytest.raises(OffsetBetweenTiersError):
            await streamed(pinned, read_of(partition, 95))
        with pytest.raises(OffsetBetweenTiersError):
            await pinned.start_offset(ALICE, partition)
        for log in (log_over(path, local), log_over(path, local, pinned_from=100)):
            with pytest.raises(OffsetOutOfRangeError):
                await streamed(log, read_of(partition, 95))
            assert await log.start_offset(ALICE, partition) == 100


async def test_what_was_trimmed_because_it_was_remote_is_out_of_no_range_where_nothing_is_remote_any_more() -> None:
    """The metadata topic has lost its events: the sidecar halts, and nobody skips what the store has."""
    run, partition = await transactions(0)
    await run.metadata.assign([partition])
    run.log_starts.held[partition] = 100
    async with open_run(run) as path:
        log = log_over(path, ScriptedLocal(log_start=120, high_watermark=HIGH_WATERMARK))
        with pytest.raises(OffsetBetweenTiersError):
            await streamed(log, read_of(partition, 99))
        with pytest.raises(OffsetOutOfRangeError):
            await streamed(log, read_of(partition, 100))


async def test_what_a_broker_has_forgotten_to_be_deleted_is_told_to_nobody() -> None:
    """After a crash its log start is that of a minute ago."""
    run, partition = await transactions(0)
    await run.metadata.assign([partition])
    run.log_starts.offsets[partition] = 40
    async with open_run(run) as path:
        log = log_over(path, ScriptedLocal(log_start=0, high_watermark=HIGH_WATERMARK))
        assert await log.start_offset(ALICE, partition) == 40
        run.log_starts.offsets[partition] = 10**6
        assert await log.start_offset(ALICE, partition) == HIGH_WATERMARK, "no further than the log reaches"


@pytest.mark.parametrize(
    ("remote", "offset", "is_there"),
    [
        pytest.param(86, 50, False, id="below a user's delete, in both tiers"),
        pytest.param(86, 90, False, id="below it, in the broker's log alone"),
        pytest.param(0, 90, False, id="below it, where nothing is remote"),
        pytest.param(86, 102, True, id="at the first offset that is left"),
        pytest.param(86, 120, True, id="above it"),
    ],
)
async def test_what_a_broker_has_forgotten_to_be_deleted_is_out_of_range(
    remote: int, offset: int, is_there: bool
) -> None:
    """Its records are there, and nobody may have them; of a batch around the log start the reader skips what lies before it."""
    run, partition = await transactions(remote)
    await run.metadata.assign([partition])
    run.log_starts.offsets[partition] = 102
    async with open_run(run) as path:
        log = log_over(path, ScriptedLocal(log_start=0, high_watermark=HIGH_WATERMARK))
        for read in (
            log.read_batches(read_of(partition, offset), max_bytes=1),
            streamed(log, read_of(partition, offset)),
        ):
            if is_there:
                await read
                continue
            with pytest.raises(OffsetOutOfRangeError) as error:
                await read
            assert error.value.offset == offset
            problem = problem_of(error.value)
            assert (problem.status, problem.name) == (416, "offset-out-of-range")
            if offset >= remote:
                assert problem.members == {"start_offset": 102, "end_offset": HIGH_WATERMARK}


async def test_what_is_deleted_while_it_is_streamed_is_not_given_any_more() -> None:
    """What the broker has is looked at piece by piece."""
    run, partition = await transactions(86)
    ends = list[int]()

    async def read(log: ContinuousLog) -> None:
        async with aclosing(log.stream_batches(read_of(partition, 0))) as parts:
            async for part in parts:
                ends.append(part.batches.next_offset)
                run.log_starts.offsets[partition] = HIGH_WATERMARK

    async with open_run(run) as path:
        with pytest.raises(OffsetOutOfRangeError):
            await read(log_over(path, ScriptedLocal(log_start=0, high_watermark=HIGH_WATERMARK)))
    assert ends[-1] == 86


async def never_copied(start: int, stop: int) -> tuple[RemoteRun, TopicIdPartition]:
    """A run whose segments in [``start``, ``stop``) were never copied."""
    run, partition = await transactions(180)
    metadata = MemoryMetadataLog()
    await metadata.assign([partition])
    gone = {
        segment.remote_log_segment_id for segment in segments_of(run, partition) if start <= segment.start_offset < stop
    }
    for event in run.metadata.events:
        if not isinstance(event, RemotePartitionDeleteMetadata) and event.remote_log_segment_id not in gone:
            await metadata.publish(event)
    return replace(run, metadata=metadata), partition


@pytest.mark.parametrize(("start", "stop"), [(0, 43), (0, 86), (43, 86), (86, 133)])
async def test_what_was_never_copied_is_served_while_the_broker_has_it(start: int, stop: int) -> None:
    """S-137: expired before it was copied, or lost, but Fetch serves it.  Found by simulation: HTTP said 416."""
    run, partition = await never_copied(start, stop)
    local = ScriptedLocal(log_start=start, high_watermark=HIGH_WATERMARK, last_stable_offset=LAST_STABLE)
    expected = consumed_records("transactions-0", "read_committed")
    async with open_run(run) as path:
        log = log_over(path, local)
        for offset in range(start, HIGH_WATERMARK, 7):
            found = await streamed(log, read_of(partition, offset))
            assert found == batches_between("transactions-0", offset, HIGH_WATERMARK), offset
        for offset in range(start, LAST_STABLE, 7):
            shown = await committed_records(log, read_of(partition, offset, read_committed=True))
            assert shown == {at: one for at, one in expected.items() if at >= offset}, offset
        offset, found = 0 if start else start, b""
        while offset < HIGH_WATERMARK:
            fetched = await log.read_batches(read_of(partition, offset), max_bytes=3000)
            assert fetched.next_offset > offset
            found, offset = found + b"".join(bytes(one.buffer) for one in fetched.slices), fetched.next_offset
        assert found == batches_between("transactions-0", 0, HIGH_WATERMARK)
        assert await log.start_offset(ALICE, partition) == 0


@pytest.mark.parametrize(
    ("start", "stop", "refused"),
    [
        pytest.param(0, 43, (416, "offset-out-of-range"), id="before what is remote"),
        pytest.param(43, 86, (503, "offset-in-hole"), id="in a hole: 416 would have readers skip it"),
    ],
)
async def test_what_nobody_has_is_refused(start: int, stop: int, refused: tuple[int, str]) -> None:
    run, partition = await never_copied(start, stop)
    async with open_run(run) as path:
        log = log_over(path, ScriptedLocal(log_start=stop + 1, high_watermark=HIGH_WATERMARK))
        for offset in (start, stop - 1):
            for reading in (
                streamed(log, read_of(partition, offset)),
                log.read_batches(read_of(partition, offset), max_bytes=100),
            ):
                with pytest.raises(OffsetOutOfRangeError) as error:
                    await reading
                assert (error.value.start, error.value.stop) == (0 if start else stop, 180)
                problem = problem_of(error.value)
                assert (problem.status, problem.name) == refused
        assert await log.start_offset(ALICE, partition) == (0 if start else stop)


async def test_what_a_user_has_deleted_is_read_from_no_tier() -> None:
    run, partition = await never_copied(0, 43)
    run.log_starts.offsets[partition] = 20
    async with open_run(run) as path:
        log = log_over(path, ScriptedLocal(log_start=0, high_watermark=HIGH_WATERMARK))
        with pytest.raises(OffsetOutOfRangeError):
            await streamed(log, read_of(partition, 19))
        with pytest.raises(OffsetOutOfRangeError):
            await log.read_batches(read_of(partition, 19), max_bytes=100)
        assert await streamed(log, read_of(partition, 20)) == batches_between("transactions-0", 20, HIGH_WATERMARK)
        assert await log.start_offset(ALICE, partition) == 20


async def test_a_partition_without_remote_segments_is_read_from_the_broker() -> None:
    run, partition = await transactions(0)
    await run.metadata.assign([partition])
    async with open_run(run) as path:
        log = log_over(path, ScriptedLocal(log_start=0, high_watermark=HIGH_WATERMARK))
        assert await streamed(log, read_of(partition, 5)) == batches_between("transactions-0", 5, HIGH_WATERMARK)


class DamagedLocal(ScriptedLocal):
    async def fetch(self, credentials, topic_id_partition, offset, **others):  # type: ignore[no-untyped-def]
        fetched = await super().fetch(credentials, topic_id_partition, offset, **others)
        return replace(fetched, records=flip_bit(fetched.records, 8 * 100))


async def test_a_damaged_batch_of_the_brokers_answer_is_never_passed_on() -> None:
    run, partition = await transactions(86)
    async with open_run(run) as path:
        log = log_over(path, DamagedLocal(log_start=86, high_watermark=HIGH_WATERMARK))
        with pytest.raises(CorruptDataError):
            await streamed(log, read_of(partition, 86))


async def test_over_http_records_offsets_and_batches_are_of_one_log() -> None:
    local = ScriptedLocal(log_start=180, high_watermark=HIGH_WATERMARK, last_stable_offset=LAST_STABLE)
    base = "/topics/transactions/partitions/0"
    async with open_service(local=local) as service:
        for isolation, end in (("read_uncommitted", HIGH_WATERMARK), ("read_committed", LAST_STABLE)):
            status, body, _ = await service.get(f"{base}/records?offset=100&limit=10000&isolation={isolation}")
            expected = consumed_records("transactions-0", isolation)
            assert status == 200
            assert [json.loads(line)["offset"] for line in body.splitlines()] == [
                at for at in expected if 100 <= at < end
            ]
        _, body, _ = await service.get(f"{base}/batches?offset=100")
        assert body == batches_between("transactions-0", 100, HIGH_WATERMARK)
        _, body, headers = await service.get(f"{base}/batches?offset=200&max_bytes=100000")
        assert body == batches_between("transactions-0", 200, int(headers["Kafka-Next-Offset"]))
        records = [record for batch in local_batches("transactions-0") for record in read_records(batch.data)]
        for timestamp_ms in (records[10].timestamp_ms, records[-1].timestamp_ms):
            found: Any = await service.json(f"{base}/offsets", params={"timestamp": timestamp_ms})
            assert found["offset"] == next(one.offset for one in records if one.timestamp_ms >= timestamp_ms)
        latest = max(record.timestamp_ms for record in records)
        for timestamp, offset in (
            (-1, HIGH_WATERMARK),
            (-2, 0),
            (-3, next(one.offset for one in records if one.timestamp_ms == latest)),
            (latest + 1, None),
        ):
            found = await service.json(f"{base}/offsets", params={"timestamp": timestamp})
            assert found["offset"] == offset
        status, _, _ = await service.get(f"{base}/batches?offset={HIGH_WATERMARK + 1}")
        assert status == 416


class DivergedLocal(ScriptedLocal):
    """A broker that has heard of the election of epoch 1 at ``election``, from where on its log is another one."""

    def __init__(self, election: int) -> None:
        super().__init__(log_start=0, high_watermark=HIGH_WATERMARK, last_stable_offset=LAST_STABLE)
        self._election = election
        self.epochs_asked: list[int] = []

    async def fetch(self, credentials, topic_id_partition, offset, *, last_fetched_epoch=-1, **others):  # type: ignore[no-untyped-def]
        self.epochs_asked.append(last_fetched_epoch)
        if last_fetched_epoch == 0 and offset > self._election:
            raise HistoryChangedError(subject=str(topic_id_partition), end_offset=offset)
        return await super().fetch(credentials, topic_id_partition, offset, **others)


@pytest.mark.parametrize("read_committed", [False, True])
async def test_what_a_broker_has_after_an_election_never_follows_the_history_before_it(read_committed: bool) -> None:
    """Finding 8, simulation, cluster seed 700118: the broker knew of an unclean election before the lineage did."""
    run, partition = await transactions(86)
    live, local = FixedLog({0: 0}), DivergedLocal(84)
    async with open_run(run, live=live) as path:
        with pytest.raises(HistoryChangedError) as error:
            await streamed(log_over(path, local), read_of(partition, 0, read_committed=read_committed))
        assert problem_of(error.value).status == 503
        assert set(local.epochs_asked) == {0}, "the epoch of the last remote record, as the reader was given it"
        alone = await streamed(log_over(path, local), read_of(partition, 90))
    assert alone == batches_between("transactions-0", 90, HIGH_WATERMARK), "nothing came before it"


@pytest.mark.parametrize("log_start", [0, 43, 86, 133, 180])
async def test_of_a_compacted_topic_only_what_the_broker_has_no_more_is_read_from_the_remote_tier(
    log_start: int,
) -> None:
    """Each tier has its own cleaner.  Simulation, compaction seed 32: copies stood still, and the broker's had removed a
    tombstone of which the remote tier had the value."""
    run, partition = await transactions(180)
    local = ScriptedLocal(log_start=log_start, high_watermark=HIGH_WATERMARK)
    async with open_run(run) as path:
        log = ContinuousLog(reader=path.reader, local=local, blocking=InlineBlocking(), compacted=AllCompacted())
        for offset in range(0, HIGH_WATERMARK + 1, 7):
            local.fetched.clear()
            expected = batches_between("transactions-0", offset, HIGH_WATERMARK)
            assert await streamed(log, read_of(partition, offset)) == expected, offset
            assert local.fetched[:2] == [offset, max(offset, log_start)], "the first only asks where its log begins"
            local.fetched.clear()
            await log.read_batches(read_of(partition, offset), max_bytes=100)
            assert local.fetched == [offset] * (2 if offset >= log_start else 1)


@pytest.mark.parametrize("log_start", [43, 86, 133])
async def test_nor_is_an_aborted_record_of_it_shown_where_the_tiers_meet(log_start: int) -> None:
    run, partition = await transactions(180)
    local = ScriptedLocal(log_start=log_start, high_watermark=HIGH_WATERMARK, last_stable_offset=LAST_STABLE)
    shown = consumed_records("transactions-0", "read_committed")
    expected = {offset: record for offset, record in shown.items() if offset < LAST_STABLE}
    async with open_run(run) as path:
        log = ContinuousLog(reader=path.reader, local=local, blocking=InlineBlocking(), compacted=AllCompacted())
        assert await committed_records(log, read_of(partition, 0, read_committed=True)) == expected


@pytest.mark.parametrize("log_start", [40, 45, 57, 60])
async def test_a_bounded_read_goes_on_in_the_brokers_log_where_cleaning_left_nothing_remote_up_to_there(
    log_start: int,
) -> None:
    """An empty answer says that the reader has come to the high watermark: one that reads on would ask the same for ever."""
    builder = RemoteBuilder()
    builder.partition = replace(builder.partition, topic="transactions")
    kept = [one for one in local_batches("transactions-0") if one.header.last_offset < 36]
    await builder.add(SegmentSource(batches=kept, start_offset=0, end_offset=59))
    local = ScriptedLocal(log_start=log_start, high_watermark=HIGH_WATERMARK)
    async with open_run(builder.run) as path:
        log = ContinuousLog(reader=path.reader, local=local, blocking=InlineBlocking(), compacted=AllCompacted())
        for offset in range(36, log_start):
            fetched = await log.read_batches(read_of(builder.partition, offset), max_bytes=1)
            expected = batches_between("transactions-0", log_start, log_start + 1)
            assert b"".join(bytes(one.buffer) for one in fetched.slices) == expected
        assert (await log.read_batches(read_of(builder.partition, 36, stop_offset=40), max_bytes=1)).slices == ()


async def test_a_bounded_read_finds_what_the_broker_trimmed_while_it_looked_past_what_cleaning_removed() -> None:
    builder = RemoteBuilder()
    builder.partition = replace(builder.partition, topic="transactions")
    kept = [one for one in local_batches("transactions-0") if not 36 <= one.header.base_offset < 57]
    kept = [one for one in kept if one.header.last_offset < 86]
    await builder.add(SegmentSource(batches=kept, start_offset=0, end_offset=85))
    local = TrimsOnce(log_start=40, high_watermark=HIGH_WATERMARK)
    async with open_run(builder.run) as path:
        log = ContinuousLog(reader=path.reader, local=local, blocking=InlineBlocking(), compacted=AllCompacted())
        fetched = await log.read_batches(read_of(builder.partition, 36), max_bytes=1)
    assert b"".join(bytes(one.buffer) for one in fetched.slices) == batches_between("transactions-0", 57, 58)


class TrimsOnce(ScriptedLocal):
    """Gives up what is below 68 after it was asked where its log begins."""

    async def fetch(self, *arguments: Any, **others: Any) -> LocalBatches:
        try:
            return await super().fetch(*arguments, **others)
        finally:
            self.log_start = 68


@pytest.mark.parametrize("read_committed", [False, True])
async def test_a_slow_reader_that_trims_overtake_again_and_again_gets_all_of_it(*, read_committed: bool) -> None:
    """Of a compacted topic a reader goes over to the broker where its log begins: each trim of a slow read's time passes it."""
    run, partition = await transactions(180)
    local = TrimsBehindEachBatch(log_start=20, high_watermark=HIGH_WATERMARK, last_stable_offset=LAST_STABLE)
    async with open_run(run) as path:
        log = ContinuousLog(reader=path.reader, local=local, blocking=InlineBlocking(), compacted=AllCompacted())
        read = read_of(partition, 0, read_committed=read_committed)
        if read_committed:
            shown = consumed_records("transactions-0", "read_committed")
            expected = {offset: record for offset, record in shown.items() if offset < LAST_STABLE}
            assert await committed_records(log, read) == expected
        else:
            assert await streamed(log, read) == batches_between("transactions-0", 0, HIGH_WATERMARK)
    assert local.trims > 5


class TrimsBehindEachBatch(ScriptedLocal):
    """Gives one batch at a time, and then up what follows it, as far as that is remote."""

    trims = 0

    async def fetch(self, *arguments: Any, **others: Any) -> LocalBatches:
        fetched = await super().fetch(*arguments, **{**others, "max_bytes": 1})
        if self.log_start < 160:
            self.log_start, self.trims = self.log_start + 17, self.trims + 1
        return fetched
