"""The job of docs/spark-data-source.md, for ``spark-submit``.

``read_topic_job.py CONFIG TOPIC DIRECTORY`` writes the rows there as Parquet, and says the plan.
"""

import sys

from pyspark.sql import SparkSession

from tiersidecar.app.data_source import TiersidecarDataSource


def main(config: str, topic: str, directory: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(TiersidecarDataSource)
    frame = (
        spark.read.format("tiersidecar")
        .option("config", config)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("isolation.level", "read_committed")
        .option("maxBytesPerPartition", "500k")
        .load()
    )
    frame.explain("extended")
    frame.write.parquet(directory)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
