"""Leaders that change while something else is tested."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import place

_PAUSE_S = 0.3


class LeaderChanges:
    """Lets one broker after the other lead each of ``partitions``, until left."""

    def __init__(self, kafka: KafkaCluster, partitions: Sequence[tuple[str, int]]) -> None:
        self._kafka, self._partitions = kafka, partitions
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._counts = Counter[str]()
        self._thread = threading.Thread(target=self._run, name="leader changes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.check()

    def stop(self) -> None:
        """Let leaders be."""
        self._stopping.set()
        self._thread.join(120)

    def count_of(self, topic: str) -> int:
        """How often a leader of the topic has changed."""
        return self._counts[topic]

    def check(self) -> None:
        """Raises:
        AssertionError: leaders change no more.
        """
        assert self._failure is None, f"leaders change no more: {self._failure!r}"

    def _run(self) -> None:
        try:
            self._change()
        except BaseException as error:  # noqa: BLE001 - told by check, in the test's own thread
            self._failure = error

    def _change(self) -> None:
        nodes, turn = [broker.node_id for broker in self._kafka.brokers], 0
        while not self._stopping.is_set():
            turn += 1
            for topic, partition in self._partitions:
                first = (turn + partition) % len(nodes)
                place(self._kafka.admin, topic, partition, [*nodes[first:], *nodes[:first]])
                self._counts[topic] += 1
            self._stopping.wait(_PAUSE_S)
