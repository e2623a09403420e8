"""Checks of each answer to a consumer: the next records of the log as they were written, or an honest refusal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.cluster import SimulatedPartition
from tests.simulation.environment import Environment
from tests.simulation.records import Batch, visible_offsets
from tests.simulation.serving import Answer, Ask, Fate, Serving
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

COMPARED = "records compared"
_LEARNS_S = 60.0
"""Time after the last unclean election from which on no process serves what it has undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """State when a client asked: the leader's high watermark, the log end of the broker that is asked, and up to where the
    process that is asked knew a user's deletes to be done."""

    high_watermark: int
    log_end: int
    deleted_to: int


class ReadCheck:
    """``outcomes`` counts reads by how they ended, and the records that were compared."""

    def __init__(self, world: Environment) -> None:
        self._world = world
        self.outcomes: Counter[str] = Counter()
        self._quiet_since_s: float | None = None

    def begin(self, partition: SimulatedPartition, broker: int, serving: Serving) -> Seen:
        """Note the state: a client is about to ask ``broker``'s gateway or sidecar."""
        if self._quiet_since_s is None and self._world.chances.quiet:
            self._quiet_since_s = self._world.loop.time()
        return Seen(
            high_watermark=partition.history_log.high_watermark,
            log_end=partition.logs[broker].log_end_offset,
            deleted_to=serving.deleted_to(partition),
        )

    def check(self, reader: str, partition: SimulatedPartition, ask: Ask, answer: Answer, seen: Seen) -> int:
        """Return the offset to read on from, and complain of an answer that must not be."""
        self.outcomes[answer.fate.value] += 1
        if answer.fate is Fate.DAMAGED and not self._may_be_damaged():
            self._world.complain(
                f"the {reader} got damage for an answer at {ask.offset}, and there is none: {answer.why}"
            )
        next_offset = self._check_data(reader, partition, ask, answer) if answer.data else ask.offset
        self._check_deleted(reader, ask, answer, seen)
        if answer.fate is Fate.OUT_OF_RANGE:
            self._check_out_of_range(reader, partition, answer, seen)
        return next_offset

    def check_earliest(self, reader: str, partition: SimulatedPartition, earliest: int) -> None:
        """Check the answer to a client whose offset is out of range."""
        may_begin_at = self._world.may_begin_at(partition)
        if earliest > may_begin_at and not partition.unclean_elections:
            self._world.complain(f"the {reader} is sent to {earliest}, but the log begins at {may_begin_at}")

    def _check_out_of_range(self, reader: str, partition: SimulatedPartition, answer: Answer, seen: Seen) -> None:
        """Check that it is only below the log start, or past the log's end as the broker that was asked knows it."""
        high_watermark, may_begin_at = partition.history_log.high_watermark, self._world.may_begin_at(partition)
        if may_begin_at <= answer.offset <= min(high_watermark, seen.high_watermark, seen.log_end):
            self._world.complain(
                f"the {reader} got the answer that {answer.offset} is out of range, though [{may_begin_at}, {high_watermark}) "
                f"is there: {answer.why}"
            )

    def _check_deleted(self, reader: str, ask: Ask, answer: Answer, seen: Seen) -> None:
        """Check the first batch: of one around the log start the client skips what lies before it."""
        if ask.offset >= seen.deleted_to:
            return
        first = next((header for _, header in iter_batch_headers(answer.data)), None)
        if first is not None and first.base_offset < seen.deleted_to:
            self._world.complain(
                f"the {reader} asked for {ask.offset} and got what is from {first.base_offset} on, though a user has deleted "
                f"up to {seen.deleted_to}: readable too long"
            )

    def _check_data(self, reader: str, partition: SimulatedPartition, ask: Ask, answer: Answer) -> int:
        got = [
            (header.base_offset, header.next_offset, at, header.size_bytes)
            for at, header in iter_batch_headers(answer.data)
        ]
        end = got[-1][1]
        if self._world.compaction is not None:
            self._check_cleaned(reader, partition, ask, answer)
            return end
        faults = list[str]()
        for history in self.histories(partition):
            fault = _difference(history, ask, answer, got)
            if not fault:
                self.outcomes[COMPARED] += end - max(got[0][0], ask.offset)
                return end
            faults.append(fault)
        self._world.complain(f"the {reader} asked for {ask.offset} ({_isolation(ask)}) and got {faults[0]}")
        return end

    def _check_cleaned(self, reader: str, partition: SimulatedPartition, ask: Ask, answer: Answer) -> None:
        """Check that each batch is of the history, that nothing is passed over but what a cleaner may have taken, and that the
        records that are shown are those that are there and committed."""
        assert self._world.compaction is not None
        batches = partition.history_log.batches
        history, offset, present = self._world.compaction.history(partition), ask.offset, set[int]()
        for at, header in iter_batch_headers(answer.data):
            records = read_records(memoryview(answer.data)[at : at + header.size_bytes])
            fault = history.difference(header, records)
            if fault or header.last_offset < offset:
                self._world.complain(
                    f"the {reader} asked for {ask.offset} and got, at {header.base_offset}, {fault or 'what it had'}"
                )
            present.update(int(one.offset) for one in records if not header.is_control)
            offset = header.next_offset
        gone = [history.records[one] for one in range(ask.offset, offset) if one in history.records.keys() - present]
        faults = [fault for one in gone if (fault := self._world.compaction.reason_to_be_there(one, history))]
        if faults:
            self._world.complain(f"the {reader} asked for {ask.offset} ({_isolation(ask)}): {faults[0]}")
        wanted = [one for one in visible_offsets(batches, ask.offset, offset) if one in present]
        if answer.shown is not None and answer.shown != wanted:
            self._world.complain(f"the {reader} asked for {ask.offset} and is shown {answer.shown}, not {wanted}")
        if offset > partition.history_log.high_watermark:
            self._world.complain(f"the {reader} asked for {ask.offset} and got what is not committed, up to {offset}")
        self.outcomes[COMPARED] += len(present)

    def histories(self, partition: SimulatedPartition) -> Iterator[Sequence[Batch]]:
        """Yield what is committed: of the one that counts, and while not every process can know of it, of those that ended
        uncleanly."""
        log = partition.history_log
        yield [batch for batch in log.batches if batch.next_offset <= log.high_watermark]
        since_s = self._quiet_since_s
        if since_s is None or self._world.loop.time() - since_s < _LEARNS_S:
            yield from reversed(partition.former)

    def _may_be_damaged(self) -> bool:
        rates = self._world.scenario.reader_rates
        return rates.bad_read > 0 or rates.lie > 0


def _difference(history: Sequence[Batch], ask: Ask, answer: Answer, got: Sequence[tuple[int, int, int, int]]) -> str:
    """Return the difference; empty where the answer is the part of ``history`` that was asked for."""
    first = next((number for number, batch in enumerate(history) if batch.last_offset >= ask.offset), len(history))
    expected = history[first : first + len(got)]
    if [batch.base_offset for batch in expected] != [base for base, *_ in got]:
        return f"batches at {[base for base, *_ in got]} instead of {[batch.base_offset for batch in expected]}"
    for batch, (base, _, at, size) in zip(expected, got, strict=True):
        if answer.data[at : at + size] != batch.data:
            return f"another batch at {base} than was written"
    if answer.shown is None:
        return ""
    end = got[-1][1]
    wanted = visible_offsets(history, ask.offset, end)
    if answer.shown == wanted:
        return ""
    extra, missing = sorted(set(answer.shown) - set(wanted)), sorted(set(wanted) - set(answer.shown))
    return f"{extra} though aborted, and not {missing}, of [{ask.offset}, {end})"


def _isolation(ask: Ask) -> str:
    return "read_committed" if ask.read_committed else "read_uncommitted"
