"""Pins on this machine's disks, for all log dirs of the broker (docs/design/0004-pins.md).

Where the pins of a log dir can lie: tried with a real link, the only proof.  Blocks; runs in threads.

Two mounts of one file system have one device number, and yet no link crosses them.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.pins_fs.pin_directory import PIN_PREFIX, PROBE_NAME, Link, PinDirectory, PinName, first_hole
from tiersidecar.domain.errors import CorruptDataError, PinError, SegmentChangedError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import (
    NO_LOG_END,
    LocalPartition,
    LocalSegment,
    Picture,
    PictureLook,
    Pin,
    PinnedPartition,
)
from tiersidecar.formats.kafka.log_dir_files import CLEANER_OFFSET_CHECKPOINT, META_PROPERTIES, read_offset_checkpoint
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.failpoints import NO_FAILPOINTS, BlockingFailpoints
from tiersidecar.ports.pins import DiskSpace, PinsView

PINS_SUFFIX = ".tiersidecar-pins"

_HINTS = {
    errno.EXDEV: "it is another mount, and hard links do not cross mounts",
    errno.EPERM: "fs.protected_hardlinks: only the owner of the broker's files may link them; run as the broker's user",
    errno.ENOSPC: "the disk is full",
}


def beside(log_dir: str) -> str:
    """Return the directory of ours next to ``log_dir``."""
    return f"{log_dir}{PINS_SUFFIX}"


def find_place(log_dir: str, log_dirs: Sequence[str], *, link: Link = os.link) -> str:
    """Return the directory in which new pins of ``log_dir`` are made: beside it, or the log dir itself.

    Raises:
        PinError: no link can be made in either; says why of both.
    """
    reasons = []
    for place in _places(log_dir, log_dirs):
        try:
            if place != log_dir:
                Path(place).mkdir(mode=0o700, exist_ok=True)
            _probe(log_dir, place, link)
        except (OSError, PinError) as error:
            reasons.append(error.reason if isinstance(error, PinError) else explain_link_error(error))
            if place != log_dir:
                with suppress(OSError):  # an empty one is of no use; one that holds pins stays
                    Path(place).rmdir()
        else:
            return place
    raise PinError(path=log_dir, reason="; ".join(reasons))


def explain_link_error(error: OSError) -> str:
    """Explain the error like :func:`explain_os_error`, and what it means for links."""
    hint = _HINTS.get(error.errno or 0)
    return explain_os_error(error) if hint is None else f"{explain_os_error(error).partition(' (')[0]} ({hint})"


def _places(log_dir: str, log_dirs: Sequence[str]) -> Iterator[str]:
    """Return the places in order of preference.  A directory of ours inside any log dir would keep a broker from starting."""
    parent = Path(log_dir).parent
    inside = any(parent.is_relative_to(other) for other in log_dirs)
    if not inside and not (parent / META_PROPERTIES).exists():
        yield beside(log_dir)
    yield log_dir


def _probe(log_dir: str, place: str, link: Link) -> None:
    """Link the log dir's own meta.properties, and take the link away.

    Raises:
        OSError: it cannot be linked.
        PinError: its link does not show that it is one.
    """
    probe = Path(place, PROBE_NAME)
    probe.unlink(missing_ok=True)
    link(f"{log_dir}/{META_PROPERTIES}", str(probe))
    inodes = {Path(log_dir, META_PROPERTIES).stat().st_ino, probe.stat().st_ino}
    probe.unlink()
    if len(inodes) > 1:  # some of FUSE: no pin could be told from one of another file
        raise PinError(path=place, reason="a hard link has another inode here than its file")


T = TypeVar("T")

_READ_AT_ONCE = 256
"""Pins read in one call of a thread: some milliseconds."""


class FilesystemPins:
    """``link`` is os.link; ``scan_timeout_s`` bounds the wait for one log dir, whose disk may hang."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        *,
        blocking: Blocking,
        link: Link = os.link,
        scan_timeout_s: float = 30.0,
        failpoints: BlockingFailpoints = NO_FAILPOINTS,
    ) -> None:
        self._log_dirs, self._failpoints = tuple(str(Path(log_dir)) for log_dir in log_dirs), failpoints
        self._blocking, self._link, self._scan_timeout_s = blocking, link, scan_timeout_s
        self._places: dict[str, PinDirectory] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[Any]] = {}

    async def prepare(self) -> Mapping[str, str]:
        """Find a place for each log dir that has none yet; return the log dirs without one, and why."""
        without: dict[str, str] = {}
        for log_dir in self._log_dirs:
            if log_dir in self._places:
                continue
            try:
                place = await self._blocking.run(partial(find_place, log_dir, self._log_dirs, link=self._link))
            except PinError as error:
                without[log_dir] = error.reason
            except OSError as error:
                without[log_dir] = explain_link_error(error)
            else:
                self._places[log_dir] = self._directory(place, log_dir)
        return without

    async def scan(self, *, sweep: bool) -> PinsView:
        """Read every pin in every log dir.  Both places of each log dir are read."""
        pins: list[Pin] = []
        faults: dict[str, str] = {}
        for log_dir in self._log_dirs:
            try:
                pins += await self._in_time("scan", log_dir, partial(self._scan_log_dir, log_dir, sweep=sweep))
            except PinError as error:
                faults[log_dir] = error.reason
        return PinsView(pins=tuple(pins), faults=faults)

    async def pin(self, local: LocalPartition, segment: LocalSegment) -> Pin:
        """Link the files of a sealed segment of ``local``."""
        directory = self._place_of(local)
        assert segment.next_base_offset is not None, "only sealed segments are pinned"
        name = PinName(
            owner=PinnedPartition.of(local.topic_id_partition),
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
        )
        try:
            return await self._blocking.run(directory.make, name, segment, local.leader_epochs)
        except FileNotFoundError as error:
            raise SegmentChangedError(path=segment.log_path, reason="it is gone") from error
        except OSError as error:
            raise PinError(path=directory.path, reason=explain_link_error(error)) from error

    async def take_picture(self, local: LocalPartition, segments: Sequence[LocalSegment]) -> Picture:
        """Link sealed segments of ``local``, as they are at one moment."""
        directory = self._place_of(local)
        owner = PinnedPartition.of(local.topic_id_partition)
        named = [
            (PinName(owner=owner, base_offset=one.base_offset, next_base_offset=one.next_base_offset), one)
            for one in segments
            if one.next_base_offset is not None
        ]
        try:
            pins = await self._blocking.run(directory.make_picture, local.directory, named, local.leader_epochs)
            cleaner_offset = await self._blocking.run(_cleaner_offset, local)
        except FileNotFoundError as error:
            raise SegmentChangedError(path=local.directory, reason="a segment of it is gone") from error
        except OSError as error:
            raise PinError(path=directory.path, reason=explain_link_error(error)) from error
        return Picture(pins=pins, cleaner_offset=cleaner_offset)

    async def first_hole(self, pins: Sequence[Pin], start: Offset, stop: int) -> Offset | None:
        """Return the first offset that should be there and is not."""
        try:
            return await self._blocking.run(first_hole, [pin.segment for pin in pins], start, stop)
        except CorruptDataError:
            return None
        except OSError as error:
            raise PinError(path=pins[0].log_dir, reason=explain_os_error(error)) from error

    async def hold_all(self, pins: Sequence[Pin], start: Offset, stop: Offset) -> bool:
        """Return whether they have each offset from ``start`` on and below ``stop``."""
        try:
            return await self._blocking.run(first_hole, [pin.segment for pin in pins], start, stop) is None
        except CorruptDataError:
            return False
        except OSError as error:
            raise PinError(path=pins[0].log_dir, reason=explain_os_error(error)) from error

    async def cleaner_offset(self, local: LocalPartition) -> int | None:
        """Return up to where the broker's cleaner has cleaned; -1 where it was never there, None where that is not known."""
        try:
            return await self._blocking.run(_cleaner_offset, local)
        except OSError:
            return None

    async def first_cleaned(self, segment: LocalSegment, start: Offset, stop: Offset) -> Offset | None:
        """Return the first offset from ``start`` on and below ``stop`` where a cleaner was; ``start`` if that is not known."""
        try:
            return await self._blocking.run(partial(first_hole, [segment], start, stop, horizons=True))
        except (CorruptDataError, OSError):
            return start

    async def last_look(self, local: LocalPartition) -> PictureLook | None:
        """Return the last look given to :meth:`note_look`; None where there is none."""
        return await self._blocking.run(_read_look, self._look_path(local))

    async def note_look(self, local: LocalPartition, look: PictureLook) -> None:
        """Keep the look beside the pins, for this process and the next, if no segment was sealed since ``local`` was seen."""
        path = self._look_path(local)
        try:
            await self._blocking.run(_write_look, path, local, look)
        except OSError as error:
            raise PinError(path=str(path), reason=explain_os_error(error)) from error

    async def forget_look(self, local: LocalPartition) -> None:
        """Forget the last look."""
        path = self._look_path(local)
        try:
            await self._blocking.run(partial(path.unlink, missing_ok=True))
        except OSError as error:
            raise PinError(path=str(path), reason=explain_os_error(error)) from error

    def _look_path(self, local: LocalPartition) -> Path:
        owner = PinnedPartition.of(local.topic_id_partition)
        name = f"{PIN_PREFIX}{format_uuid(owner.topic_id)}.{owner.partition}.look"
        return Path(self._place_of(local).path, name)

    def _place_of(self, local: LocalPartition) -> PinDirectory:
        directory = self._places.get(local.log_dir)
        if directory is None:
            raise PinError(path=local.log_dir, reason="no place has been found for its pins")
        return directory

    async def unpin(self, pin: Pin) -> None:
        """Remove the pin's links; those that are gone already are no error."""
        directory = self._directory(pin.segment.directory, pin.log_dir)
        name = PinName(owner=pin.owner, base_offset=pin.base_offset, next_base_offset=pin.next_base_offset)
        try:
            await self._blocking.run(directory.remove, name)
        except OSError as error:
            raise PinError(path=directory.path, reason=explain_link_error(error)) from error

    async def disk_spaces(self) -> Mapping[str, DiskSpace]:
        """Return the space by log dir, without log dirs whose space is not known."""
        spaces: dict[str, DiskSpace] = {}
        for log_dir in self._log_dirs:
            with suppress(PinError):  # its scan says what is wrong with it
                measure = partial(self._blocking.run, _disk_space, log_dir)
                spaces[log_dir] = await self._in_time("measure", log_dir, measure)
        return spaces

    async def without_other_names(self, pins: Sequence[Pin]) -> Sequence[Pin]:
        """Return those of which the .log has no name but ours: a pin keeps its bytes alone."""
        by_log_dir: dict[str, list[Pin]] = {}
        for pin in pins:
            by_log_dir.setdefault(pin.log_dir, []).append(pin)
        found: list[Pin] = []
        for log_dir, own in by_log_dir.items():
            with suppress(PinError):
                look = partial(self._blocking.run, _without_other_names, own)
                found += await self._in_time("look at", log_dir, look)
        return found

    def _directory(self, place: str, log_dir: str) -> PinDirectory:
        return PinDirectory(place, log_dir=log_dir, link=self._link, failpoints=self._failpoints)

    async def _in_time(self, what: str, log_dir: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask a disk that may hang: what does not answer in time is left running, and not asked a second time meanwhile.

        Raises:
            PinError: no answer, or an error of the system.
        """
        key = (what, log_dir)
        asking: asyncio.Task[T] | None = self._asked.get(key)
        if asking is None:
            asking = self._asked[key] = asyncio.create_task(ask(), name=f"{what} pins of {log_dir}")
        done, _ = await asyncio.wait([asking], timeout=self._scan_timeout_s)
        if not done:
            raise PinError(path=log_dir, reason=f"it has not answered for {self._scan_timeout_s:g} s: its disk hangs")
        if key in self._asked and self._asked[key] is asking:  # of several that waited the first takes it away
            del self._asked[key]
        try:
            return asking.result()
        except OSError as error:
            raise PinError(path=log_dir, reason=explain_link_error(error)) from error

    async def _scan_log_dir(self, log_dir: str, *, sweep: bool) -> list[Pin]:
        pins: list[Pin] = []
        for place in (beside(log_dir), log_dir):
            directory = self._directory(place, log_dir)
            listing = await self._blocking.run(directory.list_names)
            for start in range(0, len(listing.whole), _READ_AT_ONCE):
                pins += await self._blocking.run(directory.read, listing.whole[start : start + _READ_AT_ONCE])
            for name in listing.partial if sweep else ():
                await self._blocking.run(directory.remove, name)
            for name in listing.replaced if sweep else ():
                await self._blocking.run(directory.forget_replacement, name)
        return pins


def _without_other_names(pins: Sequence[Pin]) -> list[Pin]:
    found = []
    for pin in pins:
        with suppress(FileNotFoundError):  # it was let go meanwhile
            if os.stat(pin.segment.log_path).st_nlink == 1:  # noqa: PTH116 - a text path
                found.append(pin)
    return found


def _cleaner_offset(local: LocalPartition) -> int | None:
    """Return the broker's own, as its checkpoint says; -1 where it has none of the partition."""
    path = Path(local.log_dir, CLEANER_OFFSET_CHECKPOINT)
    try:
        found = read_offset_checkpoint(path.read_bytes(), where=str(path))
    except FileNotFoundError:
        return -1
    except CorruptDataError:
        return None
    return found.get((local.topic_id_partition.topic, local.topic_id_partition.partition), -1)


def _read_look(path: Path) -> PictureLook | None:
    try:
        end_offset, at_ms, *more = map(int, path.read_text().split())
    except (OSError, ValueError):
        return None
    retention_ms = more[0] if more else NO_LOG_END  # earlier releases have not written it
    return PictureLook(end_offset=Offset(end_offset), at_ms=at_ms, delete_retention_ms=retention_ms)


def _write_look(path: Path, local: LocalPartition, look: PictureLook) -> None:
    logs = Path(local.directory).glob("*.log")
    if max(int(one.stem) for one in logs if one.stem.isdecimal()) != local.segments[-1].base_offset:
        return  # another segment was sealed meanwhile
    new = path.with_suffix(".look-new")
    new.write_text(f"{look.end_offset} {look.at_ms} {look.delete_retention_ms}\n")
    new.replace(path)


def _disk_space(log_dir: str) -> DiskSpace:
    figures = os.statvfs(log_dir)
    return DiskSpace(
        device=os.stat(log_dir).st_dev,  # noqa: PTH116 - a text path
        size_bytes=figures.f_blocks * figures.f_frsize,
        free_bytes=figures.f_bavail * figures.f_frsize,
    )
