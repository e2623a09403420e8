"""Measure a store: the latency of its verbs, its throughput, and which guarantees it keeps.

Everything happens under a prefix of its own, which is emptied at the end in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from tiersidecar.domain.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.ports.clock import Clock, Ids
from tiersidecar.ports.store import PROBE_NAME, BytesBody, Store, StoredObject

_CONCURRENCIES = (1, 2, 4, 8)
_WRITERS = 8
_SMALL_BYTES = 1024
_DELETED_AT_ONCE = 100
_HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """``samples`` requests of each verb; ``object_bytes`` is the size of the objects that throughput is measured with."""

    key_prefix: str
    samples: int
    object_bytes: int
    max_bytes_per_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Something that the daemon relies on.  ``fault`` says what the store does instead; "": it keeps it."""

    name: str
    fault: str = ""

    @property
    def document(self) -> dict[str, Any]:
        return {"promise": self.name, "kept": not self.fault, "fault": self.fault}


@dataclass(slots=True, kw_only=True)
class StoreCheck:
    """The findings.  Latencies in milliseconds, by verb; throughput in bytes a second, by requests at once."""

    store: str
    latencies_ms: dict[str, list[float]] = field(default_factory=dict)
    upload_bytes_per_s: dict[int, float] = field(default_factory=dict)
    read_bytes_per_s: dict[int, float] = field(default_factory=dict)
    promises: list[Promise] = field(default_factory=list)
    keeps_checksums: bool = False
    max_bytes_per_s: int | None = None

    @property
    def broken(self) -> tuple[Promise, ...]:
        return tuple(promise for promise in self.promises if promise.fault)

    @property
    def tiered_bytes_per_hour(self) -> int:
        """Return what may be tiered: each byte goes up once and is read back once, and the configured rate is not exceeded."""
        up, down = max(self.upload_bytes_per_s.values()), max(self.read_bytes_per_s.values())
        bytes_per_s = 1 / (1 / up + 1 / down)
        return int(min(bytes_per_s, self.max_bytes_per_s or bytes_per_s) * _HOUR_S)

    @property
    def document(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "latency_ms": {verb: percentiles(times) for verb, times in self.latencies_ms.items()},
            "upload_bytes_per_s": {str(at_once): int(rate) for at_once, rate in self.upload_bytes_per_s.items()},
            "read_bytes_per_s": {str(at_once): int(rate) for at_once, rate in self.read_bytes_per_s.items()},
            "keeps_checksums": self.keeps_checksums,
            "promises": [promise.document for promise in self.promises],
            "tiered_bytes_per_hour": self.tiered_bytes_per_hour,
        }


def percentiles(times: list[float]) -> dict[str, float]:
    """Return median, 90th and 99th percentile by the nearest rank, and the longest."""
    ordered = sorted(times)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": round(ordered[-1], 2)}


async def check_store(
    store: Store, options: CheckOptions, *, clock: Clock, ids: Ids, say: Callable[[str], None]
) -> StoreCheck:
    """Measure and try everything; ``say`` gets a line for each step.

    Raises:
        StoreError: the store is away, or refuses what every store takes.
    """
    found = StoreCheck(store=store.description, max_bytes_per_s=options.max_bytes_per_s)
    async with _scratch(store, f"{options.key_prefix}{PROBE_NAME}{format_uuid(ids.random_uuid())}/") as prefix:
        say("trying what it promises")
        found.promises = [promise async for promise in _promises(store, prefix)]
        head = await store.put_object(f"{prefix}checksum", BytesBody(b"0123456789"))
        found.keeps_checksums = head.crc32c is not None
        say("measuring its verbs")
        found.latencies_ms = await _latencies(store, prefix, options, clock)
        data = ids.random_bytes(options.object_bytes)
        for at_once in _CONCURRENCIES:
            say(f"measuring throughput: {at_once} at once")
            keys = [f"{prefix}large/{at_once}-{number}" for number in range(at_once)]
            up_s = await _timed(clock, [store.put_object(key, BytesBody(data)) for key in keys])
            down_s = await _timed(clock, [store.fetch_range(key, ByteRange(0, len(data))) for key in keys])
            found.upload_bytes_per_s[at_once] = at_once * len(data) / up_s
            found.read_bytes_per_s[at_once] = at_once * len(data) / down_s
            await store.delete_objects(keys)
    return found


async def _latencies(store: Store, prefix: str, options: CheckOptions, clock: Clock) -> dict[str, list[float]]:
    keys = [f"{prefix}small/{number:05}" for number in range(options.samples)]
    body = BytesBody(b"x" * _SMALL_BYTES)
    verbs: dict[str, Callable[[str], Awaitable[Any]]] = {
        "put": lambda key: store.put_object(key, body),
        "head": store.head_object,
        "fetch": lambda key: store.fetch_range(key, ByteRange(1, _SMALL_BYTES - 1)),
        "list": lambda key: _listed(store, key),
        "delete": lambda key: store.delete_objects([key]),
    }
    return {verb: [await _timed(clock, [ask(key)]) * 1000 for key in keys] for verb, ask in verbs.items()}


