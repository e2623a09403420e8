"""What the store has lost is copied again by whichever broker's sidecar leads by the time somebody can: three brokers, and a
request that outlives the leader it was made to (U12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import answer_of
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import place
from tests.support.produce import ProducedRecord, produce_mix
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import fold, in_state, read_events
from tests.support.sidecars import METADATA_PARTITIONS, Sidecars
from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.reconcile.report import Summary, finding_document, write_findings, write_summary

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(240)]

TOPIC, METADATA_TOPIC = "recopied", "__remote_log_metadata"
SEGMENT_BYTES = 32_768


class Recopied:
    """A partition of three replicas with some segments in the store, a sidecar beside each broker."""

    def __init__(self, cluster: KafkaCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        cluster.create_topic(
            TOPIC, segment_bytes=SEGMENT_BYTES, configs={"retention.ms": "-1", "retention.bytes": "-1"}
        )
        self.sidecars = Sidecars(directory, cluster, topics=[{"name": TOPIC}])
        self.produced: list[ProducedRecord] = []

    def fill(self) -> None:
        """Some segments, all copied but the active one; broker 1 leads."""
        place(self.cluster.admin, TOPIC, 0, [1, 2, 3])
        settings = self.cluster.client_settings
        self.produced = asyncio.run(
            produce_mix(settings, TOPIC, total_bytes=10 * SEGMENT_BYTES, batch_bytes=4_096, seed=6)
        )
        sealed = sorted(int(path.stem) for path in self.cluster[1].partition_dir(TOPIC, 0).glob("*.log"))[-1]
        assert sealed > 0
        self.sidecars.wait_for(
            lambda: sum(segment.end_offset - segment.start_offset + 1 for segment in self.finished()) >= sealed,
            f"all below {sealed} is remote",
            timeout_s=120,
        )

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return fold(read_events(self.cluster.client_settings, METADATA_TOPIC))

    def finished(self) -> list[RemoteLogSegmentMetadata]:
        return in_state(self.segments(), State.COPY_SEGMENT_FINISHED)

    def is_whole(self, segment: RemoteLogSegmentMetadata) -> bool:
        return all((self.sidecars.store_root / key).is_file() for key in recorded_keys(segment).in_upload_order)

    def lose_log_of(self, segment: RemoteLogSegmentMetadata) -> Path:
        """Take the object away; gives the report that reconcile would write of it."""
        key = recorded_keys(segment).log
        (self.sidecars.store_root / key).unlink()
        owner = segment.topic_id_partition
        finding = Finding(
            kind=FindingKind.MISSING_OBJECT,
            topic=owner.topic,
            topic_id=format_uuid(owner.topic_id),
            partition=owner.partition,
            segment_id=format_uuid(segment.remote_log_segment_id.uuid),
            key=key,
            start_offset=segment.start_offset,
            end_offset=segment.end_offset,
        )
        report = self.directory / "report"
        write_findings([finding_document(finding)], report)
        write_summary(self._summary(), report)
        return report

    def _summary(self) -> Summary:
        none = dict.fromkeys(range(METADATA_PARTITIONS), 0)
        return Summary(
            run_id="by hand",
            cluster_id=self.cluster.cluster_id,
            store="",
            key_prefix="",
            started_ms=0,
            finished_ms=0,
            metadata_topic=METADATA_TOPIC,
            metadata_begin=none,
            metadata_cut=none,
            metadata_end=none,
            event_count=0,
            segment_count=0,
            live_segment_count=0,
            live_bytes=0,
            object_count=30,
            object_bytes=0,
            orphan_count=0,
            orphan_bytes=0,
            manifests_read=False,
            deep_share=0,
            grace_ms=0,
            copy_grace_ms=0,
            findings={FindingKind.MISSING_OBJECT.value: 1},
        )


def test_a_request_that_the_leader_did_not_live_to_serve_is_its_successor_s(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    world = Recopied(kafka_cluster(brokers=3), tmp_path / "sidecars")
    sidecars = world.sidecars
    with sidecars:
        sidecars.wait_until_ready()
        world.fill()
        victim = world.finished()[3]
        report = world.lose_log_of(victim)
        assert not world.is_whole(victim)
        config = sidecars[2].config_path

        sidecars[1].kill9()  # its broker leads on: the request is nobody's
        asked = answer_of(config, "repair", str(report), "--apply", "--wait", "0s")
        assert (asked["recopy"], asked["pending"]) == (1, 1)
        assert not world.is_whole(victim)

        place(world.cluster.admin, TOPIC, 0, [2, 3, 1])
        sidecars.wait_for(lambda: sidecars[2].events("recopy.retire"), "the new leader has copied it again")
        (told,) = sidecars[2].events("recopy.retire")
        assert (told["start_offset"], told["end_offset"]) == (victim.start_offset, victim.end_offset)
        assert sidecars[3].events("recopy.retire") == []

        in_its_place = [
            segment
            for segment in world.finished()
            if segment.start_offset <= victim.end_offset and segment.end_offset >= victim.start_offset
        ]
        assert victim.remote_log_segment_id not in {one.remote_log_segment_id for one in in_its_place}
        assert {one.broker_id for one in in_its_place if one.start_offset >= victim.start_offset} == {2}
        assert all(world.is_whole(segment) for segment in world.finished())
        again = answer_of(config, "repair", str(report), "--apply", "--wait", "30s")
        assert (again.get("recopy", 0), again.get("pending", 0)) == (0, 0)

        sidecars[1].start()
        sidecars[1].wait_until_ready()
        for reader in (1, 2, 3):
            end = world.produced[-1].offset + 1
            found = list(fetch_records(sidecars[reader].read_url, TOPIC, 0, stop=end))
            assert found == sorted(map(shape_of, world.produced)), f"through the sidecar of broker {reader}"
        assert sidecars[1].events("recopy.retire") == []
