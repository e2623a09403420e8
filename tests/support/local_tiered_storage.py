"""A broker's own tiering with LocalTieredStorage, Kafka's storage for tests, which copies into a directory."""

from __future__ import annotations

from pathlib import Path

METADATA_PARTITIONS = 5


def local_tiered_storage(storage: Path, *, interval_ms: int = 200) -> dict[str, str]:
    """Return the properties of a broker that tiers into ``storage``, with its metadata topic on one broker; it looks every
    ``interval_ms``."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(storage),
        "remote.log.metadata.manager.listener.name": "INTERNAL",
        "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "remote.log.manager.task.interval.ms": str(interval_ms),
    }
