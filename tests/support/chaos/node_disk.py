"""A disk of a node's own that can be filled up: a small tmpfs, or where mounting is not allowed, a limit on file sizes."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_BALLAST = "ballast"


class NodeDisk:
    """``directory`` is a tmpfs of ``size_bytes``, or only a directory when ``is_mount`` is false."""

    def __init__(self, directory: Path, *, is_mount: bool) -> None:
        self.directory, self.is_mount = directory, is_mount

    @contextmanager
    def full(self, process_ids: list[int]) -> Iterator[None]:
        """Fill the disk: not one byte more can be written until the end of the block: ENOSPC, or without a mount EFBIG in
        ``process_ids``."""
        if self.is_mount:
            with self._filled():
                yield
            return
        with ExitStack() as limits:
            for process_id in process_ids:
                limits.enter_context(_refused_writes(process_id))
            yield

    @contextmanager
    def _filled(self) -> Iterator[None]:
        ballast = self.directory / _BALLAST
        try:
            with ballast.open("wb") as file:
                while _took(file.fileno(), 1 << 20) or _took(file.fileno(), 4096):
                    pass
            yield
        finally:
            ballast.unlink()


@contextmanager
def node_disk(directory: Path, size_bytes: int) -> Iterator[NodeDisk]:
    """Mounted at ``directory`` for as long as the block lasts, if this user may mount."""
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    try:
        is_mount = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mount = False
    try:
        yield NodeDisk(directory, is_mount=is_mount)
    finally:
        if is_mount:
            # Lazily: a process that was killed a moment ago may still be there.
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _took(descriptor: int, size_bytes: int) -> bool:
    try:
        return os.write(descriptor, bytes(size_bytes)) > 0
    except OSError:
        return False


@contextmanager
def _refused_writes(process_id: int) -> Iterator[None]:
    try:
        soft, hard = resource.prlimit(process_id, resource.RLIMIT_FSIZE)
        resource.prlimit(process_id, resource.RLIMIT_FSIZE, (0, hard))
    except ProcessLookupError:
        yield
        return
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it ended by it
            resource.prlimit(process_id, resource.RLIMIT_FSIZE, (soft, hard))
