"""The rules of a compacted topic's remote log, looked at whenever what readers are given changes.

All is computed plainly from the two topics and the bytes in the bucket: which segment is given at an offset, which of its
records count, which claim of a cleaner offset does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from tests.simulation.cleaner_model import batches_of
from tests.simulation.cluster import SimulatedPartition
from tests.simulation.compacted_history import CompactedHistory, Written
from tests.simulation.compacted_topic import CompactedTopic
from tests.simulation.rules import Rules
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import Record, read_records

_SHORT = 8
_NAMED = 3
Batches = Sequence[tuple[RecordBatchHeader, Sequence[Record]]]
Claim = tuple[int, int, tuple[str, ...]]
"""Revision, cleaner offset and names of segments of what the leader of an epoch has said last."""


class CompactionRules:
    """``read_log`` returns the .log of a finished segment, ``now_ms`` the right time; ``complain`` takes each breach as a
    sentence."""

    def __init__(
        self,
        topic: CompactedTopic,
        rules: Rules,
        partitions: Mapping[TopicIdPartition, SimulatedPartition],
        *,
        read_log: Callable[[RemoteLogSegmentMetadata], bytes],
        now_ms: Callable[[], int],
        complain: Callable[[str], None],
    ) -> None:
        self._topic, self._rules, self._partitions = topic, rules, partitions
        self._read_log, self._now_ms, self._complain = read_log, now_ms, complain
        self._finished: dict[RemoteLogSegmentId, int] = {}
        self._logs: dict[RemoteLogSegmentId, Batches] = {}
        self._claims: dict[TopicIdPartition, dict[int, Claim]] = {}
        self._said: set[str] = set()
        self._ends: dict[TopicIdPartition, int] = {}
        self._given_since_ms: dict[TopicIdPartition, dict[int, int]] = {}
        self._histories: dict[TopicIdPartition, tuple[tuple[int, int], CompactedHistory]] = {}

    # -- what changes

    def changed(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Note that a segment was finished, or its deletion begun: all that readers are given is looked at."""
        if metadata.state is State.COPY_SEGMENT_FINISHED:
            self._finished[metadata.remote_log_segment_id] = len(self._finished)
        self.check(self._partitions[metadata.topic_id_partition])

    def record(self, key: bytes | None, value: bytes | None) -> None:
        """Note that a record of the state topic became durable: the claim of the latest leader must be true."""
        kind, _, rest = (key or b"").decode().partition("/")
        if kind != "cleaner" or value is None:
            return
        number = int(rest.split("/")[1])
        owner = next(one for one in self._partitions if one.partition == number)
        claims = self._claims.setdefault(owner, {})
        for epoch, said in json.loads(value)["claims"].items():
            offset = said["offsets"].get(epoch, -1)
            claim = (said["revision"], offset, tuple(said["segments"].split()))
            claims[int(epoch)] = max(claim, claims.get(int(epoch), claim))
        self._check_claim(self._partitions[owner], max(claims))

    # -- what readers are given

    def chain(self, owner: TopicIdPartition) -> list[tuple[int, RemoteLogSegmentMetadata]]:
        """Return the segments that a reader from the start on is given, each with the offset from which it is read: of equal
        starts the one that was finished last."""
        held = self._held(owner)
        found: list[tuple[int, RemoteLogSegmentMetadata]] = []
        offset = min((one.start_offset for one in held), default=0)
        while here := [one for one in held if one.start_offset <= offset <= one.end_offset]:
            given = max(here, key=lambda one: (one.start_offset, self._finished[one.remote_log_segment_id]))
            found.append((offset, given))
            offset = given.next_offset
        return found

    def is_regular(self, owner: TopicIdPartition) -> bool:
        """Return whether a cleaner may go through to the end: no segments overlap but those of equal spans."""
        spans = sorted({(one.start_offset, one.end_offset) for one in self._held(owner)})
        return all(before[1] < after[0] for before, after in pairwise(spans))

    def _held(self, owner: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            fate.metadata
            for fate in self._rules.segments.values()
            if fate.is_finished
            and fate.metadata.topic_id_partition == owner
            and fate.metadata.remote_log_segment_id in self._finished
        ]

    def _batches(self, metadata: RemoteLogSegmentMetadata) -> Batches:
        name = metadata.remote_log_segment_id
        if name not in self._logs:
            try:
                log = self._read_log(metadata)
            except TiersidecarError as error:
                self._complain(f"{name} is given to readers, and cannot be read: {error}")
                log = b""
            self._logs[name] = [
                (one, read_records(log[at : at + one.size_bytes])) for at, one in iter_batch_headers(log)
            ]
        return self._logs[name]

    def _given(self, owner: TopicIdPartition, stop: int) -> Iterator[tuple[RecordBatchHeader, Sequence[Record]]]:
        """Yield what a reader from the start on gets, of segments that begin below ``stop``."""
        for offset, segment in self.chain(owner):
            if segment.start_offset < stop:
                yield from (one for one in self._batches(segment) if one[0].last_offset >= offset)

    def history(self, partition: SimulatedPartition) -> CompactedHistory:
        """Return what was written to a partition."""
        batches, owner = partition.history_log.batches, partition.topic_id_partition
        state = (len(batches), id(batches[-1]) if batches else 0)
        if owner not in self._histories or self._histories[owner][0] != state:
            self._histories[owner] = (state, CompactedHistory.of(batches))
        return self._histories[owner][1]

    # -- what must be true

    def check(self, partition: SimulatedPartition) -> None:
        """Complain where a key lacks its value, has an older one again, or is not what was written; and where readers are not
        given any more what they were given before."""
        owner, history = partition.topic_id_partition, self.history(partition)
        chain = self.chain(owner)
        end = chain[-1][1].next_offset if chain else 0
        if end < self._ends.get(owner, 0):
            self._say(partition, f"readers got all below {self._ends[owner]}, and now only what is below {end}")
        self._ends[owner] = max(end, self._ends.get(owner, 0))
        present: set[int] = set()
        for header, records in self._given(owner, end):
            if fault := history.difference(header, records):
                self._say(partition, fault)
            present.update(int(one.offset) for one in records if not header.is_control)
        since_ms = self._given_since_ms.setdefault(owner, {})
        gone = [one for one in history.records.values() if one.offset < end and one.offset not in present]
        for fault in self._faults(gone, history, present, since_ms)[:_NAMED]:
            self._say(partition, fault)
        since_ms.update(dict.fromkeys(present - since_ms.keys(), self._now_ms()))

    def trimmed(self, partition: SimulatedPartition, offset: int) -> None:
        """Complain where DeleteRecords up to ``offset`` takes a record that readers are not given remotely."""
        log = partition.leader_log
        given = {int(one.offset) for _, records in self._given(partition.topic_id_partition, offset) for one in records}
        lost = [
            int(one.offset)
            for batch in log.held(log.log_start_offset, offset)
            for header, data in batches_of(log.data_of(batch))
            for one in read_records(data)
            if header.record_count and log.log_start_offset <= one.offset < offset and one.offset not in given
        ]
        if lost:
            self._say(partition, f"DeleteRecords up to {offset} takes {lost[:_NAMED]}, which nobody else has")

    def _faults(
        self, gone: Sequence[Written], history: CompactedHistory, present: set[int], since_ms: Mapping[int, int]
    ) -> list[str]:
        """Return why some of those that are gone should not be.  A tombstone's time begins anew when readers are given it: so
        long they may have had the value before it."""
        reasons = (
            self.reason_to_be_there(
                one, history, present.__contains__, since_ms=since_ms.get(one.offset, one.timestamp_ms)
            )
            for one in gone
        )
        return [reason for reason in reasons if reason]

    def reason_to_be_there(
        self,
        one: Written,
        history: CompactedHistory,
        is_there: Callable[[int], bool] = lambda offset: False,
        *,
        since_ms: int | None = None,
    ) -> str:
        """Return why a record that is gone should not be; empty where a cleaner may have taken it.  ``is_there`` says which
        offsets a reader finds; ``since_ms``: a tombstone was to stay from then on, for ``delete.retention.ms``."""
        if one.is_committed is None:
            return f"the record at {one.offset} is gone, and its transaction is open"
        if not one.is_committed or one.key is None:
            return ""
        later = [other for other in history.by_key[one.key] if other.offset > one.offset]
        if later:
            lag_ms = self._topic.min_lag_ms
            if lag_ms and all(other.timestamp_ms > self._now_ms() - lag_ms for other in later):
                return f"the record at {one.offset} is gone, though only {later[0].offset} took its place, too young a record"
            return ""
        if one.value is not None:
            return f"the last value of {one.key!r}, at {one.offset}, is gone"
        began_ms = one.timestamp_ms if since_ms is None else since_ms
        if began_ms + self._topic.delete_retention_ms > self._now_ms():
            return f"the tombstone of {one.key!r} at {one.offset} is gone before its time"
        back = [other.offset for other in history.by_key[one.key] if other.value is not None and is_there(other.offset)]
        if back:
            return f"the tombstone of {one.key!r} at {one.offset} is gone, and the value at {back[-1]} is there"
        return ""

    def _check_claim(self, partition: SimulatedPartition, epoch: int) -> None:
        """Check that below the offset that the latest leader calls clean no record is there that a later one replaces, where
        its segments are still those that it has named."""
        owner = partition.topic_id_partition
        _, offset, names = self._claims[owner][epoch]
        below = [one for _, one in self.chain(owner) if one.start_offset < offset]
        shown = [format_uuid(one.remote_log_segment_id.uuid)[:_SHORT] for one in below]
        if tuple(shown) != names[len(names) - len(shown) :]:
            return
        old = self.replaced_below(partition, offset)
        if old:
            self._say(partition, f"epoch {epoch} calls all below {offset} clean, and {old[:_NAMED]} are still there")

    def replaced_below(self, partition: SimulatedPartition, offset: int) -> list[int]:
        """Return the offsets of records that readers are given, and another one below ``offset`` that they are given replaces.
        One that a broker's cleaner had taken before its segment was copied replaces nothing here."""
        history = self.history(partition)
        given = [
            history.records[one.offset]
            for header, records in self._given(partition.topic_id_partition, offset)
            for one in ([] if header.is_control else records)
            if one.offset < offset and one.offset in history.records
        ]
        last = {one.key: one.offset for one in given if one.is_committed}
        return [one.offset for one in given if one.key is not None and one.offset < last.get(one.key, -1)]

    def _say(self, partition: SimulatedPartition, text: str) -> None:
        sentence = f"{partition.topic_id_partition}, remote: {text}"
        if sentence not in self._said:
            self._said.add(sentence)
            self._complain(sentence)
