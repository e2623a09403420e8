"""What an inventory's manifest says, and where its files are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiersidecar.domain.errors import ConfigError
from tiersidecar.spark.inventory_manifest import InventoryFormat, read_manifest

FILES: list[dict[str, object]] = [
    {"key": "lists/b/daily/data/1.csv.gz", "size": 5, "MD5checksum": "x"},
    {"key": "lists/b/daily/data/2.csv.gz"},
]
MANIFEST: dict[str, object] = {
    "creationTimestamp": "1767225600000",
    "fileFormat": "CSV",
    "fileSchema": "Bucket, Key, Size, LastModifiedDate",
    "files": FILES,
}


def told(**changes: object) -> str:
    return json.dumps({**MANIFEST, **changes})


def test_files_of_a_copy_lie_where_they_lay_in_the_bucket(tmp_path: Path) -> None:
    (tmp_path / "lists/b/daily/data").mkdir(parents=True)
    (tmp_path / "lists/b/daily/data/1.csv.gz").touch()
    found = read_manifest(str(tmp_path / "lists/b/daily/2026-01-01T00-00Z/manifest.json"), lambda path: told())
    assert found.paths == tuple(f"{tmp_path}/{file['key']}" for file in FILES)
    assert (found.form, found.begun_ms) == (InventoryFormat.CSV, 1_767_225_600_000)
    assert found.csv_columns == "Bucket, Key, Size, LastModifiedDate"


def test_files_of_a_url_lie_in_its_bucket() -> None:
    found = read_manifest("s3a://lists-of/lists/b/daily/2026-01-01T00-00Z/manifest.json", lambda path: told())
    assert found.paths == ("s3a://lists-of/lists/b/daily/data/1.csv.gz", "s3a://lists-of/lists/b/daily/data/2.csv.gz")


@pytest.mark.parametrize("form", ["ORC", "Parquet"])
def test_files_that_know_their_columns_are_not_told_them(form: str) -> None:
    found = read_manifest("s3a://b/manifest.json", lambda path: told(fileFormat=form, fileSchema="struct<key:string>"))
    assert (found.form, found.csv_columns) == (InventoryFormat(form.lower()), "")


GOOGLES: dict[str, object] = {
    "report_config": {
        "name": "projects/p/locations/us/reportConfigs/fc95c52f-157a-494f-af4a-d4a53a69ba66",
        "displayName": "of the tier",
        "csvOptions": {"recordSeparator": "\n", "delimiter": ";", "headerRequired": True},
        "objectMetadataReportOptions": {"metadataFields": ["project", "bucket", "name", "size", "updated"]},
    },
    "records_processed": 3,
    "snapshot_time": "2026-01-01T00:00:00Z",
    "shard_count": 2,
    "report_shards_file_names": [f"fc95c52f-157a-494f-af4a-d4a53a69ba66_2026-01-01T00:00_{n}.csv" for n in range(2)],
}
"""As the documentation of Storage Insights has it."""
HEADLESS = {
    "csv_options": {"header_required": False},
    "object_metadata_report_options": {"metadata_fields": ["bucket", "name", "size", "updated"]},
}


def test_googles_files_lie_beside_the_manifest_and_have_a_header() -> None:
    found = read_manifest("gs://lists/of/fc95_2026-01-01T00:00_manifest.json", lambda path: json.dumps(GOOGLES))
    assert found.paths == tuple(
        f"gs://lists/of/fc95c52f-157a-494f-af4a-d4a53a69ba66_2026-01-01T00:00_{number}.csv" for number in range(2)
    )
    assert (found.form, found.begun_ms) == (InventoryFormat.CSV, 1_767_225_600_000)
    assert (found.csv_has_header, found.csv_delimiter, found.csv_columns) == (True, ";", "")


def test_a_local_copy_of_googles_files_may_have_underscores_for_colons(tmp_path: Path) -> None:
    """Hadoop's local file system reads no name with a colon."""
    (tmp_path / "fc95c52f-157a-494f-af4a-d4a53a69ba66_2026-01-01T00_00_0.csv").touch()
    for root in (str(tmp_path), tmp_path.as_uri()):
        found = read_manifest(f"{root}/fc95_2026-01-01T00_00_manifest.json", lambda path: json.dumps(GOOGLES))
        assert found.paths[0] == f"{root}/fc95c52f-157a-494f-af4a-d4a53a69ba66_2026-01-01T00_00_0.csv"


