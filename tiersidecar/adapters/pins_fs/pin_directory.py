"""One directory that pins lie in.  Blocks; runs in threads.

The .log is linked last and unlinked first, so that files without it are leftovers.

Leader epochs from a segment's own batches, for offsets that the broker's file has forgotten.  Blocks.

Names of a pin's files: everything that is known of a pin stands in them (docs/design/0004-pins.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tiersidecar.adapters.log_dirs_fs.log_dir_scan import read_max_timestamp_ms
from tiersidecar.domain.errors import CorruptDataError, SegmentChangedError
from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.domain.offsets import NO_EPOCH, EpochEntry, Lineage, Offset
from tiersidecar.domain.segments import LocalSegment, Pin, PinnedPartition
from tiersidecar.formats.compaction.rewriting import delete_horizon_ms
from tiersidecar.formats.kafka.log_dir_files import (
    LEADER_EPOCH_CHECKPOINT,
    LogFileKind,
    log_file_name,
    read_leader_epochs,
    write_leader_epochs,
)
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, RecordBatchHeader, read_batch_header
from tiersidecar.ports.failpoints import NO_FAILPOINTS, BlockingFailpoints

PIN_PREFIX = "tiersidecar-pin."
PROBE_NAME = f"{PIN_PREFIX}probe"
_REPLACEMENT = "replacement"
"""In a pin's file names: the link to a .log that is to take the place of another one's."""
_REPLACEMENT_EPOCHS = "replacement-epochs"
"""Its leader epochs until they are written: by a name of their own, for what the other one names may be the broker's file."""
_REPLACEMENTS = (_REPLACEMENT, _REPLACEMENT_EPOCHS)
_NAME = re.compile(
    r"tiersidecar-pin\.(?P<topic_id>[A-Za-z0-9_-]{22})\.(?P<partition>0|[1-9][0-9]{0,9})"
    r"\.(?P<base>[0-9]{20})-(?P<following>[0-9]{20})\.(?P<file>[^/]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinName:
    """The common part of the names of one pin's files; ``next_base_offset`` is the exclusive end of its offsets."""

    owner: PinnedPartition
    base_offset: Offset
    next_base_offset: Offset

    @property
    def prefix(self) -> str:
        """Return the beginning of the pin's file names, before the broker's name of the file."""
        owner = f"{format_uuid(self.owner.topic_id)}.{self.owner.partition}"
        return f"{PIN_PREFIX}{owner}.{self.base_offset:020d}-{self.next_base_offset:020d}."

    @property
    def log_name(self) -> str:
        """Return the broker's name of the file whose link makes a pin of the others."""
        return log_file_name(self.base_offset, LogFileKind.LOG)

    @property
    def snapshot_name(self) -> str:
        """Return the producer snapshot at the end of the segment, which may come later, or never."""
        return log_file_name(self.next_base_offset, LogFileKind.SNAPSHOT)

    @property
    def time_index_name(self) -> str:
        return log_file_name(self.base_offset, LogFileKind.TIME_INDEX)

    @property
    def companion_names(self) -> tuple[str, ...]:
        """Return what else is linked where it exists, by the broker's names."""
        return (
            log_file_name(self.base_offset, LogFileKind.OFFSET_INDEX),
            self.time_index_name,
            log_file_name(self.base_offset, LogFileKind.TRANSACTION_INDEX),
            self.snapshot_name,
        )

    @property
    def usual_names(self) -> tuple[str, ...]:
        """Return the companions that every sealed segment has, but for the broker's accidents."""
        transaction_index = log_file_name(self.base_offset, LogFileKind.TRANSACTION_INDEX)
        return tuple(name for name in self.companion_names if name != transaction_index)

    @property
    def earlier_snapshot_name(self) -> str:
        """Return the producer snapshot where the segment begins: part of a picture only."""
        return log_file_name(self.base_offset, LogFileKind.SNAPSHOT)

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return all names in the order in which they are made: the .log last."""
        return (LEADER_EPOCH_CHECKPOINT, self.earlier_snapshot_name, *self.companion_names, self.log_name)


def parse_pin_file(name: str) -> tuple[PinName, str] | None:
    """Return the pin that a file belongs to, and what the broker calls the file; None for any file that is no pin's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        topic_id = parse_uuid(match["topic_id"])
    except ValueError:
        return None
    pin = PinName(
        owner=PinnedPartition(topic_id, int(match["partition"])),
        base_offset=Offset(int(match["base"])),
        next_base_offset=Offset(int(match["following"])),
    )
    names = (*pin.all_names, *_REPLACEMENTS)
    known = pin.base_offset < pin.next_base_offset and match["file"] in names and name.startswith(pin.prefix)
    return (pin, match["file"]) if known else None


@dataclass(frozen=True, slots=True)
class SegmentEpochs:
    """``entries`` has each epoch with the base offset of its first batch; ``next_offset`` is the one after the last record."""

    entries: tuple[EpochEntry, ...]
    next_offset: Offset


def read_segment_epochs(log_path: str, base_offset: int) -> SegmentEpochs:
    """Walk the batch headers of a .log, one small read each: no mapping, under which a truncation would end the process.

    Raises:
        OSError: it cannot be read.
        CorruptDataError: it does not hold batches, or ends within a header.
    """
    entries: list[tuple[int, int]] = []
    next_offset = base_offset
    for header in _headers(log_path):
        epoch = header.partition_leader_epoch
        if epoch != NO_EPOCH and (not entries or entries[-1][0] != epoch):
            entries.append((epoch, header.base_offset))
        next_offset = header.last_offset + 1
    return SegmentEpochs(Lineage.of(entries).entries, Offset(next_offset))


def first_hole(segments: Sequence[LocalSegment], start: int, stop: int, *, horizons: bool = False) -> Offset | None:
    """Return the first offset from ``start`` on and below ``stop`` that ``segments``, which ascend and are sealed, should have
    and no record has; None where there is none.  Of a batch of which records are gone it is the first one that is looked at.
    With ``horizons`` a batch counts as well whose tombstones have been given a time by a cleaner.

    Raises:
        OSError: one cannot be read.
        CorruptDataError: one does not hold batches, or ends within a header.
    """
    expected = start
    for segment in segments:
        for header in _headers(segment.log_path):
            if header.last_offset < expected:
                continue
            if expected >= stop:
                return None
            is_thinned = header.magic == _COUNTS_RECORDS and header.record_count <= header.last_offset_delta
            if header.base_offset > expected or is_thinned or (horizons and delete_horizon_ms(header) is not None):
                return Offset(expected)
            expected = header.last_offset + 1
        if expected < min(segment.next_base_offset or expected, stop):
            return Offset(expected)
    return None


_COUNTS_RECORDS = 2
"""The message format with the number of records in a batch's header."""


def _headers(log_path: str) -> Iterator[RecordBatchHeader]:
    position = 0
    with Path(log_path).open("rb", buffering=0) as file:
        while head := os.pread(file.fileno(), BATCH_HEADER_SIZE, position):
            header = read_batch_header(head, where=log_path, position=position)
            yield header
            position += header.size_bytes


Link = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class PinListing:
    """Names in a directory: of pins, of files of pins that lack the .log, and of those pins that have a file that was to take
    another one's place."""

    whole: tuple[PinName, ...] = ()
    partial: tuple[PinName, ...] = field(default=())
    replaced: tuple[PinName, ...] = ()


class PinDirectory:
    """``path`` may be missing: then it holds no pins.  ``log_dir`` is the one whose segments are pinned here."""

    def __init__(
        self, path: str, *, log_dir: str, link: Link = os.link, failpoints: BlockingFailpoints = NO_FAILPOINTS
    ) -> None:
        self.path, self._log_dir, self._link, self._failpoints = path, log_dir, link, failpoints

    def list_names(self) -> PinListing:
        """List the names, ascending by partition and base offset.

        Raises:
            OSError: the directory cannot be read.
        """
        files: dict[PinName, set[str]] = {}
        try:
            for name in os.listdir(self.path):  # noqa: PTH208 - names are all that is needed
                parsed = parse_pin_file(name)
                if parsed is not None:
                    files.setdefault(parsed[0], set()).add(parsed[1])
        except FileNotFoundError:
            return PinListing()
        names = sorted(files, key=lambda name: (name.owner, name.base_offset, name.next_base_offset))
        whole = tuple(name for name in names if name.log_name in files[name])
        return PinListing(
            whole,
            tuple(name for name in names if name.log_name not in files[name]),
            tuple(name for name in whole if not files[name].isdisjoint(_REPLACEMENTS)),
        )

    def read(self, names: Sequence[PinName]) -> tuple[Pin, ...]:
        """Read the pins of these names, without those that have gone meanwhile."""
        pins = []
        for name in names:
            with suppress(FileNotFoundError):
                pins.append(self._read(name))
        return tuple(pins)

    def make(self, name: PinName, segment: LocalSegment, leader_epochs: Sequence[EpochEntry]) -> Pin:
        """Link what exists of ``segment`` and is not linked yet.  Where another file was pinned, its link stays until the new
        one is there.

        Raises:
            SegmentChangedError: of a deleted segment it is not certain where it ended.
            FileNotFoundError: the broker has deleted or renamed the .log before it was linked; nothing of a new pin is left.
            OSError: a link cannot be made.
        """
        log_path = self._path(name, name.log_name)
        if os.path.exists(log_path) and _are_different(log_path, segment.log_path):  # noqa: PTH110 - a text path
            self._replace_log(name, segment, leader_epochs)
        try:
            self._write_epochs(name, segment, leader_epochs)
            for companion in name.companion_names:
                for source in _sources(segment, companion):
                    with suppress(FileNotFoundError):
                        self._link_once(source, self._path(name, companion))
            self._failpoints.reach_blocking("pin.half")
            self._link_once(segment.log_path, log_path)
        except OSError:
            if not os.path.exists(log_path):  # noqa: PTH110
                self.remove(name)
            raise
        return self._read(name)

    def make_picture(
        self, directory: str, named: Sequence[tuple[PinName, LocalSegment]], leader_epochs: Sequence[EpochEntry]
    ) -> tuple[Pin, ...]:
        """Link segments of a partition's ``directory`` as they are at one moment.

        Raises:
            SegmentChangedError, FileNotFoundError: the files were others before the links were made than after it.
            OSError: a link cannot be made, or the directory cannot be read.
        """
        end = max(name.next_base_offset for name, _ in named)
        before = sealed_files(directory, end)
        pins = []
        try:
            for name, segment in named:
                with suppress(FileNotFoundError):
                    earlier = name.earlier_snapshot_name
                    self._link_once(segment.path_of(earlier), self._path(name, earlier))
                pins.append(self.make(name, segment, leader_epochs))
            self._failpoints.reach_blocking("picture.linked")
            require_same(directory, before, sealed_files(directory, end))
        except (OSError, SegmentChangedError):
            for name, _ in named:
                self.remove(name)
            raise
        return tuple(pins)

    def remove(self, name: PinName) -> None:
        """Remove all files of a pin, or of what was to become one.

        Raises:
            OSError: one cannot be removed.
        """
        self._unlink(name, (*reversed(name.all_names), *_REPLACEMENTS))

    def forget_replacement(self, name: PinName) -> None:
        """Remove what was to take the place of a pin's files when an earlier process ended.

        Raises:
            OSError: it cannot be removed.
        """
        self._unlink(name, _REPLACEMENTS)

    def _path(self, name: PinName, file: str) -> str:
        return f"{self.path}/{name.prefix}{file}"

    def _link_once(self, source: str, target: str) -> None:
        if not os.path.exists(target):  # noqa: PTH110 - a text path
            self._link(source, target)

    def _replace_log(self, name: PinName, segment: LocalSegment, leader_epochs: Sequence[EpochEntry]) -> None:
        """Put the link to ``segment``'s .log in the place of the other one, and its epochs behind those that only the pin knows
        yet; companions are to be linked anew."""
        replacement, epochs_path = (self._path(name, file) for file in _REPLACEMENTS)
        entries = epochs_below_end(name, segment, leader_epochs)
        known = Lineage.of(self._read_epochs(name)).extended_by(entries).entries
        for path in (replacement, epochs_path):  # they may be an earlier process's
            Path(path).unlink(missing_ok=True)
        # Never into a file that is there: it may be another name of the broker's.
        with Path(epochs_path).open("xb") as file:
            file.write(write_leader_epochs(known))
        Path(epochs_path).replace(self._path(name, LEADER_EPOCH_CHECKPOINT))
        self._link(segment.log_path, replacement)
        self._unlink(name, (name.earlier_snapshot_name, *name.companion_names))
        Path(replacement).replace(self._path(name, name.log_name))
        Path(replacement).unlink(missing_ok=True)  # a rename does nothing where both are names of one file

    def _unlink(self, name: PinName, files: Sequence[str]) -> None:
        for file in files:
            with suppress(FileNotFoundError):
                os.unlink(self._path(name, file))  # noqa: PTH108 - a text path
                self._failpoints.reach_blocking("unpin.half")

    def _write_epochs(self, name: PinName, segment: LocalSegment, leader_epochs: Sequence[EpochEntry]) -> None:
        path = self._path(name, LEADER_EPOCH_CHECKPOINT)
        if not os.path.exists(path):  # noqa: PTH110 - a text path
            entries = epochs_below_end(name, segment, leader_epochs)
            with suppress(FileExistsError), Path(path).open("xb") as file:
                file.write(write_leader_epochs(entries))

    def _read(self, name: PinName) -> Pin:
        status = os.stat(self._path(name, name.log_name))  # noqa: PTH116 - a text path
        segment = LocalSegment(
            directory=self.path,
            base_offset=name.base_offset,
            next_base_offset=name.next_base_offset,
            size_bytes=status.st_size,
            modified_ms=status.st_mtime_ns // 1_000_000,
            max_timestamp_ms=read_max_timestamp_ms(self._path(name, name.time_index_name)),
            pinned=True,
            file_prefix=name.prefix,
            inode=status.st_ino,
        )
        return Pin(
            owner=name.owner,
            log_dir=self._log_dir,
            segment=segment,
            leader_epochs=self._read_epochs(name),
            max_timestamp_ms=segment.modified_ms if segment.max_timestamp_ms < 0 else segment.max_timestamp_ms,
            is_whole=all(os.path.exists(self._path(name, file)) for file in name.usual_names),  # noqa: PTH110
        )

    def _read_epochs(self, name: PinName) -> tuple[EpochEntry, ...]:
        """Return what is written, or what the batches have: after a power failure the file, which is not synced, may be empty
        or away, and a pin without epochs is taken for cut off where a log begins anew below it."""
        path = self._path(name, LEADER_EPOCH_CHECKPOINT)
        with suppress(FileNotFoundError, CorruptDataError):
            data = Path(path).read_bytes()
            if data:
                return read_leader_epochs(data, where=path)
        with suppress(OSError, CorruptDataError):
            return read_segment_epochs(self._path(name, name.log_name), name.base_offset).entries
        return ()  # the live file may still have them


def require_same(directory: str, before: object, after: object) -> None:
    """Return if both are equal.

    Raises:
        SegmentChangedError: they are not.
    """
    if before != after:
        raise SegmentChangedError(path=directory, reason="its segments were replaced while they were pinned")


def sealed_files(directory: str, end_offset: int) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and time of change of each .log that begins below ``end_offset``.

    Raises:
        SegmentChangedError: a cleaner is putting segments in their places.
        OSError: the directory cannot be read.
    """
    found: dict[str, tuple[int, int, int]] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".swap"):
                raise SegmentChangedError(path=directory, reason="the broker's cleaner is replacing segments")
            stem, _, kind = entry.name.partition(".")
            if kind == "log" and stem.isdecimal() and int(stem) < end_offset:
                status = entry.stat()
                found[entry.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def epochs_below_end(
    name: PinName, segment: LocalSegment, leader_epochs: Sequence[EpochEntry]
) -> tuple[EpochEntry, ...]:
    """Return the broker's entries below the segment's end, preceded by those that only the batches still have.

    Raises:
        SegmentChangedError: a deleted segment ends elsewhere than at its successor's base offset: one between them is gone.
    """
    live = Lineage.of(entry for entry in leader_epochs if entry.start_offset < name.next_base_offset)
    if not segment.file_suffix and live.epoch_for_offset(name.base_offset) is not None:
        return live.entries
    try:
        epochs = read_segment_epochs(segment.log_path, name.base_offset)
    except CorruptDataError:
        return live.entries  # the copy will say what is wrong with it
    if segment.file_suffix and epochs.next_offset != name.next_base_offset:
        reason = f"it ends at offset {epochs.next_offset}, and the next segment left begins at {name.next_base_offset}"
        raise SegmentChangedError(path=segment.log_path, reason=reason)
    return Lineage(epochs.entries).extended_by(live.entries).entries


def _sources(segment: LocalSegment, companion: str) -> tuple[str, ...]:
    """Return where a companion may be: of a deleted segment the producer snapshot is its successor's, and may still be live."""
    there = segment.path_of(companion)
    return (there,) if not segment.file_suffix else (there, there.removesuffix(segment.file_suffix))


def _are_different(ours: str, brokers: str) -> bool:
    """Return whether the broker has another file by now where the pinned one was."""
    try:
        return not os.path.samefile(ours, brokers)  # noqa: PTH121 - text paths
    except FileNotFoundError:
        return False
