"""Several buckets: a topic that moves from one to another loses and doubles nothing, and one that is down halts only its topics
(S-193, S-293).

Two versitygw of their own, so that one can stand still while the other works.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.test_daemon import STRICT, produce
from tests.integration.test_recover import forget_topics
from tests.support.background_thread import LastingThread
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, get, wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_cluster import KafkaCluster
from tests.support.keep_producing import KeepProducing
from tests.support.produce import ProducedRecord
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, read_events
from tests.support.two_buckets import TwoBuckets, running_two_buckets, standing_still
from tiersidecar.domain.ids import place_of
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(400)]

SEGMENT_BYTES = 64 * 1024
EXCHANGED = ("s3.endpoint.url", "s3.bucket.name", "key.prefix")


@pytest.fixture
def buckets(tmp_path: Path) -> Iterator[TwoBuckets]:
    with running_two_buckets(tmp_path) as both:
        yield both


class Following(LastingThread):
    """A consumer that reads partition 0 from its beginning, and on as it grows, for as long as it is not stopped: each offset
    after the one before, none twice, whatever is remote and wherever it lies."""

    def __init__(self, client_settings: dict[str, str], topic: str) -> None:
        super().__init__(f"follow {topic}", ends_within_s=30)
        self._client_settings, self._topic = client_settings, topic
        self.next_offset = 0

    def work(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        async with AIOKafkaConsumer(
            **self._client_settings, auto_offset_reset="none", enable_auto_commit=False
        ) as consumer:
            partition = TopicPartition(self._topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while not self.stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        assert record.offset == self.next_offset, (record.offset, self.next_offset)
                        self.next_offset += 1


def test_a_topic_moves_to_another_bucket_and_back_under_a_producer_and_readers(
    kafka: KafkaCluster, tmp_path: Path, buckets: TwoBuckets
) -> None:
    topic = "places-moved"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    daemon = Daemon(tmp_path / "sidecar", buckets.settings(tmp_path / "sidecar", kafka, [{"name": topic}]))
    gateway = GatewayDaemon(tmp_path / "gateway", kafka.brokers[0], topics=[{"name": topic}], **buckets.shared(topic))
    producing = KeepProducing(kafka.client_settings, topic, partitions=1, bytes_per_s=100_000)
    with daemon, gateway, producing:
        gateway.wait_until_ready()
        with Following(gateway.client_settings, topic) as first, Following(gateway.client_settings, topic) as second:
            for place in ("", "cold", ""):
                go_to(kafka, daemon, topic, place)
                producing.raise_failure()
                following = "" if place else "cold"
                assert daemon.stop() == 0
                rule = {"name": topic, "local.retention.bytes": 1, **({"place": following} if following else {})}
                daemon.settings["topics"] = [rule]
                daemon.start()
            go_to(kafka, daemon, topic, "cold")
            producing.stop()
            produced = producing.acknowledged(0)
            for reader in (first, second):
                wait_for(lambda reader=reader: reader.next_offset >= len(produced), "all is read", gateway)
                reader.stop()

        segments = settled(kafka, daemon, topic)
        assert_without_hole_or_overlap(segments)
        assert {place_in(one.custom_metadata or b"") for one in segments} == {"", "cold"}
        assert all(len(one.custom_metadata or b"") <= 128 for one in segments)
        for place in ("", "cold"):
            named = {key for one in segments for key in recorded_keys(one).in_upload_order if place_of(key) == place}
            assert buckets.objects_in(place) == named
        stop = kafka.admin.earliest_offset(topic, 0)
        read = list(fetch_records(daemon.read_url, topic, 0, stop=stop))
        assert read == [shape_of(record) for record in produced if record.offset < stop]


@pytest.mark.parametrize(
    "down",
    [
        pytest.param("cold", id="the bucket of the place stands still"),
        pytest.param("", id="the bucket of section store stands still"),
    ],
)
def test_a_bucket_that_is_down_halts_its_topics_alone_and_readers_are_told(
    kafka: KafkaCluster, tmp_path: Path, buckets: TwoBuckets, down: str
) -> None:
    topics = {"": f"places-hot-{down}", "cold": f"places-cold-{down}"}
    for topic in topics.values():
        kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    rules = [{"name": topics[""]}, {"name": topics["cold"], "place": "cold"}]
    affected, other = topics[down], topics["" if down else "cold"]
    with Daemon(tmp_path / "sidecar", buckets.settings(tmp_path / "sidecar", kafka, rules)) as daemon:
        produced = {topic: written(kafka, topic, seed=1) for topic in topics.values()}
        stops = {topic: trimmed(kafka, daemon, topic) for topic in topics.values()}

        with standing_still(buckets.cold if down else buckets.hot):
            for topic in topics.values():
                produced[topic] += written(kafka, topic, seed=2)
            told = wait_for(lambda: refusal(daemon, affected), "reads of it are refused", daemon)
            assert_told(told, down)
            stop = trimmed(kafka, daemon, other)
            assert stop > stops[other], "the other topic goes on"
            assert_reads_back(daemon, other, produced[other], stop)
            assert kafka.admin.earliest_offset(affected, 0) == stops[affected]
            metric = "tiersidecar_place_writable" if down else "tiersidecar_store_writable"
            assert daemon.metric(metric) == 0
            assert daemon.metric("tiersidecar_store_writable" if down else "tiersidecar_place_writable") == 1
            assert daemon.status("/readyz")[0] == (200 if down else 503)

        for topic in topics.values():
            stop = trimmed(kafka, daemon, topic)
            assert stop > stops[topic]
            wait_for(lambda topic=topic: not refusal(daemon, topic), "reads are answered again", daemon)
            assert_reads_back(daemon, topic, produced[topic], stop)


def test_a_place_that_segments_still_name_cannot_be_taken_out_of_the_configuration(
    kafka: KafkaCluster, tmp_path: Path, buckets: TwoBuckets
) -> None:
    topic = "places-removed"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    settings = buckets.settings(tmp_path / "sidecar", kafka, [{"name": topic, "place": "cold"}])
    with Daemon(tmp_path / "sidecar", settings) as daemon:
        produced = written(kafka, topic, seed=1)
        stop = trimmed(kafka, daemon, topic)
        assert daemon.stop() == 0
        places = daemon.settings.pop("places")
        daemon.settings["topics"] = [{"name": topic, "local.retention.bytes": 1}]
        daemon.start()
        produced += written(kafka, topic, seed=2)
        halted = wait_for(lambda: daemon.events("lane.halted"), "the partition is halted", daemon)
        assert "lie in place 'cold'" in str(halted[0])
        code, ready = daemon.status("/readyz")
        assert (code, "lie in place 'cold'" in ready) == (200, True), ready
        told = wait_for(lambda: refusal(daemon, topic), "reads of it are refused", daemon)
        assert "place-unknown" in told
        assert "the place cold" in told
        assert kafka.admin.earliest_offset(topic, 0) == stop, "nothing is trimmed"

        assert daemon.stop() == 0
        daemon.settings["places"] = places
        daemon.start()
        stop_then = wait_for(lambda: trimmed(kafka, daemon, topic), "it goes on", daemon)
        assert stop_then > stop
        assert_reads_back(daemon, topic, produced, stop_then)


def test_a_lost_metadata_topic_comes_back_from_all_places(
    kafka: KafkaCluster, tmp_path: Path, buckets: TwoBuckets
) -> None:
    """By manifests alone; and whoever takes the place out of the configuration first is told that it is needed."""
    topic = "places-recovered"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    settings = buckets.settings(tmp_path / "sidecar", kafka, [{"name": topic}]) | {"snapshots.interval.ms": 0}
    produced: list[ProducedRecord] = []
    stop = 0
    with Daemon(tmp_path / "sidecar", settings) as daemon:
        for place in ("", "cold", ""):
            if produced:
                assert daemon.stop() == 0
                rule = {"name": topic, "local.retention.bytes": 1, **({"place": place} if place else {})}
                daemon.settings["topics"] = [rule]
                daemon.start()
            daemon.wait_until_ready()
            produced += written(kafka, topic, seed=len(produced))
            stop = trimmed(kafka, daemon, topic)
        live = finished(kafka, daemon, topic)
        assert {place_in(one.custom_metadata or b"") for one in live} == {"", "cold"}
        assert daemon.stop() == 0
        kafka.admin.delete_topic(daemon.settings["remote.log.metadata.topic.name"])

        places = daemon.settings.pop("places")
        daemon.write_config()
        without = answer_of(daemon.config_path, "recover", "--carry-out", code=1)
        assert "the configuration does not name: cold. Put these back under places" in without["refusal"]
        assert without["unknown_places"] == ["cold"]
        assert len(without["holes_between"]) == 1
        daemon.settings["places"] = places
        daemon.write_config()
        done = answer_of(daemon.config_path, "recover", "--carry-out")
        assert (done["complete"], done["holes"], done["published"]["segments_from_manifests"]) == (True, 0, len(live))
        assert [replace(one, event_timestamp_ms=0) for one in finished(kafka, daemon, topic)] == [
            replace(one, event_timestamp_ms=0) for one in live
        ]
        forget_topics(daemon)
        daemon.start()
        daemon.wait_until_ready()
        assert_reads_back(daemon, topic, produced, stop)


def test_buckets_that_were_exchanged_in_the_configuration_halt_the_topic(
    kafka: KafkaCluster, tmp_path: Path, buckets: TwoBuckets
) -> None:
    topic = "places-exchanged"
    kafka.create_topic(topic, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    rules = [{"name": topic, "place": "cold"}]
    with Daemon(tmp_path / "sidecar", buckets.settings(tmp_path / "sidecar", kafka, rules)) as daemon:
        daemon.wait_until_ready()
        written(kafka, topic, seed=1)
        trimmed(kafka, daemon, topic)
        before = {place: buckets.objects_in(place) for place in ("", "cold")}
        assert daemon.stop() == 0
        cold = daemon.settings["places"]["cold"]
        store = daemon.settings["store"]
        daemon.settings["store"] = {**store, **{key: cold[key] for key in EXCHANGED}}
        daemon.settings["places"] = {"cold": {**cold, "key.prefix": "", **{key: store[key] for key in EXCHANGED[:2]}}}
        daemon.start()
        written(kafka, topic, seed=2)
        wait_for(lambda: daemon.events("lane.halted"), "the topic is halted", daemon)
        assert "the store of section store is that of place cold" in daemon.events("lane.halted")[0]["error"]
        assert {place: buckets.objects_in(place) for place in ("", "cold")} == before
        assert "two may be exchanged" in daemon.status("/readyz")[1]


def written(kafka: KafkaCluster, topic: str, *, seed: int) -> list[ProducedRecord]:
    return produce(kafka, topic, total_bytes=4 * SEGMENT_BYTES, seed=seed)


def refusal(daemon: Daemon, topic: str) -> str:
    """What a read of the topic's first record is told; empty where it is answered."""
    query = "offset=0&stop_offset=1&limit=1"
    code, body = get(f"{daemon.read_url}/topics/{topic}/partitions/0/records?{query}")
    return body if code >= 400 else ""


