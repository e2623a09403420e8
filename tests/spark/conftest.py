"""One Spark session for all tests that need one: it takes 8 to 10 seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SECRETS_IN_CONF = {
    "spark.tests.sasl.jaas.config": 'PlainLoginModule required username="u" password="hunter-jaas";',
    "spark.tests.ssl.keystore.key": "hunter-keystore",
    "spark.tests.private.key": "hunter-private",
    "spark.tests.key.passphrase": "hunter-passphrase",
    "spark.tests.credentials": "hunter-credentials",
    "spark.tests.aws.secret.access.key": "hunter-aws",
}
"""Settings of a job that Spark's own redaction mostly does not know."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores and little memory, shared."""
    from tiersidecar.spark.session import open_session

    scratch: Path = tmp_path_factory.mktemp("spark")
    (scratch / "events").mkdir()
    session = open_session(
        app_name="tiersidecar tests",
        master="local[2]",
        settings={
            "spark.driver.memory": "1g",
            # Little data and many plans: compiling each would take most of the time.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            # As `compact` has it.
            "spark.io.encryption.enabled": "true",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            # What a history server would show, for tests/spark/test_secrets.py.
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (scratch / "events").as_uri(),
            **SECRETS_IN_CONF,
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    try:
        yield session
    finally:
        session.stop()
