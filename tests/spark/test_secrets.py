"""No secret reaches what Spark shows: plans, the event log, the environment in the UI (issue 17)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.spark.conftest import SECRETS_IN_CONF
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import produce_mix
from tiersidecar.adapters.kafka.security import SaslMechanism, SecurityProtocol, SecuritySettings
from tiersidecar.app.data_source import TiersidecarDataSource
from tiersidecar.spark.kafka_options import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]

MARK = "hunter-"
TOPIC = "spark-secrets"
STORE = {
    "store.type": "s3",
    "store.s3.bucket.name": "bucket",
    "store.s3.region": "us-east-1",
    "store.s3.endpoint.url": "http://127.0.0.1:9",
    "store.aws.access.key.id": "hunter-id",
    "store.aws.secret.access.key": "hunter-store",
}


@pytest.fixture(scope="module")
def produced(kafka: KafkaCluster) -> int:
    kafka.create_topic(TOPIC)
    mix = produce_mix(kafka.client_settings, TOPIC, total_bytes=20_000, batch_bytes=8_192, seed=7)
    return len(asyncio.run(mix))


def from_kafka(spark: SparkSession, kafka: KafkaCluster) -> DataFrame:
    """As reconcile reads the metadata topic; the client of a listener without SASL looks at none of it."""
    options = kafka_options(kafka.bootstrap_servers, secret_settings())
    options["kafka.security.protocol"] = "PLAINTEXT"
    assert "hunter-password" in options["kafka.sasl.jaas.config"], "else this shows nothing"
    options["kafka.ssl.keystore.key"] = "hunter-key"
    read = spark.read.format("kafka").options(**options).option("subscribe", TOPIC)
    return read.option("startingOffsets", "earliest").load()


def secret_settings() -> SecuritySettings:
    return SecuritySettings(
        security_protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl_mechanism=SaslMechanism.PLAIN,
        username="u",
        password="hunter-password",
    )


def from_our_source(spark: SparkSession, kafka: KafkaCluster) -> DataFrame:
    spark.dataSource.register(TiersidecarDataSource)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC, **STORE}
    return spark.read.format("tiersidecar").options(**options).load()


def plans(spark: SparkSession, frame: DataFrame) -> str:
    """All that ``explain`` and the SQL page of the UI can show."""
    jvm: Any = spark._jvm
    modes = jvm.org.apache.spark.sql.execution.ExplainMode
    execution = frame._jdf.queryExecution()
    shown = [execution.explainString(modes.fromString(mode)) for mode in ("simple", "extended", "cost", "formatted")]
    return "\n".join([*shown, execution.toString(), execution.stringWithStats()])


def event_log(spark: SparkSession) -> str:
    directory = Path(urlsplit(str(spark.conf.get("spark.eventLog.dir"))).path)
    return "\n".join(path.read_text() for path in directory.rglob("*") if path.is_file())


def test_neither_plans_nor_the_event_log_show_the_brokers_password(
    spark: SparkSession, kafka: KafkaCluster, produced: int
) -> None:
    frame = from_kafka(spark, kafka)
    assert MARK not in plans(spark, frame)
    assert frame.count() == produced
    assert MARK not in event_log(spark)


def test_a_view_made_by_sql_shows_no_option_that_is_secret(
    spark: SparkSession, kafka: KafkaCluster, produced: int
) -> None:
    options = (
        f"`kafka.bootstrap.servers` '{kafka.bootstrap_servers}', subscribe '{TOPIC}', startingOffsets 'earliest',"
        " `kafka.sasl.jaas.config` 'hunter-jaas', `kafka.ssl.keystore.key` 'hunter-keystore'"
    )
    made = spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW secrets USING kafka OPTIONS ({options})")
    assert MARK not in plans(spark, made)
    counted = spark.sql("SELECT count(*) AS found FROM secrets")
    assert counted.collect()[0]["found"] == produced
    assert MARK not in plans(spark, counted)
    assert MARK not in event_log(spark)


def test_neither_plans_nor_the_event_log_show_the_secrets_of_the_store(
    spark: SparkSession, kafka: KafkaCluster, produced: int
) -> None:
    frame = from_our_source(spark, kafka)
    assert MARK not in plans(spark, frame)
    assert produced
    assert frame.count() == 0, "planned and run: nothing of it is remote"
    assert MARK not in event_log(spark)


def test_an_error_of_our_source_says_no_secret(spark: SparkSession, kafka: KafkaCluster, produced: int) -> None:
    from pyspark.errors import PySparkException

    assert produced
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": TOPIC,
        **STORE,
        "store.aws.secrets": "hunter-x",
    }
    with pytest.raises(PySparkException) as caught:
        spark.read.format("tiersidecar").options(**options).load().count()
    assert "store.aws.secrets" in str(caught.value)
    assert MARK not in str(caught.value)
    assert MARK not in event_log(spark)


def test_the_environment_that_the_ui_shows_has_secret_settings_redacted(spark: SparkSession) -> None:
    """``SparkListenerEnvironmentUpdate`` is what the page Environment shows."""
    log = event_log(spark)
    shown = [json.loads(line) for line in log.splitlines() if '"SparkListenerEnvironmentUpdate"' in line]
    properties: dict[str, str] = {name: value for one in shown for name, value in one["Spark Properties"].items()}
    assert {properties[name] for name in SECRETS_IN_CONF} == {"*********(redacted)"}
    assert MARK not in log
