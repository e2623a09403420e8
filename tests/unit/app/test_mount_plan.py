"""What of a bucket can be mounted (issue 21): whose it is, where each partition goes on, and what people must know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.directory_store import DirectoryStore
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.metadata_events import FINISHED, STARTED, added
from tests.unit.reconcile.test_bucket_walk import manifest_of
from tiersidecar.adapters.snapshots.cluster_shelf import StoreClusterShelf
from tiersidecar.adapters.snapshots.shelf import StoreShelf
from tiersidecar.app.mount_file import read_plan, write_plan
from tiersidecar.app.mount_findings import Findings, Wanted
from tiersidecar.app.mount_plan import MountPlanner
from tiersidecar.app.mount_report import notes_of, rows_of
from tiersidecar.decide.mount import EPOCHS_APART, STRICT_CONFIGS, followed_epoch
from tiersidecar.domain.cluster_topics import ClusterTopic, Commit
from tiersidecar.domain.errors import (
    DataKeyError,
    KeyRefusedError,
    KeyServiceError,
    MountRefusedError,
    TiersidecarError,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.remote_objects import ManifestCache, recorded_keys
from tiersidecar.tasks.topic_owners import TopicOwner, owner_key

FORMER, ELSEWHERE = "former-cluster", "another-cluster"
ORDERS = TopicIdPartition(topic_id=Uuid(b"orders-topic-id!"), topic="orders", partition=0)
ANEW = replace(ORDERS, topic_id=Uuid(b"orders-made-anew"))
BILLS = TopicIdPartition(topic_id=Uuid(b"bills-topic-id!!"), topic="bills", partition=1)
WANTED = Wanted(brokers=(1, 2))


def live(
    number: int, start: int, owner: TopicIdPartition = ORDERS, *, epoch: int = 0, at_ms: int = 10
) -> RemoteLogSegmentMetadata:
    one = added(number, start, start + 9, {epoch: start}, owner=owner)
    return replace(one, state=FINISHED, event_timestamp_ms=at_ms)


@dataclass(slots=True)
class Bucket:
    root: Path

    def store(self, *segments: RemoteLogSegmentMetadata, but: str = "") -> None:
        for segment in segments:
            for key in recorded_keys(segment).in_upload_order:
                if not but or not key.endswith(but):
                    path = self.root / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(manifest_of(segment) if key.endswith("manifest") else b"x")

    def claim(
        self,
        owner: TopicIdPartition,
        cluster_id: str = FORMER,
        *,
        former: tuple[str, ...] = (),
        claimed_ms: int = 0,
    ) -> None:
        claimed = TopicOwner(
            cluster_id=cluster_id,
            topic=owner.topic,
            claimed_ms=claimed_ms,
            broker_id=1,
            incarnation="",
            former_clusters=former,
        )
        path = self.root / owner_key("", owner.topic_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(claimed.write(owner.topic_id))

    async def snapshot(
        self,
        *segments: RemoteLogSegmentMetadata,
        epoch: int,
        owner: TopicIdPartition = ORDERS,
        deleted_to: int = 3,
        written_ms: int = 100,
        trash: tuple[TrashEntry, ...] = (),
    ) -> None:
        async with DirectoryStore(str(self.root))() as store:
            await StoreShelf(store, "", InlineBlocking()).put(
                PartitionSnapshot(
                    cluster_id=FORMER,
                    topic_id_partition=owner,
                    version=SnapshotVersion(leader_epoch=LeaderEpoch(epoch), serial=1),
                    written_ms=written_ms,
                    broker_id=1,
                    incarnation="",
                    segments=segments,
                    highest_offsets={0: max((one.end_offset for one in segments), default=-1)},
                    state=PartitionState().with_delete(Offset(deleted_to), LeaderEpoch(0)),
                    trash=trash,
                )
            )

    async def cluster(
        self,
        committed_epoch: int = 31,
        *,
        written_ms: int = 100,
        cluster_id: str = FORMER,
        **topics: ClusterTopic,
    ) -> None:
        async with DirectoryStore(str(self.root))() as store:
            await StoreClusterShelf(store, "", InlineBlocking()).put(
                ClusterSnapshot(
                    cluster_id=cluster_id,
                    written_ms=written_ms,
                    broker_id=1,
                    topics=topics,
                    groups={"billing": {("orders", 0): Commit(offset=4, leader_epoch=committed_epoch)}},
                )
            )

    async def find(self, wanted: Wanted = WANTED) -> Findings:
        blocking = InlineBlocking()
        async with DirectoryStore(str(self.root))() as store:
            manifests = ManifestCache(store=store, blocking=blocking, max_bytes=1)
            return await MountPlanner(
                store=store,
                key_prefix="",
                blobs=IndexBlobReader(store=store, blocking=blocking, manifests=manifests),
                blocking=blocking,
                clock=ManualClock(),
                say=lambda step: None,
            ).find(wanted)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


def described(owner: TopicIdPartition, **configs: str) -> ClusterTopic:
    return ClusterTopic(topic_id=owner.topic_id, replication_factor=2, leader_epochs=(7, 2), configs=configs)


async def test_a_topic_goes_on_behind_what_was_copied_as_its_cluster_had_it(bucket: Bucket) -> None:
    first, second = live(1, 0), live(2, 10)
    bucket.store(first, second)
    bucket.claim(ORDERS)
    await bucket.snapshot(first, second, epoch=9)
    await bucket.cluster(orders=described(ORDERS, **{"retention.ms": "5"}))
    found = await bucket.find()
    (topic,) = found.plan.topics
    assert (found.plan.former_cluster_id, topic.topic_id) == (FORMER, ORDERS.topic_id)
    assert topic.configs == (("retention.ms", "5"),)
    assert [(one.partition, one.start_offset, len(one.replicas)) for one in topic.partitions] == [(0, 20, 2), (1, 0, 2)]
    assert topic.partitions[0].leader_epoch == 31 + EPOCHS_APART, "which a group has committed"
    (row,) = rows_of(found)
    assert row["ends"][0]["start"] == 3, "what users deleted stays deleted"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(KeyServiceError(service="KMS", verb="unwrap", reason="no answer"), id="the key service is away"),
        pytest.param(KeyRefusedError(verb="unwrap", key_id="k", reason="enable the key again"), id="it refuses"),
        pytest.param(DataKeyError(key_id="k", reason="encryption is not configured here"), id="there is no key"),
    ],
)
async def test_a_data_key_that_is_not_to_be_had_ends_no_search(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, error: TiersidecarError
) -> None:
    async def read_producer_snapshot(self: IndexBlobReader, of: RemoteLogSegmentMetadata) -> None:
        raise error

    monkeypatch.setattr(IndexBlobReader, "read_producer_snapshot", read_producer_snapshot)
    first = live(1, 0)
    bucket.store(first)
    bucket.claim(ORDERS)
    await bucket.snapshot(first, epoch=9)
    await bucket.cluster(orders=described(ORDERS))
    assert f"which transactions are open at its end cannot be read: {error}" in str(notes_of(await bucket.find()))


@pytest.mark.parametrize(
    ("at_ms", "end", "of_ms"),
    [
        pytest.param(None, 30, 500, id="as of the end"),
        pytest.param(600, 30, 500, id="later than everything"),
        pytest.param(450, 20, 300, id="between two snapshots of the cluster"),
        pytest.param(200, 10, 300, id="before the first of them"),
    ],
)
async def test_a_plan_as_of_an_earlier_time(
    bucket: Bucket, tmp_path: Path, at_ms: int | None, end: int, of_ms: int
) -> None:
    segments = [
        replace(live(number, start, at_ms=copied_ms), max_timestamp_ms=copied_ms)
        for number, start, copied_ms in ((1, 0, 150), (2, 10, 400), (3, 20, 490))
    ]
    bucket.store(*segments)
    bucket.claim(ORDERS)
    for written_ms in (300, 500):
        await bucket.cluster(written_ms=written_ms, orders=described(ORDERS, **{"retention.ms": str(written_ms)}))
    found = await bucket.find(replace(WANTED, at_ms=at_ms))
    (topic,) = found.plan.topics
    assert (topic.partitions[0].start_offset, topic.configs) == (end, (("retention.ms", str(of_ms)),))
    assert topic.partitions[0].leader_epoch == 31 + EPOCHS_APART
    notes = " ".join(notes_of(found))
    assert ("offsets are later than" in notes) == (end < 30)
    assert ("no snapshot of the cluster that is as old" in notes) == (at_ms == 200)
    write_plan(found.plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == found.plan
    expected = None if at_ms is None else f"{of_ms:019d}-1.snapshot"
    assert (found.plan.cluster_snapshot or "").rpartition("/")[2] == (expected or "")


async def test_what_was_copied_since_the_snapshot_is_there_too(bucket: Bucket) -> None:
    listed, later, orphan = live(1, 0), live(2, 10, at_ms=101), live(3, 40)
    bucket.store(listed, later)
    bucket.store(orphan, but="rsm-manifest")
    await bucket.snapshot(listed, epoch=0)
    bucket.claim(ORDERS)
    found = await bucket.find()
    assert found.plan.topics[0].partitions[0].start_offset == 20
    assert any("orders-0 at 40 (unfinished)" in note for note in notes_of(found))


async def test_a_bucket_of_native_tiering_is_no_clusters_and_has_manifests_alone(bucket: Bucket) -> None:
    bucket.store(live(1, 0), live(2, 20))
    found = await bucket.find()
    (topic,) = found.plan.topics
    assert (found.plan.former_cluster_id, dict(topic.configs)) == ("", STRICT_CONFIGS)
    assert topic.partitions[0].start_offset == 30
    notes = "\n".join(notes_of(found))
    assert "no snapshot of the cluster" in notes
    assert "orders-0 [10, 20)" in notes, "the hole is named"


async def test_where_nothing_but_a_snapshot_is_left_offsets_are_not_given_out_again(bucket: Bucket) -> None:
    bucket.claim(ORDERS)
    await bucket.snapshot(live(1, 0), epoch=2)
    found = await bucket.find()
    assert found.plan.topics[0].partitions[0].start_offset == 10


async def test_of_two_topics_of_a_name_the_one_that_the_cluster_had_is_mounted(bucket: Bucket) -> None:
    bucket.store(live(1, 0, ORDERS, at_ms=500), live(2, 0, ANEW))
    bucket.claim(ORDERS)
    bucket.claim(ANEW)
    by_time = await bucket.find()
    assert [topic.topic_id for topic in by_time.plan.topics] == [ORDERS.topic_id], "else the one copied last"
    await bucket.cluster(orders=described(ANEW))
    found = await bucket.find()
    assert [topic.topic_id for topic in found.plan.topics] == [ANEW.topic_id]
    assert list(found.shadowed) == [("orders", ORDERS.topic_id)]


async def test_the_data_of_several_clusters_are_not_mixed(bucket: Bucket) -> None:
    bucket.store(live(1, 0), live(2, 0, BILLS))
    bucket.claim(ORDERS)
    bucket.claim(BILLS, ELSEWHERE)
    with pytest.raises(MountRefusedError, match=f"{ELSEWHERE}, {FORMER}.*--former-cluster"):
        await bucket.find()
    found = await bucket.find(replace(WANTED, former_cluster_id=FORMER))
    assert [topic.name for topic in found.plan.topics] == ["orders"]
    assert any("of cluster another-cluster, such as bills" in note for note in notes_of(found))
    with pytest.raises(MountRefusedError, match="nothing in the store is of cluster typo"):
        await bucket.find(replace(WANTED, former_cluster_id="typo"))


FORGED_OWNERS = [b"[" * 60_000, b" " * MOST_OWNER_BYTES + b'{"cluster_id":"former-cluster"}']


@pytest.mark.parametrize("forged", FORGED_OWNERS, ids=["deeply nested", "too large"])
async def test_an_owner_object_that_cannot_be_read_is_no_clusters(bucket: Bucket, forged: bytes) -> None:
    bucket.store(live(1, 0), live(2, 0, BILLS))
    bucket.claim(ORDERS)
    bucket.claim(BILLS)
    (bucket.root / owner_key("", BILLS.topic_id)).write_bytes(forged)
    found = await bucket.find()
    assert [topic.name for topic in found.plan.topics] == ["orders"]
    assert "left alone: 1 topics whose owner object cannot be read, such as bills" in "\n".join(notes_of(found))
    (bucket.root / owner_key("", ORDERS.topic_id)).write_bytes(forged)
    with pytest.raises(MountRefusedError, match="none of the 2 owner objects in the store can be read"):
        await bucket.find()
    with pytest.raises(MountRefusedError, match="nothing of former"):
        await bucket.find(replace(WANTED, former_cluster_id="former"))


async def test_only_the_topics_that_are_asked_for(bucket: Bucket) -> None:
    bucket.store(live(1, 0), live(2, 0, BILLS))
    found = await bucket.find(replace(WANTED, topics=("bills",)))
    assert [topic.name for topic in found.plan.topics] == ["bills"]
    with pytest.raises(MountRefusedError, match="has nothing"):
        await bucket.find(replace(WANTED, topics=("typo",)))


async def test_a_name_out_of_the_bucket_is_no_path(bucket: Bucket) -> None:
    """Whatever may write to the bucket could forge the snapshot of a topic."""
    bucket.store(
        live(1, 0), live(2, 0, replace(BILLS, topic="__cluster_metadata")), live(3, 0, replace(BILLS, topic=".."))
    )
    for forged in (ORDERS, replace(BILLS, topic="../../outside")):
        bucket.claim(forged)
        await bucket.snapshot(epoch=1, owner=forged)
    found = await bucket.find(replace(WANTED, former_cluster_id=FORMER))
    assert [topic.name for topic in found.plan.topics] == ["orders"]
    assert found.refused == ["__cluster_metadata is internal: a cluster makes its own", "no topic can be named '..'"]
    assert any("__cluster_metadata is internal" in note for note in notes_of(found))


async def test_no_consumer_can_spoil_the_mount_by_a_committed_epoch(bucket: Bucket, tmp_path: Path) -> None:
    bucket.store(live(1, 0))
    bucket.claim(ORDERS)
    await bucket.cluster(committed_epoch=2**31 - 1, orders=described(ORDERS))
    found = await bucket.find()
    assert found.plan.topics[0].partitions[0].leader_epoch == 7 + 2 * EPOCHS_APART
    assert any("no leader had, which are left out: orders (2147483647)" in note for note in notes_of(found))
    write_plan(found.plan, tmp_path / "mount.json")
    assert read_plan(tmp_path / "mount.json") == found.plan


async def test_stray_objects_make_neither_partitions_nor_topics(bucket: Bucket) -> None:
    bucket.store(live(1, 0))
    bucket.store(live(2, 0, replace(ORDERS, partition=200_000)), live(3, 0, ANEW), but="rsm-manifest")
    found = await bucket.find()
    assert [(topic.topic_id, len(topic.partitions)) for topic in found.plan.topics] == [(ORDERS.topic_id, 1)]
    assert len(rows_of(found)[0]["ends"]) == 1
    notes = "\n".join(notes_of(found))
    assert "orders-200000 at 0" in notes
    assert "of which no segment can be mounted" in notes


@pytest.mark.parametrize("is_claimed", [True, False])
async def test_an_id_has_one_name(bucket: Bucket, is_claimed: bool) -> None:
    """A key of another name with a topic's id would be a second topic of that id in the new cluster."""
    other = replace(ORDERS, topic="orderz")
    bucket.store(live(1, 0), live(2, 10))
    bucket.store(live(3, 0, other), *((live(4, 10, other), live(5, 20, other)) if is_claimed else ()))
    if is_claimed:
        bucket.claim(ORDERS)
    found = await bucket.find()
    assert [topic.name for topic in found.plan.topics] == ["orders"], (
        "by the owner object, else by what there is more of"
    )
    assert any("whose id is another topic's" in note for note in notes_of(found))


