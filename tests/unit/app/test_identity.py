"""Who we are is waited for: a sidecar may start before its broker has ever run."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tiersidecar.adapters.log_dirs_fs.log_dirs import FilesystemLogDirs
from tiersidecar.app.identity import identity_of, patiently
from tiersidecar.domain.errors import BrokerUnreachableError, LogDirError

META_PROPERTIES = "version=1\ncluster.id=dGllcnNpZGVjYXItdGVzdA\nnode.id=3\ndirectory.id=ldlWAnQgGypqhN_XSdNg2g\n"


async def test_a_log_dir_that_no_broker_has_formatted_yet_is_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    log_dirs = FilesystemLogDirs([str(tmp_path)], blocking=InlineBlocking(), clock=clock)
    asked = asyncio.create_task(patiently(log_dirs.identities, clock))
    await clock.advance(60)
    assert not asked.done()
    (tmp_path / "meta.properties").write_text(META_PROPERTIES)
    await clock.advance(10)
    assert identity_of(await asked).broker_id == 3


async def test_a_log_dir_that_is_not_there_is_a_mistake_that_waiting_does_not_mend(tmp_path: Path) -> None:
    clock = ManualClock()
    log_dirs = FilesystemLogDirs([str(tmp_path / "dta")], blocking=InlineBlocking(), clock=clock)
    with pytest.raises(LogDirError, match="dta"):
        await patiently(log_dirs.identities, clock)


async def test_a_broker_that_is_away_is_asked_again_at_least_every_ten_seconds() -> None:
    clock, asked = ManualClock(), list[float]()

    async def ask() -> str:
        asked.append(clock.monotonic_s())
        if len(asked) < 9:
            raise BrokerUnreachableError(address="kafka:9092", reason="connection refused")
        return "here"

    answer = asyncio.create_task(patiently(ask, clock))
    await clock.advance(120)
    assert await answer == "here"
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
