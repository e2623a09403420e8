"""What ``handover to-native`` shows of a look: tables, what is in the way, settings, steps (issue 21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.metadata_events import added
from tests.unit.decide.test_handover import Partition
from tests.unit.decide.test_native_tiering import THREE, begun, copied, log
from tiersidecar.app.handover.look import SeenPartition, finished_of
from tiersidecar.app.handover.run import (
    BrokerSettings,
    HandoverLook,
    TopicLook,
    document_of,
    partitions_text,
    settings_notes,
    unseen,
    wrapping_refusal,
)
from tiersidecar.app.handover.steps import steps_to_native
from tiersidecar.decide.native_settings import BLIND_SETTINGS, RLMM_PREFIX, Setting, Sight, decide_settings
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.native_segments import NativeSegments
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.reading.remote_objects import recorded_keys

WANTED = (
    Setting(name="remote.log.storage.system.enable", wanted="true", default="false"),
    Setting(name="rsm.config.key.prefix", wanted="tier/", default=""),
    Setting(name="rsm.config.storage.s3.bucket.name", wanted="kafka-tier"),
)
NATIVE = {"remote.log.storage.system.enable": "true", "rsm.config.key.prefix": None}


def seen(partition: Partition, *, objects: bool = True) -> SeenPartition:
    segments = NativeSegments(event for some in partition.events for event in some)
    keys = [key for one in finished_of(segments) for key in recorded_keys(one, "tier/").in_upload_order]
    return SeenPartition(
        plan=partition.decide(),
        segments=segments,
        log_start_offset=Offset(30),
        high_watermark=Offset(100),
        object_bytes=dict.fromkeys(keys if objects else keys[1:], 7),
        key_prefix="tier/",
    )


def look(
    *partitions: SeenPartition,
    refusals: Sequence[str] = (),
    configs: dict[str, str | None] | None = None,
    brokers: Sequence[BrokerSettings] = (),
    running: Sequence[int] = (),
) -> HandoverLook:
    topic = TopicLook(
        topic="orders",
        policy=TopicPolicy(retention_ms=86_400_000, local_retention_ms=3_600_000),
        partitions=partitions,
        configs=configs or {},
        refusals=tuple(refusals),
    )
    return HandoverLook(cluster_id="c", topics=(topic,), brokers=tuple(brokers), running=running)


def broker(number: int, found: dict[str, str | None], **others: Any) -> BrokerSettings:
    return BrokerSettings(broker_id=BrokerId(number), rows=decide_settings(WANTED, found), **others)


def test_the_table_tells_what_is_kept_and_what_would_be_lost() -> None:
    head, row = partitions_text(look(seen(Partition(start=10)))).splitlines()
    assert " ".join(head.split()).endswith("segments kept kept bytes deleted why lost as it is")
    assert " ".join(row.split()) == (
        "orders-0 10 epoch 0 at 0 3 2 2.0 KiB 1 1 below-log-start 2 segments, 2.0 KiB: 2 below-log-start"
    )
    assert "nothing" in partitions_text(look(seen(Partition(broker=Partition().broker, events=()))))


def test_what_is_in_the_way_comes_with_its_remedy() -> None:
    found = look(
        seen(Partition(events=(*THREE, begun(4, 30, 39)))),
        seen(Partition(), objects=False),
        refusals=["it is internal, and Kafka tiers no internal topic"],
    )
    assert list(found.obstacles()) == [
        "orders: it is internal, and Kafka tiers no internal topic",
        "orders-0: unfinished-copy: 1 segment: offsets 30 to 39",
        "orders-0: objects are missing of segments with offsets 0 to 9: `tiersidecar reconcile`",
    ]
    (remedy,) = found.remedies()
    assert remedy.startswith("unfinished-copy: let the copies finish (`tiersidecar pause orders --copies`")


def test_segments_under_a_key_service_are_not_handed_over() -> None:
    assert list(wrapping_refusal(None)) == []
    (told,) = wrapping_refusal("aws-kms")
    assert told.startswith("encryption.key.wrapping is aws-kms, and native brokers cannot open segments")
    assert list(look(refusals=[told]).obstacles()) == [f"orders: {told}"]


def test_what_native_brokers_copied_is_not_deleted() -> None:
    (segment,) = NativeSegments(copied(9, 30, 59))
    copy = replace(seen(Partition()), gone=(segment,))
    assert list(look(copy).obstacles()) == [], "the sidecar deleted it, with its objects"
    listed = {**copy.object_bytes, recorded_keys(segment, "tier/").manifest: 7}
    (obstacle,) = look(replace(copy, object_bytes=listed)).obstacles()
    assert "__remote_log_metadata has segments that the sidecar's topic has not, with offsets 30 to 59" in obstacle


def test_what_writing_the_plan_mends_is_not_in_the_way() -> None:
    found = look(seen(Partition(events=(copied(1, 0, 19), copied(2, 0, 9), copied(3, 20, 29)))))
    assert (list(found.obstacles()), list(found.remedies())) == ([], [])
    assert steps_to_native(found, Path("plan.json")) == (
        "metadata topic: COPY_SEGMENT_FINISHED once more for 1 segments that other copies have displaced",
        "plan.json: the plan for 1 partitions",
    )


def test_a_topic_that_is_native_already_is_in_the_way_unless_brokers_are_blind() -> None:
    native: dict[str, str | None] = {"remote.storage.enable": "true"}
    blind, seeing = broker(1, NATIVE, sight=Sight.BLIND), broker(2, NATIVE, sight=Sight.SEEING)
    refused = BrokerSettings(broker_id=BrokerId(4), problem="CLUSTER_AUTHORIZATION_FAILED")
    found = list(look(configs=native, brokers=[blind, seeing, broker(3, NATIVE), refused]).obstacles())
    assert "brokers 2 see its events" in found[0]
    assert "it is not known whether brokers 3, 4 see its events" in found[1]
    assert list(look(configs=native, brokers=[blind]).obstacles()) == []
    assert list(look(brokers=[seeing, refused]).obstacles()) == [], "it is not native yet"


def test_a_broker_that_shows_nothing_is_as_its_file_says() -> None:
    """As one whose settings we may not read (DescribeConfigs)."""
    blind: dict[str, str | None] = {RLMM_PREFIX + name: value for name, value in BLIND_SETTINGS.items()}
    assert unseen(BrokerId(1), "refused", None).sight is Sight.UNKNOWN
    assert unseen(BrokerId(1), "refused", blind).sight is Sight.BLIND
    assert unseen(BrokerId(1), "refused", {}).sight is Sight.SEEING
    native: dict[str, str | None] = {"remote.storage.enable": "true"}
    assert list(look(configs=native, brokers=[unseen(BrokerId(1), "refused", blind)]).obstacles()) == []


def test_settings_that_do_not_fit_or_are_not_shown_are_named() -> None:
    found = look(
        brokers=[
            broker(1, {"remote.log.storage.system.enable": "false"}),
            broker(2, NATIVE),
            BrokerSettings(broker_id=BrokerId(3), problem="CLUSTER_AUTHORIZATION_FAILED"),
        ]
    )
    assert list(settings_notes(found)) == [
        "broker 1: native tiering is off (remote.log.storage.system.enable)",
        "broker 2: rsm.config.storage.s3.bucket.name is not set, must be 'kafka-tier'",
        "broker 2 does not show rsm.config.key.prefix: `handover files --broker-properties` compares its file",
        "broker 3: its settings cannot be checked: CLUSTER_AUTHORIZATION_FAILED",
    ]


def test_the_steps_name_topics_sidecars_and_retention() -> None:
    steps = steps_to_native(look(seen(Partition()), running=[1, 2]), None)
    assert steps[0].endswith("those of brokers 1, 2 run")
    assert steps[1] == "tiersidecar handover to-native orders --write-plan plan.json"
    assert "client.bootstrap.servers=127.0.0.1:1" in steps[2]
    assert "retention.ms=86400000,retention.bytes=-1,local.retention.ms=3600000" in steps[-1]


def test_the_plan_has_every_finished_segment_with_its_objects() -> None:
    partition = Partition(start=10, events=(*THREE, [added(9, 30, 39)]))
    planned = seen(partition).planned()
    assert [(one.start_offset, one.object_bytes, one.goes) for one in planned.segments] == [
        (0, (7, 7, 7), "below-log-start"),
        (10, (7, 7, 7), ""),
        (20, (7, 7, 7), ""),
    ]
    assert (planned.log_start_offset, planned.copied_stop, planned.leader_epochs) == (10, 30, ((0, 0),))
    assert planned.foretold_start == 10
    raised = seen(Partition(events=THREE[1:], broker=log(30, {0: 30}))).planned()
    assert (raised.log_start_offset, raised.foretold_start) == (0, 10), "it rises to the first segment"


def test_the_document_has_the_same() -> None:
    document = document_of(look(seen(Partition(start=10)), brokers=[broker(2, NATIVE)], running=[1]))
    (partition,) = document["partitions"]
    assert partition["deleted"] == {"below-log-start": {"segments": 1, "bytes": 1000}}
    assert partition["lost_naively"] == {"below-log-start": {"segments": 2, "bytes": 2000}}
    assert document["brokers"][0]["settings"]["rsm.config.key.prefix"]["verdict"] == "hidden"
    assert document["running_sidecars"] == [1]
