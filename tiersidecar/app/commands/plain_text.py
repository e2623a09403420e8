"""A directory for a command's files with records, which goes however the command is asked to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir

import typer
from rich.console import Console

from tiersidecar.app.commands.complaints import complain
from tiersidecar.app.scratch import open_scratch
from tiersidecar.domain.errors import StateDirError

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Sent by a service manager, and by a terminal that is closed.  Otherwise they would end the process where it stands: its files
stay until the next run, and its lease for a minute."""


@contextmanager
def scratch_of_command(parent: Path | None, prefix: str, console: Console) -> Iterator[Path]:
    """Give a new directory (:func:`open_scratch`); while the body runs, SIGTERM and SIGHUP end it as Ctrl-C does.

    Raises:
        typer.Exit: it cannot be made.
    """
    with ExitStack() as stack:
        stack.enter_context(_ended_as_by_ctrl_c())
        try:
            directory = stack.enter_context(open_scratch(parent, prefix))
        except OSError as error:
            path = str(gettempdir() if parent is None else parent)
            reason = error.strerror or str(error)
            raise typer.Exit(complain(StateDirError(path=path, reason=reason), console)) from None
        stack.callback(_ignore_all)  # who asks again while the files go would have them left
        yield directory


def _ignore_all() -> None:
    for one in (*_ENDING, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)


def _interrupt(_number: int, _frame: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Those that are ignored, as under ``nohup``, stay ignored."""
    former = {one: signal.getsignal(one) for one in (*_ENDING, signal.SIGINT)}
    taken = [one for one in _ENDING if former[one] is signal.SIG_DFL]
    for one in taken:
        signal.signal(one, _interrupt)
    try:
        yield
    finally:
        for one, handler in former.items():
            if handler is not None:  # by a library in C: it cannot be put back
                signal.signal(one, handler)