async def test_settings_that_are_no_numbers_do_not_end_the_search(bucket: Bucket) -> None:
    bucket.store(live(1, 0))
    bucket.claim(ORDERS)
    await bucket.cluster(orders=described(ORDERS, **{"min.insync.replicas": "two", "segment.bytes": "64 KiB"}))
    notes = "\n".join(notes_of(await bucket.find()))
    assert "no numbers: orders (min.insync.replicas='two'), orders (segment.bytes='64 KiB')" in notes


async def test_an_empty_bucket_is_refused(bucket: Bucket) -> None:
    with pytest.raises(MountRefusedError, match="nothing of any cluster"):
        await bucket.find()


async def test_settings_that_do_not_fit_the_new_cluster_are_told(bucket: Bucket) -> None:
    bucket.store(live(1, 0))
    bucket.claim(ORDERS)
    configs = {"min.insync.replicas": "2", "remote.storage.enable": "true", "segment.bytes": "65536"}
    await bucket.cluster(orders=described(ORDERS, **configs), bills=described(BILLS))
    found = await bucket.find(replace(WANTED, brokers=(1,)))
    notes = "\n".join(notes_of(found))
    assert "min.insync.replicas is higher than there are replicas" in notes
    assert "orders (2)" in notes
    assert (
        "segment.bytes is below 1 MiB, which brokers of Kafka 4 do not start with: raise it in the file: orders"
        in notes
    )
    assert "nothing of bills is in the bucket" in notes
    assert "settings of native tiering are left out: orders" in notes