def assert_told(told: str, place: str) -> None:
    """It is a problem document that names the place, and says what is wrong with it."""
    problem = json.loads(told)
    assert problem["status"] == 503, problem
    assert problem["type"] == "urn:tiersidecar:problem:store-unavailable", problem
    assert problem["detail"].startswith(f"the object store of the place {place} " if place else "the object store "), (
        problem
    )


def assert_reads_back(daemon: Daemon, topic: str, produced: Sequence[ProducedRecord], stop: int) -> None:
    read = list(fetch_records(daemon.read_url, topic, 0, stop=stop))
    assert read == [shape_of(record) for record in produced if record.offset < stop]


def finished(kafka: KafkaCluster, daemon: Daemon, topic: str) -> list[RemoteLogSegmentMetadata]:
    events = fold(read_events(kafka.client_settings, daemon.settings["remote.log.metadata.topic.name"]))
    of_topic = [one for one in events if one.topic_id_partition.topic == topic]
    return in_state(of_topic, State.COPY_SEGMENT_FINISHED)


def settled(kafka: KafkaCluster, daemon: Daemon, topic: str) -> list[RemoteLogSegmentMetadata]:
    """The finished ones, once no copy is half done."""

    def none_begun() -> bool:
        found = fold(read_events(kafka.client_settings, daemon.settings["remote.log.metadata.topic.name"]))
        return all(one.state in (State.COPY_SEGMENT_FINISHED, State.DELETE_SEGMENT_FINISHED) for one in found)

    wait_for(none_begun, "no copy is half done", daemon)
    return finished(kafka, daemon, topic)


