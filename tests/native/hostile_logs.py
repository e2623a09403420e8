"""Logs as nobody should write them: sound batches among damaged ones, with offsets and epochs that fall, cut anywhere.

Made from a seed rather than drawn one by one: hypothesis needs a hundred times as long for each, and there must be thousands.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from crc32c import crc32c

from tests.support.batches import batch_bytes, legacy_message
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.offsets import Lineage
from tiersidecar.formats.kafka.record_batches import read_batch_header
from tiersidecar.reading.batch_cutter import CutPlan

EDGES = (-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 3, 2**63 - 2, 2**63 - 1)
_HIGHEST = 2**63 - 1
_FIELDS = {"q": (0, 35), "i": (8, 12, 17, 23, 57), "h": (21,), "b": (16,)}
"""By their struct code: base offset and largest timestamp; length, epoch, checksum, delta and count; attributes; magic."""
_BITS = {"q": 64, "i": 32, "h": 16, "b": 8}


def hostile_log(lots: Random) -> bytes:
    """Batches whose offsets mostly rise and whose epochs mostly stay, some of them damaged; perhaps cut off at the end."""
    base, epoch = lots.choice([0, 0, 0, 5, _HIGHEST - 40]), lots.randrange(3)
    damage = lots.choice([0, 0, 0.1, 0.4])
    log = bytearray()
    for _ in range(lots.randrange(14)):
        batch = _batch(lots, base, epoch)
        log += _damaged(lots, batch) if lots.random() < damage else batch
        base = min(max(base + lots.choice([4, 4, 4, 4, 4, 5, 9, 1, 0, -3]), 0), _HIGHEST)
        epoch += lots.choice([0, 0, 0, 0, 0, 1, -1])
    if lots.random() < 0.2:
        del log[lots.randint(0, len(log)) :]
    return bytes(log) + (lots.randbytes(lots.randrange(80)) if lots.random() < 0.1 else b"")


def _batch(lots: Random, base: int, epoch: int) -> bytes:
    payload = lots.randbytes(lots.randrange(40))
    if lots.random() < 0.05:
        return legacy_message(base, b"k", payload, magic=lots.randrange(2), timestamp=base)
    batch = batch_bytes(base, payload, count=lots.randint(1, 4), epoch=epoch, base_timestamp=lots.randrange(9))
    return _sealed(bytearray(batch), 21, "h", lots.choice([0, 0, 0, 0, 1, 4, 5, 8, 0x10, 0x17]))


def _damaged(lots: Random, batch: bytes) -> bytes:
    """``batch`` with a field changed, and in half of the cases the checksum that goes with it."""
    changed = bytearray(batch.ljust(61, b"\0"))
    code = lots.choice("qiiiihb")
    at, half = lots.choice(_FIELDS[code]), 1 << _BITS[code] - 1
    edges = [edge for edge in (*EDGES, half - 1, -half) if -half <= edge < half]
    number = lots.choice(
        [lots.choice(edges), lots.randint(max(-4, -half), min(99, half - 1)), lots.randrange(-half, half)]
    )
    if lots.random() < 0.5:
        return _sealed(changed, at, code, number)
    struct.pack_into(f">{code}", changed, at, number)
    return bytes(changed)


def _sealed(batch: bytearray, at: int, code: str, number: int) -> bytes:
    struct.pack_into(f">{code}", batch, at, number)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def pieces(log: bytes, sizes: list[int]) -> list[bytes]:
    """``log`` in pieces of ``sizes``, over and over; whole if there are none."""
    found, begin, turn = [], 0, 0
    while begin < len(log):
        size = sizes[turn % len(sizes)] if sizes else len(log)
        found.append(log[begin : begin + size])
        begin, turn = begin + size, turn + 1
    return found


def some_sizes(lots: Random) -> list[int]:
    """Of pieces."""
    return [lots.randint(1, 400) for _ in range(lots.choice([0, 0, 1, 3]))]


def some_offset(lots: Random) -> int:
    """Near the offsets of a log, or at an edge of what 64 bits hold, or past it."""
    return lots.choice([lots.randrange(-1, 60), lots.choice([2**62, _HIGHEST - 1, _HIGHEST, _HIGHEST + 1])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Of a cut."""

    most: int | None = None
    least_one: bool = True


def some_limit(lots: Random) -> Limit:
    most = lots.choice([None, None, lots.randrange(600)])
    return Limit(most=most, least_one=lots.random() < 0.5)


def wide_plan(log: bytes) -> CutPlan:
    """All of ``log`` is wanted, and nothing about it is a surprise but what is wrong with it."""
    return CutPlan(
        where="a.log",
        position=0,
        start_offset=0,
        stop_offset=_HIGHEST + 1,
        first_offset_at_most=_HIGHEST,
        least_offset=0,
        greatest_offset=_HIGHEST,
        leader_epochs=_lineage_of(log),
        file_size_bytes=len(log),
    )


def some_plan(lots: Random, log: bytes) -> CutPlan:
    """A wide plan, or some of its bounds narrower."""
    plan = wide_plan(log)
    for name in ("start_offset", "stop_offset", "greatest_offset"):
        if lots.random() < 0.3:
            bounds: dict[str, Any] = {name: some_offset(lots)}
            plan = replace(plan, **bounds)
    if lots.random() < 0.1:
        plan = replace(plan, least_offset=lots.randrange(-1, 9), first_offset_at_most=some_offset(lots))
    if lots.random() < 0.3:
        starts = sorted(lots.sample(range(40), lots.randrange(4)))
        plan = replace(plan, leader_epochs=Lineage.of(list(enumerate(starts))))
    return plan


def _lineage_of(log: bytes) -> Lineage:
    """As the beginning of ``log`` has it, as far as its headers can be read."""
    found: dict[int, int] = {}
    position = 0
    while position < len(log):
        try:
            header = read_batch_header(log, position)
        except CorruptDataError:
            break
        base, epoch = header.base_offset, header.partition_leader_epoch
        if epoch > max(found, default=-1) and base > max(found.values(), default=-1):
            found[epoch] = base
        position += header.size_bytes
    return Lineage.of(list(found.items()))
