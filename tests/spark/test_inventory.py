"""Inventories in all forms, laid out as S3, Google and Azure lay them out: files of their own formats, and a manifest
(S-307).
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from tests.support.daemon import daemon_settings
from tests.support.kafka_cluster import KafkaCluster
from tests.support.spark_submit import submit
from tiersidecar.decide.reconcile_findings import FindingKind
from tiersidecar.domain.errors import ConfigError
from tiersidecar.reconcile.report import read_findings
from tiersidecar.spark.inventory import InventoryFiles, manifest_at, read_inventory
from tiersidecar.spark.inventory_manifest import InventoryFormat, InventoryManifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

METADATA = "__rlm_recon-submit"
BEGUN_MS = 1_767_225_600_000
SCHEMA = {
    "csv": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate",
    "orc": "struct<bucket:string,key:string,version_id:string,is_latest:boolean,is_delete_marker:boolean,size:bigint,"
    "last_modified_date:timestamp>",
    "parquet": "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); }",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of an object; a delete marker has no size."""

    key: str
    size: int | None
    modified_ms: int
    is_latest: bool = True
    is_delete_marker: bool = False

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self.modified_ms / 1000, UTC)


VERSIONS = [
    Version(key="o-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000007-AAAAAAAAAAAAAAAAAAAAAQ.log", size=5, modified_ms=BEGUN_MS),
    Version(key='a "quoted", odd+name %41/ä b.log', size=0, modified_ms=BEGUN_MS - 1000),
    Version(key="overwritten", size=7, modified_ms=BEGUN_MS - 2000),
    Version(key="overwritten", size=6, modified_ms=BEGUN_MS - 3000, is_latest=False),
    Version(key="deleted", size=None, modified_ms=BEGUN_MS - 4000, is_delete_marker=True),
    Version(key="deleted", size=9, modified_ms=BEGUN_MS - 5000, is_latest=False),
]  # fmt: skip
THERE = {
    (version.key, version.size, version.modified_ms)
    for version in VERSIONS
    if version.is_latest and not version.is_delete_marker
}


def write_csv(path: Path, versions: list[Version]) -> None:
    """As S3 does: gzip, no header, everything in quotes, keys URL-encoded with ``+`` for a space."""
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for version in versions:
            flags = [str(version.is_latest).lower(), str(version.is_delete_marker).lower()]
            modified = version.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            key = quote(version.key, safe="/*-_.").replace("%20", "+")
            writer.writerow(["bucket", key, "v", *flags, "" if version.size is None else version.size, modified])


