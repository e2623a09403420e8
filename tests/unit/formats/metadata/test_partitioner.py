"""S-088: our metadata partitions are those that Kafka's RemoteLogMetadataTopicPartitioner computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiersidecar.domain.ids import TopicIdPartition, parse_uuid
from tiersidecar.formats.metadata.partitioner import metadata_partition

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "golden" / "partitioner.json").read_text(encoding="utf-8")
)["cases"]


def test_the_golden_file_has_all_its_cases() -> None:
    assert len(CASES) == 200


@pytest.mark.parametrize("count", [50, 5, 1000])
def test_partition_is_the_one_kafka_computed(count: int) -> None:
    for case in CASES:
        owner = TopicIdPartition(
            topic_id=parse_uuid(case["topic_id"]), topic=case["topic"], partition=case["partition"]
        )
        assert metadata_partition(owner, count) == case[f"metadata_partition_{count}"], owner.qualified


def test_the_name_of_the_topic_has_no_part_in_it() -> None:
    case = CASES[0]
    renamed = TopicIdPartition(topic_id=parse_uuid(case["topic_id"]), topic="renamed", partition=case["partition"])
    assert metadata_partition(renamed, 50) == case["metadata_partition_50"]