async def test_what_the_cluster_before_the_last_had_is_mounted_with_all_that_is_known_of_it(bucket: Bucket) -> None:
    """A mount into a cluster ended behind its claims, some of them, and is begun anew in another one."""
    bucket.store(live(1, 0), live(2, 0, BILLS, at_ms=101))
    bucket.claim(ORDERS, ELSEWHERE, former=(FORMER,))
    bucket.claim(BILLS)
    await bucket.snapshot(live(1, 0), epoch=9)
    await bucket.cluster(orders=described(ORDERS, **{"retention.ms": "5"}))
    found = await bucket.find()
    assert found.plan.former_cluster_id == ELSEWHERE
    bills, orders = found.plan.topics
    assert (bills.name, orders.configs) == ("bills", (("retention.ms", "5"),))
    assert orders.partitions[0].leader_epoch == 31 + EPOCHS_APART, "which a group has committed"
    (one,) = found.partitions["orders", ORDERS.topic_id]
    assert one.end.start == 3, "what users deleted stays deleted"
    assert not any("its snapshot is of cluster" in problem for problem in one.problems)


async def test_natively_tiered_topics_are_mounted_beside_a_clusters(bucket: Bucket) -> None:
    bucket.store(live(1, 0), live(2, 0, BILLS))
    bucket.claim(BILLS)
    found = await bucket.find(replace(WANTED, former_cluster_id=""))
    assert (found.plan.former_cluster_id, [topic.name for topic in found.plan.topics]) == ("", ["orders"])


