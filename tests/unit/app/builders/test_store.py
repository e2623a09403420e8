"""The store's files are the store's threads' alone: a mount that hangs holds up neither the loop, which carries Fetch
responses, nor the threads that look at log dirs (S-177, U1)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.unit.app.config.config_files import load
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores import filesystem
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.adapters.stores.placed import stores_by_place
from tiersidecar.app.builders import untouched_store
from tiersidecar.app.builders.store import OpenedStore, open_key_ring, open_store
from tiersidecar.app.builders.untouched_store import open_resting_store, open_store_untouched
from tiersidecar.app.config.config import load_config
from tiersidecar.app.config.store import FilesystemStore
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.ports.store import BytesBody, Store

KEYS = ("topic/0/1.log", "topic/0/1.indexes", "topic/0/1.rsm-manifest")
STORE_THREADS = "store_"
_watchers: list[Callable[[str, str], None]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """What the interpreter tells of each call that names a file."""
    for watcher in _watchers:
        for argument in arguments[:2]:
            if isinstance(argument, str | bytes | os.PathLike):
                watcher(event, os.fsdecode(argument))


sys.addaudithook(_audit)  # it cannot be taken away again, so it is put in once


@contextmanager
def threads_that_touch(directory: Path) -> Iterator[dict[str, set[str]]]:
    """The names of the threads in which a file below ``directory`` was named, by the kind of call."""
    touched: dict[str, set[str]] = {}

    def note(event: str, path: str) -> None:
        if path.startswith(f"{directory}"):
            touched.setdefault(event, set()).add(threading.current_thread().name)

    _watchers.append(note)
    try:
        yield touched
    finally:
        _watchers.remove(note)


@asynccontextmanager
async def store_at(directory: Path) -> AsyncIterator[Store]:
    text = (
        f"log.dirs: [/var/lib/kafka/data]\nbroker:\n  bootstrap.servers: 127.0.0.1:9092\n"
        f"store:\n  type: filesystem\n  root: {directory}\n"
    )
    async with open_store(
        load(directory.parent, text),
        pace=UploadPace(None, ManualClock()),
        clock=SystemClock(),
        ids=SystemIds(),
        telemetry=RecordedTelemetry(),
    ) as store:
        yield store


async def test_no_file_of_the_store_is_touched_outside_its_own_threads(tmp_path: Path) -> None:
    """S-177: every verb, from opening to deletion."""
    root = tmp_path / "tier"
    root.mkdir()
    with threads_that_touch(root) as touched:
        async with store_at(root) as store:
            await store.check_writable()
            for key in KEYS:
                await store.put_object(key, BytesBody(b"bytes" * 1000))
            await store.head_object(KEYS[0])
            await store.fetch_range(KEYS[0], ByteRange(5, 500))
            await store.fetch_object(KEYS[2], max_bytes=2**30)
            assert [one.key async for one in store.list_objects("topic/")] == sorted(KEYS)
            await store.delete_objects(KEYS)
    assert {"open", "os.rename", "os.remove", "os.scandir"} <= set(touched)
    elsewhere = {
        event: names
        for event, threads in touched.items()
        if (names := {name for name in threads if not name.startswith(STORE_THREADS)})
    }
    assert elsewhere == {}


async def test_a_mount_that_hangs_holds_up_neither_the_loop_nor_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-177: more readers than the store has threads, each of which waits for a disk that does not answer."""
    root, local = tmp_path / "tier", tmp_path / "log dir"
    root.mkdir()
    local.write_bytes(b"a segment")
    os.mkfifo(root / "hangs")

    @contextmanager
    def open_without_end(path: Path) -> Iterator[tuple[int, int]]:
        with path.open("rb") as file:  # waits for somebody to write
            yield file.fileno(), 0

    monkeypatch.setattr(filesystem, "open_plain_file", open_without_end)
    async with store_at(root) as store, ThreadBlocking(max_threads=1) as others:
        readers = [asyncio.create_task(store.fetch_object("hangs", max_bytes=2**30)) for _ in range(50)]
        try:
            async with asyncio.timeout(60):
                assert await others.run(local.read_bytes) == b"a segment"
                for _ in range(100):
                    await asyncio.sleep(0)
            assert not any(reader.done() for reader in readers)
        finally:
            await _let_go(root / "hangs", readers)


async def _let_go(fifo: Path, readers: list[asyncio.Task[bytes]]) -> None:
    """Threads cannot be stopped: they get their end of file, as often as one of them waits for it."""
    for reader in readers:
        reader.cancel()
    while not all(reader.done() for reader in readers):
        with suppress(OSError):  # nobody has it open just now
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        await asyncio.sleep(0.001)
    await asyncio.gather(*readers, return_exceptions=True)


