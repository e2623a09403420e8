"""What may go wrong with a directory that is a store, drawn from a seed: the volume, the disk, the process, other programs.

All of it by any user.  A file system that hangs or answers EIO is not among it: that takes a kernel module or FUSE.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.chaos.node_disk import NodeDisk
from tests.support.daemon import Daemon
from tests.support.remote_events import object_keys_in

_TURN_S = 0.005
_TEMPORARY = ".tiersidecar-tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A daemon whose store is a directory on ``disk``."""

    disk: NodeDisk
    daemon: Daemon

    @property
    def root(self) -> Path:
        return self.daemon.store_root

    def half_written(self) -> set[str]:
        """Names of files that are no objects yet, or never become one."""
        directory = self.root / _TEMPORARY
        return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTrouble:
    """``strike`` is entered at its begin and left at its end; what it gives is called again and again in between.
    ``leaves_halves``: whoever wrote a file cannot remove it any more."""

    name: str
    seconds: float
    strike: Callable[[Site], AbstractContextManager[Callable[[], None]]]
    leaves_halves: bool = False

    def befall(self, site: Site) -> None:
        """From its begin to its end."""
        with self.strike(site) as go_on:
            until_s = time.monotonic() + self.seconds
            while time.monotonic() < until_s:
                assert site.daemon.is_running, site.daemon.log_tail()
                go_on()
                time.sleep(_TURN_S)


DrawFilesTrouble = Callable[[random.Random], FilesTrouble]


def draw_files_troubles(draw: random.Random, count: int) -> list[FilesTrouble]:
    """``count`` troubles; the same draws give the same ones."""
    return [draw.choice(_KINDS)(draw) for _ in range(count)]


def _nothing() -> None:
    """No more than was done at the begin."""


def _unmounted(draw: random.Random) -> FilesTrouble:
    @contextmanager
    def strike(site: Site) -> Iterator[Callable[[], None]]:
        aside = site.root.rename(site.root.with_name("aside"))
        yield _nothing
        aside.rename(site.root)

    seconds = draw.uniform(0.3, 2.5)
    return FilesTrouble(name="the root is gone", seconds=seconds, strike=strike, leaves_halves=True)


def _file_in_its_place(draw: random.Random) -> FilesTrouble:
    @contextmanager
    def strike(site: Site) -> Iterator[Callable[[], None]]:
        aside = site.root.rename(site.root.with_name("aside"))
        site.root.write_bytes(b"")
        yield _nothing
        site.root.unlink()
        aside.rename(site.root)

    seconds = draw.uniform(0.3, 2.5)
    return FilesTrouble(name="the root is a file", seconds=seconds, strike=strike, leaves_halves=True)


def _full(draw: random.Random) -> FilesTrouble:
    @contextmanager
    def strike(site: Site) -> Iterator[Callable[[], None]]:
        with site.disk.full([site.daemon.pid]):
            yield _nothing

    return FilesTrouble(name="the disk is full", seconds=draw.uniform(0.5, 2.5), strike=strike)


def _killed(draw: random.Random) -> FilesTrouble:
    after_s = draw.uniform(0.0, 1.0)

    @contextmanager
    def strike(site: Site) -> Iterator[Callable[[], None]]:
        time.sleep(after_s)
        site.daemon.kill9()
        site.daemon.start()
        yield _nothing

    name = f"killed after {after_s:.2f} s"
    return FilesTrouble(name=name, seconds=draw.uniform(0.0, 2.0), strike=strike, leaves_halves=True)


def _swept(draw: random.Random) -> FilesTrouble:
    """Another program takes what is not an object yet for rubbish."""

    @contextmanager
    def strike(site: Site) -> Iterator[Callable[[], None]]:
        def sweep() -> None:
            for name in site.half_written():
                with suppress(OSError):
                    (site.root / _TEMPORARY / name).unlink()
            with suppress(OSError):
                (site.root / _TEMPORARY).rmdir()

        yield sweep

    return FilesTrouble(name="temporary files are swept", seconds=draw.uniform(0.5, 2.0), strike=strike)


def _spoiled(draw: random.Random) -> FilesTrouble:
    """New objects hold something else for a while; what they were is there again at the end, where they still are."""
    how, spoil = draw.choice(_SPOILINGS)
    suffix = draw.choice([".log", ".indexes", ".rsm-manifest", ""])

    @contextmanager
    def strike(site: Site) -> Iterator[Callable[[], None]]:
        known = object_keys_in(site.root)
        with ExitStack() as mended:

            def spoil_new_ones() -> None:
                for key in object_keys_in(site.root) - known:
                    known.add(key)
                    # One that the daemon deletes this moment is no loss.
                    with suppress(FileNotFoundError):
                        if key.endswith(suffix):
                            mended.enter_context(_other_content(site.root / key, spoil))

            yield spoil_new_ones

    name = f"new objects{f' ({suffix})' if suffix else ''} are {how}"
    return FilesTrouble(name=name, seconds=draw.uniform(0.5, 2.0), strike=strike)


@contextmanager
def _other_content(path: Path, spoil: Callable[[bytes], bytes]) -> Iterator[None]:
    # By one descriptor: what was deleted meanwhile does not come back.
    with path.open("r+b", buffering=0) as file:
        before = os.pread(file.fileno(), path.stat().st_size, 0)
        _write(file.fileno(), spoil(before))
        try:
            yield
        finally:
            _write(file.fileno(), before)


def _write(fileno: int, data: bytes) -> None:
    os.ftruncate(fileno, len(data))
    os.pwrite(fileno, data, 0)


def _with_another_byte(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 1]) + data[middle + 1 :]


_SPOILINGS: Sequence[tuple[str, Callable[[bytes], bytes]]] = (
    ("cut in the middle", lambda data: data[: len(data) // 2]),
    ("empty", lambda data: b""),
    ("of another byte", _with_another_byte),
)
_KINDS: tuple[DrawFilesTrouble, ...] = (_unmounted, _file_in_its_place, *[_full] * 2, _killed, _swept, *[_spoiled] * 2)
