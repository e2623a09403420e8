"""Settings of the state topic's client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiersidecar.adapters.internal_topics import InternalTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTopicSettings:
    """Replicated as the metadata topic is.  ``security`` are keyword arguments of aiokafka's clients.  ``broker_id`` and
    ``incarnation`` are the writer's, in each of its records; a command is no broker.
    A process that is not to write (``may_write``: a gateway's, a reader's own) mends nothing, and needs no right to.
    ``recovery`` as of the metadata topic's settings."""

    bootstrap_servers: str
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    topic: str = "__tiersidecar_state"
    replication_factor: int = 3
    min_insync_replicas: int = 2
    consume_wait_ms: int = 120_000
    retry_interval_ms: int = 100
    retry_max_interval_ms: int = 10_000
    watch_interval_ms: int = 5_000
    remember_interval_ms: int = 2_000
    mend_after_ms: int = 2_000
    may_write: bool = True
    client_id: str = "tiersidecar"
    broker_id: int = -1
    incarnation: str = ""
    recovery: str = ""

    @property
    def required_topic(self) -> InternalTopic:
        """Return the topic.  One partition: some hundred bytes per user partition, one order for all, and one leader whose loss
        stops writes to everything alike instead of to a part.  Compacted, and never deleted by time or size."""
        return InternalTopic(
            name=self.topic,
            partitions=1,
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            settings={"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
        )
