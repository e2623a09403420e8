"""Read inventories of a bucket: S3 Inventory in CSV, ORC or Parquet, Google's inventory reports and Azure's blob inventories in
CSV or Parquet, or any file with such columns.

An inventory is hours old.  The events show what was copied or deleted since; those before its time count as before the listing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from tiersidecar.domain.errors import ConfigError
from tiersidecar.spark.inventory_manifest import MANIFEST_NAME, InventoryFormat, InventoryManifest, read_manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_CSV_COLUMNS = ("bucket", "key", "size", "last_modified_date")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "key": ("key", "name"),
    "size_bytes": ("size_bytes", "size", "content-length"),
    "modified_ms": ("modified_ms", "last_modified_date", "lastmodifieddate", "updated", "last-modified"),
}
"""Ours, and those of S3, of Google (name, size, updated) and of Azure (Name, Content-Length, Last-Modified)."""
_OF_AZURE = "content-length"
_LATEST, _GONE = ("is_latest", "islatest", "iscurrentversion"), ("is_delete_marker", "isdeletemarker", "deleted")
_OF_FORMER = ("snapshot", "timedeleted", "softdeletetime")
"""Only what is no present object has a value there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFiles:
    """Files of an inventory, as Spark reads them.

    ``csv_columns`` are the columns of CSV files without a header, in order and comma separated, as in the manifest; by default
    Bucket, Key, Size, LastModifiedDate.  ``container`` is Azure's, whose inventories are of whole accounts.
    """

    paths: tuple[str, ...]
    form: InventoryFormat
    csv_columns: str = ""
    csv_has_header: bool = False
    csv_delimiter: str = ","
    container: str = ""


def read_inventory(spark: SparkSession, files: InventoryFiles) -> DataFrame:
    """Return columns of :data:`~tiersidecar.spark.columns.OBJECTS`.

    S3's CSV has URL-encoded keys.  In a bucket with versions only the newest ones count, and no delete markers or snapshots.

    Raises:
        ConfigError: there is no column for the key, the size or the time, or Azure's container is not known.
    """
    rows = _rows(spark, files)
    found = {name.lower().replace(" ", "_"): name for name in rows.columns}
    columns = {ours: _column(found, ours, theirs, files.paths) for ours, theirs in _NAMES.items()}
    rows, key = _newest(rows, found), columns["key"]
    if _OF_AZURE in found:
        if not files.container:
            raise ConfigError(source=", ".join(files.paths), faults=("is Azure's, and store.type is not azure",))
        rows = rows.where(F.startswith(key, F.lit(f"{files.container}/")))
        key = F.substring(key, len(files.container) + 2, _MOST_KEY)
    elif files.form is InventoryFormat.CSV and "key" in found:
        key = F.url_decode(key)
    return rows.select(
        key.alias("key"),
        columns["size_bytes"].cast("bigint").alias("size_bytes"),
        _modified_ms(rows, found).cast("bigint").alias("modified_ms"),
    )


_MOST_KEY = 1 << 16
"""Characters; no store has keys as long."""


def _rows(spark: SparkSession, files: InventoryFiles) -> DataFrame:
    paths = list(files.paths)
    if files.form is not InventoryFormat.CSV:
        return spark.read.format(files.form.value).load(paths)
    if files.csv_has_header:
        return spark.read.csv(paths, header=True, sep=files.csv_delimiter, escape='"')
    names = [name.strip() for name in files.csv_columns.split(",")] if files.csv_columns else list(_CSV_COLUMNS)
    schema = ", ".join(f"`{name}` string" for name in names)
    return spark.read.csv(paths, schema=schema, sep=files.csv_delimiter, escape='"')


def _modified_ms(rows: DataFrame, found: Mapping[str, str]) -> Column:
    """Return the time in milliseconds: a number is one already."""
    name = next(found[one] for one in _NAMES["modified_ms"] if one in found)
    column = F.col(f"`{name}`")
    if dict(rows.dtypes)[name] == "bigint" or "modified_ms" in found:
        return column
    return F.unix_millis(F.to_timestamp(column))


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
    for names, wanted in ((_LATEST, True), (_GONE, False)):
        for name in names:
            if name in found:
                said = F.col(f"`{found[name]}`").cast("boolean")
                rows = rows.where(F.coalesce(said, F.lit(wanted)) == wanted)
    for name in _OF_FORMER:
        if name in found:
            rows = rows.where(F.coalesce(F.col(f"`{found[name]}`").cast("string"), F.lit("")) == "")
    return rows


def _column(found: Mapping[str, str], ours: str, theirs: tuple[str, ...], paths: Sequence[str]) -> Column:
    for name in theirs:
        if name in found:
            return F.col(f"`{found[name]}`")
    known = ", ".join(found.values())
    raise ConfigError(source=", ".join(paths), faults=(f"no column for {ours} ({' or '.join(theirs)}) among {known}",))
