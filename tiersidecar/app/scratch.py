"""A directory for files with records, for as long as a command runs: what a killed one left goes when the next one begins."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir, mkdtemp


@contextmanager
def open_scratch(parent: Path | None, prefix: str) -> Iterator[Path]:
    """Give a new directory in ``parent``, else in the system's for such files, that goes with the body.

    It is locked until then, and the kernel ends the lock with the process: so the unlocked ones with ``prefix``
    were left by a process that was killed, and are removed first.

    Raises:
        OSError: it cannot be made.
    """
    place = Path(gettempdir()) if parent is None else parent
    _sweep(place, prefix)
    made = Path(mkdtemp(prefix=prefix, dir=place))
    try:
        with _locked(made):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _sweep(place: Path, prefix: str) -> None:
    for found in place.glob(f"{prefix}*"):
        try:
            if found.is_symlink() or not found.is_dir() or found.stat().st_uid != os.getuid():
                continue
            with _locked(found):
                shutil.rmtree(found, ignore_errors=True)
        except OSError:  # another process has it, or has just removed it
            continue


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock it; raise BlockingIOError where another process has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
