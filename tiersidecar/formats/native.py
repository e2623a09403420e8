"""The optional native core (docs/design/0014): walks over record batches, the passes of a cleaner and reading with rests, all
without Python's lock, and the fold of remote log metadata.

It comes as a distribution of its own, ``tiersidecar-native`` (the extra ``native``).  Python's loops are the reference: a
native walk takes what the loop beside it would take in the same way, and stops before everything else.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

MODULE = "tiersidecar_native"
VERSION = "0.4.0"
"""The only version that is used: the one that pyproject.toml pins."""

HIGHEST = (1 << 63) - 1
"""The highest number that native code takes."""


class Walks(Protocol):
    """Each begins at ``start`` of ``buffer``, with a batch, and returns first where it stopped.  Offsets are below 2^63: see
    :func:`clamped`."""

    def scan(
        self, buffer: memoryview, start: int, leader_epoch: int, last_offset: int, max_timestamp: int, /
    ) -> tuple[int, int, int, int, Sequence[tuple[int, int]]]:
        """Take sound batches of ``leader_epoch`` whose offsets rise above ``last_offset``; return stop, their count, last
        offset, largest timestamp, and start and stop of each that is of a transaction."""

    def sum_and_scan(
        self,
        buffer: memoryview,
        start: int,
        file_crc: int,
        leader_epoch: int,
        last_offset: int,
        max_timestamp: int,
        /,
    ) -> tuple[int, int, int, int, int, Sequence[tuple[int, int]]]:
        """Return the CRC32C of the file up to the end of the buffer, with ``file_crc`` that up to its beginning, and then what
        :meth:`scan` does."""

    def digest(self, buffer: memoryview, start: int, next_offset: int, stop_offset: int, /) -> tuple[int, int, bytes]:
        """Take sound batches; return stop, the offset after the last one that counted, and the headers of those that did:
        with an offset from ``next_offset`` on and below ``stop_offset``."""

    def cut(
        self,
        buffer: memoryview,
        start: int,
        start_offset: int,
        stop_offset: int,
        least_offset: int,
        greatest_offset: int,
        leader_epoch: int,
        epoch_stop: int,
        left_bytes: int,
        takes_any_size: bool,
        /,
    ) -> tuple[int, int, int, int, int, int, int]:
        """Take sound batches of ``leader_epoch`` below ``epoch_stop`` within the offsets and the bytes that are given, and skip
        those below ``start_offset``; return stop, where the first one taken begins (-1: none was) and its base offset, the
        offset that is due next, where the last one taken begins and which offset was due there, and the bytes skipped."""


Buffer = bytes | bytearray | memoryview
MapParts = tuple[bytearray, "array[int]"]
"""Digests and offsets of an offset map: its slots."""
FrameParts = tuple[int, int, int, int, int, int]
"""Of a batch: base offset, last offset, base timestamp, largest timestamp, attributes, record count."""
TermParts = tuple[int, int, int, int]
"""Last offset that the map knows, now, horizon for tombstones that have none, first dirty offset."""
IndexParts = tuple[int, int, int, int]
"""Position in the new .log, position of the last index entry, latest timestamp and its offset."""


class CleanedRun(Protocol):
    """What was made of a run of batches.  Offsets are -1 where no batch was read, or kept; ``index_rows`` are last offset,
    position, latest timestamp and its offset of each entry that is due."""

    stop: int
    records_read: int
    records_kept: int
    batches_read: int
    batches_kept: int
    untouched_batches: int
    last_offset_read: int
    last_offset_kept: int
    max_timestamp: int
    indexed: IndexParts
    index_rows: Sequence[tuple[int, int, int, int]]


class CleanerPasses(Protocol):
    """A run begins at ``start`` of ``buffer``, with a batch, and takes sound batches of format 2 whose offsets rise, that are
    neither compressed nor of a transaction and have records that can be read."""

    def fill_map(
        self, buffer: memoryview, start: int, first_dirty: int, slots: MapParts, room: tuple[int, int], /
    ) -> tuple[int, int, int]:
        """Put the keys of records from ``first_dirty`` on into ``slots``; ``room`` is how many keys are in there, and how many
        may be.  Return where the run stopped, its last offset or -1, and how many keys are in there.

        The run stops before a batch of which a key found no room; those before it in that batch are in the map."""

    def fill_map_from_records(
        self, records: bytes, frame: FrameParts, first_dirty: int, slots: MapParts, room: tuple[int, int], /
    ) -> tuple[bool, int]:
        """Do the same with the opened records of one batch; return whether all keys are in the map, and how many are."""

    def clean_run(
        self,
        buffer: memoryview,
        start: int,
        stop: int,
        offsets: tuple[int, int],
        kept_empty: array[int],
        slots: MapParts,
        terms: TermParts,
        indexed: IndexParts,
        /,
    ) -> tuple[CleanedRun, bytes]:
        """Rewrite batches that end at ``stop`` or before, with ``offsets`` from the first to the last (both inclusive); return
        what was made of them, and the new ones.

        The run stops before a batch of which no record stays, and whose last offset is in ``kept_empty``, which ascends."""

    def clean_records(
        self, records: bytes, frame: FrameParts, slots: MapParts, terms: TermParts, /
    ) -> tuple[int, int, tuple[int, int, int, bytes] | None] | None:
        """Judge the opened records of one batch; return how many there are and how many stay, and attributes, base timestamp,
        largest timestamp and records of the new batch (None: it stays as it is, or no record stays).  None: they cannot be
        read for certain."""


class KeyFilterFunctions(Protocol):
    """Digests are the MD5 of keys, 16 bytes each, one after the other."""

    def collect_keys(self, buffer: memoryview, start: int, /) -> tuple[int, bytes, int]:
        """Take a run of batches as :class:`CleanerPasses` do, that have no record without a key, and no tombstone without a
        horizon; return where it stopped, the digests of the keys, and the earliest horizon of a tombstone or
        :data:`HIGHEST`."""

    def collect_keys_from_records(self, records: bytes, frame: FrameParts, /) -> tuple[bytes, int] | None:
        """Do the same with the opened records of one batch; None where the run would stop."""

    def fill_filter(self, bits: bytearray, probes: int, digests: bytes | bytearray, /) -> None:
        """Set the bits of all digests."""

    def filter_has_any(self, bits: Buffer, probes: int, slots: MapParts, /) -> bool:
        """Return whether the filter may have any of the map's keys."""


