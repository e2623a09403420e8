"""The opened records of a batch, of which one piece is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tiersidecar.formats.kafka.compression import SMALL_BYTES, DecompressionError
from tiersidecar.formats.kafka.opened_memory import MemoryLease

_RECORDS_MASK = 0xFF


class OpenedBytes:
    """The next byte is at ``offset`` of ``data``, after which come ``pieces``; the owner moves ``offset``.

    ``copies`` is how often the owner has what it asks for in memory, itself included: it counts where it is more than small.
    """

    __slots__ = (
        "_copies",
        "_held_bytes",
        "_lease",
        "_left_bytes",
        "_most_bytes",
        "_pieces",
        "_records",
        "data",
        "offset",
    )

    def __init__(
        self, pieces: Iterator[bytes | memoryview], lease: MemoryLease, *, max_bytes: int, copies: int
    ) -> None:
        self._pieces, self._lease, self._copies = pieces, lease, copies
        self._left_bytes = self._most_bytes = max_bytes
        self._held_bytes = self._records = 0
        self.data = b""
        self.offset = 0

    @property
    def at_hand(self) -> int:
        """Return how many bytes have been opened and not passed."""
        return len(self.data) - self.offset

    def next_record(self) -> None:
        """Begin a record; report to the lease after each few hundred, for which the interpreter needs some 0.3 ms."""
        self._records += 1
        if not self._records & _RECORDS_MASK:
            self._lease.rest()

    def fill(self, size_bytes: int) -> bool:
        """Have ``size_bytes`` at hand; return False where there are fewer left.

        Raises:
            DecompressionError: damaged, or it opens to more than ``max_bytes``.
            NoMemoryLeftError, TooLargeToOpenError: by the lease.
        """
        if self.at_hand >= size_bytes:
            return True
        self._held_bytes = size_bytes * self._copies if size_bytes > SMALL_BYTES else 0
        self._lease.record(self._held_bytes)
        parts = [self.data[self.offset :]] if self.at_hand else []
        missing = size_bytes - self.at_hand
        while missing > 0 and (piece := self._next()) is not None:
            parts.append(bytes(piece))
            missing -= len(piece)
        self.data, self.offset = parts[0] if len(parts) == 1 else b"".join(parts), 0
        return missing <= 0

    def hold_more(self, size_bytes: int) -> None:
        """Count ``size_bytes`` more, for what the owner makes of its bytes, until it asks again.

        Raises:
            NoMemoryLeftError, TooLargeToOpenError: by the lease.
        """
        self._lease.record(self._held_bytes + size_bytes)

    def skip(self, size_bytes: int) -> bool:
        """Pass ``size_bytes``; return False where there are fewer left."""
        while size_bytes > self.at_hand:
            size_bytes -= self.at_hand
            piece = self._next()
            if piece is None:
                return False
            self.data, self.offset = bytes(piece), 0
        self.offset += size_bytes
        return True

    def take(self, size_bytes: int) -> bytes | None:
        """Pass ``size_bytes`` and return them; None where there are fewer left."""
        if not self.fill(size_bytes):
            return None
        begin, self.offset = self.offset, self.offset + size_bytes
        return self.data[begin : self.offset]

    def _next(self) -> bytes | memoryview | None:
        self._lease.rest()
        piece = next(self._pieces, None)
        if piece is not None:
            self._left_bytes -= len(piece)
            if self._left_bytes < 0:
                raise DecompressionError(f"compressed records open to more than {self._most_bytes} bytes")
        return piece
