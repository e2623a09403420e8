"""A .log that streams past in slices, as whole batches."""

from __future__ import annotations

from collections.abc import Iterator

from tiersidecar.domain.errors import TruncatedDataError
from tiersidecar.formats.kafka.record_batches import Buffer, RecordBatchHeader, check_batch, read_whole_batch_header

WholeBatch = tuple[memoryview, RecordBatchHeader, int]
"""A batch with a right checksum, its header, and its position in the .log."""


class WholeBatches:
    """Cuts a .log that comes in slices of any size into its batches, and checks each.

    At most one batch and the slice in hand are in memory.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._slice_position = 0
        self.view = memoryview(b"")
        """The slice, and before it what the former one had of a batch."""
        self.place = 0
        """Where in ``view`` the next batch begins."""

    @property
    def position(self) -> int:
        """Return where in the .log the next batch begins."""
        return self._slice_position + self.place

    def feed(self, data: Buffer, *, where: str) -> Iterator[WholeBatch]:
        """Give the batches that end in the next slice of ``where``; the buffer may be reused once the iterator has ended.

        Raises:
            CorruptDataError: a batch is damaged.
        """
        self.begin_slice(data)
        while batch := self.next_batch(where=where):
            yield batch
        self.end_slice()

    def begin_slice(self, data: Buffer) -> None:
        """Take the next slice, which is used until :meth:`end_slice`."""
        self.view = memoryview(b"".join((self._tail, data)) if self._tail else data)

    def next_batch(self, *, where: str) -> WholeBatch | None:
        """Return the next batch, and go past it; None where the slice has only a part of it.

        Raises:
            CorruptDataError: it is damaged.
        """
        position = self.position
        header = read_whole_batch_header(self.view, self.place, where=where, position=position)
        if header is None:
            return None
        batch = self.view[self.place : self.place + header.size_bytes]
        check_batch(batch, header, where=where, position=position)
        self.place += header.size_bytes
        return batch, header, position

    def skip_to(self, place: int) -> None:
        """Go on at ``place`` of ``view``: the batches before it were taken by other means."""
        self.place = place

    def end_slice(self) -> None:
        """Keep what the slice has of a batch that goes on in the next one."""
        self._tail = bytes(self.view[self.place :])
        self._slice_position += self.place
        self.view, self.place = memoryview(b""), 0

    def end(self, *, where: str) -> None:
        """End the .log; the next one begins at its position 0.

        Raises:
            TruncatedDataError: it ends within a batch.
        """
        if self._tail:
            raise TruncatedDataError(where=where, position=self._slice_position, reason="the file ends within a batch")
        self._slice_position = 0
