"""Install a program written for Node into the user's cache, once, and print its path: ``scripts/node_tool.py azurite``."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.support.build_cache import MissingProgramError, build_once, require_program  # noqa: E402

_TIMEOUT_S = 600
_LOCKED = ("package.json", "package-lock.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePackages:
    """``directory`` has in package.json what is wanted, and in package-lock.json the sum of every package that it takes.

    ``main`` is the program, relative to ``node_modules``.
    """

    directory: Path
    main: str


NODE_PROGRAMS = {
    "azurite": NodePackages(
        directory=REPOSITORY / "tests" / "support" / "azurite", main="azurite/dist/src/blob/main.js"
    ),
}


def node_program(name: str) -> Path:
    """Return the path of the program's main file, which takes half a minute the first time.

    Raises:
        MissingProgramError: npm is needed and not there.
        RuntimeError: it could not be installed; the message ends with what npm said.
    """
    packages = NODE_PROGRAMS[name]
    installed = build_once(f"{name}-{_fingerprint(packages)}", lambda directory: _install(packages, directory))
    return installed / "node_modules" / packages.main


def _install(packages: NodePackages, directory: Path) -> None:
    npm = require_program("npm", debian="npm", rpm="npm")
    for name in _LOCKED:
        shutil.copy(packages.directory / name, directory / name)
    # `ci` takes what the lock file says and compares each sum; no package runs a script of its own.
    command = [npm, "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"]
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
        raise RuntimeError(f"{packages.main}: npm was not done within {_TIMEOUT_S} s") from late
    if done.returncode != 0:
        raise RuntimeError(f"{packages.main} could not be installed:\n{done.stderr[-2000:]}")


def _fingerprint(packages: NodePackages) -> str:
    found = hashlib.sha256()
    for name in _LOCKED:
        found.update((packages.directory / name).read_bytes())
    return found.hexdigest()[:12]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in NODE_PROGRAMS:
        print(f"usage: node_tool.py {'|'.join(NODE_PROGRAMS)}", file=sys.stderr)
        return 2
    try:
        print(node_program(arguments[0]))
    except (MissingProgramError, RuntimeError) as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
