"""Troubles between the daemon and its store, drawn from a seed: network (toxiproxy), answers (fault proxy), server.

The way is daemon, toxiproxy, fault proxy, and versitygw or another server.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from tests.support.s3_fault_proxy import Fault, FaultKind, S3FaultProxy, fault_proxy_in_a_thread
from tests.support.s3_server import S3Server, running_s3_server
from tests.support.toxiproxy import Toxic, ToxicKind, Toxiproxy, running_toxiproxy

FOR_EVER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """All of it at once, until ``requests`` have come through or ``at_most_s`` have passed.  ``is_stopped``: SIGSTOP of the
    server; ``is_refused``: no server takes connections.  ``faults`` makes new ones each time, for they count."""

    name: str
    requests: int
    at_most_s: float
    toxics: tuple[Toxic, ...] = ()
    faults: Callable[[], list[Fault]] = list
    is_stopped: bool = False
    is_refused: bool = False


DrawTrouble = Callable[[random.Random], Trouble]


class _Server(Protocol):
    @property
    def process_id(self) -> int: ...


ServerOf = TypeVar("ServerOf", bound=_Server)


@dataclass(kw_only=True)
class Troubled(Generic[ServerOf]):
    """``url`` for the daemon."""

    server: ServerOf
    proxy: S3FaultProxy
    network: Toxiproxy

    @property
    def url(self) -> str:
        return self.network.url

    @property
    def requests(self) -> int:
        """Return how many came as far as the fault proxy."""
        return sum(self.proxy.requests.values())

    @contextmanager
    def troubled_by(self, trouble: Trouble) -> Iterator[None]:
        """Cause the trouble until the end of the block."""
        self.proxy.faults[:] = trouble.faults()
        for toxic in trouble.toxics:
            self.network.add(toxic)
        if trouble.is_refused:
            self.network.refuse()
        if trouble.is_stopped:
            os.kill(self.server.process_id, signal.SIGSTOP)
        try:
            yield
        finally:
            self.proxy.faults.clear()
            os.kill(self.server.process_id, signal.SIGCONT)
            self.network.heal()


TroubledS3 = Troubled[S3Server]


@contextmanager
def running_troubled_s3(directory: Path) -> Iterator[TroubledS3]:
    """Yield all three, on free ports of loopback; nothing is wrong yet."""
    with (
        running_s3_server(directory / "s3") as server,
        fault_proxy_in_a_thread(S3FaultProxy(url=""), server.url) as proxy,
        running_toxiproxy(directory, proxy.url.removeprefix("http://")) as network,
    ):
        yield TroubledS3(server=server, proxy=proxy, network=network)


def draw_troubles(draw: random.Random, count: int, kinds: Sequence[DrawTrouble] | None = None) -> list[Trouble]:
    """``count`` troubles, each of one of ``kinds`` (by default S3's); the same draws give the same ones."""
    return [draw.choice(kinds or _KINDS)(draw) for _ in range(count)]


def bad_network(draw: random.Random) -> Trouble:
    """One of toxiproxy's toxics."""
    kind, attributes = draw.choice(_TOXICS)
    drawn = tuple((name, draw.randint(low, high)) for name, low, high in attributes)
    upstream = draw.random() < 0.5
    toxic = Toxic(kind=cast("ToxicKind", kind), attributes=drawn, upstream=upstream)
    name = f"{kind} {dict(drawn)} {'up' if upstream else 'down'}stream"
    return Trouble(name=name, requests=draw.randint(3, 40), at_most_s=draw.uniform(0.5, 2.0), toxics=(toxic,))


def _fault(draw: random.Random) -> Trouble:
    kind = draw.choice(HONEST_FAULTS)
    status, code = draw.choice([(500, "InternalError"), (503, "SlowDown"), (503, "ServiceUnavailable")])
    method = "GET" if kind is FaultKind.CUT else draw.choice(["PUT", "PUT", "PUT", "POST", "GET", "HEAD"])
    times = draw.choice([1, 2, 5, FOR_EVER])

    def faults() -> list[Fault]:
        return [Fault(kind=kind, method=method, times=times, status=status, code=code)]

    said = f" {status} {code}" if kind is FaultKind.REFUSE else ""
    name = f"{kind}{said} of {times} {method}"
    return Trouble(name=name, requests=draw.randint(3, 40), at_most_s=draw.uniform(0.5, 2.0), faults=faults)


def stopped_server(draw: random.Random) -> Trouble:
    """It takes connections and answers nothing."""
    return Trouble(name="server stopped", requests=FOR_EVER, at_most_s=draw.uniform(0.5, 4.0), is_stopped=True)


def refused_connections(draw: random.Random) -> Trouble:
    """Nothing listens."""
    return Trouble(name="connections refused", requests=FOR_EVER, at_most_s=draw.uniform(0.2, 1.5), is_refused=True)


HONEST_FAULTS = (FaultKind.REFUSE, FaultKind.RESET, FaultKind.LOSE_ANSWER, FaultKind.CUT, FaultKind.STALL)
_KINDS: tuple[DrawTrouble, ...] = (*[bad_network] * 3, *[_fault] * 3, stopped_server, refused_connections)
_TOXICS: tuple[tuple[str, tuple[tuple[str, int, int], ...]], ...] = (
    ("latency", (("latency", 20, 600), ("jitter", 0, 200))),
    ("bandwidth", (("rate", 20, 500),)),
    ("slow_close", (("delay", 50, 800),)),
    ("timeout", (("timeout", 0, 500),)),
    ("reset_peer", (("timeout", 0, 300),)),
    ("limit_data", (("bytes", 200, 100_000),)),
)
"""Name, and of each attribute its bounds.  A ``timeout`` of 0 keeps the connection open and passes nothing on."""
