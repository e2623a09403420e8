"""Remote segments whose manifest, indexes or .log a writer to the bucket has spoiled, and what reading them takes.

``python -m tests.support.spoiled_segments`` measures each kind, and prints JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import zstandard
from crc32c import crc32c

from tests.support.batches import batch_bytes, record_bytes
from tests.support.inline_blocking import InlineBlocking
from tests.support.local_batches import LocalBatch
from tests.support.memory_use import measure
from tests.support.remote_builder import RemoteBuilder, SegmentSource
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.filesystem import FilesystemStore
from tiersidecar.domain.errors import TiersidecarError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import IndexKind
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.chunk_manager import MemoryChunkCache, StoreChunkManager
from tiersidecar.reading.index_blobs import IndexBlobReader, RemoteIndexCache
from tiersidecar.reading.read_ahead import ReadAheadBudget
from tiersidecar.reading.remote_objects import ManifestCache, recorded_keys
from tiersidecar.reading.segment_lookup import Located
from tiersidecar.reading.segment_reader import Allowance, SegmentReader

MIB = 1024 * 1024
GIB = 1024 * MIB
"""Size of the large segment by its metadata."""


@dataclass(slots=True)
class Stored:
    """A segment in a directory: what its objects are, to be spoiled."""

    root: Path
    metadata: RemoteLogSegmentMetadata

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path("manifest").read_bytes())
        return found

    def path(self, kind: str) -> Path:
        return self.root / str(getattr(recorded_keys(self.metadata, ""), kind))

    def put(self, kind: str, data: bytes) -> None:
        self.path(kind).write_bytes(data)

    def change(self, path: str, value: object) -> None:
        """Set one field of the manifest."""
        document = self.manifest
        *names, last = path.split(".")
        at = document
        for name in names:
            at = at[name]
        at[last] = value
        self.put("manifest", json.dumps(document).encode())

    def sparse(self, kind: str, size_bytes: int) -> None:
        """Write an object as large as that, with nothing in it."""
        with self.path(kind).open("wb") as file:
            file.truncate(size_bytes)

    def begin_log(self, data: bytes) -> None:
        with self.path("log").open("r+b") as file:
            file.write(data)

    def index(self, kind: IndexKind, data: bytes) -> None:
        """Put ``data`` behind the others, and have the manifest say so."""
        blob = self.path("indexes").read_bytes()
        self.put("indexes", blob + data)
        self.change(f"segmentIndexes.{kind.value}", {"position": len(blob), "size": len(data)})

    def sparse_index(self, kind: IndexKind, size_bytes: int) -> None:
        self.change(f"segmentIndexes.{kind.value}", {"position": 0, "size": size_bytes})
        self.sparse("indexes", size_bytes)

    def large(self) -> None:
        """Change it as if the segment had a GiB."""
        self.metadata = replace(self.metadata, segment_size_in_bytes=GIB, end_offset=Offset(10**7))
        self.change("chunkIndex.originalFileSize", GIB)
        self.sparse("log", GIB)

    def chunks(self, packed: bytes, *, chunk_bytes: int = 1) -> None:
        """Write a variable chunk index."""
        self.chunk_text(base64.b64encode(packed).decode(), chunk_bytes=chunk_bytes)

    def chunk_text(self, text: str, *, chunk_bytes: int = 1) -> None:
        size = self.metadata.segment_size_in_bytes
        document = {"type": "variable", "originalChunkSize": chunk_bytes, "originalFileSize": size}
        self.change("chunkIndex", document | {"transformedChunks": text})


Spoil = Callable[[Stored], object]


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def _sizes(count: int, *, width: int = 1, said: int | None = None) -> bytes:
    said = count if said is None else said
    return struct.pack(">iib", said, 0, width) + bytes(width * max(count - 1, 0)) + bytes(4)


def _ascending(layout: str, count: int, row: Callable[[int], tuple[int, ...]]) -> bytes:
    return b"".join(struct.pack(layout, *row(number)) for number in range(count))


def _snapshot(count: int, *, said: int | None = None) -> bytes:
    entries = _ascending(">qhiqiqiq", count, lambda n: (n, 0, 0, n, 0, 0, 0, -1))
    body = struct.pack(">i", count if said is None else said) + entries
    return struct.pack(">hI", 1, crc32c(body)) + body


def _epochs(lines: list[str], *, said: int | None = None) -> bytes:
    return "\n".join(["0", str(len(lines) if said is None else said), *lines, ""]).encode()


def _large(then: Spoil) -> Spoil:
    def spoil(stored: Stored) -> None:
        stored.large()
        then(stored)

    return spoil


def _compressed_log(frame: bytes, *, chunk_bytes: int) -> Spoil:
    def spoil(stored: Stored) -> None:
        stored.large()
        count = -(-GIB // chunk_bytes)
        sizes = struct.pack(">iib", count, len(frame), 1) + bytes(count - 1) + struct.pack(">i", len(frame))
        if count == 1:
            sizes = struct.pack(">ii", 1, len(frame))
        stored.change("compression", value=True)
        stored.chunks(_zstd(sizes), chunk_bytes=chunk_bytes)
        stored.put("log", frame * min(count, 8))

    return spoil


def _frame_head(content_size: int) -> bytes:
    """Return a zstd frame that says how much it holds, and ends there."""
    return b"\x28\xb5\x2f\xfd" + b"\xc0" + b"\x58" + struct.pack("<Q", content_size)


_RANDOM = random.Random(17)

SPOILED: dict[str, Spoil] = {
    "the manifest is empty": lambda one: one.put("manifest", b""),
    "the manifest is no JSON": lambda one: one.put("manifest", _RANDOM.randbytes(4000)),
    "the manifest is half of one": lambda one: one.put("manifest", one.path("manifest").read_bytes()[:200]),
    "the manifest is a GiB of zeros": lambda one: one.sparse("manifest", GIB),
    "the manifest is 64 MiB of spaces": lambda one: one.put("manifest", b" " * 64 * MIB),
    "the manifest is brackets within brackets": lambda one: one.put("manifest", b"[" * 500_000),
    "the manifest is a million empty lists": lambda one: one.put("manifest", b"[" + b"[]," * 1_000_000 + b"[]]"),
    "the manifest is a list of a large segment's size": _large(
        lambda one: one.put("manifest", b"[" + b"{}," * 500_000 + b"{}]")
    ),
    "the manifest is a million numbers": _large(lambda one: one.put("manifest", b"[" + b"7," * 700_000 + b"7]")),
    "the manifest is a number of a million digits": lambda one: one.put("manifest", b"9" * 1_000_000),
    "a size of 4,000 digits": lambda one: one.change("chunkIndex.originalChunkSize", 10**3999),
    "the file size has 4,000 digits": lambda one: one.change("chunkIndex.originalFileSize", 10**3999),
    "an index at a byte of 4,000 digits": lambda one: one.change("segmentIndexes.offset.position", 10**3999),
    "another version": lambda one: one.change("version", "2" * 100_000),
    "ten million chunk sizes in 822 bytes": lambda one: one.chunks(_zstd(_sizes(10_000_000))),
    "ten million chunk sizes of a large segment": _large(
        lambda one: one.chunks(_zstd(_sizes(10_000_000)), chunk_bytes=GIB // 10_000_000)
    ),
    "a chunk for each byte of a large segment": _large(lambda one: one.chunks(_zstd(_sizes(10)), chunk_bytes=1)),
    "chunk sizes that say to be two billion": lambda one: one.chunks(_zstd(_sizes(10, said=2**31 - 1))),
    "a negative number of chunk sizes": lambda one: one.chunks(_zstd(_sizes(10, said=-1))),
    "chunk sizes of width 0": lambda one: one.chunks(_zstd(_sizes(10, width=0))),
    "chunk sizes of width 100": lambda one: one.chunks(_zstd(_sizes(10, width=100))),
    "chunk sizes that open to a GiB": lambda one: one.chunks(_frame_head(GIB) + bytes(100)),
    "chunk sizes that say to open to 10 MiB": lambda one: one.chunks(_frame_head(10 * MIB) + bytes(100)),
    "chunk sizes that are no frame": lambda one: one.chunks(_RANDOM.randbytes(300)),
    "chunk sizes that are no base64": lambda one: one.chunk_text("?" * 1000),
    "chunks of no bytes": lambda one: one.change("chunkIndex.originalChunkSize", 0),
    "chunks of fewer than no bytes": lambda one: one.change("chunkIndex.originalChunkSize", -5),
    "a chunk as large as the segment": _large(lambda one: one.change("chunkIndex.originalChunkSize", GIB)),
    "chunks of two GiB in the store": _large(lambda one: one.change("chunkIndex.transformedChunkSize", 2**31)),
    "chunks of exabytes in the store": _large(lambda one: one.change("chunkIndex.finalTransformedChunkSize", 2**62)),
    "a segment of another size": lambda one: one.change("chunkIndex.originalFileSize", 2**40),
    "a million leader epochs in the manifest": lambda one: one.change(
        "remoteLogSegmentMetadata.segmentLeaderEpochs", {str(number): number for number in range(100_000)}
    ),
    "a data key of a MiB": lambda one: one.change("encryption", {"dataKey": "k:" + "A" * MIB, "aad": ""}),
    "an AAD of a MiB": lambda one: one.change("encryption", {"dataKey": "k:AA==", "aad": "A" * MIB}),
    "an offset index of a GiB": lambda one: one.sparse_index(IndexKind.OFFSET, GIB),
    "a time index of a GiB": lambda one: one.sparse_index(IndexKind.TIMESTAMP, GIB),
    "a producer snapshot of a GiB": lambda one: one.sparse_index(IndexKind.PRODUCER_SNAPSHOT, GIB),
    "leader epochs of a GiB": lambda one: one.sparse_index(IndexKind.LEADER_EPOCH, GIB),
    "a transaction index of a GiB": lambda one: one.sparse_index(IndexKind.TRANSACTION, GIB),
    "an offset index of a terabyte": lambda one: one.change("segmentIndexes.offset.size", 2**40),
    "an offset index of 10 MiB of zeros": lambda one: one.sparse_index(IndexKind.OFFSET, 10 * MIB),
    "an offset index of a million entries": lambda one: one.index(
        IndexKind.OFFSET, _ascending(">ii", 1_000_000, lambda n: (n, n))
    ),
    "an offset index of noise in a large segment": _large(
        lambda one: one.index(IndexKind.OFFSET, _RANDOM.randbytes(8 * MIB))
    ),
    "a time index of 800,000 entries": lambda one: one.index(
        IndexKind.TIMESTAMP, _ascending(">qi", 800_000, lambda n: (n, n))
    ),
    "a transaction index of 300,000 entries": _large(
        lambda one: one.index(IndexKind.TRANSACTION, _ascending(">hqqqq", 300_000, lambda n: (0, n, n, n, n)))
    ),
    "a transaction index of noise": _large(
        lambda one: one.index(IndexKind.TRANSACTION, _RANDOM.randbytes(34 * 300_000))
    ),
    "a transaction index of another version": lambda one: one.index(IndexKind.TRANSACTION, b"\x01" * 34),
    "a producer snapshot of 200,000 producers": lambda one: one.index(IndexKind.PRODUCER_SNAPSHOT, _snapshot(200_000)),
    "a producer snapshot that says two billion": lambda one: one.index(
        IndexKind.PRODUCER_SNAPSHOT, _snapshot(3, said=2**31 - 1)
    ),
    "60,000 lines of the same leader epoch": lambda one: one.index(IndexKind.LEADER_EPOCH, _epochs(["0 0"] * 60_000)),
    "leader epochs that say two billion": lambda one: one.index(IndexKind.LEADER_EPOCH, _epochs(["0 0"], said=2**31)),
    "20,000 leader epochs": lambda one: one.index(
        IndexKind.LEADER_EPOCH, _epochs([f"{number} {number}" for number in range(20_000)])
    ),
    "a blob that ends too early": lambda one: one.put("indexes", b"\0" * 40),
    "a .log of zeros": _large(lambda one: None),
    "a .log whose batch says two GiB": _large(
        lambda one: one.begin_log(struct.pack(">qiib", one.metadata.start_offset, 2**31 - 1, 0, 2))
    ),
    "a .log of noise": lambda one: one.put("log", _RANDOM.randbytes(one.metadata.segment_size_in_bytes)),
    "a chunk that opens to more than it should": _compressed_log(_zstd(bytes(64 * MIB)), chunk_bytes=4 * MIB),
    "a chunk of a GiB in 33 KiB": _compressed_log(_zstd(bytes(GIB)), chunk_bytes=GIB),
    "a chunk with a window of a TiB": _compressed_log(_frame_head(2**40), chunk_bytes=4 * MIB),
}


def _batch(base_offset: int) -> LocalBatch:
    payload = b"".join(record_bytes(number, b"key", bytes(100)) for number in range(10))
    data = batch_bytes(base_offset, payload, count=10)
    return LocalBatch(read_batch_header(data), data)


async def _make(root: Path, encrypted: bool = False) -> Stored:
    builder = RemoteBuilder(chunk_size=4096, encrypted=encrypted)
    batches = [_batch(number * 10) for number in range(20)]
    metadata = await builder.add(SegmentSource(batches=batches, start_offset=0, end_offset=199))
    store = FilesystemStore(root=str(root), blocking=InlineBlocking(), ids=SystemIds())
    async for found in builder.run.store.list_objects():
        await store.put_object(found.key, BytesBody(await builder.run.store.fetch_object(found.key, max_bytes=2**30)))
    return Stored(root, metadata)


async def _read(stored: Stored) -> str:
    """Read everything that a reader may ask for; return which of it was refused."""
    store, blocking = (
        FilesystemStore(root=str(stored.root), blocking=InlineBlocking(), ids=SystemIds()),
        InlineBlocking(),
    )
    manifests = ManifestCache(store=store, blocking=blocking)
    blobs = IndexBlobReader(store=store, blocking=blocking, manifests=manifests)
    indexes = RemoteIndexCache(blobs, blocking=blocking)
    chunks = MemoryChunkCache(StoreChunkManager(store=_Remote(store), blocking=blocking), max_bytes=16 * MIB)
    budget = ReadAheadBudget(reader_bytes=8 * MIB, total_bytes=8 * MIB)
    reader = SegmentReader(manifests=manifests, indexes=indexes, chunks=chunks, blocking=blocking, budget=budget)
    metadata = stored.metadata

    async def batches() -> None:
        located = Located(metadata, metadata.next_offset)
        with reader.read_ahead() as read_ahead:
            slices = reader.slices(located, metadata.start_offset + 5, metadata.next_offset, Allowance(), read_ahead)
            async with aclosing(slices):
                async for _ in slices:
                    pass

    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "manifest": lambda: manifests.open(metadata),
        "indexes": lambda: indexes.indexes(metadata),
        "epochs": lambda: blobs.read_leader_epochs(metadata),
        "snapshot": lambda: blobs.read_producer_snapshot(metadata),
        "batches": batches,
    }
    refused = []
    for name, ask in asked.items():
        try:
            await ask()
        except TiersidecarError as error:
            refused.append(name if len(str(error)) < 2000 else f"{name} in {len(str(error))} characters")
    return ", ".join(refused)


class _Remote:
    """The store, as if it were not here: whole chunks are fetched."""

    is_local = False

    def __init__(self, store: FilesystemStore) -> None:
        self.fetch_range, self.fetch_object = store.fetch_range, store.fetch_object
        self.feed_range = store.feed_range


async def _measure_all(names: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as warm:
        assert await _read(await _make(Path(warm))) == "", "the segment reads before it is spoiled"
    for name in names or list(SPOILED):
        with tempfile.TemporaryDirectory() as directory:
            stored = await _make(Path(directory))
            SPOILED[name](stored)
            found[name] = asdict(await measure(lambda stored=stored: _read(stored)))  # type: ignore[misc]
    return found


if __name__ == "__main__":
    json.dump(asyncio.run(_measure_all(sys.argv[1:])), sys.stdout)
