"""Checks of each answer to a question for an offset, by the histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.broker_offsets import records_of
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.environment import Environment
from tests.simulation.offset_wire import OffsetQuestion, OffsetReply
from tests.simulation.read_check import ReadCheck
from tests.simulation.records import Batch
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.broker import OffsetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """State when a client asked; ``stable`` is the last stable offset."""

    epoch: int
    unclean_elections: int
    high_watermark: int
    stable: int
    log_end: int
    lineage: tuple[EpochEntry, ...]


class OffsetCheck:
    """Checks the answers that the client ``name`` gets."""

    def __init__(self, world: Environment, reads: ReadCheck, name: str) -> None:
        self._world, self._reads, self._name = world, reads, name

    def begin(self, partition: SimulatedPartition) -> Asked:
        """Note the state: the client is about to ask."""
        log = partition.history_log
        return Asked(
            epoch=partition.epoch,
            unclean_elections=partition.unclean_elections,
            high_watermark=log.high_watermark,
            stable=partition.last_stable_offset(log),
            log_end=log.log_end_offset,
            lineage=_lineage(partition),
        )

    def check(self, partition: SimulatedPartition, question: OffsetQuestion, reply: OffsetReply, seen: Asked) -> None:
        """Complain of an answer that must not be."""
        if question.api_key is ApiKey.OFFSET_FOR_LEADER_EPOCH:
            fault = self._epoch_end(partition, question.subject, reply, seen)
        else:
            fault = self._offset(partition, question, reply, seen)
        if fault:
            self._world.complain(f"the {self._name} asked {question} and got {reply}: {fault}")

    # -- ListOffsets

    def _offset(self, partition: SimulatedPartition, question: OffsetQuestion, reply: OffsetReply, seen: Asked) -> str:
        """Return the fault of an answer; empty where it may be."""
        match question.subject:
            case OffsetSpec.EARLIEST:
                start = self._world.may_begin_at(partition)
                is_late = reply.offset > start and not partition.unclean_elections
                return f"the log begins at {start}" if is_late else ""
            case OffsetSpec.LATEST:
                return self._latest(partition, question, reply, seen)
            case OffsetSpec.LATEST_TIERED:
                return "" if reply.offset < 0 or self._was_tiered(partition, reply.offset) else "it was never finished"
            case OffsetSpec.EARLIEST_PENDING_UPLOAD:
                is_start = reply.offset <= partition.history_log.log_start_offset
                return (
                    ""
                    if is_start or self._was_tiered(partition, reply.offset - 1)
                    else "what is below was never finished"
                )
            case OffsetSpec.MAX_TIMESTAMP:
                return self._max_timestamp(partition, question, reply, seen)
        return self._by_timestamp(partition, question, reply, seen)

    def _latest(self, partition: SimulatedPartition, question: OffsetQuestion, reply: OffsetReply, seen: Asked) -> str:
        if partition.unclean_elections != seen.unclean_elections:
            return ""
        log = partition.history_log
        before, after = seen.high_watermark, log.high_watermark
        if question.read_committed:
            before, after = seen.stable, partition.last_stable_offset(log)
        return "" if before <= reply.offset <= after else f"it is from {before} to {after}"

    def _was_tiered(self, partition: SimulatedPartition, offset: int) -> bool:
        return any(
            fate.finished_at and fate.metadata.start_offset <= offset <= fate.metadata.end_offset
            for fate in self._world.rules.segments.values()
            if fate.metadata.topic_id_partition == partition.topic_id_partition
        )

    def _by_timestamp(
        self, partition: SimulatedPartition, question: OffsetQuestion, reply: OffsetReply, seen: Asked
    ) -> str:
        """Check for the first record of the timestamp or later: none that may not be gone yet is passed over."""
        faults = []
        for records in self._records_of_histories(partition):
            due = [one for one in self._kept(partition, records) if one.timestamp_ms >= question.subject]
            if reply.offset < 0:
                stop = self._stop(partition, question, seen)
                passed_over = [one for one in due if one.offset < stop]
            elif not _has(records, reply) or reply.timestamp_ms < question.subject:
                faults.append("no record is that one")
                continue
            else:
                passed_over = [one for one in due if one.offset < reply.offset]
            if not passed_over:
                return ""
            faults.append(f"it passes over {passed_over[0]}")
        return faults[0]

    def _max_timestamp(
        self, partition: SimulatedPartition, question: OffsetQuestion, reply: OffsetReply, seen: Asked
    ) -> str:
        """Check for the first of those with the largest timestamp.  It is not known while it is above what may be read."""
        if reply.offset < 0 and partition.epoch != seen.epoch:
            return ""  # what was above it then may be gone with its leader
        faults, stop = [], self._stop(partition, question, seen)
        for records in self._records_of_histories(partition):
            kept = self._kept(partition, records)
            below = max((one.timestamp_ms for one in kept if one.offset < stop), default=-1)
            if reply.offset < 0:
                log = partition.history_log
                above = [one for batch in log.batches if batch.last_offset >= stop for one in records_of(batch)]
                if below < 0 or any(one.timestamp_ms >= below for one in above):
                    return ""
                faults.append(f"there is one of {below}")
            elif not _has(records, reply):
                faults.append("no record is that one")
            elif reply.timestamp_ms < below:
                faults.append(f"there is one of {below}")
            elif any(one.timestamp_ms == reply.timestamp_ms and one.offset < reply.offset for one in kept):
                faults.append("it is not the first of its timestamp")
            else:
                return ""
        return faults[0]

    def _records_of_histories(self, partition: SimulatedPartition) -> list[list[OffsetReply]]:
        """Return the records of each history that counts."""
        return [[one for batch in history for one in records_of(batch)] for history in self._reads.histories(partition)]

    def _kept(self, partition: SimulatedPartition, records: Sequence[OffsetReply]) -> list[OffsetReply]:
        start = self._world.may_begin_at(partition)
        return [record for record in records if record.offset >= start]

    def _stop(self, partition: SimulatedPartition, question: OffsetQuestion, seen: Asked) -> int:
        """Return the offset below which all was to be read from the first moment to the last."""
        log = partition.history_log
        if question.read_committed:
            return min(seen.stable, partition.last_stable_offset(log))
        return min(seen.high_watermark, log.high_watermark)

    # -- OffsetForLeaderEpoch

    def _epoch_end(self, partition: SimulatedPartition, epoch: int, reply: OffsetReply, seen: Asked) -> str:
        """Check the end of an epoch.  A client that gets less than is true throws records away, or reads them twice; with more,
        it keeps what was truncated."""
        if partition.epoch - seen.epoch > 1:
            return ""  # more happened than any client saw
        start, log = self._world.may_begin_at(partition), partition.history_log
        faults = []
        for lineage, latest in ((seen.lineage, seen.epoch), (_lineage(partition), partition.epoch)):
            following = [entry.start_offset for entry in lineage if entry.epoch > epoch]
            if epoch > latest:
                fault = "" if reply.offset == -1 else "nothing was written in it"
            elif reply.offset == -1 and all(entry.epoch < epoch for entry in log.epochs):
                fault = (
                    ""  # a log that was moved before the first record of an epoch does not know it, on real brokers too
                )
            elif not following:
                least = min(seen.log_end, log.log_end_offset)
                fault = "" if reply.offset >= least else f"the log ends at {least}"
            elif following[0] > start:
                before = [entry.epoch for entry in lineage if entry.epoch <= epoch]
                due = (following[0], before[-1] if before else epoch)
                fault = "" if (reply.offset, reply.leader_epoch) == due else f"it is {due}"
            else:
                fault = "" if reply.offset >= following[0] else f"it ends at {following[0]}"
            if not fault:
                return ""
            faults.append(fault)
        return faults[-1]


def _has(records: Sequence[OffsetReply], reply: OffsetReply) -> bool:
    """Return whether it is one of them; older versions do not have the epoch."""
    return any(
        (record.offset, record.timestamp_ms) == (reply.offset, reply.timestamp_ms)
        and reply.leader_epoch in (-1, record.leader_epoch)
        for record in records
    )


def _lineage(partition: SimulatedPartition) -> tuple[EpochEntry, ...]:
    """Return the epochs of the whole history, also of what is gone; the latest epoch begins at the end until something is
    written in it."""
    entries, batches = list[EpochEntry](), list[Batch](partition.history_log.batches)
    for batch in batches:
        if not entries or entries[-1].epoch != batch.leader_epoch:
            entries.append(EpochEntry(LeaderEpoch(batch.leader_epoch), Offset(batch.base_offset)))
    if not entries or entries[-1].epoch != partition.epoch:
        entries.append(EpochEntry(LeaderEpoch(partition.epoch), Offset(partition.history_log.log_end_offset)))
    return tuple(entries)
