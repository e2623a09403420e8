"""A broker's log dir with sealed segments to copy: whole batches of one size, and all companions."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.batches import batch_bytes, record_bytes
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import rebuild_indexes
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, iter_batch_headers

_RECORDS_PER_BATCH = 10
_WORDS = [
    "order",
    "customer",
    "amount",
    "currency",
    "shipped",
    "region",
    "warehouse",
    "status",
    "created",
    "updated",
    "item",
    "price",
    "total",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """``segments`` are all sealed .log files, by partition."""

    path: Path
    topic: str
    segments: tuple[tuple[Path, ...], ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for partition in self.segments for path in partition)

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def make_log_dir(path: Path, *, partitions: int, segments: int, segment_bytes: int, batch_bytes: int) -> LogDir:
    """``segments`` in all, spread over ``partitions``; text that zstd makes a third of, under batches of ``batch_bytes``."""
    path.mkdir(parents=True)
    (path / "meta.properties").write_text("version=1\ncluster.id=bench\nnode.id=1\ndirectory.id=bench\n")
    source, positions = _one_segment(segment_bytes, batch_bytes)
    offset_index, time_index = rebuild_indexes(iter_batch_headers(source), base_offset=Offset(0))
    companions = {
        ".index": offset_index.write(),
        ".timeindex": time_index.write(),
        ".snapshot": write_producer_snapshot(),
    }
    made = []
    for partition in range(partitions):
        count = segments // partitions + (partition < segments % partitions)
        directory = path / f"bench-{partition}"
        directory.mkdir()
        (directory / "partition.metadata").write_text("version: 0\ntopic_id: YmVuY2htYXJrLXRvcGljMQ")
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        made.append(tuple(_write_segments(directory, count, source, positions, companions)))
    return LogDir(path=path, topic="bench", segments=tuple(made))


def _one_segment(segment_bytes: int, batch_size_bytes: int) -> tuple[bytearray, list[int]]:
    """The bytes of a segment that begins at offset 0, and where its batches begin."""
    lots = random.Random(7)
    payloads = [_payload(lots, batch_size_bytes - BATCH_HEADER_SIZE) for _ in range(64)]
    out, positions = bytearray(), []
    while len(out) + batch_size_bytes <= segment_bytes:
        positions.append(len(out))
        number = len(positions) - 1
        out += batch_bytes(
            number * _RECORDS_PER_BATCH, payloads[number % len(payloads)], count=_RECORDS_PER_BATCH,
            base_timestamp=1_700_000_000_000 + number,
        )  # fmt: skip
    return out, positions


def _payload(lots: random.Random, size_bytes: int) -> bytes:
    """Ten records that fill ``size_bytes`` exactly."""
    share, out = size_bytes // _RECORDS_PER_BATCH, bytearray()
    for number in range(_RECORDS_PER_BATCH):
        room = share if number < _RECORDS_PER_BATCH - 1 else size_bytes - len(out)
        value = b""
        while len(value) < room:
            value += f'"{lots.choice(_WORDS)}":{lots.randrange(10**6)},'.encode()
        sizes = range(room, 0, -1)
        out += next(one for size in sizes if len(one := record_bytes(number, None, value[:size])) <= room)
    return bytes(out.ljust(size_bytes, b"\0"))


def _write_segments(
    directory: Path, count: int, source: bytearray, positions: list[int], companions: Mapping[str, bytes]
) -> Iterator[Path]:
    """``count`` sealed segments and an empty active one; base offsets are not under the batches' checksums."""
    per_segment = len(positions) * _RECORDS_PER_BATCH
    for number in range(count):
        base = number * per_segment
        for slot, position in enumerate(positions):
            struct.pack_into(">q", source, position, base + slot * _RECORDS_PER_BATCH)
        path = directory / f"{base:020d}.log"
        path.write_bytes(source)
        for suffix, data in companions.items():
            path.with_suffix(suffix).write_bytes(data)
        yield path
    active = directory / f"{count * per_segment:020d}.log"
    active.touch()
    active.with_suffix(".snapshot").write_bytes(companions[".snapshot"])
