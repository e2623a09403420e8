"""What is downloaded or built once per user: Spark's connector, and for tests the broker's jars and servers written in Go."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/tiersidecar`` (``~/.cache/tiersidecar``), created when missing."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiersidecar"
    root.mkdir(parents=True, exist_ok=True)
    return root


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The directory ``name`` in the cache, filled by ``build`` if it is not there yet.

    Two runs at once build it once: the second waits.  An interrupted build leaves no directory of that name.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    with _locked(cache_dir() / f".{name}.lock"):
        if not target.is_dir():
            _build_and_rename(target, build)
    return target


def _build_and_rename(target: Path, build: Callable[[Path], None]) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        build(scratch)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
