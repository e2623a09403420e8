"""Taking over a bucket's data fences the cluster that had them (issue 21)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.adapters.snapshots.shelf import StoreShelf
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.mount_claims import FENCE_S, LIVES_S, FoundClaims, MountClaims
from tiersidecar.app.mount_file import MountPlan
from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, NewPartition, NewTopic
from tiersidecar.domain.errors import MountRefusedError, ObjectNotFoundError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.topic_owners import TopicOwner, owner_key, read_topic_owner

A, B, C = "cluster-a", "cluster-b", "cluster-c"
ORDERS, BILLS = Uuid(b"orders-topic-id!"), Uuid(b"bills-topic-id!!")
NAMES = {ORDERS: "orders", BILLS: "bills"}


def plan(former: str, *topic_ids: Uuid) -> MountPlan:
    partition = NewPartition(partition=0, replicas=(1,), leader_epoch=1000, start_offset=10)
    return MountPlan(
        made_ms=0,
        former_cluster_id=former,
        topics=tuple(NewTopic(name=NAMES[one], topic_id=one, partitions=(partition,), configs=()) for one in topic_ids),
        next_producer_id=0,
        open_transactions={},
    )


class Bucket:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock, ids=SystemIds())
        self.shelf = StoreClusterShelf(self.store, "p/", InlineBlocking())

    def claims(self, ours: str, former: str, *topic_ids: Uuid) -> MountClaims:
        return MountClaims(
            store=self.store,
            key_prefix="p/",
            blocking=InlineBlocking(),
            clock=self.clock,
            plan=plan(former, *(topic_ids or (ORDERS,))),
            ours=ours,
            say=lambda step: None,
        )

    async def own(self, topic_id: Uuid, cluster_id: str) -> None:
        owner = TopicOwner(cluster_id=cluster_id, topic=NAMES[topic_id], claimed_ms=5, broker_id=1, incarnation="i")
        await self.store.put_object(owner_key("p/", topic_id), BytesBody(owner.write(topic_id)))

    async def owner(self, topic_id: Uuid) -> TopicOwner:
        return read_topic_owner(await self.store.fetch_object(owner_key("p/", topic_id), max_bytes=2**30))

    async def snapshot(self, cluster_id: str, *, age_s: float = 2 * LIVES_S) -> None:
        """What the cluster put about itself."""
        orders = ClusterTopic(topic_id=ORDERS, replication_factor=1, leader_epochs=(1,), configs={"a": "b"})
        await self.shelf.put(
            ClusterSnapshot(
                cluster_id=cluster_id,
                written_ms=self.clock.now_ms() - int(age_s * 1000),
                broker_id=1,
                topics={"orders": orders},
                groups={"billing": {("orders", 0): Commit(offset=4)}},
            )
        )

    async def partition_snapshot(self, cluster_id: str, *, age_s: float) -> None:
        await StoreShelf(self.store, "p/", InlineBlocking()).put(
            PartitionSnapshot(
                cluster_id=cluster_id,
                topic_id_partition=TopicIdPartition(topic_id=ORDERS, topic="orders", partition=0),
                version=SnapshotVersion(leader_epoch=LeaderEpoch(1), serial=1),
                written_ms=self.clock.now_ms() - int(age_s * 1000),
                broker_id=1,
                incarnation="",
                segments=(),
                highest_offsets={},
                state=PartitionState(),
            )
        )


async def claim(bucket: Bucket, claims: MountClaims) -> tuple[FoundClaims, float]:
    """Take over; return what was found, and how long it took."""
    found = await claims.look(former_is_gone=True)
    begun_s = bucket.clock.monotonic_s()
    running = asyncio.create_task(claims.claim(found))
    await settle()
    while not running.done():
        await bucket.clock.advance(0.5)
    await running
    return found, bucket.clock.monotonic_s() - begun_s


async def test_a_claim_is_waited_for_until_no_sidecar_believes_otherwise() -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    found, took_s = await claim(bucket, bucket.claims(B, A))
    assert (found.to_claim, found.faults) == ((ORDERS,), ())
    assert took_s >= FENCE_S
    assert (await bucket.owner(ORDERS)).cluster_id == B


async def test_a_second_run_waits_for_the_claims_of_one_that_was_stopped() -> None:
    """Ctrl-C while the first waited: nothing is left to claim, and sidecars of the former cluster still believe."""
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    claims = bucket.claims(B, A)
    first = asyncio.create_task(claims.claim(await claims.look(former_is_gone=True)))
    await bucket.clock.advance(3)
    first.cancel()
    found, took_s = await claim(bucket, claims)
    assert found.to_claim == ()
    assert FENCE_S - 3 <= took_s < FENCE_S
    _, again_s = await claim(bucket, claims)
    assert again_s == 0


async def test_a_claim_from_a_clock_that_is_ahead_is_waited_for_no_longer_than_one_of_now() -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    bucket.clock.jump(86_400)
    await claim(bucket, bucket.claims(B, A))
    bucket.clock.jump(-86_400)
    _, took_s = await claim(bucket, bucket.claims(B, A))
    assert FENCE_S <= took_s < FENCE_S + 1


async def test_nothing_is_waited_for_where_no_cluster_had_the_data() -> None:
    bucket = Bucket()
    found, took_s = await claim(bucket, bucket.claims(B, ""))
    assert (found.to_claim, found.faults, took_s) == ((ORDERS,), (), 0)


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(b"[]", id="no owner"),
        pytest.param(b"[" * 60_000, id="deeply nested"),
        pytest.param(b'{"cluster_id":"cluster-a"}' + b" " * MOST_OWNER_BYTES, id="too large"),
    ],
)
@pytest.mark.parametrize("former", [A, "?"])
async def test_data_of_others_and_owners_that_cannot_be_read_are_refused(forged: bytes, former: str) -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, C)
    await bucket.store.put_object(owner_key("p/", BILLS), BytesBody(forged))
    found = await bucket.claims(B, former, ORDERS, BILLS).look(former_is_gone=True)
    assert found.faults == (
        f"orders: the store says that its data are cluster {C}'s: make a new plan",
        f"bills: whose its data are cannot be read from {owner_key('p/', BILLS)}: find out what wrote it there",
    )


async def test_a_cluster_whose_sidecars_have_just_put_a_snapshot_is_not_taken_over() -> None:
    """The wrong bucket, or a rehearsal on the real one."""
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await bucket.snapshot(A, age_s=LIVES_S - 1)
    found = await bucket.claims(B, A).look(former_is_gone=False)
    assert "cluster-a seems to live" in found.faults[0]
    assert "--former-cluster-is-gone" in found.faults[0]
    assert (await bucket.claims(B, A).look(former_is_gone=True)).faults == ()


async def test_a_snapshot_of_a_partition_shows_that_it_lives_too() -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await bucket.snapshot(A)
    await bucket.partition_snapshot(A, age_s=1)
    assert "seems to live" in (await bucket.claims(B, A).look(former_is_gone=False)).faults[0]


async def test_what_was_copied_into_this_bucket_just_now_is_as_old_as_it_says() -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await bucket.snapshot(A)
    await bucket.partition_snapshot(A, age_s=2 * LIVES_S)
    assert (await bucket.claims(B, A).look(former_is_gone=False)).faults == ()


async def test_once_all_is_claimed_the_former_cluster_is_not_asked_for() -> None:
    """Its sidecars cannot write any more: a second run need not say again that it is gone."""
    bucket = Bucket()
    await bucket.own(ORDERS, B)
    await bucket.snapshot(A, age_s=0)
    assert (await bucket.claims(B, A).look(former_is_gone=False)).faults == ()


async def test_the_owner_keeps_whose_the_data_were_and_what_that_cluster_put_about_itself() -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await bucket.snapshot(A)
    await claim(bucket, bucket.claims(B, A))
    assert (await bucket.owner(ORDERS)).former_clusters == (A,)
    of_a, of_b = await bucket.shelf.latest(A), await bucket.shelf.latest(B)
    assert of_a is not None
    assert of_b == replace(of_a, cluster_id=B), "B has not said anything yet, and may be gone before it does"


async def test_a_mount_that_ended_behind_the_claim_is_begun_anew_in_a_third_cluster() -> None:
    """The second run finds B's claims of some topics, and A's of the others."""
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await bucket.own(BILLS, A)
    await bucket.snapshot(A)
    await claim(bucket, bucket.claims(B, A, ORDERS))
    found, _ = await claim(bucket, bucket.claims(C, B, ORDERS, BILLS))
    assert (found.faults, found.to_claim, found.lineage) == ((), (ORDERS, BILLS), (B, A))
    assert found.cluster is not None
    assert set(found.cluster.groups) == {"billing"}
    for topic_id in (ORDERS, BILLS):
        assert (await bucket.owner(topic_id)).former_clusters == (B, A)
    again = await bucket.claims(C, B, ORDERS, BILLS).look(former_is_gone=False)
    assert (again.faults, again.to_claim, again.lineage) == ((), (), (B, A))


async def test_what_a_cluster_has_said_of_itself_is_not_replaced_by_what_the_former_said() -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, B)
    await bucket.snapshot(A)
    await bucket.snapshot(B)
    await claim(bucket, bucket.claims(B, A))
    assert len([one async for one in bucket.store.list_objects("p/.tiersidecar/clusters/cluster-b/")]) == 1


async def test_a_cluster_that_had_the_data_before_gets_them_by_no_mount() -> None:
    """Its sidecars would write beside the new ones' once they are back: an id of its own is the fence."""
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await claim(bucket, bucket.claims(B, A))
    found = await bucket.claims(A, B).look(former_is_gone=True)
    assert found.faults == (f"this is a former cluster itself, {A}",)