PLACES = """\
log.dirs: [/var/lib/kafka/data]
broker: {{bootstrap.servers: 127.0.0.1:9092}}
store: {{type: filesystem, root: {0}/hot, key.prefix: a/}}
places:
  cold: {{root: {0}/cold, key.prefix: b/, upload.rate.limit.bytes.per.second: 1MiB}}
"""


@asynccontextmanager
async def opened_places(directory: Path, clock: ManualClock) -> AsyncIterator[OpenedStore]:
    for name in ("hot", "cold"):
        (directory / name).mkdir()
    async with open_store(
        load(directory, PLACES.format(directory)),
        pace=UploadPace(None, clock),
        clock=clock,
        ids=SystemIds(),
        telemetry=RecordedTelemetry(),
    ) as store:
        yield store


async def test_each_place_has_a_store_of_its_own(tmp_path: Path) -> None:
    """S-293."""
    async with opened_places(tmp_path, ManualClock()) as store:
        await store.put_object("a/x", BytesBody(b"hot"))
        await store.put_object("@cold/x", BytesBody(b"cold"))
        assert (tmp_path / "hot" / "a" / "x").read_bytes() == b"hot"
        assert (tmp_path / "cold" / "b" / "x").read_bytes() == b"cold"
        assert store.left_alone == 0
        for probed in stores_by_place(store).values():
            await probed.check_writable()


async def test_a_place_has_an_upload_rate_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened_places(tmp_path, clock) as store:
        body = BytesBody(bytes(3 * 1024 * 1024))
        await asyncio.wait_for(store.put_object("a/x", body), 20)
        paced = asyncio.ensure_future(store.put_object("@cold/x", body))
        await asyncio.wait([paced], timeout=0.5)
        assert not paced.done()
        paced.cancel()
        await asyncio.wait([paced])


async def test_a_program_that_only_reads_has_the_places_too(tmp_path: Path) -> None:
    async with opened_places(tmp_path, ManualClock()) as store:
        await store.put_object("@cold/x", BytesBody(b"cold"))
    config = load(tmp_path, PLACES.format(tmp_path))
    async with open_store_untouched(
        config, clock=SystemClock(), ids=SystemIds(), telemetry=RecordedTelemetry()
    ) as untouched:
        assert await untouched.fetch_object("@cold/x", max_bytes=9) == b"cold"


class Away(MemoryStore):
    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        raise StoreError(verb="fetch", key=key, reason="connection refused", is_away=True)


@pytest.mark.parametrize(("away", "other"), [("cold", "a/x"), ("hot", "@cold/x")])
async def test_of_the_places_of_a_read_only_mount_each_rests_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: str, other: str
) -> None:
    """One that is away, which its readers ask again and again, keeps nobody from the others."""
    clock = ManualClock()
    stores = {name: (Away if name == away else MemoryStore)(clock=clock, ids=SystemIds()) for name in ("hot", "cold")}

    @asynccontextmanager
    async def opened(section: FilesystemStore, **parts: object) -> AsyncIterator[Store]:
        yield stores[Path(section.root).name]

    monkeypatch.setattr(untouched_store, "_open_one", opened)
    config = load(tmp_path, PLACES.format(tmp_path))
    async with open_resting_store(config, clock=clock, ids=SystemIds(), telemetry=RecordedTelemetry()) as store:
        await store.put_object(other, BytesBody(b"data"))
        lost = "@cold/y" if away == "cold" else "a/y"
        for reason in [r"connection refused"] * 5 + [r"it is away \(connection refused\)"] * 5:
            with pytest.raises(StoreError, match=reason):
                await store.fetch_object(lost, max_bytes=9)
        assert await store.fetch_object(other, max_bytes=9) == b"data"


def test_all_of_a_process_share_the_keys_of_one_service(tmp_path: Path) -> None:
    """Each would ask for every key by itself, and keep it."""

    def keys(more: str = "") -> DataKeys | None:
        path = tmp_path / "keys.yaml"
        options = "encryption.key.wrapping.options: {key.id: a, region: r}"
        path.write_text(
            f"store: {{type: filesystem, root: /r, encryption.key.wrapping: aws-kms, {options}{more}}}\n"
            "log.dirs: [/d]\nbroker: {bootstrap.servers: 'h:1'}\n"
        )
        return open_key_ring(load_config(path, {}))

    assert keys() is keys() is not None
    assert keys() is not keys(", encryption.data.key.cache.size: 7")
