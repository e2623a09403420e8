"""Open the Spark session of the batch jobs: local by default, or on another master."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tiersidecar.domain.errors import SparkUnavailableError
from tiersidecar.spark.jars import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
_SECRET_NAMES = (
    "(?i)secret|password|passwd|passphrase|token|access[.]?key|credential|jaas|private[.]?key|keystore[.]key"
)
"""Spark's own expression, and the names of secrets in Kafka, Java and object stores."""
_OLDEST_JAVA = 17

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Cached data has as many partitions as its size needs, not spark.sql.shuffle.partitions.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    # For the UI, the event log and plans.  They show no options of ours (tests/spark/test_secrets.py): a second safeguard.
    "spark.redaction.regex": _SECRET_NAMES,
    "spark.sql.redaction.options.regex": f"{_SECRET_NAMES}|url",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The executor's heap is the driver's here; few, large shuffle partitions cost less than many.
    "spark.sql.shuffle.partitions": "64",
}


def open_session(*, app_name: str, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process: a new one, or the present one.

    ``spark-submit`` and ``settings`` win over our choices, ``settings`` most; ``master`` only where spark-submit names none.
    Close it with :func:`close_session`.

    Raises:
        SparkUnavailableError: pyspark, Java or the Kafka connector is missing; or no session comes about, as with a master
            that does not answer.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailableError(reason=str(error), remedy="pip install 'tiersidecar[spark]'") from error
    _require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if is_submitted:
        # Otherwise SparkConf would not see the options of spark-submit, and this master would override its --master.
        SparkContext._ensure_initialized()  # noqa: SLF001 - there is no public way
    conf = SparkConf()
    for key, value in (settings or {}).items():
        conf.set(key, value)
    conf.setIfMissing("spark.app.name", app_name).setIfMissing("spark.master", master)
    local = str(conf.get("spark.master")).startswith("local")
    for key, value in (_SETTINGS | (_LOCAL_SETTINGS if local else {})).items():
        conf.setIfMissing(key, value)
    brings_jars = conf.contains("spark.jars") or conf.contains("spark.jars.packages")
    jars = () if brings_jars else connector_jars()
    if jars and not is_submitted:
        conf.set("spark.jars", ",".join(str(jar) for jar in jars))
    try:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        said = " ".join(line.strip(": ") for line in str(error).splitlines()[:2]) or type(error).__name__
        remedy = f"compare spark.master, which is {conf.get('spark.master')}, and the other settings of Spark"
        raise SparkUnavailableError(reason=said, remedy=remedy) from error
    if is_submitted:
        # The JVM has been started already, so only this still reaches its class loader, and the executors'.
        for jar in jars:
            session.sql(f"ADD JAR '{jar}'")
    return session


def close_session(session: SparkSession) -> None:
    """Stop ``session``.  A JVM that is gone, since it got the signal that ends this process, has stopped it already."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        session.stop()


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "apt install openjdk-17-jre-headless (Debian), dnf install java-17-openjdk-headless (RPM)"
    if java is None:
        raise SparkUnavailableError(reason="there is no java", remedy=remedy)
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        raise SparkUnavailableError(reason=f"{java} does not run ({error})", remedy=remedy) from error
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise SparkUnavailableError(reason=f"{java} is older than Java {_OLDEST_JAVA}", remedy=remedy)
