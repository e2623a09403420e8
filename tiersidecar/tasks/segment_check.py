"""What is known of a sealed segment before its first byte goes up, and whether it may go at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from tiersidecar.domain.epochs import EpochEntry, Lineage
from tiersidecar.domain.errors import CorruptDataError, SegmentNotReadyError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment, SegmentScan
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.producer_snapshots import ProducerState, read_open_producers
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, Compression, read_batch_header
from tiersidecar.formats.kafka.transactions import TransactionWalk, complete_index, lacks_none, merge_open
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.log_dirs import Artefact, LogDirs, SegmentArtefacts, SegmentFile

log = structlog.get_logger(__name__)

ARTEFACT_WAIT_S = 60.0
"""How long the broker gets to write a companion that is missing, before it is made from the batches (U9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSegment:
    """``epochs`` are those of the segment's offsets, the first start raised to its base offset.  ``rebuild`` names the
    artefacts that must be made from the batches.  ``max_timestamp_ms`` is -1 where no record has a timestamp.
    ``open_at_start`` are the producers whose transaction is open where it begins, as the remote segment before it and the
    broker tell; ``has_aborted`` says whether its transaction index has entries: published before its batches are read."""

    artefacts: SegmentArtefacts
    epochs: tuple[EpochEntry, ...]
    max_timestamp_ms: int
    is_compressed: bool
    rebuild: frozenset[Artefact]
    open_at_start: tuple[ProducerState, ...]
    has_aborted: bool


class SegmentChecker:
    """Looks at all that is small.  The batches are checked while they go up; but those of a segment that failed once, that
    only a pin holds, whose time index or transaction index cannot be used, or before which the broker has lost a transaction,
    are read before anything is published."""

    def __init__(self, *, log_dirs: LogDirs, clock: Clock) -> None:
        self._log_dirs, self._clock = log_dirs, clock
        self._missing_since_s: dict[str, float] = {}
        self._suspects: set[str] = set()

    async def check(
        self, segment: LocalSegment, file: SegmentFile, lineage: Lineage, carried: Sequence[ProducerState] = ()
    ) -> CheckedSegment:
        """``carried`` are the producers whose transaction is open where the remote segment before this one ends.

        Raises:
            SegmentNotReadyError: the broker may still be writing an artefact, or its leader epochs; or the segment is of
                another history.
            SegmentChangedError: the segment is gone.
            CorruptDataError: a batch fails its checks.
        """
        epochs = lineage.entries_in_range(segment.base_offset, next_base_offset_of(segment))
        if not epochs:
            raise SegmentNotReadyError(path=segment.log_path, reason="the leader-epoch-checkpoint has no entry for it")
        artefacts = await self._log_dirs.read_artefacts(segment)
        self._wait_for_what_may_come(segment, artefacts)
        rebuild = {fault.artefact for fault in artefacts.faults}
        max_timestamp_ms = artefacts.latest_timestamp_ms
        open_at_start, is_known = _open_at_start(artefacts, carried)
        entries = brokers_aborted(segment, artefacts)
        must_read = Artefact.TRANSACTION_INDEX in rebuild or not is_known or segment.log_path in self._suspects
        if max_timestamp_ms is None or segment.pinned or must_read:
            walk = TransactionWalk(open_at_start)
            scan = await file.scan(walk)
            require_history(segment, scan, lineage)
            entries = complete_index(entries, walk.finish().aborted)
            if scan.max_timestamp_ms != max_timestamp_ms:
                rebuild.add(Artefact.TIME_INDEX)
            max_timestamp_ms = scan.max_timestamp_ms
        return CheckedSegment(
            artefacts=artefacts,
            epochs=epochs,
            max_timestamp_ms=max_timestamp_ms,
            is_compressed=await _is_compressed(file),
            rebuild=frozenset(rebuild),
            open_at_start=open_at_start,
            has_aborted=bool(entries),
        )

    def suspect(self, segment: LocalSegment) -> None:
        """A reading found it damaged: from now on it is read before it is copied."""
        self._suspects.add(segment.log_path)

    def forget(self, segment: LocalSegment) -> None:
        """It was copied."""
        self._suspects.discard(segment.log_path)
        self._missing_since_s.pop(segment.log_path, None)

    def _wait_for_what_may_come(self, segment: LocalSegment, artefacts: SegmentArtefacts) -> None:
        awaited = [fault for fault in artefacts.faults if fault.may_come]
        if not awaited:
            return
        now_s = self._clock.monotonic_s()
        waited_s = now_s - self._missing_since_s.setdefault(segment.log_path, now_s)
        if waited_s < ARTEFACT_WAIT_S:
            raise SegmentNotReadyError(path=segment.log_path, reason=f"its {awaited[0].artefact}: {awaited[0].reason}")


def require_history(segment: LocalSegment, scan: SegmentScan, lineage: Lineage) -> None:
    """Raises:
    SegmentNotReadyError: the batches are of other leader epochs than the lineage says of their offsets.
    """
    if not lineage.explains(scan.leader_epochs, scan.leader_epoch_ends):
        found = ", ".join(f"{entry.epoch} from offset {entry.start_offset}" for entry in scan.leader_epochs)
        reason = f"its batches are of leader epoch {found}: the leader-epoch-checkpoint says otherwise"
        raise SegmentNotReadyError(path=segment.log_path, reason=reason)


def brokers_aborted(segment: LocalSegment, artefacts: SegmentArtefacts) -> Sequence[AbortedTransaction]:
    """The entries of the broker's transaction index: none where it cannot be used."""
    index = artefacts.transaction_index or b""
    return read_transaction_index(index, base_offset=segment.base_offset, where=segment.log_path)


def _open_at_start(
    artefacts: SegmentArtefacts, carried: Sequence[ProducerState]
) -> tuple[tuple[ProducerState, ...], bool]:
    """The producers whose transaction is open, and whether the broker knows all of them: if not, it has lost its state, and its
    transaction index may lack an entry."""
    brokers = read_open_producers(artefacts.earlier_snapshot) if artefacts.earlier_snapshot else ()
    return merge_open(carried, brokers), lacks_none(brokers, carried)


async def _is_compressed(file: SegmentFile) -> bool:
    head = bytearray(BATCH_HEADER_SIZE)
    count = await file.read_into(0, memoryview(head))
    try:
        return read_batch_header(head[:count], where=file.path).compression is not Compression.NONE
    except CorruptDataError:
        return False  # the reading that follows names what is wrong, unless the segment is empty


def next_base_offset_of(segment: LocalSegment) -> Offset:
    """Where a sealed segment's successor begins."""
    assert segment.next_base_offset is not None, "only sealed segments are copied"
    return segment.next_base_offset
