"""A directory for files with records, for as long as a command runs: what a killed one left goes when the next one begins."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from types import FrameType
from typing import NoReturn

COMPACT_PREFIX = "tiersidecar-compact-"
"""Of the command's directory, and of those of its tasks on Spark."""


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
    with ExitStack() as stack:
        made = _made(place, prefix, stack)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """While the body runs, SIGTERM and SIGHUP end it as an error would, with all that it has opened: otherwise they end the
    process where it stands.  In the main thread alone, where signals are handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    taken = [one for one, handler in former.items() if handler is signal.SIG_DFL]
    for one in taken:
        signal.signal(one, _end)
    try:
        yield
    finally:
        for one, handler in former.items():
            if handler is not None:
                signal.signal(one, handler)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)  # a second one would leave what the first has begun to remove
    raise SystemExit(128 + number)


def _made(place: Path, prefix: str, stack: ExitStack) -> Path:
    """Make a directory, and hold its lock for as long as ``stack`` lasts."""
    while True:
        made = Path(mkdtemp(prefix=prefix, dir=place))
        with ExitStack() as attempt, suppress(BlockingIOError, FileNotFoundError):
            attempt.enter_context(_locked(made))
            if made.is_dir():
                stack.push(attempt.pop_all())
                return made
        # Before it was locked, another process that begins has taken it for one that was left.


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
