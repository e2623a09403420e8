"""Files that were fetched, against the SHA-256 sums that this repository has of them (``sha256sum``'s own format)."""

from __future__ import annotations

import hashlib
from pathlib import Path


def wrong_files(directory: Path, sums: Path, pattern: str = "*.jar") -> tuple[str, ...]:
    """What is wrong with the files of ``directory`` that match ``pattern``, a sentence each; none: they are those of ``sums``.

    ``sha256sum *.jar > FILE`` in a directory that is known to be good writes ``sums``.
    """
    expected = _read(sums)
    found = {path.name: path for path in directory.glob(pattern)}
    faults = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    faults += [f"{name} has no sum in {sums.name}" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        digest = _sha256(found[name])
        if digest != expected[name]:
            faults.append(f"{name} has the SHA-256 {digest}, and {sums.name} says {expected[name]}")
    return tuple(faults)


def _read(sums: Path) -> dict[str, str]:
    pairs = (line.split() for line in sums.read_text(encoding="ascii").splitlines() if line)
    return {name: digest for digest, name in pairs}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
