"""Listed objects to one row per segment, by their keys alone; what is no segment's object has a row of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.adapters.stores.probe import PROBE_NAME
from tiersidecar.domain.own_objects import OWN_DIRECTORY
from tiersidecar.formats.aiven.keys import LAYOUT_PATTERN, ObjectKind
from tiersidecar.reconcile.segment_check import OBJECT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FOREIGN = "foreign"


def layout_of(prefixes: Iterable[str]) -> str:
    """A pattern, in Java's words, of keys of our layout under one of ``prefixes``; its groups are those of LAYOUT_PATTERN."""
    quoted = "|".join(f"\\Q{prefix}\\E" for prefix in sorted(prefixes, reverse=True))
    return f"^(?:{quoted}){re.sub(r'[?]P<[a-z_]+>', '', LAYOUT_PATTERN)}$"


def by_segment(objects: DataFrame, layout: str, key_prefix: str) -> DataFrame:
    """``stem``, bytes and time of each of the up to three objects of a segment; an object that is not of the layout is a
    row under its whole key with ``foreign_bytes`` and ``foreign_ms``.  What is the sidecars' own is left out."""
    is_ours = F.expr("false")
    for name in (OWN_DIRECTORY, PROBE_NAME):
        is_ours = is_ours | F.col("key").startswith(key_prefix + name)
    stem = F.expr("substring(key, 1, length(key) - length(substring_index(key, '.', -1)) - 1)")
    suffix = F.substring_index("key", ".", -1)
    is_of_layout = F.col("is_of_layout")
    rows = (
        objects.withColumn("is_of_layout", F.col("key").rlike(layout))
        .where(is_of_layout | ~is_ours)
        .select(
            F.when(is_of_layout, stem).otherwise(F.col("key")).alias("stem"),
            F.when(is_of_layout, suffix).otherwise(F.lit(_FOREIGN)).alias("kind"),
            "size_bytes",
            "modified_ms",
        )
    )
    kinds = {**dict(zip(OBJECT_COLUMNS, map(str, ObjectKind), strict=True)), _FOREIGN: _FOREIGN}
    columns = [
        F.max(F.when(F.col("kind") == kind, F.col(source))).alias(f"{name}_{unit}")
        for name, kind in kinds.items()
        for source, unit in (("size_bytes", "bytes"), ("modified_ms", "ms"))
    ]
    return rows.groupBy("stem").agg(*columns)


def sizes() -> list[Column]:
    """The sizes of the three, null where there is none."""
    return [F.col(f"{name}_bytes") for name in OBJECT_COLUMNS]


def is_foreign() -> Column:
    """Whether the row has an object that is no segment's."""
    return F.col(f"{_FOREIGN}_bytes").isNotNull()