async def test_a_users_delete_counts_though_a_later_epoch_had_begun_a_copy(bucket: Bucket) -> None:
    """Up to offset 15, which was not copied: N is no lower."""
    copied, begun = live(1, 0), replace(live(2, 10, epoch=5), state=STARTED)
    bucket.store(copied)
    bucket.store(begun, but="rsm-manifest")
    bucket.claim(ORDERS)
    await bucket.snapshot(copied, begun, epoch=5, deleted_to=15)
    found = await bucket.find()
    assert found.plan.topics[0].partitions[0].start_offset == 15


async def test_a_read_only_mount_is_of_the_topics_and_of_no_offsets(bucket: Bucket, tmp_path: Path) -> None:
    """Each log begins above all offsets, in leader epochs far above the source's, and may be led by any replica."""
    first = live(1, 0)
    bucket.store(first)
    bucket.claim(ORDERS)
    await bucket.snapshot(first, epoch=9)
    settings = {"retention.ms": "5", "segment.bytes": "100", "min.insync.replicas": "2"}
    await bucket.cluster(orders=described(ORDERS, **settings), never=described(BILLS))
    found = await bucket.find(replace(WANTED, is_read_only=True))
    (topic,) = found.plan.topics
    assert topic.configs == (("retention.ms", "5"), ("unclean.leader.election.enable", "true"))
    assert [one.start_offset for one in topic.partitions] == [MOUNTED_START] * 2
    assert topic.partitions[0].leader_epoch == followed_epoch(31 + EPOCHS_APART, found.plan.made_ms)
    assert (found.plan.is_read_only, dict(found.plan.open_transactions)) == (True, {})
    assert notes_of(found) == ["nothing of never is in the bucket: they are not mounted"]
    path = tmp_path / "mount.json"
    write_plan(found.plan, path)
    assert read_plan(path) == found.plan
    assert '"version": 2' in path.read_text(), "former releases would take the data over by it"


