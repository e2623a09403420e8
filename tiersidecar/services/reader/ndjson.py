"""Write records as lines of JSON (NDJSON)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tiersidecar.domain.errors import NoMemoryLeftError, NotSmallError
from tiersidecar.formats.kafka.opened_memory import UNLIMITED, OpenedMemory, SmallMemory
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import AbortedRanges, Record, iter_records
from tiersidecar.reading.opening import TURN_S, More

_GROUP_BYTES = 64 * 1024
"""Batches are opened in groups of this size, as they are stored: a group of small batches is one call off the loop, and one
write."""
_PIECE_BYTES = 256 * 1024
"""Size of lines that are made, and written, at once: a batch of many small records opens to thousands of times its size."""

_RECORDS_A_STEP = 16

_COPIES = 8
"""Copies of a large record, while its line is made: as it came, opened, as base64, as JSON, encoded, and in the piece."""


class BytesFormat(StrEnum):
    """Form of keys, values and header values."""

    BASE64 = "base64"
    UTF8 = "utf8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of records: from ``offset`` on, and below ``stop_offset`` if there is one; both may lie within a batch.
    None of aborted transactions if they are known, no control records."""

    offset: int
    stop_offset: int | None
    hidden: AbortedRanges | None
    bytes_format: BytesFormat


def batch_groups(buffer: memoryview) -> Iterator[memoryview]:
    """Yield ``buffer``, whole batches, in groups of batches."""
    begin = 0
    for position, header in iter_batch_headers(buffer):
        stop = position + header.size_bytes
        if stop - begin >= _GROUP_BYTES:
            yield buffer[begin:stop]
            begin = stop
    if begin < len(buffer):
        yield buffer[begin:]


class LinePieces:
    """One line for each selected record of ``batches``, in offset order, the first ``limit`` of them: in pieces, each with its
    number of lines.  No more is opened than a piece needs; what is open holds ``memory`` until :meth:`close`.

    ``monotonic_s`` measures the turn (:data:`TURN_S`) in which records are skipped.
    """

    def __init__(
        self,
        batches: memoryview,
        selection: Selection,
        limit: int,
        memory: OpenedMemory = UNLIMITED,
        *,
        monotonic_s: Callable[[], float] = float,
    ) -> None:
        self._batches, self._selection, self._left, self._memory = batches, selection, limit, memory
        self._monotonic_s = monotonic_s
        self._lines: Generator[tuple[int, bytes] | None] | None = None
        self._opened_with = memory

    def __iter__(self) -> LinePieces:
        return self

    def __next__(self) -> tuple[bytes, int]:
        while isinstance(piece := self.next_piece(self._memory), More):
            continue
        if piece is None:
            raise StopIteration
        return piece

    def next_piece(self, memory: OpenedMemory) -> tuple[bytes, int] | More | None:
        """Return the next piece, None after the last; More where it is not reached in this turn, but never with little memory.
        After a NoMemoryLeftError it may be asked for again.

        Raises:
            CorruptDataError: records that do not open.
            NoMemoryLeftError, TooLargeToOpenError: of ``memory``.
        """
        piece, count = bytearray(), 0
        until_s = self._monotonic_s() + TURN_S
        try:
            for found in self._open_lines(memory):
                if found is None:
                    if not count and not isinstance(memory, SmallMemory) and self._monotonic_s() >= until_s:
                        return More.MORE
                    continue
                offset, line = found
                piece += line
                count += 1
                self._left -= 1
                self._selection = replace(self._selection, offset=offset + 1)
                if len(piece) >= _PIECE_BYTES or not self._left:
                    break
        except NotSmallError:
            # Data that is open already stays open: it was not opened with this memory.
            if self._opened_with is memory:
                self.close()
            if not count:
                raise
        except NoMemoryLeftError:
            self.close()
            if not count:
                raise
        return (bytes(piece), count) if count else None

    @property
    def holds_memory(self) -> bool:
        """Return whether the open data holds more than a little of it."""
        return self._lines is not None and not isinstance(self._opened_with, SmallMemory)

    def close(self) -> None:
        """Give back what it holds.  The next piece begins where the last one ended: what lies before it is opened again."""
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _open_lines(self, memory: OpenedMemory) -> Iterator[tuple[int, bytes] | None]:
        if not self._left:
            return iter(())
        if self._lines is None:
            self._lines, self._opened_with = _lines(self._batches, self._selection, memory), memory
        elif memory is not self._opened_with and isinstance(memory, SmallMemory):
            raise NotSmallError  # the open data goes on with the memory it began with
        return self._lines


def _lines(batches: memoryview, selection: Selection, memory: OpenedMemory) -> Generator[tuple[int, bytes] | None]:
    """Yield offset and line of each selected record, and None now and then where records are skipped."""
    for position, header in iter_batch_headers(batches):
        if header.last_offset < selection.offset or not _is_visible(header, selection):
            continue
        batch = batches[position : position + header.size_bytes]
        for number, record in enumerate(iter_records(batch, memory=memory, copies=_COPIES)):
            if selection.stop_offset is not None and record.offset >= selection.stop_offset:
                return
            if record.offset >= selection.offset:
                yield record.offset, _line(record, header, selection.bytes_format)
            elif not number % _RECORDS_A_STEP:
                yield None


def _is_visible(header: RecordBatchHeader, selection: Selection) -> bool:
    return not header.is_control and not (selection.hidden is not None and selection.hidden.hides(header))


def _line(record: Record, header: RecordBatchHeader, bytes_format: BytesFormat) -> bytes:
    document = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": record.timestamp_type.value,
        "leader_epoch": header.partition_leader_epoch,
        "key": _text(record.key, bytes_format),
        "value": _text(record.value, bytes_format),
        "headers": [{"key": key, "value": _text(value, bytes_format)} for key, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(data: bytes | None, bytes_format: BytesFormat) -> str | dict[str, str] | None:
    """Return ``data`` as text; null stays null.  Bytes that should be UTF-8 and are not become an object that says so: no byte
    is replaced."""
    if data is None:
        return None
    if bytes_format is BytesFormat.BASE64:
        return base64.b64encode(data).decode("ascii")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