class MetadataBatch(Protocol):
    """Values of records of one metadata partition, which were read."""

    def fold(self, holders: dict[bytes, Any], start: int, /) -> tuple[int, int, int]:
        """Fold records from number ``start`` on into the caches of ``holders``, user partitions by their key in the records,
        as :meth:`~tiersidecar.adapters.metadata_topic.held.HeldPartition.fold` does.

        Return the number of the first record that was not taken, or how many records there are; how many were applied; how many
        were skipped.  The record that is not taken, and that alone, is for Python: it is corrupt, refused, or of a rare shape.
        """


class MetadataFunctions(Protocol):
    """Works on the private parts of HeldPartition, RemoteLogMetadataCache, SegmentRows and EpochSegments."""

    def read_metadata(self, records: list[Any], /) -> MetadataBatch:
        """Read the values of ``records``, which have an offset and a value each."""


class TurnReader(Protocol):
    def read_in_turns(
        self, fileno: int, position: int, buffer: memoryview, turn_bytes: int, rest_us: int, rests_first: bool, /
    ) -> int:
        """Fill ``buffer`` from ``position`` of the file on, ``turn_bytes`` at a time with rests of ``rest_us`` between them,
        and one before the first if ``rests_first``; return the count, which is short only at the end of the file.

        Raises:
            OSError: the disk fails.
        """


class NativeFunctions(Walks, CleanerPasses, KeyFilterFunctions, MetadataFunctions, TurnReader, Protocol):
    """All that the native core does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCore:
    """``walks`` is None where Python's own loops run; ``reason`` says why, and is empty otherwise.

    ``is_mismatch`` says that a native core is there, of another ``version`` than the one that belongs to this package.
    """

    walks: NativeFunctions | None
    version: str = ""
    reason: str = ""
    is_mismatch: bool = False

    @property
    def name(self) -> str:
        """Return ``native`` or ``python``."""
        return "python" if self.walks is None else "native"

    def __str__(self) -> str:
        return f"native core {self.version}" if self.walks is not None else f"Python core: {self.reason}"


def find_core() -> NativeCore:
    """Return the native core if it is installed, of our version, and not turned off by ``TIERSIDECAR_NATIVE=off``."""
    try:
        module = import_module(MODULE)
    except ImportError as error:
        is_there = not isinstance(error, ModuleNotFoundError)
        reason = f"tiersidecar-native cannot be loaded: {error}" if is_there else "tiersidecar-native is not installed"
        return NativeCore(walks=None, reason=reason, is_mismatch=is_there)
    version = str(getattr(module, "__version__", "unknown"))
    if version != VERSION:
        reason = f"tiersidecar-native is {version}, this tiersidecar takes {VERSION} alone"
        return NativeCore(walks=None, version=version, reason=reason, is_mismatch=True)
    if module.is_off():
        return NativeCore(walks=None, version=version, reason="TIERSIDECAR_NATIVE=off")
    return NativeCore(walks=cast(NativeFunctions, module), version=version)


def clamped(number: int) -> int:
    """Return ``number``, or the highest that native code takes.  Batches whose offsets reach it are left to Python, so that a
    bound above it means the same."""
    return min(number, HIGHEST)


core = find_core()
"""The core that this process runs."""
