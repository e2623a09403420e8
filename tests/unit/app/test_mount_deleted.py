"""No mount brings a topic back that users had deleted, nor leaves one out without a word (issue 21)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.unit.app.test_mount_plan import BILLS, ELSEWHERE, FORMER, ORDERS, WANTED, Bucket, described, live
from tiersidecar.app.mount_findings import Findings
from tiersidecar.app.mount_report import deleted_rows, notes_of
from tiersidecar.decide.trash import TrashDelays, deleted_topic
from tiersidecar.domain.errors import MountRefusedError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.trash import TrashEntry

ANEW = replace(BILLS, topic_id=Uuid(b"bills-made-anew!"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the store has of bills, beside orders, which lives: when its snapshot was written, None without one, when the last
    segment was copied and the topic claimed; when it came into the trash; the cluster's snapshots, with bills or without."""

    snapshot_ms: int | None = 100
    copied_ms: int = 90
    claimed_ms: int = 0
    trashed_ms: int | None = None
    clusters: tuple[tuple[int, bool], ...] = ()
    owner: str = FORMER
    at_ms: int | None = None

    async def find(self, bucket: Bucket, *topics: str, is_read_only: bool = False) -> Findings:
        segment = live(2, 0, BILLS, at_ms=self.copied_ms)
        bucket.store(live(1, 0), segment)
        bucket.claim(ORDERS)
        bucket.claim(BILLS, self.owner, claimed_ms=self.claimed_ms)
        if self.snapshot_ms is not None:
            trash = () if self.trashed_ms is None else (trashed(self.trashed_ms),)
            await bucket.snapshot(segment, epoch=1, owner=BILLS, written_ms=self.snapshot_ms, trash=trash)
        for written_ms, is_listed in self.clusters:
            if is_listed:
                await bucket.cluster(written_ms=written_ms, orders=described(ORDERS), bills=described(BILLS))
            else:
                await bucket.cluster(written_ms=written_ms, orders=described(ORDERS))
        wanted = replace(WANTED, topics=topics, at_ms=self.at_ms, is_read_only=is_read_only, former_cluster_id=FORMER)
        return await bucket.find(wanted)


def trashed(now_ms: int) -> TrashEntry:
    return deleted_topic(delays=TrashDelays(retention_ms=1_000), now_ms=now_ms, by="broker 1")


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


DELETED = [
    pytest.param(Situation(trashed_ms=95), "it is in the trash since 1970", id="in the trash"),
    pytest.param(
        Situation(trashed_ms=95, clusters=((80, True),)), "in the trash", id="in the trash since the cluster named it"
    ),
    pytest.param(
        Situation(trashed_ms=95, at_ms=95), "in the trash", id="in the trash already at the time that is wanted"
    ),
    pytest.param(
        Situation(clusters=((80, True), (101, False))),
        "the cluster had no such topic any more at 1970",
        id="not in the cluster any more",
    ),
    pytest.param(
        Situation(snapshot_ms=None, clusters=((101, False),)),
        "no such topic any more",
        id="not in the cluster any more, and no snapshot of it",
    ),
    pytest.param(
        Situation(clusters=((101, False), (900, False)), at_ms=200),
        "no such topic any more",
        id="not in the cluster any more at the time that is wanted",
    ),
]