async def _timed(clock: Clock, requests: list[Awaitable[Any]]) -> float:
    """Return seconds that ``requests`` take, all at once; never 0."""
    began_s = clock.monotonic_s()
    outcomes = await asyncio.gather(*requests, return_exceptions=True)  # none is left running where one fails
    took_s = clock.monotonic_s() - began_s
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return max(took_s, 1e-6)


async def _promises(store: Store, prefix: str) -> AsyncIterator[Promise]:
    for name, attempt in _ATTEMPTS.items():
        yield Promise(name=name, fault=await attempt(store, f"{prefix}{name.replace(' ', '-')}/"))


async def _is_read_at_once(store: Store, prefix: str) -> str:
    await store.put_object(f"{prefix}a", BytesBody(b"first"))
    await store.put_object(f"{prefix}a", BytesBody(b"second"))
    data = await store.fetch_object(f"{prefix}a", max_bytes=_SMALL_BYTES)
    return "" if data == b"second" else f"a read after an overwrite gave {data[:20]!r}"


async def _is_listed_at_once(store: Store, prefix: str) -> str:
    keys = [f"{prefix}{name}" for name in ("b/1", "a-1", "a/1", "a0")]
    for key in keys:
        await store.put_object(key, BytesBody(b"x"))
    listed = [stored.key for stored in await _listed(store, prefix)]
    if set(listed) != set(keys):
        return f"{len(keys)} objects were put, and {len(set(listed) & set(keys))} of them are listed"
    return "" if listed == sorted(keys, key=str.encode) else "a listing is not in the order of its keys' bytes"


async def _is_gone_at_once(store: Store, prefix: str) -> str:
    key = f"{prefix}a"
    await store.put_object(key, BytesBody(b"x"))
    await store.delete_objects([key])
    if await _listed(store, prefix):
        return "a deleted object is still listed"
    try:
        await store.fetch_object(key, max_bytes=_SMALL_BYTES)
    except ObjectNotFoundError:
        return ""
    return "a deleted object can still be read"


async def _reads_ranges(store: Store, prefix: str) -> str:
    key = f"{prefix}a"
    await store.put_object(key, BytesBody(b"0123456789"))
    data = bytes(await store.fetch_range(key, ByteRange(3, 7)))
    if data != b"3456":
        return f"bytes 3 to 6 of 0123456789 are returned as {data[:20]!r}"
    try:
        await store.fetch_range(key, ByteRange(8, 12))
    except StoreError:
        return ""
    return "a range past the end is answered as if it were there"


async def _heeds_conditions(store: Store, prefix: str) -> str:
    key = f"{prefix}a"
    await store.put_object(key, BytesBody(b"first"))
    try:
        await store.put_object(key, BytesBody(b"second"), if_absent=True)
    except ObjectExistsError:
        return ""
    except StoreError as error:
        return f"it takes no conditional puts: {error.reason}"
    return "it accepts the condition of a put and ignores it: two brokers could own the same data"


async def _lets_one_writer_win(store: Store, prefix: str) -> str:
    puts = [
        store.put_object(f"{prefix}a", BytesBody(f"writer {number}".encode()), if_absent=True)
        for number in range(_WRITERS)
    ]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, StoredObject)]
    others = [one for one in outcomes if isinstance(one, Exception) and not isinstance(one, ObjectExistsError)]
    if others:
        return f"of {_WRITERS} conditional puts at once one failed otherwise: {others[0]}"
    return "" if len(winners) == 1 else f"of {_WRITERS} conditional puts at once {len(winners)} succeeded"


async def _has_true_checksums(store: Store, prefix: str) -> str:
    data = bytes(range(256)) * 64
    await store.put_object(f"{prefix}a", BytesBody(data))
    head = await store.head_object(f"{prefix}a")
    if head.size_bytes != len(data):
        return f"an object of {len(data)} bytes is reported with {head.size_bytes}"
    return "" if head.crc32c in (None, crc32c(data)) else "the checksum that it reports is not the object's"


_ATTEMPTS: dict[str, Callable[[Store, str], Awaitable[str]]] = {
    "read after write": _is_read_at_once,
    "list after write": _is_listed_at_once,
    "gone after delete": _is_gone_at_once,
    "ranged reads": _reads_ranges,
    "conditional writes": _heeds_conditions,
    "one winner of many writers": _lets_one_writer_win,
    "size and checksum": _has_true_checksums,
}


async def _listed(store: Store, prefix: str) -> list[StoredObject]:
    return [stored async for stored in store.list_objects(prefix)]


@asynccontextmanager
async def _scratch(store: Store, prefix: str) -> AsyncIterator[str]:
    """Give ``prefix``, of which nothing stays, also when the check fails or is cancelled (Ctrl-C)."""
    try:
        yield prefix
    finally:
        keys = [stored.key for stored in await _listed(store, prefix)]
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            await store.delete_objects(keys[start : start + _DELETED_AT_ONCE])
