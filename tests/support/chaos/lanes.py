"""Faults side by side: one lane each for brokers, sidecars, store and topics, and one that reads all the while."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.chaos.faults import BROKER_FAULTS, SIDECAR_FAULTS, STORE_FAULTS, TOPIC_FAULTS, Strike
from tests.support.chaos.read_check import ReadCheck
from tests.support.chaos.world import PARTITIONS, World


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The faults to draw, from ``seed``.  A leader that was stopped serves what it knew then until it learns that it leads no
    more: what was acknowledged ``settled_after_s`` ago every leader knows."""

    seed: int
    brokers: Sequence[Strike] = BROKER_FAULTS
    settled_after_s: float = 30.0


class Lanes:
    """Threads that strike ``world`` until the block ends; the same seed draws the same faults in each lane."""

    def __init__(self, world: World, plan: FaultPlan, *, reads: ReadCheck) -> None:
        self._world, self._plan, self._reads = world, plan, reads
        seed = plan.seed
        self._failure: BaseException | None = None
        rests_s: dict[str, tuple[Sequence[Strike], float]] = {
            "brokers": (plan.brokers, 3.0),
            "sidecars": (SIDECAR_FAULTS, 6.0),
            "store": (STORE_FAULTS, 4.0),
            "topics": (TOPIC_FAULTS, 6.0),
        }
        self._threads = [
            self._thread(name, lambda draw, faults=faults, rest_s=rest_s: self._strike(draw, faults, rest_s), seed)  # type: ignore[misc]
            for name, (faults, rest_s) in rests_s.items()
        ]
        self._threads += [self._thread(f"reads {number}", self._read, seed) for number in range(2)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world.stopping.set()
        for thread in self._threads:
            thread.join(240)

    def raise_failure(self) -> None:
        """Raises: AssertionError: a lane has met what must not be."""
        if self._failure is not None:
            story = "\n".join(self._world.story[-40:])
            raise AssertionError(f"{self._failure}\n{story}\n{self._world.sidecars.log_tails(8)}") from self._failure

    def run(self, seconds: float, look: Callable[[], None]) -> None:
        """Let them strike for so long, or until one fails; ``look`` is called now and then."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.raise_failure()
            look()
            time.sleep(0.5)
        self._world.stopping.set()
        for thread in self._threads:
            thread.join(240)
            assert not thread.is_alive(), f"{thread.name} does not end; {self._world.story[-10:]}"
        self.raise_failure()

    def _thread(self, name: str, work: Callable[[random.Random], None], seed: int) -> threading.Thread:
        def run() -> None:
            try:
                work(random.Random(f"{seed} {name}"))
            except BaseException as error:  # noqa: BLE001 - raised by raise_failure, in the test's own thread
                self._failure = self._failure or error
                self._world.stopping.set()

        return threading.Thread(target=run, name=f"chaos {name}", daemon=True)

    def _strike(self, draw: random.Random, faults: Sequence[Strike], rest_s: float) -> None:
        while self._world.pause(draw.uniform(0.2, rest_s)):
            fault = draw.choice(faults)
            fault(self._world, draw)
            if faults is self._plan.brokers:
                self._world.wait_until_in_sync()

    def _read(self, draw: random.Random) -> None:
        known: deque[tuple[float, list[int]]] = deque()
        urls = [daemon.read_url for daemon in self._world.sidecars.by_node.values()]
        count = PARTITIONS[self._reads.topic]
        while self._world.pause(0.3):
            now_s = time.monotonic()
            known.append((now_s, [self._reads.producing.end_offset(partition) for partition in range(count)]))
            while len(known) > 1 and now_s - known[1][0] >= self._plan.settled_after_s:
                known.popleft()
            if now_s - known[0][0] >= self._plan.settled_after_s:
                partition = draw.randrange(count)
                self._reads.read(draw, draw.choice(urls), partition, known[0][1][partition])