@pytest.mark.parametrize("is_read_only", [False, True])
@pytest.mark.parametrize(("situation", "sign"), DELETED)
async def test_a_topic_that_was_deleted_is_left_out_and_named(
    bucket: Bucket, situation: Situation, sign: str, *, is_read_only: bool
) -> None:
    if is_read_only:
        situation = replace(situation, at_ms=None)  # such a mount follows its source
    found = await situation.find(bucket, is_read_only=is_read_only)
    assert [topic.name for topic in found.plan.topics] == ["orders"]
    size = live(2, 0, BILLS).segment_size_in_bytes
    (note,) = [one for one in notes_of(found) if "left out" in one]
    assert note.startswith(f"left out: bills-{format_uuid(BILLS.topic_id)} (1 segments, {size:,} bytes) was deleted: ")
    assert sign in note
    assert "name it with --topic" in note
    (row,) = deleted_rows(found)
    assert (row["topic"], row["segments"], row["bytes"], row["mounted"]) == ("bills", 1, size, False)


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_it_is_mounted_if_it_is_asked_for_by_name(bucket: Bucket, *, is_read_only: bool) -> None:
    found = await Situation(clusters=((101, False),)).find(bucket, "orders", "bills", is_read_only=is_read_only)
    assert [topic.name for topic in found.plan.topics] == ["bills", "orders"]
    assert any(note.startswith("mounted since --topic names it") for note in notes_of(found))
    assert [row["mounted"] for row in deleted_rows(found)] == [True]


async def test_where_all_of_a_name_was_deleted_it_is_said_what_there_is(bucket: Bucket) -> None:
    bucket.claim(BILLS)
    await bucket.snapshot(live(2, 0, BILLS), epoch=1, owner=BILLS)
    await bucket.cluster(written_ms=101, orders=described(ORDERS))
    with pytest.raises(
        MountRefusedError, match=r"nothing of former-cluster .*bills-.* \(0 segments, 0 bytes\) was deleted"
    ):
        await bucket.find()
    found = await bucket.find(replace(WANTED, topics=("bills",)))
    assert [topic.name for topic in found.plan.topics] == ["bills"]


async def test_one_whose_name_another_topic_has_is_not_even_mounted_by_name(bucket: Bucket) -> None:
    bucket.store(live(3, 0, ANEW))
    bucket.claim(ANEW)
    found = await Situation(trashed_ms=95).find(bucket, "bills")
    assert [topic.topic_id for topic in found.plan.topics] == [ANEW.topic_id]
    assert any(note.endswith("Another topic has its name") for note in notes_of(found))


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(Situation(), id="no snapshot of the cluster"),
        pytest.param(Situation(clusters=((99, False),)), id="its snapshot is later than the cluster's"),
        pytest.param(Situation(clusters=((100, False),)), id="its snapshot is of the moment of the cluster's"),
        pytest.param(
            Situation(snapshot_ms=None, copied_ms=102, clusters=((101, False),)), id="it was copied after the cluster's"
        ),
        pytest.param(Situation(claimed_ms=102, clusters=((101, False),)), id="it was claimed after the cluster's"),
        pytest.param(Situation(clusters=((101, True),)), id="the cluster has it"),
        pytest.param(
            Situation(trashed_ms=95, clusters=((101, True),)),
            id="the cluster has it after the trash: it was mounted all the same",
        ),
        pytest.param(
            Situation(clusters=((101, True), (900, False)), at_ms=800), id="it was there at the time that is wanted"
        ),
        pytest.param(
            Situation(clusters=((900, False),), at_ms=800), id="no snapshot of the cluster is as old as the time wanted"
        ),
        pytest.param(Situation(trashed_ms=95, at_ms=94), id="the trash is later than the time that is wanted"),
    ],
)
async def test_what_may_live_is_mounted(bucket: Bucket, situation: Situation) -> None:
    found = await situation.find(bucket)
    assert [topic.name for topic in found.plan.topics] == ["bills", "orders"]
    assert not found.deleted


async def test_a_cluster_that_took_over_another_topic_says_nothing_of_this_one(bucket: Bucket) -> None:
    """Orders alone was mounted in another cluster, whose snapshots lack all else."""
    bucket.store(live(1, 0), live(2, 0, BILLS))
    bucket.claim(ORDERS, ELSEWHERE, former=(FORMER,))
    bucket.claim(BILLS)
    await bucket.cluster(cluster_id=ELSEWHERE, orders=described(ORDERS))
    found = await bucket.find()
    assert [topic.name for topic in found.plan.topics] == ["bills", "orders"]
