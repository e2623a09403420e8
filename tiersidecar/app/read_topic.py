"""Read tiered topics to their end: remote records from the store, local ones through Spark's Kafka source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.config.config import Config
from tiersidecar.app.data_source import FORMAT, TiersidecarDataSource, parse_options
from tiersidecar.app.data_source_config import takes_option
from tiersidecar.app.data_source_planning import open_planning
from tiersidecar.spark.datasource.background_loop import BackgroundLoop
from tiersidecar.spark.datasource.both_tiers import BothTiers, Cut, Parted
from tiersidecar.spark.datasource.offset_ranges import check_named
from tiersidecar.spark.datasource.options import ReadOptions
from tiersidecar.spark.datasource.row_schema import row_ddl
from tiersidecar.spark.kafka_options import kafka_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_topic(spark: SparkSession, **options: str) -> DataFrame:
    """Return rows of both tiers, each record once; ``options`` are those of the data source, which is registered here.

    The border of each partition is fixed when this is called: the ranges are then read as they are now, however far the
    remote tier gets meanwhile.  Options with a dot go in as ``**{"isolation.level": "read_committed"}``.

    Raises:
        TiersidecarError: bad options, broker or store out of reach, offsets that neither tier has.
    """
    parsed, source = parse_options(options)
    config = source.load()
    # A loop of its own: in a notebook this thread has one already.
    with BackgroundLoop("tiersidecar planning") as loop:
        parted = loop.run(_parted(config, parsed))
    spark.dataSource.register(TiersidecarDataSource)
    kept = {name: value for name, value in options.items() if takes_option(name) or name.lower() in _KEPT}
    level = "read_committed" if parsed.read_committed else "read_uncommitted"
    frames = []
    if parted.remote:
        reader = spark.read.format(FORMAT).options(**kept).option("isolation.level", level)
        frames.append(reader.options(**_ranges(parted.remote)).load())
    if parted.local:
        settings = kafka_options(bootstrap_servers(config.broker), broker_security(config.broker))
        reader = spark.read.format("kafka").options(**settings).option("kafka.isolation.level", level)
        reader = reader.option("includeHeaders", str(parsed.include_headers).lower())
        reader = reader.option("failOnDataLoss", str(parsed.fail_on_data_loss).lower())
        frames.append(reader.options(**_ranges(parted.local)).load())
    if not frames:
        return spark.createDataFrame([], row_ddl(include_headers=parsed.include_headers))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


_KEPT = {"includeheaders", "failondataloss", "minpartitions", "maxbytesperpartition"}


async def _parted(config: Config, options: ReadOptions) -> Parted:
    async with open_planning(config, options.subscription) as planning:
        check_named(options, planning.partitions)
        tiers = BothTiers(planning.tier(options), planning.session.broker, options)
        return await tiers.part(tuple(planning.partitions))


def _ranges(cut: Cut) -> dict[str, str]:
    """Return the ranges as options that both sources understand."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for one, wanted in cut.items():
        assigned.setdefault(one.topic, []).append(one.partition)
        starts.setdefault(one.topic, {})[str(one.partition)] = wanted.start
        ends.setdefault(one.topic, {})[str(one.partition)] = wanted.end
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
