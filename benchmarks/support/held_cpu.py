"""Processes that get a part of a core: a control group with a quota, of version 1 or 2, whichever this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_US = 20_000
"""Short against a window of seconds, and long against the scheduler's slice of 5 ms."""


@contextmanager
def held_to(pid: int, cores: float) -> Iterator[None]:
    """Hold a process, all its threads, to ``cores`` until left.

    Raises:
        SystemExit: this machine has no such control group, or not for us.
    """
    quota_us = round(cores * _PERIOD_US)
    try:
        if (_V1 / "cpu.cfs_quota_us").exists():
            group = _made(_V1 / f"tiersidecar-{pid}")
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            root = _V1
        else:
            (_V2 / "cgroup.subtree_control").write_text("+cpu")
            group = _made(_V2 / f"tiersidecar-{pid}")
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
            root = _V2
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise SystemExit(f"a process cannot be held to a part of a core here: {error}") from error
    try:
        yield
    finally:
        if Path(f"/proc/{pid}").exists():
            (root / "cgroup.procs").write_text(str(pid))
        os.rmdir(group)  # noqa: PTH106  a control group is no directory for pathlib to clear


def _made(group: Path) -> Path:
    group.mkdir(exist_ok=True)
    return group
