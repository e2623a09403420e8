"""A log dir of a real broker with two partitions' segments, to pin."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.golden import CLEAN_LOG_DIR
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import read_partition_directory
from tiersidecar.adapters.pins_fs.pin_directory import PinName
from tiersidecar.domain.segments import LocalPartition, LocalSegment, PinnedPartition


def copy_log_dir(directory: Path, names: Sequence[str] = ("plain-0", "transactions-0")) -> Path:
    """``plain-0`` (segments at 0, 35, 70, …) and ``transactions-0``, or one of them, with the log dir's own files."""
    log_dir = directory / "logs"
    log_dir.mkdir(parents=True)
    for name in ("meta.properties", "replication-offset-checkpoint"):
        shutil.copy(CLEAN_LOG_DIR / name, log_dir)
    for name in names:
        copy_partition(log_dir, name)
    return log_dir


def copy_partition(log_dir: Path, name: str) -> None:
    """Make the partition directory ``name``, of files that were never there before."""
    shutil.copytree(CLEAN_LOG_DIR / name, log_dir / name)


def read_partition(log_dir: Path, name: str = "plain-0") -> LocalPartition:
    topic, _, partition = name.rpartition("-")
    local = read_partition_directory(str(log_dir), str(log_dir / name), topic, int(partition))
    assert local is not None
    return local


def name_of(local: LocalPartition, segment: LocalSegment) -> PinName:
    assert segment.next_base_offset is not None
    return PinName(
        owner=PinnedPartition.of(local.topic_id_partition),
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
    )
