"""A gateway with a key of the store that may only read: reads are served, and it never tries to write (issue 17)."""

from __future__ import annotations

import asyncio
import io
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError
from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v3.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.offset_for_leader_epoch.v3.response import OffsetForLeaderEpochResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from tests.integration.test_daemon import STRICT, wait_until_trimmed
from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import KafkaAdmin, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import produce_mix
from tests.support.raw_log import read_raw_log
from tests.support.s3_fault_proxy import S3FaultProxy, fault_proxy_in_a_thread
from tests.support.s3_server import make_reader, running_s3_server, s3_client, s3_store_section

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(400)]

TOPIC = "read-only-key"
NAMES: dict[str, Any] = {
    "remote.log.metadata.topic.name": "__rlm_read_only",
    "state.topic.name": "__state_read_only",
    "proposals.topic.name": "__proposals_read_only",
}
READER, SECRET = "gateway-reader", "may-only-read"


def test_a_gateway_reads_by_a_key_that_may_not_write_and_never_tries_to(kafka: KafkaCluster, tmp_path: Path) -> None:
    kafka.create_topic(TOPIC, segment_bytes=64 * 1024, configs=STRICT)
    produced = asyncio.run(produce_mix(kafka.client_settings, TOPIC, total_bytes=600_000, batch_bytes=16_384))
    times = [produced[0].timestamp_ms, produced[len(produced) // 3].timestamp_ms, -2, -3]
    end = kafka.admin.settled_end(TOPIC, 0)
    before = read_raw_log(kafka.admin, TOPIC, start=0, stop=end, timestamps=times)
    with ExitStack() as stack:
        server = stack.enter_context(running_s3_server(tmp_path / "s3", has_users=True))
        bucket = server.directory / "kafka-tier"
        bucket.mkdir()
        make_reader(server, bucket.name, READER, SECRET)
        with pytest.raises(ClientError, match="AccessDenied"):
            s3_client(server.url, READER, SECRET).put_object(Bucket=bucket.name, Key="any", Body=io.BytesIO(b"x"))
        proxy = stack.enter_context(fault_proxy_in_a_thread(S3FaultProxy(url=""), server.url))
        topics = [{"name": TOPIC, "local.retention.bytes": 1}]
        settings = daemon_settings(
            tmp_path / "sidecar",
            bootstrap_servers=kafka.bootstrap_servers,
            log_dirs=list(kafka.brokers[0].log_dirs),
            topics=topics,
            **NAMES,
        )
        settings["store"] = s3_store_section(server.url, bucket.name)
        sidecar = stack.enter_context(Daemon(tmp_path / "sidecar", settings, roles="tier"))
        sidecar.wait_until_ready()
        local_start = wait_until_trimmed(kafka, sidecar, TOPIC)
        store = s3_store_section(proxy.url, bucket.name, access_key=READER, secret_key=SECRET)
        daemon = GatewayDaemon(tmp_path / "gateway", kafka[1], topics=topics, store=store, **NAMES)
        gateway = stack.enter_context(daemon)
        gateway.wait_until_ready()
        client = KafkaAdmin(port=int(gateway.bootstrap_server.rpartition(":")[2]))
        wait_until(lambda: client.earliest_offset(TOPIC, 0) == 0, "the gateway knows what is remote")
        assert read_raw_log(client, TOPIC, start=0, stop=end, timestamps=times) == before
        assert end_of_epoch(client, 0) == (ErrorCode.none, end)
        offset = produced[len(produced) // 4].offset
        assert 0 < offset < local_start
        assert client.delete_records(TOPIC, 0, offset) == offset
        assert client.earliest_offset(TOPIC, 0) == offset
        wait_until(lambda: sidecar.events("records.deleted"), "the leader's sidecar has said so")
        assert gateway.stop() == 0
    assert proxy.requests["GET"] > 0
    assert set(proxy.requests) <= {"GET", "HEAD"}, proxy.requests


def end_of_epoch(client: KafkaAdmin, epoch: int) -> tuple[ErrorCode, int]:
    """What OffsetForLeaderEpoch says of it."""
    row = OffsetForLeaderPartition(partition=i32(0), current_leader_epoch=i32(-1), leader_epoch=i32(epoch))
    wanted = OffsetForLeaderTopic(topic=TopicName(TOPIC), partitions=(row,))
    with client.connected() as connection:
        answer = connection.call(OffsetForLeaderEpochRequest(replica_id=BrokerId(-1), topics=(wanted,)))
    found = cast(OffsetForLeaderEpochResponse, answer).topics[0].partitions[0]
    return found.error_code, found.end_offset
