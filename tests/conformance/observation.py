"""What is seen of a partition: what its brokers answer to clients, and the files that lie in its directories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kio.schema.errors import ErrorCode

from tests.conformance.script import Step
from tests.simulation.offset_wire import OffsetQuestion, OffsetReply, offset_request, read_offset_response
from tests.simulation.wire import key_of, records_in
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.log_dir_files import (
    LEADER_EPOCH_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    LogFileKind,
    parse_log_file,
    read_leader_epochs,
    read_offset_checkpoint,
)
from tiersidecar.formats.kafka.producer_state import read_producer_snapshot
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.fetch import read_fetch_response, write_single_fetch
from tiersidecar.ports.broker import OffsetSpec

_FETCH, _LIST_OFFSETS, _EPOCH_END = 12, 8, 4
_WHOLE, _LITTLE, _SOME = 1_000_000, 1, 350


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """Offsets are inclusive."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    is_control: bool


@dataclass(frozen=True, slots=True)
class SegmentSeen:
    base_offset: int
    batches: tuple[BatchSeen, ...]
    size: int
    aborted: tuple[AbortedTransaction, ...]
    timestamps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilesSeen:
    """``snapshots`` have the first offsets of open transactions by producer id; ``epochs`` are epochs and their start offsets;
    ``high_watermark`` is that of the checkpoint."""

    segments: tuple[SegmentSeen, ...]
    snapshots: dict[int, dict[int, int]]
    epochs: tuple[tuple[int, int], ...]
    high_watermark: int | None


@dataclass(frozen=True, slots=True)
class FetchSeen:
    error: str
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    size: int
    batches: tuple[int, ...]
    aborted: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ReplySeen:
    error: str
    offset: int
    leader_epoch: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """``outcome`` is what the step before was answered.  ``replies`` are the leader's answers by question, ``fetched`` each
    replica's by broker and question, ``parted`` the answer to a reader that has read up to an offset in an epoch."""

    outcome: str
    leader: int | None
    leader_epoch: int
    in_sync: tuple[int, ...]
    replies: dict[str, ReplySeen]
    fetched: dict[tuple[int, str], FetchSeen]
    parted: dict[tuple[int, int], str]
    files: dict[int, FilesSeen]


class NotYetError(Exception):
    """It cannot be looked at at the moment."""


class Stage(Protocol):
    """One partition, its brokers and their disks."""

    @property
    def partition(self) -> TopicIdPartition: ...

    def act(self, step: Step) -> str:
        """What the broker answered."""

    def leadership(self) -> tuple[int | None, int, tuple[int, ...]]:
        """Leader, leader epoch and the replicas in sync."""

    def alive(self) -> tuple[int, ...]:
        """Replicas whose brokers run."""

    def replicas(self) -> tuple[int, ...]: ...

    def ask(self, broker: int, api_key: ApiKey, version: int, body: bytes) -> bytes:
        """The broker's answer."""

    def parts(self, broker: int, offset: int, last_fetched_epoch: int) -> str:
        """The answer to a Fetch from ``offset`` on with that epoch: ``goes on``, ``parts`` or an error."""

    def directory(self, broker: int) -> Path | None: ...


def observe(stage: Stage, outcome: str) -> Observation:
    """Everything, as it is now.

    Raises:
        NotYetError: the brokers are about to change it.
    """
    leader, epoch, in_sync = stage.leadership()
    files = {broker: seen for broker in stage.replicas() if (seen := _files(stage, broker)) is not None}
    replies: dict[str, ReplySeen] = {}
    fetched: dict[tuple[int, str], FetchSeen] = {}
    parted: dict[tuple[int, int], str] = {}
    if leader is not None:
        ends = _Ends(stage, leader)
        replies = {name: _seen(ends.ask(question)) for name, question in _questions(epoch, files[leader])}
        for broker in stage.alive():
            for offset in ends.edges():
                fetched |= {(broker, name): fetch for name, fetch in _fetches(stage, broker, offset)}
        for known, _ in files[leader].epochs:
            for offset in ends.edges():
                parted[known, offset] = stage.parts(leader, offset, known)
    return Observation(
        outcome=outcome,
        leader=leader,
        leader_epoch=epoch,
        in_sync=in_sync,
        replies=replies,
        fetched=fetched,
        parted=parted,
        files=files,
    )


