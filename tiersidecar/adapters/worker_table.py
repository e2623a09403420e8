"""Memory that the processes of one gateway share: a row for each, which it alone writes and all read (``ports.shares.Shares``).

There is no lock, so that no process waits for another, whatever becomes of it.  Each number is eight bytes, aligned, and so is
read whole.  The row of a process that has died is cleared by the one that started it.

Layout, in words of eight bytes: a secret of two words, the number of places, then the rows.  A row has amount and beginning
(:class:`Taken`) of each thing that is shared as a whole, and a table of ``places`` for what has a key: hash of the key, amount,
beginning.  A key is at its place or at one of the next ones, and at none where all of these are taken: then the others do not
see it, which takes more keys than there may be.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from collections.abc import Sequence
from hashlib import blake2b

from tiersidecar.domain.taken import NOTHING, Taken
from tiersidecar.ports.shares import Shared

STARTER = 0
"""The row of the process that starts the workers; theirs are 1, 2 and so on."""

_WORD = 8
_HEAD_WORDS = 3
_SCALAR_WORDS, _PLACE_WORDS = 2, 3
_SCALARS = len(Shared)
_TRIED = 16
"""Places at which a key may be."""
_MOST = 2.0**63
"""No process can have taken so much; what is no number is not less either."""
_LEAST_PLACES, _MOST_PLACES = 1024, 1 << 20


def places_for(keys: int) -> int:
    """Return how many places a row needs so that ``keys`` find one each: a power of two."""
    return min(max(1 << (2 * keys - 1).bit_length(), _LEAST_PLACES), _MOST_PLACES)


class WorkerTable:
    """The memory itself.  Pages that nobody has touched take none."""

    def __init__(self, fd: int) -> None:
        """Map the memory behind ``fd``, which belongs to the table from now on."""
        self.fd = fd
        size_bytes = os.fstat(fd).st_size
        self._memory = mmap.mmap(fd, size_bytes)
        self._words = memoryview(self._memory).cast("Q")
        self._numbers = memoryview(self._memory).cast("d")
        self._secret = bytes(memoryview(self._memory)[: 2 * _WORD])
        self.places = self._words[2]
        self._row_words = _SCALARS * _SCALAR_WORDS + self.places * _PLACE_WORDS
        self.rows = (size_bytes // _WORD - _HEAD_WORDS) // self._row_words

    @classmethod
    def create(cls, *, workers: int, keys: int) -> WorkerTable:
        """Make one for ``workers`` and the process that starts them, with room for ``keys`` of each."""
        places = places_for(keys)
        row_words = _SCALARS * _SCALAR_WORDS + places * _PLACE_WORDS
        fd = os.memfd_create("tiersidecar-gateway-workers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(fd, _WORD * (_HEAD_WORDS + (workers + 1) * row_words))
        # The kernel kills a process that looks at memory which another one has cut off.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        os.pwrite(fd, secrets.token_bytes(2 * _WORD) + places.to_bytes(_WORD, "little"), 0)
        return cls(fd)

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._numbers.release()
        self._memory.close()
        os.close(self.fd)

    def clear(self, row: int) -> None:
        """Forget what a process had taken that is no more."""
        begin, end = _WORD * self._begin(row), _WORD * self._begin(row + 1)
        self._memory[begin:end] = bytes(end - begin)

    def show(self, row: int, what: Shared, taken: Taken) -> None:
        """Write what the process of ``row`` has taken."""
        at = self._begin(row) + what * _SCALAR_WORDS
        self._numbers[at] = taken.amount
        self._numbers[at + 1] = taken.since_s

    def taken(self, row: int, what: Shared) -> Taken:
        """Read it."""
        at = self._begin(row) + what * _SCALAR_WORDS
        amount = self._numbers[at]
        return Taken(amount, self._numbers[at + 1]) if 0 < amount < _MOST else NOTHING

    def hash_of(self, what: Shared, key: str) -> int:
        """Return the hash by which a key is found: clients choose keys, and must not be able to choose one of another's."""
        digest = blake2b(f"{what:d} {key}".encode("utf-8", "replace"), digest_size=_WORD, key=self._secret).digest()
        return int.from_bytes(digest, "little") | 1  # 0 is of a free place

    def show_of(self, row: int, hashed: int, taken: Taken) -> None:
        """Write what the process of ``row`` has taken of what has this key; nothing frees the place."""
        at = self._place_of(row, hashed)
        if at is None:
            if not taken.amount or (at := self._place_of(row, 0, hashed)) is None:
                return
            self._numbers[at + 1] = 0.0  # whoever reads now finds nothing
            self._words[at] = hashed
        self._numbers[at + 2] = taken.since_s
        self._numbers[at + 1] = taken.amount
        if not taken.amount:
            self._words[at] = 0

    def taken_of(self, row: int, hashed: int) -> Taken:
        """Read it."""
        at = self._place_of(row, hashed)
        if at is None:
            return NOTHING
        amount = self._numbers[at + 1]
        return Taken(amount, self._numbers[at + 2]) if 0 < amount < _MOST else NOTHING

    def _place_of(self, row: int, wanted: int, hashed: int | None = None) -> int | None:
        """Return the word at which ``wanted`` is, at one of the places of ``hashed`` (of itself, if not given)."""
        first = self._begin(row) + _SCALARS * _SCALAR_WORDS
        place = wanted if hashed is None else hashed
        for tried in range(_TRIED):
            at = first + (place + tried) % self.places * _PLACE_WORDS
            if self._words[at] == wanted:
                return at
        return None

    def _begin(self, row: int) -> int:
        return _HEAD_WORDS + row * self._row_words


class RowShares:
    """Implements :class:`~tiersidecar.ports.shares.Shares` for the process of one row."""

    def __init__(self, table: WorkerTable, row: int) -> None:
        self._table, self._row = table, row
        self._others = [other for other in range(1, table.rows) if other != row]
        self._elsewhere = [other for other in range(table.rows) if other != row]

    @property
    def workers(self) -> int:
        return self._table.rows - 1

    def show(self, what: Shared, taken: Taken, key: str = "") -> None:
        if key:
            self._table.show_of(self._row, self._table.hash_of(what, key), taken)
        else:
            self._table.show(self._row, what, taken)

    def others(self, what: Shared, key: str = "") -> Sequence[Taken]:
        return self._taken(self._others, what, key)

    def everywhere_else(self, what: Shared, key: str = "") -> Sequence[Taken]:
        return self._taken(self._elsewhere, what, key)

    def _taken(self, rows: Sequence[int], what: Shared, key: str) -> Sequence[Taken]:
        if not key:
            return [self._table.taken(row, what) for row in rows]
        hashed = self._table.hash_of(what, key)
        return [self._table.taken_of(row, hashed) for row in rows]
