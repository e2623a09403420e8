"""Unpack a Debian package as a user without rights: with our own package lists, since only root may refresh the others."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.support.build_cache import require_program

_TIMEOUT_S = 120


def unpack_debian(package: str, directory: Path) -> None:
    """Download ``package`` by apt, which checks its signature, and unpack it into ``directory``.

    Raises:
        MissingProgramError: this is no Debian.
        RuntimeError: apt cannot have it; the message ends with what apt said.
    """
    apt = require_program("apt-get", debian="apt", rpm="(none: the program is built from source)")
    dpkg = require_program("dpkg", debian="dpkg", rpm="(none: the program is built from source)")
    with tempfile.TemporaryDirectory(prefix="tiersidecar-apt-") as name:
        scratch = Path(name)
        (scratch / "lists" / "partial").mkdir(parents=True)
        (scratch / "archives" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch}"]
        # apt's own download user may not enter a private directory.
        own += ["-o", "APT::Sandbox::User="] if _is_root() else []
        _run([apt, *own, "update"], scratch)
        _run([apt, *own, "download", package], scratch)
        for archive in scratch.glob("*.deb"):
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