class _Ends:
    """Asks the leader."""

    def __init__(self, stage: Stage, leader: int) -> None:
        self._stage, self._leader = stage, leader

    def ask(self, question: OffsetQuestion) -> OffsetReply:
        body = offset_request(question, self._stage.partition)
        answer = self._stage.ask(self._leader, question.api_key, question.version, body)
        return read_offset_response(question.api_key, question.version, answer)

    def edges(self) -> list[int]:
        """Offsets at which answers may change."""
        start, stop = self.ask(_list(OffsetSpec.EARLIEST)).offset, self.ask(_list(OffsetSpec.LATEST)).offset
        stable = self.ask(_list(OffsetSpec.LATEST, read_committed=True)).offset
        found = {0, start - 1, start, start + 1, (start + stop) // 2, stable, stable + 1, stop - 1, stop, stop + 1}
        return sorted(offset for offset in found if offset >= 0)


def _list(subject: int, epoch: int = -1, *, read_committed: bool = False) -> OffsetQuestion:
    return OffsetQuestion(
        api_key=ApiKey.LIST_OFFSETS,
        version=_LIST_OFFSETS,
        subject=subject,
        current_epoch=epoch,
        read_committed=read_committed,
    )


def _questions(epoch: int, files: FilesSeen) -> Iterator[tuple[str, OffsetQuestion]]:
    yield "earliest", _list(OffsetSpec.EARLIEST)
    yield "earliest local", _list(OffsetSpec.EARLIEST_LOCAL)
    yield "latest", _list(OffsetSpec.LATEST)
    yield "latest committed", _list(OffsetSpec.LATEST, read_committed=True)
    yield "largest timestamp", _list(OffsetSpec.MAX_TIMESTAMP)
    yield "first timestamp", _list(0)
    yield "no such timestamp", _list(2**62)
    yield "latest, by the leader's epoch", _list(OffsetSpec.LATEST, epoch)
    yield "latest, by an old epoch", _list(OffsetSpec.LATEST, epoch - 1)
    yield "latest, by a later epoch", _list(OffsetSpec.LATEST, epoch + 1)
    for number, timestamp_ms in enumerate(sorted({one for segment in files.segments for one in segment.timestamps})):
        yield f"timestamp {number}", _list(timestamp_ms)
        yield f"timestamp {number}, committed", _list(timestamp_ms, read_committed=True)
        yield f"timestamp {number} and later", _list(timestamp_ms + 1)
    for number, (known, _) in enumerate(files.epochs):
        yield f"end of epoch {number}", _epoch_end(known)
    yield "end of the leader's epoch", _epoch_end(epoch)
    yield "end of a later epoch", _epoch_end(epoch + 1)
    yield "end of an epoch, by a later epoch", _epoch_end(epoch, epoch + 1)


def _epoch_end(subject: int, current: int = -1) -> OffsetQuestion:
    return OffsetQuestion(
        api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH, version=_EPOCH_END, subject=subject, current_epoch=current
    )


def _seen(reply: OffsetReply) -> ReplySeen:
    return ReplySeen(reply.error.name, reply.offset, reply.leader_epoch, reply.timestamp_ms)


def _fetches(stage: Stage, broker: int, offset: int) -> Iterator[tuple[str, FetchSeen]]:
    for read_committed in (False, True):
        for max_bytes in (_LITTLE, _SOME, _WHOLE):
            body = write_single_fetch(
                _FETCH,
                key_of(_FETCH, stage.partition),
                offset,
                max_wait_ms=0,
                max_bytes=max_bytes,
                read_committed=read_committed,
            )
            answer = memoryview(stage.ask(broker, ApiKey.FETCH, _FETCH, body))
            (row,) = read_fetch_response(answer, _FETCH).partitions
            data = records_in(_FETCH, answer, row)
            yield (
                f"{offset} {'read_committed' if read_committed else 'read_uncommitted'} {max_bytes} bytes",
                FetchSeen(
                    error=ErrorCode(row.error_code).name,
                    high_watermark=row.high_watermark,
                    last_stable_offset=row.last_stable_offset,
                    log_start_offset=row.log_start_offset,
                    size=len(data),
                    batches=tuple(header.base_offset for _, header in iter_batch_headers(data)),
                    aborted=tuple(sorted(row.aborted or ())),
                ),
            )


def _files(stage: Stage, broker: int) -> FilesSeen | None:
    directory = stage.directory(broker)
    if directory is None:
        return None
    try:
        return _files_in(directory, stage.partition)
    except FileNotFoundError as error:
        raise NotYetError(str(error)) from error


def _files_in(directory: Path, partition: TopicIdPartition) -> FilesSeen:
    names = [parsed for path in directory.iterdir() if (parsed := parse_log_file(path.name)) is not None]
    segments = [
        _segment(directory, one.offset)
        for one in sorted(names, key=lambda one: one.offset)
        if one.kind is LogFileKind.LOG
    ]
    snapshots = {
        int(one.offset): _open_in((directory / str(one)).read_bytes())
        for one in names
        if one.kind is LogFileKind.SNAPSHOT
    }
    epochs = read_leader_epochs((directory / LEADER_EPOCH_CHECKPOINT).read_bytes())
    checkpoint = directory.parent / REPLICATION_OFFSET_CHECKPOINT
    offsets = read_offset_checkpoint(checkpoint.read_bytes(), where=str(checkpoint)) if checkpoint.exists() else {}
    return FilesSeen(
        segments=tuple(segments),
        snapshots=snapshots,
        epochs=tuple((int(one.epoch), int(one.start_offset)) for one in epochs),
        high_watermark=offsets.get((partition.topic, partition.partition)),
    )


def _open_in(snapshot: bytes) -> dict[int, int]:
    """First offsets of the open transactions."""
    states = read_producer_snapshot(snapshot)
    return {state.producer_id: state.current_transaction_first_offset for state in states}


def _segment(directory: Path, base: int) -> SegmentSeen:
    data = (directory / f"{base:020d}.log").read_bytes()
    index = directory / f"{base:020d}.txnindex"
    entries = read_transaction_index(index.read_bytes(), base_offset=base) if index.exists() else ()  # type: ignore[arg-type]
    return SegmentSeen(
        base_offset=base,
        batches=tuple(
            BatchSeen(
                header.base_offset,
                header.last_offset,
                header.partition_leader_epoch,
                header.producer_id,
                header.is_control,
            )
            for _, header in iter_batch_headers(data)
        ),
        size=len(data),
        aborted=tuple(entries),
        timestamps=tuple(header.max_timestamp for _, header in iter_batch_headers(data) if not header.is_control),
    )
