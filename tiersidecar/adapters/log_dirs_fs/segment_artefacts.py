"""The small companions of a .log, read and checked.  Blocks; runs in a thread."""

from __future__ import annotations

from pathlib import Path

from tiersidecar.domain.errors import CorruptDataError, SegmentChangedError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalSegment
from tiersidecar.formats.kafka.indexes import read_offset_index, read_time_index, read_transaction_index
from tiersidecar.formats.kafka.log_names import LogFileKind, log_file_name
from tiersidecar.formats.kafka.producer_snapshots import read_producer_snapshot
from tiersidecar.ports.log_dirs import Artefact, ArtefactFault, SegmentArtefacts

_NO_TIMESTAMP = -1


def read_segment_artefacts(segment: LocalSegment) -> SegmentArtefacts:
    """The companions of a sealed segment, byte for byte as they lie on the disk.

    One that is not there, and a snapshot that fails its CRC, may come: the broker writes the snapshot after it has opened
    the following segment, and not in one step (FORMATS.md section 2).

    Raises:
        SegmentChangedError: the segment itself is gone.
    """
    return _Reading(segment).artefacts()


class _Reading:
    """Reads of one segment's companions; what goes wrong gathers in ``faults``."""

    def __init__(self, segment: LocalSegment) -> None:
        assert segment.next_base_offset is not None, "only sealed segments have all their companions"
        self._segment, self._next_base_offset = segment, segment.next_base_offset
        self._end_offset = Offset(segment.next_base_offset - 1)
        self._faults: list[ArtefactFault] = []

    def artefacts(self) -> SegmentArtefacts:
        offset_index = self._offset_index()
        time_index, latest_timestamp_ms = self._time_index()
        transaction_index, producer_snapshot = self._transaction_index(), self._producer_snapshot()
        if self._faults and not Path(self._segment.log_path).exists():
            raise SegmentChangedError(path=self._segment.log_path, reason="it is gone")
        return SegmentArtefacts(
            offset_index=offset_index,
            time_index=time_index,
            transaction_index=transaction_index,
            producer_snapshot=producer_snapshot,
            earlier_snapshot=self._earlier_snapshot(),
            latest_timestamp_ms=latest_timestamp_ms,
            faults=tuple(self._faults),
        )

    def _offset_index(self) -> bytes | None:
        path, data = self._read(Artefact.OFFSET_INDEX, self._segment.base_offset, LogFileKind.OFFSET_INDEX)
        if data is None:
            return None
        try:
            read_offset_index(
                data,
                base_offset=self._segment.base_offset,
                where=str(path),
                segment_size_bytes=self._segment.size_bytes,
                end_offset=self._end_offset,
            )
        except CorruptDataError as error:
            self._at_fault(Artefact.OFFSET_INDEX, str(error))
            return None
        return data

    def _time_index(self) -> tuple[bytes | None, int | None]:
        path, data = self._read(Artefact.TIME_INDEX, self._segment.base_offset, LogFileKind.TIME_INDEX)
        if data is None:
            return None, None
        base_offset = self._segment.base_offset
        try:
            index = read_time_index(data, base_offset=base_offset, where=str(path), end_offset=self._end_offset)
        except CorruptDataError as error:
            self._at_fault(Artefact.TIME_INDEX, str(error))
            return None, None
        return data, index.timestamps_ms[-1] if index.timestamps_ms else _NO_TIMESTAMP

    def _transaction_index(self) -> bytes | None:
        path = self._path(self._segment.base_offset, LogFileKind.TRANSACTION_INDEX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            read_transaction_index(data, base_offset=self._segment.base_offset, where=str(path))
        except CorruptDataError as error:
            self._at_fault(Artefact.TRANSACTION_INDEX, str(error))
            return None
        return data

    def _producer_snapshot(self) -> bytes | None:
        path, data = self._read(Artefact.PRODUCER_SNAPSHOT, self._next_base_offset, LogFileKind.SNAPSHOT)
        if data is None:
            return None
        try:
            read_producer_snapshot(data, where=str(path))
        except CorruptDataError as error:
            self._at_fault(Artefact.PRODUCER_SNAPSHOT, str(error), may_come=True)
            return None
        return data

    def _earlier_snapshot(self) -> bytes | None:
        path = self._path(self._segment.base_offset, LogFileKind.SNAPSHOT)
        try:
            data = path.read_bytes()
            read_producer_snapshot(data, where=str(path))
        except (FileNotFoundError, CorruptDataError):
            return None
        return data

    def _read(self, artefact: Artefact, offset: Offset, kind: LogFileKind) -> tuple[Path, bytes | None]:
        path = self._path(offset, kind)
        try:
            return path, path.read_bytes()
        except FileNotFoundError:
            self._at_fault(artefact, f"{path} is not there", may_come=True)
            return path, None

    def _at_fault(self, artefact: Artefact, reason: str, *, may_come: bool = False) -> None:
        self._faults.append(ArtefactFault(artefact=artefact, reason=reason, may_come=may_come))

    def _path(self, offset: Offset, kind: LogFileKind) -> Path:
        return Path(self._segment.path_of(log_file_name(offset, kind)))