def table_of(versions: list[Version]) -> pa.Table:
    names = ("bucket", "key", "version_id", "is_latest", "is_delete_marker", "size", "last_modified_date")
    rows = [("bucket", v.key, "v", v.is_latest, v.is_delete_marker, v.size, v.modified) for v in versions]
    types = (pa.string(), pa.string(), pa.string(), pa.bool_(), pa.bool_(), pa.int64(), pa.timestamp("ms", tz="UTC"))
    columns = [pa.array(column, type=kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.table(columns, names=names)


def write_orc(path: Path, versions: list[Version]) -> None:
    pyarrow.orc.write_table(table_of(versions), path, compression="zlib")


def write_parquet(path: Path, versions: list[Version]) -> None:
    pq.write_table(table_of(versions), path)


FORMS: list[tuple[str, str, Callable[[Path, list[Version]], None]]] = [
    ("csv", "csv.gz", write_csv),
    ("orc", "orc", write_orc),
    ("parquet", "parquet", write_parquet),
]


def laid_out(bucket: Path, form: str, suffix: str, write: Callable[[Path, list[Version]], None]) -> Path:
    """Two files below ``data``, and the manifest in a directory that is named for its time."""
    home = bucket / "inventories" / "source" / "daily"
    (home / "data").mkdir(parents=True)
    (home / "2026-01-01T00-00Z").mkdir()
    names = [f"{number}.{suffix}" for number in range(2)]
    for name, versions in zip(names, (VERSIONS[:2], VERSIONS[2:]), strict=True):
        write(home / "data" / name, versions)
    manifest = {
        "sourceBucket": "source",
        "destinationBucket": "arn:aws:s3:::destination",
        "version": "2016-11-30",
        "creationTimestamp": str(BEGUN_MS),
        "fileFormat": {"csv": "CSV", "orc": "ORC", "parquet": "Parquet"}[form],
        "fileSchema": SCHEMA[form],
        "files": [{"key": f"inventories/source/daily/data/{name}", "size": 1, "MD5checksum": "x"} for name in names],
    }
    path = home / "2026-01-01T00-00Z" / "manifest.json"
    path.write_text(json.dumps(manifest))
    return path


def files_of(manifest: InventoryManifest, container: str = "") -> InventoryFiles:
    return InventoryFiles(
        paths=manifest.paths,
        form=manifest.form,
        csv_columns=manifest.csv_columns,
        csv_has_header=manifest.csv_has_header,
        csv_delimiter=manifest.csv_delimiter,
        container=container,
    )


@pytest.mark.parametrize(("form", "suffix", "write"), FORMS, ids=[form for form, _, _ in FORMS])
def test_the_newest_versions_are_read_by_the_manifest(
    spark: SparkSession, tmp_path: Path, form: str, suffix: str, write: Callable[[Path, list[Version]], None]
) -> None:
    manifest = manifest_at(spark, [str(laid_out(tmp_path, form, suffix, write))])
    assert manifest is not None
    assert (manifest.form, manifest.begun_ms) == (InventoryFormat(form), BEGUN_MS)
    objects = read_inventory(spark, files_of(manifest))
    assert {(row.key, row.size_bytes, row.modified_ms) for row in objects.collect()} == THERE


def googles(directory: Path, form: str) -> Path:
    """A report of two shards, copied without the colons of their names; of a former version its ``timeDeleted`` tells, and a
    delete marker has no row."""
    names = [f"fc95c52f_2026-01-01T00:00_{number}.{form}" for number in range(2)]
    for name, versions in zip(names, (VERSIONS[:2], VERSIONS[2:]), strict=True):
        rows = [
            ("p", "tier", v.key, v.size, "" if v.is_latest else "2026-01-01T00:00:00Z", v.modified)
            for v in versions
            if not v.is_delete_marker
        ]
        columns = ("project", "bucket", "name", "size", "timeDeleted", "updated")
        write_rows(directory / name.replace(":", "_"), form, columns, rows)
    manifest = {
        "report_config": {f"{form}Options": {"headerRequired": True} if form == "csv" else {}},
        "snapshot_time": "2026-01-01T00:00:00Z",
        "shard_count": 2,
        "report_shards_file_names": names,
    }
    path = directory / "fc95c52f_2026-01-01T00_00_manifest.json"
    path.write_text(json.dumps(manifest))
    return path


def azures(directory: Path, form: str) -> Path:
    """A rule's run, of several containers; besides versions there are a snapshot and what was deleted softly."""
    home = directory / "2026/01/01/00-00-00/tier"
    home.mkdir(parents=True)
    rows = [(f"kafka-tier/{v.key}", v.modified, v.size, v.is_latest, "", False) for v in VERSIONS if v.size is not None]
    gone = datetime.fromtimestamp(BEGUN_MS / 1000, UTC)
    rows += [
        ("kafka-tier-2/elsewhere", gone, 1, True, "", False),
        ("kafka-tier/of-a-snapshot", gone, 2, True, "2026-01-01T00:00:00.0000000Z", False),
        ("kafka-tier/deleted-softly", gone, 3, True, "", True),
    ]
    columns = ("Name", "Last-Modified", "Content-Length", "IsCurrentVersion", "Snapshot", "Deleted")
    write_rows(home / f"tier.{form}", form, columns, rows)
    manifest = {
        "files": [{"blob": f"2026/01/01/00-00-00/tier/tier.{form}", "size": 1}],
        "inventoryStartTime": "2026-01-01T00:00:00Z",
        "ruleDefinition": {"format": form, "objectType": "blob"},
        "status": "Succeeded",
    }
    path = home / "tier-manifest.json"
    path.write_text(json.dumps(manifest))
    return path


def write_rows(path: Path, form: str, names: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    """CSV with a header, its times in ISO 8601, or Parquet with times in milliseconds."""
    if form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            for row in rows:
                writer.writerow([f"{v:%Y-%m-%dT%H:%M:%SZ}" if isinstance(v, datetime) else v for v in row])
        return
    columns = [list(column) for column in zip(*rows, strict=True)]
    arrays = [
        pa.array(c, type=pa.timestamp("ms", tz="UTC")) if isinstance(c[0], datetime) else pa.array(c) for c in columns
    ]
    pq.write_table(pa.table(arrays, names=list(names)), path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("lay_out", [googles, azures])
def test_inventories_of_google_and_azure_give_the_present_objects(
    spark: SparkSession, tmp_path: Path, lay_out: Callable[[Path, str], Path], form: str
) -> None:
    manifest = manifest_at(spark, [str(lay_out(tmp_path, form))])
    assert manifest is not None
    assert (manifest.form, manifest.begun_ms) == (InventoryFormat(form), BEGUN_MS)
    objects = read_inventory(spark, files_of(manifest, "kafka-tier"))
    assert {(row.key, row.size_bytes, row.modified_ms) for row in objects.collect()} == THERE


def test_an_inventory_of_azure_for_another_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    manifest = manifest_at(spark, [str(azures(tmp_path, "csv"))])
    assert manifest is not None
    with pytest.raises(ConfigError, match=r"store\.type is not azure"):
        read_inventory(spark, files_of(manifest))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("nonsense", "is no manifest", id="no JSON"),
        pytest.param("{}", "is no manifest", id="no field"),
        pytest.param(
            '{"fileFormat":"ORC","files":[],"creationTimestamp":"1"}', "names no files", id="an inventory without files"
        ),
        pytest.param(
            '{"fileFormat":"ORC","files":[{"key":"a/b.orc"}],"creationTimestamp":"1"}',
            "a/b.orc is not there",
            id="no file",
        ),
    ],
)
def test_a_manifest_that_is_of_no_use_says_why(spark: SparkSession, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match=said):
        manifest_at(spark, [str(tmp_path / "manifest.json")])


@pytest.mark.broker
def test_spark_submit_runs_the_job_by_an_inventory(kafka: KafkaCluster, tmp_path: Path) -> None:
    """RC: as a program of its own, with our command line; events come through the connector that our own script brings."""
    kafka.create_topic(METADATA, partitions=5)
    settings = daemon_settings(
        tmp_path,
        bootstrap_servers=kafka.bootstrap_servers,
        log_dirs=[tmp_path / "logs"],
        topics=[],
        **{"remote.log.metadata.topic.name": METADATA, "state.topic.name": "__state_recon-submit"},
    )
    with (tmp_path / "tiersidecar.yaml").open("w") as file:
        YAML().dump(settings, file)
    manifest, report = laid_out(tmp_path / "bucket", *FORMS[0]), tmp_path / "report"
    done = submit(
        "local[2]",
        *("reconcile", "--config", str(tmp_path / "tiersidecar.yaml"), "--report", str(report)),
        *("--inventory", str(manifest), "--conf", "spark.app.name=of the command line"),
    )
    assert done.returncode == 3, f"exit code {done.returncode}\n{done.stderr[-4000:]}"
    foreign, unknown = FindingKind.FOREIGN_OBJECT.value, FindingKind.UNKNOWN_TOPIC_ID.value
    expected = {(unknown if key.endswith("Q.log") else foreign, key) for key, _, _ in THERE}
    assert {(row["kind"], row["key"]) for row in read_findings(report)} == expected
    assert json.loads((report / "report.json").read_text())["object_count"] == len(THERE)


def test_files_that_are_named_themselves_have_no_manifest(spark: SparkSession) -> None:
    assert manifest_at(spark, ["/inventory/data"]) is None
