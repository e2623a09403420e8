"""Unpack a Debian package as a user without rights: with our own package lists, since only root may refresh the others."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.build_cache import require_program

_TIMEOUT_S = 300


def unpack_debian(package: str, directory: Path) -> None:
    """Download ``package`` by apt, which checks its signature, and unpack it into ``directory``.

    Raises:
        MissingProgramError: this is no Debian.
        RuntimeError: apt cannot have it; the message ends with what apt said.
    """
    with _own_apt() as (apt, scratch):
        _run([*apt, "download", package], scratch)
        _unpack(scratch, scratch, directory)


def unpack_debian_with_needs(packages: Sequence[str], directory: Path) -> None:
    """The same of ``packages``, with all that they need and this machine has not installed; raises likewise.

    Their libraries then have to be looked for in ``directory``, too.
    """
    with _own_apt() as (apt, scratch):
        # Nothing is installed, so apt's lock, which is root's, guards nothing here.
        options = ["-o", "Debug::NoLocking=1", "-o", "APT::Install-Recommends=false", "--yes", "--download-only"]
        _run([*apt, *options, "install", *packages], scratch)
        _unpack(scratch / "archives", scratch, directory)


@contextmanager
def _own_apt() -> Iterator[tuple[list[str], Path]]:
    """apt-get with fresh lists of its own, and the directory in which it leaves what it downloads."""
    apt = require_program("apt-get", debian="apt", rpm="(none: the program is built from source)")
    with tempfile.TemporaryDirectory(prefix="tiersidecar-apt-") as name:
        scratch = Path(name)
        (scratch / "lists" / "partial").mkdir(parents=True)
        (scratch / "archives" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch}"]
        # apt's own download user may not enter a private directory.
        own += ["-o", "APT::Sandbox::User="] if _is_root() else []
        _run([apt, *own, "update"], scratch)
        yield [apt, *own], scratch


def _unpack(archives: Path, scratch: Path, directory: Path) -> None:
    dpkg = require_program("dpkg", debian="dpkg", rpm="(none: the program is built from source)")
    for archive in archives.glob("*.deb"):
        _run([dpkg, "-x", str(archive), str(directory)], scratch)


def _is_root() -> bool:
    return os.geteuid() == 0


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{' '.join(command[-2:])}: not within {_TIMEOUT_S} s") from late
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[-2:])}: {done.stderr[-500:]}")
