"""Settings of the metadata topic's client; names and defaults are Kafka's where Kafka has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiersidecar.adapters.internal_topics import InternalTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopicSettings:
    """``security`` are keyword arguments of aiokafka's clients; ``initialization_retry_max_timeout_ms`` ends the process when
    the topic could not be reached for so long after the start: None, our default, tries without end (S-102);
    ``snapshot_path`` None keeps no snapshot, and every start replays the topic.  ``recovery`` says to the operator what to do
    where the topic lost data, in place of what its own cluster's sidecars say."""

    bootstrap_servers: str
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    topic: str = "__remote_log_metadata"
    partitions: int = 50
    replication_factor: int = 3
    min_insync_replicas: int = 2
    consume_wait_ms: int = 120_000
    initialization_retry_interval_ms: int = 100
    initialization_retry_max_timeout_ms: int | None = None
    retry_max_interval_ms: int = 10_000
    watch_interval_ms: int = 5_000
    snapshot_path: str | None = None
    snapshot_interval_ms: int = 60_000
    client_id: str = "tiersidecar"
    recovery: str = ""

    @property
    def required_topic(self) -> InternalTopic:
        """Return the topic as it must be (S-086).  retention.bytes is named because a broker's log.retention.bytes would
        apply."""
        return InternalTopic(
            name=self.topic,
            partitions=self.partitions,
            replication_factor=self.replication_factor,
            min_insync_replicas=self.min_insync_replicas,
            settings={
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "unclean.leader.election.enable": "false",
            },
        )
