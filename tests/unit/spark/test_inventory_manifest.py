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


@pytest.mark.parametrize(
    ("text", "said"),
    [
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