async def test_without_a_snapshot_of_the_cluster_a_read_only_mount_has_what_was_copied(bucket: Bucket) -> None:
    bucket.store(live(1, 0))
    bucket.claim(ORDERS)
    found = await bucket.find(replace(WANTED, is_read_only=True))
    assert [len(topic.partitions) for topic in found.plan.topics] == [1]
    (note,) = notes_of(found)
    assert "of which nothing was copied yet are not mounted" in note


async def test_a_topic_with_segments_in_a_place_is_left_and_the_others_are_mounted(bucket: Bucket) -> None:
    """S-293: without them it would have a hole, or end before its end."""
    in_cold = replace(live(2, 10), custom_metadata=write_custom_metadata(CustomMetadata(place="cold")))
    bucket.store(live(1, 0), live(3, 20, BILLS), live(4, 40, BILLS))
    bucket.store(live(5, 0, ANEW))
    for owner in (ORDERS, BILLS, ANEW):
        bucket.claim(owner)
    await bucket.snapshot(live(1, 0), in_cold, epoch=9)
    found = await bucket.find()
    assert [topic.name for topic in found.plan.topics] == ["bills"], "nor another topic of the name in its stead"
    assert sum("has segments in cold" in one for one in found.refused) == 2
    assert "no segment has its offsets 30 to 39" in str(notes_of(found))
