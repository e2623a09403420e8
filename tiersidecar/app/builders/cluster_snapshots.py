"""The lane of the cluster's snapshots, which runs beside the role ``tier`` and apart from it."""

from __future__ import annotations

from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.app.config.top_level import Mode, Role
from tiersidecar.app.parts import Parts
from tiersidecar.tasks.cluster_snapshots import ClusterLook, ClusterSnapshotLane


def build_cluster_snapshot_lane(parts: Parts) -> ClusterSnapshotLane | None:
    """By plain constructor calls; None where the process tiers nothing, only observes, or is to write none."""
    config, identity = parts.config, parts.identity
    writes = Role.TIER in parts.roles and config.mode is Mode.ENFORCE and config.snapshots_cluster_interval_ms > 0
    if not writes or parts.commits is None:
        return None

    def rests() -> str:
        """A state topic that lost data has forgotten topics: what the store has of them stays."""
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
    )