def trimmed(kafka: KafkaCluster, daemon: Daemon, topic: str) -> int:
    """The local start, once it is the active segment's base."""
    directory = kafka.leader_of(topic, 0).partition_dir(topic, 0)

    def start() -> int | None:
        active = max(int(log.stem) for log in directory.glob("*.log"))
        return active if active > 0 and kafka.admin.earliest_offset(topic, 0) == active else None

    found: int = wait_for(start, f"{topic} is trimmed to its active segment", daemon, timeout_s=90)
    return found


def go_to(kafka: KafkaCluster, daemon: Daemon, topic: str, place: str) -> None:
    """Return once four more segments are remote in ``place``, and gone from the broker's disk."""
    before = trimmed_in(kafka, daemon, topic, place)

    def there() -> bool:
        return trimmed_in(kafka, daemon, topic, place) >= before + 4

    wait_for(there, f"more segments are in {place or 'section store'}", daemon, timeout_s=120)


def trimmed_in(kafka: KafkaCluster, daemon: Daemon, topic: str, place: str) -> int:
    start = kafka.admin.earliest_offset(topic, 0)
    remote = [one for one in finished(kafka, daemon, topic) if one.end_offset < start]
    return sum(place_in(one.custom_metadata or b"") == place for one in remote)


def assert_without_hole_or_overlap(segments: Sequence[RemoteLogSegmentMetadata]) -> None:
    next_offset = 0
    for one in segments:
        assert one.start_offset == next_offset, (one.start_offset, next_offset)
        next_offset = one.end_offset + 1
