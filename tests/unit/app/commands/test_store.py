"""``tiersidecar store check``: promises that are broken are found, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.wrapped_store import WrappedStore
from tiersidecar.app.cli import app
from tiersidecar.app.store_check import CheckOptions, StoreCheck, check_store, percentiles
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.store import Buffer, ObjectBody, Store, StoredObject

OPTIONS = CheckOptions(key_prefix="cluster-1/", samples=3, object_bytes=1000, max_bytes_per_s=None)


class IgnoresConditions(WrappedStore):
    async def put_object(self, key: str, body: ObjectBody, *, if_absent: bool = False) -> StoredObject:
        return await super().put_object(key, body)


class ListsNothing(WrappedStore):
    """For a while after a put, as stores of the past did: the cleaning lists at the end."""

    listings = 3

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[StoredObject]:
        if self.listings:
            self.listings -= 1
            return
        async for stored in super().list_objects(prefix, start_after=start_after):
            yield stored


class SendsAllForARange(WrappedStore):
    async def fetch_range(self, key: str, byte_range: ByteRange) -> Buffer:
        return await self.fetch_object(key, max_bytes=2**30)


async def checked(store: Store) -> StoreCheck:
    return await check_store(store, OPTIONS, clock=SystemClock(), ids=SystemIds(), say=lambda step: None)


def memory_store() -> MemoryStore:
    return MemoryStore(clock=SystemClock(), ids=SystemIds())


@pytest.mark.parametrize(
    ("wrapper", "broken"),
    [
        (WrappedStore, []),
        (IgnoresConditions, ["conditional writes", "one winner of many writers"]),
        (ListsNothing, ["list after write"]),
        (SendsAllForARange, ["ranged reads"]),
    ],
    ids=["none", "conditions", "listings", "ranges"],
)
async def test_a_broken_promise_is_found(wrapper: Callable[[Store], Store], broken: list[str]) -> None:
    memory = memory_store()
    found = await checked(wrapper(memory))
    assert [promise.name for promise in found.broken] == broken
    assert found.keeps_checksums
    assert [stored.key async for stored in memory.list_objects()] == []


async def test_a_check_that_is_cancelled_leaves_nothing() -> None:
    memory, arrived = memory_store(), asyncio.Event()

    class Stalls(WrappedStore):
        async def head_object(self, key: str) -> StoredObject:
            arrived.set()
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    checking = asyncio.create_task(checked(Stalls(memory)))
    await arrived.wait()
    assert [stored.key async for stored in memory.list_objects()] != []
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert [stored.key async for stored in memory.list_objects()] == []


def test_percentiles_are_by_rank() -> None:
    assert percentiles([float(value) for value in range(1, 101)]) == {"p50": 51, "p90": 91, "p99": 100, "max": 100}
    assert percentiles([7.0]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}


def test_an_hour_is_bound_by_reading_back_and_by_the_quota() -> None:
    found = StoreCheck(store="s", upload_bytes_per_s={1: 100.0}, read_bytes_per_s={1: 100.0})
    assert found.tiered_bytes_per_hour == 50 * 3600
    found.max_bytes_per_s = 10
    assert found.tiered_bytes_per_hour == 10 * 3600


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    (tmp_path / "tier").mkdir()
    file = tmp_path / "t.yaml"
    file.write_text(
        f"log.dirs: [{tmp_path}/logs]\nbroker: {{bootstrap.servers: 'h:1'}}\n"
        f"store: {{type: filesystem, root: {tmp_path}/tier}}\n"
    )
    return file


def test_the_command_prints_json_and_leaves_the_store_empty(config_file: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["store", "check", "-c", str(config_file), "--json", "--samples", "2", "--object-size", "64KiB"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [one for one in document["promises"] if not one["kept"]] == []
    assert set(document["latency_ms"]) == {"put", "head", "fetch", "list", "delete"}
    assert set(document["upload_bytes_per_s"]) == {"1", "2", "4", "8"}
    assert document["tiered_bytes_per_hour"] > 0
    assert [path for path in (tmp_path / "tier").rglob("*") if path.is_file()] == []


def test_a_place_is_tried_by_itself(tmp_path: Path) -> None:
    """S-293: the other store is not even there."""
    (tmp_path / "cold").mkdir()
    file = tmp_path / "t.yaml"
    file.write_text(
        f"log.dirs: [{tmp_path}/logs]\nbroker: {{bootstrap.servers: 'h:1'}}\n"
        f"store: {{type: filesystem, root: {tmp_path}/missing}}\nplaces: {{cold: {{root: {tmp_path}/cold}}}}\n"
    )
    asked = ["store", "check", "-c", str(file), "--samples", "2", "--object-size", "64KiB"]
    done = CliRunner().invoke(app, [*asked, "--place", "cold"])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, asked).exit_code == 1
    assert CliRunner().invoke(app, [*asked, "--place", "warm"]).exit_code == 2


def test_the_command_prints_tables(config_file: Path) -> None:
    done = CliRunner().invoke(
        app, ["store", "check", "-c", str(config_file), "--samples", "2", "--object-size", "64KiB"]
    )
    assert done.exit_code == 0, done.output
    assert "keeps no CRC32C" in done.stdout
    assert "one winner of many writers  kept" in done.stdout


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(config_file: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [
        Path(sys.executable).with_name("tiersidecar"),
        "store",
        "check",
        "-c",
        config_file,
        "--samples",
        "10000",
    ]
    # As a terminal gives it: what runs in the background of a shell begins with SIGINT ignored, and so do its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr is not None
        while b"measuring its verbs" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert [path for path in (tmp_path / "tier").rglob("*") if path.is_file()] == []


def test_a_store_that_is_away_fails(config_file: Path, tmp_path: Path) -> None:
    (tmp_path / "tier").rmdir()
    done = CliRunner().invoke(app, ["store", "check", "-c", str(config_file)])
    assert done.exit_code == 1
