"""The least that anybody would do by hand: cp with fsync, and a library between two files."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.support.log_dir import LogDir
from tiersidecar.formats.aiven.layout import new_segment_encryption
from tiersidecar.formats.aiven.transforms import IV_SIZE, TransformPlan
from tiersidecar.tasks.segment_objects import LayoutSettings


async def copy_by_cp(log_dir: LogDir, target: Path) -> None:
    """``cp`` of each file and an fsync of the copy, the files of a partition one after the other."""
    target.mkdir()
    with ThreadPoolExecutor(len(log_dir.segments)) as pool:
        await asyncio.gather(*(_in(pool, _cp_each, paths, target) for paths in log_dir.segments))


def _cp_each(paths: Iterable[Path], target: Path) -> None:
    for path in paths:
        copy = target / f"{path.parent.name}-{path.name}"
        subprocess.run(["cp", path, copy], check=True)
        _sync(copy)


async def transform_by_library(log_dir: LogDir, settings: LayoutSettings, target: Path, *, threads: int) -> None:
    """Each chunk of each file through the library into another file, which is synced; nothing is checked or described."""
    target.mkdir()
    with ThreadPoolExecutor(threads) as pool:
        await asyncio.gather(*(_in(pool, _transform_file, path, settings, target) for path in log_dir.files))


def _transform_file(path: Path, settings: LayoutSettings, target: Path) -> None:
    cipher = None
    if settings.key_ring is not None:
        cipher = new_segment_encryption(settings.key_ring, os.urandom).cipher
    plan = TransformPlan(chunk_size=settings.chunk_size, compression=settings.compression, cipher=cipher)
    copy = target / f"{path.parent.name}-{path.name}"
    with path.open("rb", buffering=0) as source, copy.open("wb", buffering=0) as out:
        while chunk := source.read(settings.chunk_size):
            out.write(plan.transform(chunk, os.urandom(IV_SIZE)))
    _sync(copy)


def _sync(path: Path) -> None:
    fileno = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fileno)
    finally:
        os.close(fileno)


async def _in(pool: ThreadPoolExecutor, function: object, *arguments: object) -> None:
    await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)  # type: ignore[arg-type]