def test_googles_files_without_a_header_have_the_columns_of_the_configuration() -> None:
    found = read_manifest("lists/manifest.json", lambda path: json.dumps({**GOOGLES, "report_config": HEADLESS}))
    assert (found.csv_has_header, found.csv_delimiter) == (False, ",")
    assert found.csv_columns == "bucket, name, size, updated"


def test_googles_parquet_needs_to_be_told_nothing() -> None:
    parquet = {**GOOGLES, "report_config": {"parquetOptions": {}}, "report_shards_file_names": ["x_0.parquet"]}
    found = read_manifest("manifest.json", lambda path: json.dumps(parquet))
    assert (found.paths, found.form) == (("x_0.parquet",), InventoryFormat.PARQUET)
    assert (found.csv_has_header, found.csv_columns) == (False, "")


AZURES: dict[str, object] = {
    "destinationContainer": "inventories",
    "endpoint": "https://account.blob.core.windows.net",
    "files": [{"blob": "2026/01/01/00-00-00/Rule_1/Rule_1.csv", "size": 12_710_092}],
    "inventoryCompletionTime": "2026-01-01T00:10:00Z",
    "inventoryStartTime": "2026-01-01T00:00:00Z",
    "ruleDefinition": {
        "filters": {"blobTypes": ["blockBlob"], "prefixMatch": ["kafka-tier"]},
        "format": "csv",
        "objectType": "blob",
        "schedule": "daily",
        "schemaFields": ["Name", "Content-Length", "Last-Modified"],
    },
    "ruleName": "Rule_1",
    "status": "Succeeded",
    "summary": {"objectCount": 3, "totalObjectSize": 18},
    "version": "1.0",
}
"""As the documentation of blob inventories has it."""


@pytest.mark.parametrize(("form", "has_header"), [("csv", True), ("parquet", False)])
def test_azures_files_lie_in_the_container_of_the_manifest(form: str, *, has_header: bool) -> None:
    rule = {"format": form, "objectType": "blob"}
    found = read_manifest(
        "abfss://inventories@account.dfs.core.windows.net/2026/01/01/00-00-00/Rule_1/Rule_1-manifest.json",
        lambda path: json.dumps({**AZURES, "ruleDefinition": rule}),
    )
    root = "abfss://inventories@account.dfs.core.windows.net"
    assert found.paths == (f"{root}/2026/01/01/00-00-00/Rule_1/Rule_1.csv",)
    assert (found.form, found.begun_ms) == (InventoryFormat(form), 1_767_225_600_000)
    assert (found.csv_has_header, found.csv_columns) == (has_header, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(json.dumps({**AZURES, "status": "Pending"}), "its status is Pending", id="Azure's, not ended"),
        pytest.param(
            json.dumps({**AZURES, "ruleDefinition": {"format": "csv", "objectType": "container"}}),
            "an inventory of containers",
            id="Azure's of containers",
        ),
        pytest.param(json.dumps({**AZURES, "files": []}), "names no files", id="Azure's without files"),
        pytest.param(json.dumps({**AZURES, "files": 3}), "is no manifest", id="Azure's with a field of another type"),
        pytest.param(
            json.dumps({**GOOGLES, "report_shards_file_names": []}), "names no files", id="Google's without files"
        ),
        pytest.param(
            json.dumps({**GOOGLES, "snapshot_time": "soon"}), "is no manifest", id="Google's with another time"
        ),
        pytest.param(
            json.dumps({**GOOGLES, "report_shards_file_names": 3}),
            "is no manifest",
            id="Google's with a number for its files",
        ),
        pytest.param("nonsense", "is no manifest", id="no JSON"),
        pytest.param("[]", "is no manifest", id="no object"),
        pytest.param("{}", "is no manifest", id="no field"),
        pytest.param(told(fileFormat="XML"), "is no manifest", id="a form that there is not"),
        pytest.param(told(creationTimestamp="yesterday"), "is no manifest", id="a time that is none"),
        pytest.param(told(files=[]), "names no files", id="no files"),
        pytest.param(told(), "lists/b/daily/data/1.csv.gz is not there", id="files that are not where it says"),
    ],
)
def test_a_manifest_that_is_of_no_use_says_why(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_manifest(str(tmp_path / "manifest.json"), lambda path: text)
