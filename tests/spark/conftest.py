"""One Spark session for all tests that need one: it takes 8 to 10 seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores and little memory, shared."""
    from tiersidecar.spark.session import open_session

    scratch: Path = tmp_path_factory.mktemp("spark")
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
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    try:
        yield session
    finally:
        session.stop()
