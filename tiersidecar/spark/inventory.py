"""Read inventories of a bucket: S3 Inventory in CSV, ORC or Parquet, or any file with such columns.

An inventory is hours old.  The events show what was copied or deleted since; those before its time count as before the listing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.domain.errors import ConfigError
from tiersidecar.spark.inventory_manifest import MANIFEST_NAME, InventoryFormat, InventoryManifest, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_CSV_COLUMNS = ("bucket", "key", "size", "last_modified_date")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "key": ("key",),
    "size_bytes": ("size_bytes", "size"),
    "modified_ms": ("modified_ms", "last_modified_date", "lastmodifieddate"),
}


def read_inventory(spark: SparkSession, paths: list[str], form: InventoryFormat, csv_columns: str = "") -> DataFrame:
    """Return columns of :data:`~tiersidecar.spark.columns.OBJECTS`.

    CSV files have no header; ``csv_columns`` are their columns in order, comma separated, as in the inventory's manifest.json
    (``fileSchema``); by default Bucket, Key, Size, LastModifiedDate.  Their keys are URL-encoded.  In a bucket with
    versions only the newest ones count, and no delete markers.

    Raises:
        ConfigError: there is no column for the key, the size or the time.
    """
    if form is InventoryFormat.CSV:
        names = [name.strip() for name in csv_columns.split(",")] if csv_columns else list(_CSV_COLUMNS)
        rows = spark.read.csv(paths, schema=", ".join(f"`{name}` string" for name in names), escape='"')
    else:
        rows = spark.read.format(form.value).load(paths)
    found = {name.lower().replace(" ", "_"): name for name in rows.columns}
    columns = {ours: _column(found, ours, theirs, paths) for ours, theirs in _NAMES.items()}
    key = F.url_decode(columns["key"]) if form is InventoryFormat.CSV else columns["key"]
    modified = columns["modified_ms"]
    if "modified_ms" not in found:
        modified = F.unix_millis(F.to_timestamp(modified))
    return _newest(rows, found).select(
        key.alias("key"),
        columns["size_bytes"].cast("bigint").alias("size_bytes"),
        modified.cast("bigint").alias("modified_ms"),
    )


def manifest_at(spark: SparkSession, paths: list[str]) -> InventoryManifest | None:
    """Return the manifest, if it is the one given path.

    Raises:
        ConfigError: it cannot be read, or has nothing of use.
    """
    if len(paths) != 1 or not paths[0].endswith(MANIFEST_NAME):
        return None

    def fetch_text(path: str) -> str:
        row = spark.read.text(path, wholetext=True).first()
        return "" if row is None else str(row[0])

    return read_manifest(paths[0], fetch_text)


def _newest(rows: DataFrame, found: Mapping[str, str]) -> DataFrame:
    for names, wanted in ((("is_latest", "islatest"), True), (("is_delete_marker", "isdeletemarker"), False)):
        for name in names:
            if name in found:
                said = F.col(f"`{found[name]}`").cast("boolean")
                rows = rows.where(F.coalesce(said, F.lit(wanted)) == wanted)
    return rows


def _column(found: Mapping[str, str], ours: str, theirs: tuple[str, ...], paths: list[str]) -> Column:
    for name in theirs:
        if name in found:
            return F.col(f"`{found[name]}`")
    known = ", ".join(found.values())
    raise ConfigError(source=", ".join(paths), faults=(f"no column for {ours} ({' or '.join(theirs)}) among {known}",))
