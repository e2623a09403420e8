"""What is known of a sealed segment before its first byte goes up, and whether it may go at all."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from tiersidecar.domain.epochs import EpochEntry, Lineage
from tiersidecar.domain.errors import CorruptDataError, SegmentNotReadyError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment, SegmentScan
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, Compression, read_batch_header
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.log_dirs import Artefact, LogDirs, SegmentArtefacts, SegmentFile

log = structlog.get_logger(__name__)

ARTEFACT_WAIT_S = 60.0
"""How long the broker gets to write a companion that is missing, before it is made from the batches (U9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSegment:
    """``epochs`` are those of the segment's offsets, the first start raised to its base offset.  ``rebuild`` names the
    artefacts that must be made from the batches.  ``max_timestamp_ms`` is -1 where no record has a timestamp."""

    artefacts: SegmentArtefacts
    epochs: tuple[EpochEntry, ...]
    max_timestamp_ms: int
    is_compressed: bool
    rebuild: frozenset[Artefact]


class SegmentChecker:
    """Looks at all that is small.  The batches are checked while they go up; but those of a segment that failed once, that
    only a pin holds, or whose time index cannot be used, are read before anything is published."""

    def __init__(self, *, log_dirs: LogDirs, clock: Clock) -> None:
        self._log_dirs, self._clock = log_dirs, clock
        self._missing_since_s: dict[str, float] = {}
        self._suspects: set[str] = set()

    async def check(self, segment: LocalSegment, file: SegmentFile, lineage: Lineage) -> CheckedSegment:
        """Raises:
        SegmentNotReadyError: the broker may still be writing an artefact, or its leader epochs; or the segment is of another
            history.
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
        if max_timestamp_ms is None or segment.pinned or segment.log_path in self._suspects:
            scan = await file.scan()
            require_history(segment, scan, lineage)
            if scan.max_timestamp_ms != max_timestamp_ms:
                rebuild.add(Artefact.TIME_INDEX)
            max_timestamp_ms = scan.max_timestamp_ms
        return CheckedSegment(
            artefacts=artefacts,
            epochs=epochs,
            max_timestamp_ms=max_timestamp_ms,
            is_compressed=await _is_compressed(file),
            rebuild=frozenset(rebuild),
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
