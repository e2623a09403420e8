"""A session that reads Kafka: the connector that our own script brings is the right one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import produce_mix
from tiersidecar.adapters.kafka.security import SecuritySettings
from tiersidecar.spark.kafka_options import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]


async def test_a_session_reads_a_kafka_topic(spark: SparkSession, kafka: KafkaCluster) -> None:
    kafka.create_topic("spark-session")
    produced = await produce_mix(kafka.client_settings, "spark-session", total_bytes=50_000, batch_bytes=8_192, seed=7)
    options = kafka_options(kafka.bootstrap_servers, SecuritySettings())
    read = spark.read.format("kafka").options(**options).option("subscribe", "spark-session")
    rows = read.option("startingOffsets", "earliest").load().select("offset", "value").collect()
    assert {row.offset: row.value for row in rows} == {record.offset: record.value for record in produced}


def test_a_master_that_cannot_be_had_is_named() -> None:
    opening = """
from tiersidecar.domain.errors import SparkUnavailableError
from tiersidecar.spark.session import open_session
try:
    open_session(app_name="of nobody", master="spark://there", settings={"spark.driver.memory": "512m"})
except SparkUnavailableError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, check=False, timeout=120)
    assert "Invalid master URL" in done.stdout, done.stderr[-2000:]
    assert "spark.master, which is spark://there" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_a_session_whose_jvm_is_gone_is_closed_without_a_word() -> None:
    closing = """
import os, signal
from tiersidecar.spark.session import close_session, open_session
session = open_session(app_name="of nobody", master="local[1]", settings={"spark.driver.memory": "512m"})
jvm = session.sparkContext._gateway.proc
os.kill(jvm.pid, signal.SIGKILL)
jvm.wait()
print("gone", flush=True)
close_session(session)
print("closed")
"""
    done = subprocess.run([sys.executable, "-c", closing], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["gone", "closed"]), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
