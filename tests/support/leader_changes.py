"""Leaders that change while something else is tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.support.background_thread import LastingThread
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import place

_PAUSE_S = 0.3


class LeaderChanges(LastingThread):
    """Lets one broker after the other lead each of ``partitions``, until left."""

    def __init__(self, kafka: KafkaCluster, partitions: Sequence[tuple[str, int]]) -> None:
        super().__init__("leader changes", ends_within_s=120)
        self._kafka, self._partitions = kafka, partitions
        self._counts = Counter[str]()

    def count_of(self, topic: str) -> int:
        """Return how often a leader of the topic has changed."""
        return self._counts[topic]

    def work(self) -> None:
        nodes, turn = [broker.node_id for broker in self._kafka.brokers], 0
        while not self.stopping.is_set():
            turn += 1
            for topic, partition in self._partitions:
                first = (turn + partition) % len(nodes)
                place(self._kafka.admin, topic, partition, [*nodes[first:], *nodes[:first]])
                self._counts[topic] += 1
            self.stopping.wait(_PAUSE_S)
