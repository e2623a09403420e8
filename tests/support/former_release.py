"""The former release's sidecar, run from this repository's history: what it wrote is what an upgrade begins with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.daemon import Daemon

FORMER_RELEASE = "f9f3df1c"
"""The last commit before trash, leases and ownership (0.1.0)."""

NEW_KEYS = ("delete.delay", "user.delete.delay", "deletes.brokers.without.sidecar", "lease.duration.ms")
"""Keys of ``daemon_settings`` that the former release refuses."""

PROJECT = Path(__file__).resolve().parents[2]


def unpack_former_release(directory: Path) -> Path:
    """Write the former release's package below ``directory``; return where it can be run from.

    Raises:
        RuntimeError: the checkout has no history that reaches back so far.
    """
    directory.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(PROJECT), "archive", FORMER_RELEASE, "tiersidecar"], capture_output=True, check=False
    )
    if archive.returncode != 0:
        raise RuntimeError(
            f"commit {FORMER_RELEASE} cannot be read from this checkout, git says: {archive.stderr.decode().strip()}; "
            "a shallow clone needs `git fetch --unshallow`"
        )
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)
    return directory


class FormerDaemon(Daemon):
    """A sidecar of the former release with the directories and settings of ``successor``, but without the new keys."""

    def __init__(self, successor: Daemon, release: Path, *, failpoints: str = "") -> None:
        settings = {name: value for name, value in successor.settings.items() if name not in NEW_KEYS}
        super().__init__(successor.directory, settings, failpoints=failpoints)
        self.log_path = self.directory / "former.log"
        self._release = release

    @property
    def command(self) -> list[str]:
        """Return the command as the successor's; ``-m`` finds the package of the working directory first."""
        return [*self._here, *super().command]

    def run_command(self, *arguments: str) -> None:
        """Run a command line of the former release, with this sidecar's configuration.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        program = [*self._here, sys.executable, "-m", "tiersidecar", *arguments, "--config", str(self.config_path)]
        subprocess.run(program, check=True, capture_output=True, timeout=120)

    @property
    def _here(self) -> list[str]:
        return ["env", "-C", os.fspath(self._release)]
