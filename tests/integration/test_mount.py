"""The drill (issue 21): a cluster is gone with its disks, the bucket is left, and a new one takes over at the same offsets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, active_base
from tests.integration.test_daemon_transactions import open_transaction
from tests.support.command_line import answer_of, run_without_config
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord, Style, produce_mix
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import object_keys_in
from tiersidecar.adapters.snapshots.cluster_codec import read_cluster_snapshot
from tiersidecar.app.mount_file import read_plan
from tiersidecar.domain.own_objects import CLUSTERS, OWNERS

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

TOPIC, GROUP = "orders", "billing"
DELETED = "forgotten"
"""A topic that users deleted before the disaster."""
GONE = "--former-cluster-is-gone"
"""It was, some seconds ago: its snapshots are of the last ten minutes."""
BELIEVED_S = 12.0
"""Longer than a sidecar believes what it has read of a claim."""
ISOLATIONS = ("read_uncommitted", "read_committed")


def beside(cluster: KafkaCluster, directory: Path, store: Path) -> Daemon:
    """Copies, reads and serves Kafka clients; what it knows is in the store within a second."""
    settings = daemon_settings(
        directory,
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster.brokers[0].log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 1}],
        store={"type": "filesystem", "root": str(store)},
        gateway={"listeners": [{"listen": f"127.0.0.1:{free_port()}"}]},
        **{"snapshots.interval.ms": 300, "snapshots.cluster.interval.ms": 300, "lease.duration.ms": 3_000},
    )
    return Daemon(directory, settings, roles="tier,read,gateway")


def gateway_of(daemon: Daemon) -> str:
    return str(daemon.settings["gateway"]["listeners"][0]["listen"])


def shapes(records: Sequence[ProducedRecord], start: int, stop: int, isolation: str) -> list[Any]:
    """What a reader of partition 0 is to see."""
    return [
        shape_of(one)
        for one in records
        if start <= one.offset < stop and not (one.aborted and isolation == "read_committed")
    ]


async def commit(servers: str, offset: int) -> None:
    async with AIOKafkaConsumer(bootstrap_servers=servers, group_id=GROUP, enable_auto_commit=False) as consumer:
        place = TopicPartition(TOPIC, 0)
        consumer.assign([place])
        await consumer.commit({place: OffsetAndMetadata(offset, "as of the drill")})


async def read_all(servers: str, isolation: str, stop: int, group: str | None = None) -> list[Any]:
    """Offsets, keys, values and headers up to ``stop`` of partition 0: of a group from its commit on, else from offset 0."""
    place, found = TopicPartition(TOPIC, 0), list[Any]()
    async with AIOKafkaConsumer(
        bootstrap_servers=servers, group_id=group, enable_auto_commit=False, isolation_level=isolation
    ) as consumer:
        consumer.assign([place])
        if group is None:
            consumer.seek(place, 0)
        async with asyncio.timeout(patient_s(60)):
            while await consumer.position(place) < stop:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [
                        (one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
                        for one in records
                        if one.offset < stop
                    ]
    return found


async def fill(cluster: KafkaCluster) -> tuple[list[ProducedRecord], list[ProducedRecord]]:
    """All that is written, and of it what is in a transaction whose end is in the last segment, which is not copied."""
    settings = cluster.client_settings
    styles = [Style(idempotent=True)]
    produced = await produce_mix(settings, TOPIC, total_bytes=500_000, batch_bytes=16_384)
    async with open_transaction(cluster, TOPIC) as undecided:
        behind = await produce_mix(
            settings, TOPIC, total_bytes=SEGMENT_BYTES, batch_bytes=16_384, styles=styles, seed=1
        )
    tail = await produce_mix(settings, TOPIC, total_bytes=1_000, batch_bytes=1_000, styles=styles, seed=2)
    return sorted([*produced, *undecided, *behind, *tail], key=lambda one: one.offset), undecided


def cluster_snapshot(store: Path) -> Any:
    paths = sorted((store / CLUSTERS).glob("*/*.snapshot"))
    return read_cluster_snapshot(paths[-1].read_bytes(), str(paths[-1])) if paths else None


def halted(daemon: Daemon) -> list[str]:
    code, body = daemon.status("/status?halted=1")
    return [row["halted_reason"] for row in json.loads(body)["partitions"]] if code == 200 else []


def owners(store: Path) -> set[str]:
    """Whose the data of the topic are."""
    claims = [json.loads(path.read_text()) for path in (store / OWNERS).glob("*.json")]
    return {claim["cluster_id"] for claim in claims if claim["topic"] == TOPIC}


def seed_all(cluster: KafkaCluster, plan: Path) -> list[dict[str, Any]]:
    found = []
    for broker in cluster.brokers:
        arguments = ["mount", "seed", str(plan), "--server-properties", str(broker.directory / "server.properties")]
        found.append(answer_without_config(*arguments, "--carry-out"))
    return found


def answer_without_config(*arguments: str) -> dict[str, Any]:
    done = run_without_config(*arguments, "--json")
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return dict(json.loads(done.stdout))


def test_a_new_cluster_takes_over_at_the_same_offsets(tmp_path: Path) -> None:
    """U5, U34."""
    store, plan = tmp_path / "store", tmp_path / "mount.json"
    store.mkdir()
    former = KafkaCluster(tmp_path / "former")
    daemon = beside(former, tmp_path / "former-sidecar", store)
    daemon.settings["topics"].append({"name": DELETED, "local.retention.bytes": 1})
    daemon.settings |= {"deletes.topic.grace.ms": 1_000, "delete.delay": 3_600_000}
    with former, daemon:
        for topic in (TOPIC, DELETED):
            former.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        produced, undecided = asyncio.run(fill(former))
        daemon.wait_until_ready()
        end = active_base(former, TOPIC)
        wait_for(lambda: former.admin.earliest_offset(TOPIC, 0) == end, "all sealed segments are remote alone", daemon)
        assert undecided[-1].offset < end < produced[-1].offset, "the transaction's end is in what is lost"
        read_up_to = produced[len(produced) // 3].offset
        asyncio.run(commit(former.bootstrap_servers, read_up_to))

        def is_kept() -> bool:
            kept = cluster_snapshot(store)
            return kept is not None and kept.groups.get(GROUP, {}).get((TOPIC, 0)) is not None

        wait_for(is_kept, "the group's offset is in the store", daemon)
        shown = answer_of(daemon.config_path, "mount", "snapshot")
        assert (shown["topics"], shown["groups"], shown["groups_unknown"]) == (1, 1, None), "also on demand"
        delete_a_topic(former, daemon, store)
    disks = tmp_path / "former-disks"
    former.directory.rename(disks)
    objects = object_keys_in(store)
    segments = sum(key.startswith(f"{TOPIC}-") for key in objects) // 3

    second = KafkaCluster(tmp_path / "second")
    sidecar = beside(second, tmp_path / "second-sidecar", store)
    sidecar.write_config()
    found = answer_of(sidecar.config_path, "mount", "plan", "--brokers", "1", "--out", str(plan))
    assert (found["former_cluster"], found["topics"], found["groups"]) == (former.cluster_id, 1, 1)
    (left_out,) = found["deleted_topics"]
    assert (left_out["topic"], left_out["segments"], left_out["mounted"]) == (
        DELETED,
        len(objects) // 3 - segments,
        False,
    )
    assert left_out["segments"] > 0, "they are in the trash still"
    (row,) = found["partitions_by_topic"]
    assert row["ends"][0]["end"] == end
    assert row["ends"][0]["open_transactions"] == 1
    (seeded,) = seed_all(second, plan)
    assert (seeded["partitions"], seeded["done"]) == (1, True)
    with second:
        shown = answer_of(sidecar.config_path, "mount", "publish", str(plan), GONE)
        assert (shown["done"], segments_in(shown)) == (False, segments)
        assert owners(store) == {former.cluster_id}
        done = answer_of(sidecar.config_path, "mount", "publish", str(plan), GONE, "--carry-out")
        assert done["done"], done
        assert segments_in(done["published"]) == segments
        assert (done["published"]["transactions_aborted"], done["groups_restored"], done["groups_refused"]) == (
            1,
            1,
            {},
        )
        assert owners(store) == {second.cluster_id}
        again = answer_of(sidecar.config_path, "mount", "publish", str(plan), "--carry-out")
        assert (again["published"]["there_already"], again["groups_restored"]) == (segments, 0)
        take_over(second, sidecar, produced, undecided, end, read_up_to)
        after = object_keys_in(store)
        assert after > objects, "new segments are beside the old ones"
        disks.rename(former.directory)
        come_back(former, beside(former, tmp_path / "former-sidecar", store))
        assert object_keys_in(store) >= after
        sidecar.kill9()


def delete_a_topic(cluster: KafkaCluster, daemon: Daemon, store: Path) -> None:
    """Its segments are in the trash when this returns, and the cluster's snapshot does not have it any more."""
    asyncio.run(
        produce_mix(
            cluster.client_settings, DELETED, total_bytes=3 * SEGMENT_BYTES, batch_bytes=16_384, styles=MIXED[:1]
        )
    )
    end = active_base(cluster, DELETED)
    wait_for(lambda: cluster.admin.earliest_offset(DELETED, 0) == end, "all sealed segments are remote alone", daemon)
    wait_for(lambda: DELETED in cluster_snapshot(store).topics, "the cluster's snapshot has it", daemon)
    cluster.admin.delete_topic(DELETED)
    wait_for(lambda: daemon.events("topic.delete.decided"), "it is in the trash", daemon)
    wait_for(lambda: DELETED not in cluster_snapshot(store).topics, "the cluster's snapshot lacks it", daemon)


