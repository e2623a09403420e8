"""Files that are downloaded or built once per user: the broker's jars, servers written in Go."""

from __future__ import annotations

import shutil

from tiersidecar.spark.jars import build_once, cache_dir

__all__ = ["MissingProgramError", "build_once", "cache_dir", "require_program"]


class MissingProgramError(RuntimeError):
    """A program of the machine that we cannot bring ourselves; the message names its package."""


def require_program(name: str, *, debian: str, rpm: str) -> str:
    """Return the path of ``name``.

    Raises:
        MissingProgramError: it is not on PATH.
    """
    path = shutil.which(name)
    if path is None:
        raise MissingProgramError(f"{name} is not installed: apt install {debian} (Debian), dnf install {rpm} (RPM)")
    return path
