"""``spark-submit`` of the pyspark wheel, as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

SPARK_MAIN = Path(__file__).parents[2] / "deploy" / "spark" / "spark_main.py"
SPARK_HOME = Path(pyspark.__file__).parent
SMALL: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""Little data: see the session of the other tests."""


def submit(
    master: str,
    *arguments: str,
    settings: Mapping[str, str] = SMALL,
    program: Path = SPARK_MAIN,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``program``, by default our command line, with ``arguments`` there, to its end."""
    given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", master, *given, program, *arguments]
    ours = {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [*map(str, command)],
        env={**os.environ, **ours, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