async def test_an_earlier_snapshot_of_the_cluster_can_be_named() -> None:
    """The latest is what a rebuilt cluster says of itself."""
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    for age_s in (4 * LIVES_S, 3 * LIVES_S, 0):
        await bucket.snapshot(A, age_s=age_s)
    prefix = "p/.tiersidecar/clusters/cluster-a/"
    first, *_ = sorted([one.key async for one in bucket.store.list_objects(prefix)])
    named = replace(bucket.claims(B, A), cluster_snapshot=first)
    found = await named.look(former_is_gone=True)
    assert found.cluster is not None
    assert found.cluster.written_ms == bucket.clock.now_ms() - int(4 * LIVES_S * 1000)
    assert "seems to live" in (await named.look(former_is_gone=False)).faults[0], "by the latest"
    for wrong in ("p/.tiersidecar/clusters/cluster-a/1.snapshot", first.replace("cluster-a", "cluster-c")):
        with pytest.raises(ObjectNotFoundError):
            await replace(named, cluster_snapshot=wrong).look(former_is_gone=True)


async def test_a_snapshot_of_a_cluster_that_never_had_the_data_is_refused() -> None:
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await bucket.snapshot(C)
    (key,) = [one.key async for one in bucket.store.list_objects("p/.tiersidecar/clusters/")]
    with pytest.raises(MountRefusedError, match=f"of cluster {C}, not of {A}"):
        await replace(bucket.claims(B, A), cluster_snapshot=key).look(former_is_gone=True)


async def test_a_cluster_before_the_former_one_may_live_too() -> None:
    """A mount took only some of its topics over: the others are its own still."""
    bucket = Bucket()
    await bucket.own(ORDERS, A)
    await bucket.own(BILLS, A)
    await claim(bucket, bucket.claims(B, A, ORDERS))
    await bucket.snapshot(B)
    await bucket.snapshot(A, age_s=1)
    assert (await bucket.claims(C, B, ORDERS).look(former_is_gone=False)).faults == (), "nothing of it is claimed"
    found = await bucket.claims(C, B, ORDERS, BILLS).look(former_is_gone=False)
    assert "cluster cluster-a seems to live" in found.faults[0]