MIXED = (Style(idempotent=True), Style(outcome="committed"))


def write(cluster: KafkaCluster, segments: int, seed: int, styles: Sequence[Style] = MIXED) -> list[ProducedRecord]:
    return asyncio.run(
        produce_mix(
            cluster.client_settings,
            TOPIC,
            total_bytes=segments * SEGMENT_BYTES,
            batch_bytes=16_384,
            styles=styles,
            seed=seed,
        )
    )


def commit_and_keep(cluster: KafkaCluster, daemon: Daemon, store: Path, offset: int) -> None:
    """The group's offset is in the store when this returns."""
    asyncio.run(commit(cluster.bootstrap_servers, offset))

    def is_kept() -> bool:
        kept = cluster_snapshot(store)
        found = None if kept is None else kept.groups.get(GROUP, {}).get((TOPIC, 0))
        return found is not None and found.offset == offset

    wait_for(is_kept, "the group's offset is in the store", daemon)


def as_left(records: Sequence[ProducedRecord], plan: Path, ends: Mapping[int, int]) -> list[ProducedRecord]:
    """What there is of them below ``ends``, by partition.  Transactions follow each other in them.  One whose marker is above
    the end, where a segment happens to begin with it, has been aborted."""
    open_there = read_plan(plan).open_transactions
    undecided = {
        number: min((one.first_offset for one in open_there.get((TOPIC, number), ())), default=end)
        for number, end in ends.items()
    }
    return [
        replace(one, aborted=one.aborted or one.offset >= undecided[one.partition])
        for one in records
        if one.offset < ends[one.partition]
    ]


