"""The snapshot lanes, of partitions and of the cluster, which run beside the role ``tier`` and apart from it."""

from __future__ import annotations

from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.adapters.snapshots.shelf import StoreShelf
from tiersidecar.app.config.top_level import Mode, Role
from tiersidecar.app.parts import Parts
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.tasks.cluster_snapshots import ClusterLook, ClusterSnapshotLane
from tiersidecar.tasks.snapshots import SnapshotLane, SnapshotSettings
from tiersidecar.tasks.topic_owners import Claimant, ClaimLook


def build_snapshot_lane(parts: Parts) -> SnapshotLane | None:
    """Build it by plain constructor calls; None where the process tiers nothing, only observes, or is to write no snapshots."""
    config, identity, prefix = parts.config, parts.identity, parts.config.store.key_prefix
    if Role.TIER not in parts.roles or config.mode is not Mode.ENFORCE or not config.snapshots_interval_ms:
        return None
    recorded = {
        "release": parts.status.version,
        "kafka.version": ".".join(map(str, parts.kafka_version)),
        "store": parts.store.description,
        "key.prefix": prefix,
        "remote.log.metadata.topic.name": config.remote_log_metadata_topic_name,
        "remote.log.metadata.topic.num.partitions": str(config.remote_log_metadata_topic_num_partitions),
        "state.topic.name": config.state_topic_name,
    }
    return SnapshotLane(
        sources=parts.sources,
        edges=parts.edges,
        claimant=Claimant(
            cluster_id=identity.cluster_id, broker_id=identity.broker_id, incarnation=identity.incarnation
        ),
        settings=SnapshotSettings(interval_s=config.snapshots_interval_ms / 1000, recorded=recorded),
        shelf=StoreShelf(parts.store, prefix, parts.blocking),
        claims=ClaimLook(store=parts.store, key_prefix=prefix, cluster_id=identity.cluster_id),
        presence=SegmentPresence(parts.store, prefix),
        is_ours=lambda: not parts.status.standing_by(),
    )


def build_cluster_snapshot_lane(parts: Parts) -> ClusterSnapshotLane | None:
    """Build it by plain constructor calls; None where the process tiers nothing, only observes, or is to write none."""
    config, identity = parts.config, parts.identity
    writes = Role.TIER in parts.roles and config.mode is Mode.ENFORCE and config.snapshots_cluster_interval_ms > 0
    if not writes or parts.commits is None:
        return None

    def rests() -> str:
        """Return why it rests: a state topic that lost data has forgotten topics, whose snapshots must stay."""
        return parts.status.standing_by() or parts.state.halted_reason or ""

    return ClusterSnapshotLane(
        taker=ClusterLook(
            broker=parts.broker,
            groups=parts.commits,
            state=parts.state,
            clock=parts.clock,
            cluster_id=identity.cluster_id,
            broker_id=identity.broker_id,
        ),
        shelf=StoreClusterShelf(parts.store, config.store.key_prefix, parts.blocking),
        telemetry=parts.telemetry,
        rests=rests,
        metadata_topic=config.remote_log_metadata_topic_name,
        interval_s=config.snapshots_cluster_interval_ms / 1000,
        turns=lambda: parts.table.turns,
    )
