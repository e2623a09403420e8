"""Buckets whose manifests say what no broker would write: each is left out and named, and nothing else suffers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import RemoteRun, load_run
from tests.support.served_bucket import follower_of, serving
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.ports.store import BytesBody
from tiersidecar.services.bucket.picture import BucketPicture

PARTITION = "transactions-EXGICqv_Q_6R0FmJX3Hk1g/0/"
LAST = f"{PARTITION}00000000000000000133-YP1BNkXtQ0S2eUGcI-LZjw"


async def _shown(run: RemoteRun) -> tuple[list[int], dict[str, str]]:
    """The starts of the partition's segments, and the reasons of what was left out by key."""
    picture = BucketPicture(InlineBlocking())
    follower = follower_of(run, picture, RecordedTelemetry())
    await follower.look()
    await follower.look()
    segments = picture.list_remote_log_segments(run.partition("transactions-0"))
    assert len(picture.partitions()) == len(run.partitions)
    refused = {key: one.reason for key, one in follower.state.refused.items()}
    return sorted(segment.start_offset for segment in segments), refused


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param({"endOffset": 2**63 - 1}, "endOffset", id="an end past which there is no offset"),
        pytest.param({"endOffset": 2**80}, "endOffset", id="an end of more than 64 bits"),
        pytest.param({"segmentLeaderEpochs": {str(2**31): 133}}, "leader epoch", id="an epoch of 32 bits"),
        pytest.param({"segmentLeaderEpochs": {"-7": 133}}, "leader epoch", id="a negative epoch"),
        pytest.param({"segmentLeaderEpochs": {"0": 133, "00": 140}}, "leader epochs", id="one epoch twice"),
        pytest.param({"eventTimestampMs": 2**70}, "eventTimestampMs", id="an event time of more than 64 bits"),
        pytest.param({"eventTimestampMs": -1}, "eventTimestampMs", id="a negative event time"),
        pytest.param({"maxTimestampMs": 2**63}, "maxTimestampMs", id="a record time of more than 63 bits"),
        pytest.param({"brokerId": 2**31}, "brokerId", id="a broker of more than 31 bits"),
        pytest.param({"brokerId": -1}, "brokerId", id="a negative broker"),
    ],
)
async def test_numbers_that_kafka_cannot_have(said: dict[str, Any], reason: str) -> None:
    run = await load_run("plain")
    document = json.loads(await run.store.fetch_object(f"{LAST}.rsm-manifest", max_bytes=2**30))
    document["remoteLogSegmentMetadata"].update(said)
    await run.store.put_object(f"{LAST}.rsm-manifest", BytesBody(json.dumps(document).encode()))
    starts, refused = await _shown(run)
    assert starts == [0, 43, 86]
    assert reason in refused[f"{LAST}.rsm-manifest"]


async def _copy(run: RemoteRun, stem: str, **said: Any) -> None:
    """The last segment once more, under another key."""
    for suffix in ("indexes", "log", "rsm-manifest"):
        data = await run.store.fetch_object(f"{LAST}.{suffix}", max_bytes=2**30)
        if suffix == "rsm-manifest":
            document = json.loads(data)
            segment = document["remoteLogSegmentMetadata"]
            partition = segment["remoteLogSegmentId"]["topicIdPartition"]["topicPartition"]
            partition["partition"] = said.pop("partition", 0)
            segment.update(said)
            data = json.dumps(document).encode()
        await run.store.put_object(f"{stem}.{suffix}", BytesBody(data))


async def test_one_segment_id_at_two_offsets() -> None:
    run = await load_run("plain")
    stem = LAST.replace("00133-", "00140-")
    await _copy(run, stem, startOffset=140)
    starts, refused = await _shown(run)
    assert starts == [0, 43, 86, 133]
    assert list(refused) == [f"{stem}.rsm-manifest"]
    assert "of that id" in refused[f"{stem}.rsm-manifest"]


async def test_words_of_a_manifest_reach_no_terminal() -> None:
    run = await load_run("plain")
    document = json.loads(await run.store.fetch_object(f"{LAST}.rsm-manifest", max_bytes=2**30))
    told = document["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["topicIdPartition"]["topicPartition"]
    told["topic"] = "\x1b[2J\n\ud800" + "x" * 60_000
    await run.store.put_object(f"{LAST}.rsm-manifest", BytesBody(json.dumps(document).encode()))
    _, refused = await _shown(run)
    reason = refused[f"{LAST}.rsm-manifest"]
    assert reason.startswith("it is the manifest of segment ?[2J??xxx")
    assert reason.isprintable()
    assert len(reason) <= 300


@pytest.mark.parametrize("number", [100_000, 2**31 - 1])
async def test_a_partition_number_that_would_make_a_topic_of_billions(number: int) -> None:
    run = await load_run("plain")
    stem = LAST.replace("/0/", f"/{number}/")
    await _copy(run, stem, partition=number)
    starts, refused = await _shown(run)
    assert starts == [0, 43, 86, 133]
    assert "partition" in refused[f"{stem}.rsm-manifest"]


@pytest.mark.parametrize("entries", ["0 0\n2147483648 500", "-3 0\n0 100", "0 0\n1 9223372036854775808"])
async def test_an_epoch_blob_with_numbers_that_kafka_cannot_have(entries: str) -> None:
    async with serving() as served:
        store, stem = served.run.store, LAST
        indexes = await store.fetch_object(f"{stem}.indexes", max_bytes=2**30)
        blob = f"0\n2\n{entries}\n".encode()
        document = json.loads(await store.fetch_object(f"{stem}.rsm-manifest", max_bytes=2**30))
        document["segmentIndexes"]["leaderEpoch"] = {"position": len(indexes), "size": len(blob)}
        await store.put_object(f"{stem}.indexes", BytesBody(indexes + blob))
        await store.put_object(f"{stem}.rsm-manifest", BytesBody(json.dumps(document).encode()))
        with pytest.raises(CorruptDataError, match="is none that Kafka can have"):
            await served.lineages.lineage(served.run.partition("transactions-0"))


async def test_a_partition_s_leader_epoch_does_not_go_back_when_its_newest_segment_goes() -> None:
    """Java's clients do not take metadata of an older epoch, and would be refused by UNKNOWN_LEADER_EPOCH for ever."""
    run = await load_run("plain")
    picture, partition = BucketPicture(InlineBlocking()), run.partition("transactions-0")
    await follower_of(run, picture, RecordedTelemetry()).look()
    last = max(picture.list_remote_log_segments(partition), key=lambda segment: segment.start_offset)
    entry = EpochEntry(LeaderEpoch(5), Offset(last.next_offset))
    newer = replace(
        last,
        remote_log_segment_id=replace(last.remote_log_segment_id, uuid=Uuid(b"n" * 16)),
        start_offset=last.next_offset,
        end_offset=Offset(last.next_offset + 9),
        segment_leader_epochs=(entry,),
    )
    await picture.change(added=[newer])
    await picture.change(removed=[newer.remote_log_segment_id])
    assert picture.highest_offset_for_epoch(partition, 5) is None
    assert picture.latest_epoch(partition) == 5
