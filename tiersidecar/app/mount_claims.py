"""Makes a bucket's data the new cluster's, which is the fence of the former one: whose they are, whether that cluster lives,
and until when its sidecars may believe otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.adapters.snapshots.codec import MOST_SNAPSHOT_BYTES, read_partition_snapshot
from tiersidecar.adapters.snapshots.shelf import version_in
from tiersidecar.app.at_once import at_once
from tiersidecar.app.mount_file import MountPlan
from tiersidecar.app.reconcile_parts import UNREADABLE_OWNER
from tiersidecar.decide.mount import Lineage, lineage_of
from tiersidecar.domain.errors import CorruptDataError, MountRefusedError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES, OWNERS, SNAPSHOTS
from tiersidecar.domain.readable import moment_text
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.ports.store import BytesBody, Store
from tiersidecar.tasks.topic_owners import TopicOwner, owner_key, read_topic_owner

FENCE_S = 11.0
"""A sidecar believes for ten seconds what the store has said about an owner."""
LIVES_S = 600.0
"""A cluster whose sidecars have put a snapshot within this time is taken to be alive."""
_MOUNTED = "mounted"
_NEWEST_LOOKED_AT = 16
_TOPICS_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundClaims:
    """Whose the data of a plan are: ``to_claim`` are topic ids that are not this cluster's yet; ``faults`` say why nothing is
    done; ``fenced_ms`` is when the last claim of this cluster's was made, -1 where none was.  ``lineage`` are the former
    cluster and those whose data it had taken over, latest first; ``cluster`` is what the latest of them put about itself."""

    to_claim: tuple[Uuid, ...]
    faults: tuple[str, ...]
    fenced_ms: int
    lineage: Lineage
    cluster: ClusterSnapshot | None


async def snapshot_of(lineage: Lineage, shelf: StoreClusterShelf, key: str | None) -> ClusterSnapshot | None:
    """Return the snapshot under ``key``, which must be of a cluster of the lineage; without a key the latest.

    Raises:
        MountRefusedError: it is of another cluster.
        CorruptDataError: it is none.
        StoreError: there is no object of that key, or the store is away.
    """
    if key is None:
        return await _latest_of(lineage, shelf)
    found = await shelf.at(key)
    if found.cluster_id not in lineage:
        raise MountRefusedError(reason=f"{key} is of cluster {found.cluster_id}, not of {' or '.join(lineage)}")
    return found


async def _latest_of(lineage: Lineage, shelf: StoreClusterShelf) -> ClusterSnapshot | None:
    """Return what the latest cluster of a lineage that said anything of itself said last.

    Raises:
        StoreError: the store is away.
    """
    for cluster_id in lineage:
        if cluster_id and (found := await shelf.latest(cluster_id)) is not None:
            return found
    return None


async def read_lineages(store: Store, key_prefix: str) -> dict[str, Lineage]:
    """Read all that the store says of owners, by topic id.

    Raises:
        StoreError: the store is away.
    """
    prefix = f"{key_prefix}{OWNERS}"
    keys = [stored.key async for stored in store.list_objects(prefix)]
    owners = await at_once(partial(owner_at, store), keys, _TOPICS_AT_ONCE)
    return {
        key.removeprefix(prefix).removesuffix(".json"): owner.lineage
        for key, owner in zip(keys, owners, strict=True)
        if owner is not None
    }


async def owner_at(store: Store, key: str) -> TopicOwner | None:
    """Return what the owner object says; None where there is none.

    Raises:
        StoreError: the store is away.
    """
    try:
        return read_topic_owner(await store.fetch_object(key, max_bytes=MOST_OWNER_BYTES))
    except ObjectNotFoundError:
        return None
    except (ObjectTooLargeError, ValueError):
        return TopicOwner(cluster_id=UNREADABLE_OWNER, topic="", claimed_ms=0, broker_id=-1, incarnation="")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountClaims:
    """Claims of one plan, by the cluster ``ours``.  ``cluster_snapshot`` is the key of the one to use, None for the latest."""

    store: Store
    key_prefix: str
    blocking: Blocking
    clock: Clock
    plan: MountPlan
    ours: str
    say: Callable[[str], None]
    cluster_snapshot: str | None = None

    async def look(self, *, former_is_gone: bool) -> FoundClaims:
        """Look whose the data are, and unless the operator says that the former one is gone, whether that one lives.

        Raises:
            As :func:`snapshot_of`.
        """
        former = self.plan.former_cluster_id
        keys = {topic.topic_id: owner_key(self.key_prefix, topic.topic_id) for topic in self.plan.topics}
        found = await at_once(partial(owner_at, self.store), keys.values(), _TOPICS_AT_ONCE)
        owners = dict(zip(keys, found, strict=True))
        lineage = lineage_of(former, [owner.lineage for owner in owners.values() if owner is not None])
        to_claim = tuple(one for one, owner in owners.items() if (owner.cluster_id if owner else "") in lineage)
        cluster = await snapshot_of(lineage, self._shelf, self.cluster_snapshot)
        faults = [f"this is a former cluster itself, {self.ours}"] if self.ours in lineage else []
        faults += self._foreign(owners, lineage)
        if former and not former_is_gone:
            losing = {
                owner.cluster_id for owner in owners.values() if owner is not None and owner.cluster_id in lineage
            }
            faults += [sign for one in sorted(losing) if (sign := await self._sign_of_life(one, to_claim))]
        ours = (one.claimed_ms for one in owners.values() if one is not None and one.cluster_id == self.ours)
        return FoundClaims(
            to_claim=to_claim, faults=tuple(faults), fenced_ms=max(ours, default=-1), lineage=lineage, cluster=cluster
        )

    async def claim(self, found: FoundClaims) -> None:
        """Make the data this cluster's, and wait until no sidecar of the former one believes otherwise.  A claim that was made
        before is waited for too: whether that was done then is unknown.

        Raises:
            StoreError: the store is away.
        """
        names = {topic.topic_id: topic.name for topic in self.plan.topics}
        claimed_ms = found.fenced_ms
        former = found.lineage if self.plan.former_cluster_id else ()
        await self._inherit(found.cluster)

        async def claim(topic_id: Uuid) -> None:
            owner = TopicOwner(
                cluster_id=self.ours,
                topic=names[topic_id],
                claimed_ms=self.clock.now_ms(),
                broker_id=-1,
                incarnation=_MOUNTED,
                former_clusters=former,
            )
            await self.store.put_object(owner_key(self.key_prefix, topic_id), BytesBody(owner.write(topic_id)))

        if found.to_claim:
            self.say(f"claiming the data of {len(found.to_claim):,} topics")
            await at_once(claim, found.to_claim, _TOPICS_AT_ONCE)
            claimed_ms = self.clock.now_ms()
        left_s = min(FENCE_S, FENCE_S - (self.clock.now_ms() - claimed_ms) / 1000)
        if self.plan.former_cluster_id and claimed_ms >= 0 and left_s > 0:
            self.say("waiting until the former cluster's sidecars, if any still run, have seen that")
            await self.clock.sleep(left_s)

    def _foreign(self, owners: Mapping[Uuid, TopicOwner | None], lineage: Lineage) -> list[str]:
        faults = []
        for topic in self.plan.topics:
            owner = owners[topic.topic_id]
            cluster_id = owner.cluster_id if owner else ""
            if cluster_id == UNREADABLE_OWNER:
                key = owner_key(self.key_prefix, topic.topic_id)
                faults.append(
                    f"{topic.name}: whose its data are cannot be read from {key}: find out what wrote it there"
                )
            elif cluster_id not in (self.ours, *lineage):
                said = f"cluster {cluster_id}'s" if cluster_id else "no cluster's"
                faults.append(f"{topic.name}: the store says that its data are {said}: make a new plan")
        return faults

    @property
    def _shelf(self) -> StoreClusterShelf:
        return StoreClusterShelf(self.store, self.key_prefix, self.blocking)

    async def _inherit(self, cluster: ClusterSnapshot | None) -> None:
        """Put what the former cluster said of itself as what this one says, which may be gone before its sidecars start."""
        if cluster is not None and await self._shelf.latest(self.ours) is None:
            await self._shelf.put(replace(cluster, cluster_id=self.ours))

    async def _sign_of_life(self, cluster_id: str, topic_ids: tuple[Uuid, ...]) -> str:
        """Return why the cluster seems to live, for people; empty where nothing shows it."""
        since_ms = self.clock.now_ms() - int(LIVES_S * 1000)
        cluster = await self._shelf.latest(cluster_id)
        newest_ms = max(
            -1 if cluster is None else cluster.written_ms, await self._newest_of(cluster_id, topic_ids, since_ms)
        )
        if newest_ms < since_ms:
            return ""
        return (
            f"cluster {cluster_id} seems to live: its sidecars put a snapshot at {moment_text(newest_ms)}. "
            "Is this its own bucket, and not the copy? Taking over ends its tiering. If it is gone: --former-cluster-is-gone"
        )

    async def _newest_of(self, cluster_id: str, topic_ids: tuple[Uuid, ...], since_ms: int) -> int:
        """Return when the cluster wrote the newest partition snapshot, of those that the store got since; -1 for none.
        What was replicated or copied to this bucket since then is older than the store says."""
        recent = [
            (stored.modified_ms, stored.key)
            for topic_id in topic_ids
            async for stored in self.store.list_objects(f"{self.key_prefix}{SNAPSHOTS}{format_uuid(topic_id)}/")
            if stored.modified_ms >= since_ms and version_in(stored.key) is not None
        ]
        newest_ms = -1
        for _, key in sorted(recent, reverse=True)[:_NEWEST_LOOKED_AT]:
            try:
                data = await self.store.fetch_object(key, max_bytes=MOST_SNAPSHOT_BYTES)
                snapshot = await self.blocking.run(partial(read_partition_snapshot, data, where=key))
            except (CorruptDataError, ObjectNotFoundError, ObjectTooLargeError):
                continue
            if snapshot.cluster_id == cluster_id:
                newest_ms = max(newest_ms, snapshot.written_ms)
        return newest_ms
