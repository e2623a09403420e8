"""A reload puts rates into force, tells what must wait, and a file with a fault changes nothing (U14)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock, settle
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.keys import keys_in
from tiersidecar.app.config.services import ReadSection
from tiersidecar.app.config.store import FilesystemStore
from tiersidecar.app.supervise import Reloader, changed_keys, reloading_on_hangup
from tiersidecar.app.tuning import RELOADABLE, Tuning, initial_tuning
from tiersidecar.decide.quota import UNLIMITED_BYTES_PER_S
from tiersidecar.tasks.copy_admission import LIVE

MIB = 1024 * 1024
RATES = """\
  upload.rate.limit.bytes.per.second: 20MiB
remote.log.manager.copy.max.bytes.per.second: 40MiB
remote.log.manager.copier.thread.pool.size: 4
copy.backfill.max.bytes.per.second: 30MiB
remote.log.manager.fetch.max.bytes.per.second: 60MiB
read: {store.requests.per.minute: 120}
remote.log.index.file.cache.total.size.bytes: 70MiB
"""


@pytest.fixture
def least(tmp_path: Path) -> Config:
    return load(tmp_path, LEAST)


@pytest.fixture
def tuning(least: Config) -> Tuning:
    return initial_tuning(least, ManualClock())


def reload(config: Config, tuning: Tuning, directory: Path, text: str) -> list[structlog.typing.EventDict]:
    with capture_logs() as logs:
        Reloader(config, tuning, lambda: load(directory, text)).reload()
    return list(logs)


def rates(tuning: Tuning) -> tuple[float | None, ...]:
    return tuning.upload_pace.bytes_per_s, tuning.copy_quota.bytes_per_s, tuning.fetch_quota.bytes_per_s


def test_rates_come_into_force(least: Config, tuning: Tuning, tmp_path: Path) -> None:
    assert rates(tuning) == (None, UNLIMITED_BYTES_PER_S, UNLIMITED_BYTES_PER_S)
    [told] = reload(least, tuning, tmp_path, LEAST + RATES)
    assert rates(tuning) == (20 * 2**20, 40 * 2**20, 60 * 2**20)
    assert tuning.store_requests.bytes_per_s == 2
    assert tuning.backfill_quota.bytes_per_s == 30 * 2**20
    assert tuning.index_cache.max_bytes == 70 * 2**20
    assert set(told["applied"]) == RELOADABLE


async def test_a_larger_pool_of_copiers_lets_those_in_that_wait(least: Config, tuning: Tuning, tmp_path: Path) -> None:
    """S-174: a reload is enough, and nobody who waits has to be told."""
    reload(least, tuning, tmp_path, LEAST + "remote.log.manager.copier.thread.pool.size: 1\n")
    assert tuning.copy_slots.size == 1
    inside = list[int]()

    async def copy(number: int) -> None:
        async with tuning.copy_slots.taking(LIVE):
            inside.append(number)
            await asyncio.Event().wait()

    copies = [asyncio.create_task(copy(number)) for number in range(4)]
    await settle()
    assert inside == [0]
    reload(least, tuning, tmp_path, LEAST + "remote.log.manager.copier.thread.pool.size: 3\n")
    await settle()
    assert inside == [0, 1, 2]
    for one in copies:
        one.cancel()
    await asyncio.gather(*copies, return_exceptions=True)


@pytest.mark.parametrize(
    ("quota", "limit", "paced"),
    [
        pytest.param(None, None, None, id="neither: as fast as it goes"),
        pytest.param("40MiB", None, 40 * MIB, id="a segment that the quota lets in does not go as one burst"),
        pytest.param("40MiB", "20MiB", 20 * MIB, id="the limit of uploads is the lower one"),
        pytest.param("40MiB", "60MiB", 40 * MIB, id="the limit of uploads is above the quota"),
        pytest.param("100KiB", None, MIB, id="no upload crawls: the quota holds between segments"),
    ],
)
def test_uploads_keep_to_the_copy_quota(
    tmp_path: Path, quota: str | None, limit: str | None, paced: int | None
) -> None:
    """U14: quotas of whole segments let 50 MB/s through where 10 MB/s were set."""
    text = LEAST + (f"  upload.rate.limit.bytes.per.second: {limit}\n" if limit else "")
    text += f"remote.log.manager.copy.max.bytes.per.second: {quota}\n" if quota else ""
    assert initial_tuning(load(tmp_path, text), ManualClock()).upload_pace.bytes_per_s == paced


def test_taking_a_rate_out_of_the_file_lifts_it(tuning: Tuning, tmp_path: Path) -> None:
    limited = load(tmp_path, LEAST + RATES)
    tuning.apply(limited)
    reload(limited, tuning, tmp_path, LEAST)
    assert rates(tuning) == (None, UNLIMITED_BYTES_PER_S, UNLIMITED_BYTES_PER_S)


def test_a_key_that_needs_a_restart_is_named(least: Config, tuning: Tuning, tmp_path: Path) -> None:
    told = reload(least, tuning, tmp_path, LEAST + "  chunk.size: 1MiB\nmode: observe\n")
    assert told[-1]["event"] == "config.reload.needs_restart"
    assert told[-1]["keys"] == ["mode", "store.chunk.size"]


def test_it_is_named_again_until_the_restart(least: Config, tuning: Tuning, tmp_path: Path) -> None:
    reloader = Reloader(least, tuning, lambda: load(tmp_path, LEAST + "mode: observe\n"))
    for _ in range(2):
        with capture_logs() as logs:
            reloader.reload()
        assert [log["event"] for log in logs] == ["config.reloaded", "config.reload.needs_restart"]


def test_a_faulty_file_changes_nothing(least: Config, tuning: Tuning, tmp_path: Path) -> None:
    [told] = reload(least, tuning, tmp_path, LEAST + RATES + "remote.log.reader.threads: many\n")
    assert told["event"] == "config.reload.refused"
    assert "remote.log.reader.threads" in told["faults"][0]
    assert rates(tuning) == (None, UNLIMITED_BYTES_PER_S, UNLIMITED_BYTES_PER_S)


def test_the_reloadable_keys_exist_and_say_so() -> None:
    documented = {key: field.description or "" for key, field in keys_in(Config)}
    documented |= {f"store.{key}": field.description or "" for key, field in keys_in(FilesystemStore)}
    documented |= {f"read.{key}": field.description or "" for key, field in keys_in(ReadSection)}
    assert {key for key, text in documented.items() if "Changed by a reload" in text} == RELOADABLE


def test_lists_and_maps_are_compared_too(least: Config, tmp_path: Path) -> None:
    assert changed_keys(least, least) == frozenset()
    assert changed_keys(least, load(tmp_path, LEAST + "topics: [{name: orders}]\n")) == {"topics"}


async def test_sighup_reloads(least: Config, tuning: Tuning, tmp_path: Path) -> None:
    reloader = Reloader(least, tuning, lambda: load(tmp_path, LEAST + RATES))
    async with reloading_on_hangup(reloader):
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(100):
            if tuning.upload_pace.bytes_per_s is not None:
                break
            await asyncio.sleep(0)
    assert tuning.upload_pace.bytes_per_s == 20 * 2**20
