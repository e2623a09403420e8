"""From what has been opened to the parts that the roles share: the same for the daemon and for its simulation."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tiersidecar.app.parts import Opened, Parts
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.reading.hedged_fetches import HedgedFetches
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import KeptEpochs, LineageKeeper, NoLiveLog
from tiersidecar.reading.remote_objects import ManifestCache
from tiersidecar.tasks.policies import NoTopicStates, TopicPolicies
from tiersidecar.tasks.remembered_epochs import RememberedEpochs
from tiersidecar.tasks.roster import Roster


def assemble(stack: AsyncExitStack, opened: Opened) -> Parts:
    """Build the parts by plain constructor calls; ``stack`` closes what is made here."""
    fetches = HedgedFetches(
        opened.store,
        percent=opened.config.read.hedged_fetches_percent,
        clock=opened.clock,
        telemetry=opened.telemetry,
    )
    stack.push_async_callback(fetches.aclose)
    manifests = ManifestCache(
        store=fetches,
        blocking=opened.blocking,
        key_prefix=opened.config.store.key_prefix,
        key_ring=opened.key_ring,
        most_chunk_bytes=opened.config.store.chunk_size,
        most_index_bytes=opened.config.read.index_max_bytes,
    )
    stack.push_async_callback(manifests.aclose)
    blobs = IndexBlobReader(store=opened.store, blocking=opened.blocking, manifests=manifests)
    is_mount = opened.config.source is not None
    lineages = LineageKeeper(
        metadata=opened.metadata,
        epochs=KeptEpochs(blobs) if is_mount else blobs,
        # What the broker's files say of a mounted partition is of an empty log.
        live=NoLiveLog() if is_mount else RememberedEpochs(live=opened.table, state=opened.state),
        blocking=opened.blocking,
        clock=opened.clock,
        changes=opened.metadata if is_mount else None,
    )
    stack.push_async_callback(lineages.aclose)
    policies = policies_of(opened)
    roster = Roster(
        table=opened.table,
        log_dirs=opened.log_dirs,
        broker=opened.broker,
        assignment=opened.metadata,
        policy_for=policies.policy_for,
        broker_id=opened.identity.broker_id,
        edges=opened.edges,
        forget=lineages.forget,
    )
    return Parts(
        config=opened.config,
        tuning=opened.tuning,
        roles=opened.roles,
        identity=opened.identity,
        kafka_version=opened.kafka_version,
        table=opened.table,
        status=opened.status,
        log_dirs=opened.log_dirs,
        pins=opened.pins,
        journal=opened.journal,
        trash_clock=opened.trash_clock,
        broker=opened.broker,
        store=opened.store,
        key_ring=opened.key_ring,
        metadata=opened.metadata,
        state=opened.state,
        proposals=opened.proposals,
        blocking=opened.blocking,
        clock=opened.clock,
        ids=opened.ids,
        failpoints=opened.failpoints,
        telemetry=opened.telemetry,
        requests_left_alone=opened.requests_left_alone,
        commits=opened.commits,
        mount=opened.mount,
        shares=opened.shares,
        manifests=manifests,
        lineages=lineages,
        policies=policies,
        roster=roster,
    )


def policies_of(opened: Opened) -> TopicPolicies:
    """Return the policies.  In a read-only mount the mounted topics are tiered, whatever rules and state topic say, and no
    others; not even a topic that has the name by now."""
    config, table, mounted = opened.config, opened.table, opened.mount.topics
    if config.source is None:
        return TopicPolicies(table=table, state=opened.state, defaults=config.policy_for, unnamed=config.unnamed_policy)

    def planned_policy(topic: str) -> TopicPolicy | None:
        planned = mounted.get(topic)
        is_it = planned is not None and table.topic_ids.get(topic, planned.topic_id) == planned.topic_id
        return config.unnamed_policy if is_it else None

    return TopicPolicies(table=table, state=NoTopicStates(), defaults=planned_policy, unnamed=config.unnamed_policy)
