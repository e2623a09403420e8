"""A broker's answers to Kafka clients, in real bytes: Fetch, also in sessions (KIP-227), and what they ask of offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.broker_offsets import answer_offset
from tests.simulation.chances import Chances
from tests.simulation.cluster import Cluster, SimulatedPartition
from tests.simulation.offset_wire import offset_response, read_offset_request
from tests.simulation.wire import fetch_response
from tiersidecar.domain.errors import OffsetOutOfRangeError
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.fetch import (
    FETCH_SESSION_ID_NOT_FOUND,
    FULL_EPOCH,
    NO_ERROR,
    OFFSET_OUT_OF_RANGE,
    SESSIONLESS_EPOCH,
    FetchPartition,
    FetchRequest,
    FilledPartition,
    PartitionKey,
    read_fetch_request,
)
from tiersidecar.ports.broker import LocalBatches

INVALID_FETCH_SESSION_EPOCH, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 71, 74, 76
_LOST_RATE, _NO_ROOM_RATE = 0.03, 0.1
"""Shares of incremental Fetches whose session the broker has given to another client, and of new ones that get none."""


@dataclass(slots=True)
class _Session:
    """Partitions that its client has asked for last, in the order in which it is served; ``epoch`` is that of the next Fetch,
    ``reported`` the high watermark and log start that the client got last."""

    epoch: int
    asked: dict[PartitionKey, FetchPartition]
    reported: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)

    def update(self, request: FetchRequest) -> None:
        """Apply an incremental request."""
        self.epoch += 1
        self.asked.update(request.partitions)
        for key in request.forgotten:
            self.asked.pop(key, None)
            self.reported.pop(key, None)

    def news(self, rows: Mapping[PartitionKey, FilledPartition]) -> dict[PartitionKey, FilledPartition]:
        """Return what has changed, as ``FetchSession.CachedPartition.maybeUpdateResponseData``; what has had its turn goes
        behind the others."""
        found = dict[PartitionKey, FilledPartition]()
        for key, row in rows.items():
            now = (row.high_watermark, row.log_start_offset)
            if row.records_bytes or row.error_code != NO_ERROR or self.reported.get(key) != now:
                found[key] = row
            self.reported[key] = now
            if row.records_bytes:
                self.asked[key] = self.asked.pop(key)
        return found


class BrokerSide:
    """The client side of one broker.  Its sessions end with it."""

    def __init__(self, cluster: Cluster, broker_id: int, chances: Chances) -> None:
        self._cluster, self._broker_id, self._chances = cluster, broker_id, chances
        self._sessions: dict[int, _Session] = {}
        self._last_session_id = self._starts = 0

    def answer(self, api_key: ApiKey, version: int, body: bytes) -> bytes:
        """Answer Fetch, ListOffsets or OffsetForLeaderEpoch, now."""
        if api_key is ApiKey.FETCH:
            return self._fetched(version, body)
        number, question = read_offset_request(api_key, version, body)
        partition = self._partition(number)
        reply = answer_offset(partition, self._broker_id, question)
        return offset_response(api_key, version, partition.topic_id_partition, reply)

    def _partition(self, number: int) -> SimulatedPartition:
        return next(
            one
            for topic_id_partition, one in self._cluster.partitions.items()
            if topic_id_partition.partition == number
        )

    def _fetched(self, version: int, body: bytes) -> bytes:
        if self._starts != self._cluster.starts[self._broker_id]:
            self._starts = self._cluster.starts[self._broker_id]
            self._sessions.clear()
        request = read_fetch_request(memoryview(body), version)
        if request.is_incremental:
            return self._incremental(version, request)
        self._sessions.pop(request.session_id, None)
        rows = self._rows(request, request.partitions)
        if request.session_epoch == SESSIONLESS_EPOCH or not rows or self._strikes("has no room for", _NO_ROOM_RATE):
            return fetch_response(version, rows)
        self._last_session_id += 1
        session = _Session(epoch=FULL_EPOCH + 1, asked=dict(request.partitions))
        session.news(rows)
        self._sessions[self._last_session_id] = session
        return fetch_response(version, rows, session_id=self._last_session_id)

    def _incremental(self, version: int, request: FetchRequest) -> bytes:
        if self._strikes("gives up", _LOST_RATE):
            self._sessions.pop(request.session_id, None)
        session = self._sessions.get(request.session_id)
        if session is None:
            return fetch_response(version, {}, error_code=FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return fetch_response(version, {}, error_code=INVALID_FETCH_SESSION_EPOCH)
        session.update(request)
        news = session.news(self._rows(request, session.asked))
        return fetch_response(version, news, session_id=request.session_id)

    def _strikes(self, what: str, rate: float) -> bool:
        return self._chances.strikes(f"broker {self._broker_id} {what} a fetch session", rate)

    def _rows(
        self, request: FetchRequest, asked: Mapping[PartitionKey, FetchPartition]
    ) -> dict[PartitionKey, FilledPartition]:
        """Read the partitions; the first batch of all may be larger than is allowed (KIP-74)."""
        rows, left_bytes = dict[PartitionKey, FilledPartition](), request.max_bytes
        for key, partition in asked.items():
            is_first = left_bytes == request.max_bytes
            rows[key] = row = self._row(request, key[1], partition, left_bytes, min_one=is_first)
            left_bytes -= row.records_bytes
        return rows

    def _row(
        self, request: FetchRequest, number: int, asked: FetchPartition, left_bytes: int, *, min_one: bool
    ) -> FilledPartition:
        partition = self._partition(number)
        epoch = asked.current_leader_epoch
        if epoch not in (-1, partition.epoch):
            return FilledPartition(error_code=FENCED_LEADER_EPOCH if epoch < partition.epoch else UNKNOWN_LEADER_EPOCH)
        max_bytes = min(asked.max_bytes, left_bytes)
        try:
            fetched = read_replica(
                partition,
                self._broker_id,
                asked.fetch_offset,
                max_bytes,
                read_committed=request.is_read_committed,
                min_one=min_one,
            )
        except OffsetOutOfRangeError:
            return FilledPartition(error_code=OFFSET_OUT_OF_RANGE)
        return FilledPartition(
            high_watermark=fetched.high_watermark,
            last_stable_offset=fetched.last_stable_offset,
            log_start_offset=partition.logs[self._broker_id].log_start_offset,
            aborted=fetched.aborted if request.is_read_committed else None,
            records=[fetched.records] if fetched.records else [],
        )


def read_replica(
    partition: SimulatedPartition,
    broker_id: int,
    offset: int,
    max_bytes: int,
    *,
    read_committed: bool,
    min_one: bool = True,
) -> LocalBatches:
    """Read from the replica of the broker that is asked: a follower serves consumers as well (KIP-392).  ``min_one``: the first
    batch may be larger than ``max_bytes``.

    Raises:
        OffsetOutOfRangeError: the replica does not have it.
    """
    log = partition.logs[broker_id]
    stable = log.last_stable_offset()
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            subject=str(partition.topic_id_partition),
            offset=offset,
            start=log.log_start_offset,
            stop=log.high_watermark,
        )
    read = log.read(offset, stable if read_committed else log.high_watermark, max_bytes, min_one=min_one)
    return LocalBatches(
        records=read.data,
        high_watermark=Offset(log.high_watermark),
        last_stable_offset=Offset(stable),
        aborted=tuple((one.producer_id, one.first_offset) for one in read.aborted if read_committed),
    )