def test_a_new_cluster_takes_over_as_of_an_earlier_time(tmp_path: Path) -> None:
    """What was written since is not there any more, nor does it come back; the group goes on where it was then."""
    store, plan = tmp_path / "store", tmp_path / "mount.json"
    store.mkdir()
    with KafkaCluster(tmp_path / "former") as former, beside(former, tmp_path / "former-sidecar", store) as daemon:
        former.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        daemon.wait_until_ready()
        wanted = write(former, 4, seed=1)
        end = active_base(former, TOPIC)
        wait_for(lambda: former.admin.earliest_offset(TOPIC, 0) == end, "all sealed segments are remote alone", daemon)
        read_up_to = wanted[len(wanted) // 3].offset
        commit_and_keep(former, daemon, store, read_up_to)
        at = datetime.now(UTC)
        unwanted = write(former, 4, seed=2)
        last = active_base(former, TOPIC)
        wait_for(lambda: former.admin.earliest_offset(TOPIC, 0) == last, "later segments are remote too", daemon)
        commit_and_keep(former, daemon, store, unwanted[len(unwanted) // 2].offset)
        daemon.kill9()

    second = KafkaCluster(tmp_path / "second")
    sidecar = beside(second, tmp_path / "second-sidecar", store)
    sidecar.write_config()
    found = answer_of(
        sidecar.config_path, "mount", "plan", "--brokers", "1", "--at", at.isoformat(), "--out", str(plan)
    )
    (row,) = found["partitions_by_topic"]
    assert (row["ends"][0]["end"], row["ends"][0]["later_offsets"]) == (end, last - end)
    assert any("are later than" in note for note in found["notes"])
    seed_all(second, plan)
    with second:
        done = answer_of(sidecar.config_path, "mount", "publish", str(plan), GONE, "--carry-out")
        assert (done["groups_restored"], done["groups_set_back"], done["groups_refused"]) == (1, {}, {})
        with sidecar:
            sidecar.wait_until_ready()
            more = write(second, 4, seed=3)
            assert more[0].offset == end + row["ends"][0]["open_transactions"], "each has got its abort marker"
            start = active_base(second, TOPIC)
            wait_for(lambda: second.admin.earliest_offset(TOPIC, 0) == start, "new segments are remote", sidecar)
            latest = more[-1].offset + 1
            everything = [*as_left(wanted, plan, {0: end}), *more]
            for isolation in ISOLATIONS:
                expected = shapes(everything, 0, latest, isolation)
                assert asyncio.run(read_all(gateway_of(sidecar), isolation, latest)) == expected
                assert list(fetch_records(sidecar.read_url, TOPIC, 0, stop=start, isolation=isolation)) == shapes(
                    everything, 0, start, isolation
                )
            resumed = asyncio.run(read_all(gateway_of(sidecar), "read_committed", latest, GROUP))
            assert resumed == shapes(everything, read_up_to, latest, "read_committed")


def test_the_former_cluster_that_lives_on_is_fenced_in_the_middle_of_a_mount(tmp_path: Path) -> None:
    """It was said to be gone, and is not; and the mount is killed right behind its claims.  From its next look at them on (ten
    seconds) the former sidecar puts and removes nothing, though it has segments to copy and others to delete; the mount is
    begun again, and all that was copied before it is there."""
    store, plan = tmp_path / "store", tmp_path / "mount.json"
    store.mkdir()
    with KafkaCluster(tmp_path / "former") as former, beside(former, tmp_path / "former-sidecar", store) as daemon:
        former.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        daemon.wait_until_ready()
        # No transactions: where the marker of the last one is not copied, the mount rightly aborts it.
        produced = write(former, 6, seed=1, styles=MIXED[:1])
        end = active_base(former, TOPIC)
        wait_for(lambda: former.admin.earliest_offset(TOPIC, 0) == end, "all sealed segments are remote alone", daemon)
        wait_for(lambda: cluster_snapshot(store) is not None, "the cluster is in the store", daemon)
        objects = object_keys_in(store)
        second = KafkaCluster(tmp_path / "second")
        sidecar = beside(second, tmp_path / "second-sidecar", store)
        sidecar.write_config()
        answer_of(sidecar.config_path, "mount", "plan", "--brokers", "1", "--out", str(plan))
        seed_all(second, plan)
        with second:
            publish = ["mount", "publish", str(plan), "--config", str(sidecar.config_path), GONE, "--carry-out"]
            with subprocess.Popen([sys.executable, "-m", "tiersidecar", *publish, "--json"]) as running:
                wait_for(lambda: owners(store) == {second.cluster_id}, "the claims are made", daemon)
                running.kill()
            time.sleep(BELIEVED_S)
            settled = object_keys_in(store)
            write(former, 4, seed=2)
            former.admin.delete_records(TOPIC, 0, active_base(former, TOPIC))
            former.admin.alter_topic(TOPIC, {"retention.ms": "1"})
            reasons = wait_for(lambda: halted(daemon), "it is halted", daemon)
            assert "cluster" in reasons[0], reasons
            time.sleep(BELIEVED_S)
            assert object_keys_in(store) == settled
            assert settled >= objects
            done = answer_of(sidecar.config_path, *publish[:3], GONE, "--carry-out")
            assert segments_in(done["published"]) == len(objects) // 3
            with sidecar:
                sidecar.wait_until_ready()
                for isolation in ISOLATIONS:
                    wanted = shapes(produced, 0, end, isolation)
                    assert asyncio.run(read_all(gateway_of(sidecar), isolation, end)) == wanted
            assert object_keys_in(store) >= settled


def segments_in(document: dict[str, Any]) -> int:
    return int(document["segments_from_snapshots"] + document["segments_from_manifests"])


def take_over(
    cluster: KafkaCluster,
    sidecar: Daemon,
    produced: list[ProducedRecord],
    undecided: list[ProducedRecord],
    end: int,
    read_up_to: int,
) -> None:
    """Everything that was copied reads back, producers go on at N, what they write is copied, and the group goes on."""
    assert cluster.admin.earliest_offset(TOPIC, 0) == end
    sidecar.start()
    sidecar.wait_until_ready()
    servers = gateway_of(sidecar)
    for isolation in ISOLATIONS:
        wanted = shapes(produced, 0, end, isolation)
        assert list(fetch_records(sidecar.read_url, TOPIC, 0, stop=end, isolation=isolation)) == wanted
        assert asyncio.run(read_all(servers, isolation, end)) == wanted
    before = cluster.admin.latest_offset(TOPIC, 0)
    assert before == end + 1, "the abort marker of the transaction that nothing else would end"
    more = asyncio.run(
        produce_mix(cluster.client_settings, TOPIC, total_bytes=4 * SEGMENT_BYTES, batch_bytes=16_384, seed=3)
    )
    assert more[0].offset == before
    start = active_base(cluster, TOPIC)
    wait_for(lambda: cluster.admin.earliest_offset(TOPIC, 0) == start, "new segments are remote", sidecar)
    latest = cluster.admin.latest_offset(TOPIC, 0)
    everything = [*(one for one in produced if one.offset < end), *more]
    for isolation in ISOLATIONS:
        assert asyncio.run(read_all(servers, isolation, latest)) == shapes(everything, 0, latest, isolation)
    resumed = asyncio.run(read_all(servers, "read_committed", latest, GROUP))
    assert resumed == shapes(everything, read_up_to, latest, "read_committed")


def come_back(former: KafkaCluster, daemon: Daemon) -> None:
    """The former cluster was not gone for good: its sidecar finds that the data are another cluster's, and stops."""
    with former, daemon:
        asyncio.run(
            produce_mix(former.client_settings, TOPIC, total_bytes=3 * SEGMENT_BYTES, batch_bytes=16_384, seed=4)
        )
        reasons = wait_for(lambda: halted(daemon), "it is halted", daemon)
        assert "cluster" in reasons[0], reasons
        daemon.kill9()
