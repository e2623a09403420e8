"""The manifest of an inventory: its files, their form, and when it was begun.

Sources: Amazon S3 User Guide, "Amazon S3 Inventory file locations"; Google Cloud, "Storage Insights inventory reports";
Microsoft Learn, "Azure Storage blob inventory".  S3 and Azure name files by their keys in the destination bucket, and the
manifest lies in that bucket too, or in a copy of it.  Google's files lie beside the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from tiersidecar.domain.errors import ConfigError

MANIFEST_NAME = "manifest.json"


class InventoryFormat(StrEnum):
    """Format of an inventory's files; the values are those of ``fileFormat`` in lower case."""

    CSV = "csv"
    ORC = "orc"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryManifest:
    """``paths`` are as Spark reads them; ``csv_columns`` is empty unless the files are CSV without a header; ``begun_ms``
    counts from 1970."""

    paths: tuple[str, ...]
    form: InventoryFormat
    csv_columns: str
    begun_ms: int
    csv_has_header: bool = False
    csv_delimiter: str = ","


def read_manifest(path: str, fetch_text: Callable[[str], str]) -> InventoryManifest:
    """Return the content of the manifest at ``path``, which ``fetch_text`` reads.

    Raises:
        ConfigError: it is none, is of a run that has not succeeded, has no files, or they are not where it says.
    """
    try:
        document: dict[str, Any] = json.loads(fetch_text(path))
        if "report_shards_file_names" in document:
            return _of_google(path, document)
        if "inventoryStartTime" in document:
            return _of_azure(path, document)
        return _of_s3(path, document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(source=path, faults=(f"is no manifest of an inventory: {error!r}",)) from error


def _of_s3(path: str, document: dict[str, Any]) -> InventoryManifest:
    form = InventoryFormat(str(document["fileFormat"]).lower())
    schema, begun_ms = str(document.get("fileSchema", "")), int(document["creationTimestamp"])
    return InventoryManifest(
        paths=_in_bucket(path, [str(file["key"]) for file in document["files"]]),
        form=form,
        csv_columns=schema if form is InventoryFormat.CSV else "",
        begun_ms=begun_ms,
    )


def _of_google(path: str, document: dict[str, Any]) -> InventoryManifest:
    """Return the files of a report that has shards; ``report_config`` gives the form of its CSV."""
    names = [str(name) for name in document["report_shards_file_names"]]
    _refuse_empty(path, names)
    form = InventoryFormat(names[0].rpartition(".")[2].lower())
    config = document.get("report_config", {})
    csv = _either(config, "csvOptions", "csv_options")
    has_header = bool(_either(csv, "headerRequired", "header_required") or not csv)
    report = _either(config, "objectMetadataReportOptions", "object_metadata_report_options")
    fields = _either(report, "metadataFields", "metadata_fields")
    is_bare = form is InventoryFormat.CSV and not has_header
    return InventoryManifest(
        paths=tuple(_beside(path, name) for name in names),
        form=form,
        csv_columns=", ".join(str(field) for field in fields) if is_bare else "",
        begun_ms=_milliseconds(str(document["snapshot_time"])),
        csv_has_header=form is InventoryFormat.CSV and has_header,
        csv_delimiter=str(_either(csv, "delimiter") or ","),
    )


def _of_azure(path: str, document: dict[str, Any]) -> InventoryManifest:
    """Return the files of a rule's run; CSV always has a header."""
    status, rule = str(document["status"]), document["ruleDefinition"]
    if status != "Succeeded":
        raise ConfigError(source=path, faults=(f"is of an inventory that has not succeeded: its status is {status}",))
    if rule["objectType"] != "blob":
        raise ConfigError(source=path, faults=(f"is of an inventory of {rule['objectType']}s, not of blobs",))
    form = InventoryFormat(str(rule["format"]).lower())
    return InventoryManifest(
        paths=_in_bucket(path, [str(file["blob"]) for file in document["files"]]),
        form=form,
        csv_columns="",
        begun_ms=_milliseconds(str(document["inventoryStartTime"])),
        csv_has_header=form is InventoryFormat.CSV,
    )


def _beside(path: str, name: str) -> str:
    """Return the path of a file in the manifest's directory.  Google's names have colons, which Hadoop cannot read in a local
    directory: there a copy may have underscores instead."""
    directory = path.rpartition("/")[0]
    beside = f"{directory}/{name}" if directory else name
    renamed = beside[: len(beside) - len(name)] + name.replace(":", "_")
    return renamed if Path(renamed.removeprefix("file://")).is_file() else beside


def _either(document: Any, *names: str) -> Any:
    """Return the first of these fields that is there: JSON of Google's APIs has two ways to write a name."""
    found = document or {}
    return next((found[name] for name in names if name in found), {})


def _milliseconds(text: str) -> int:
    """Return the time that ``text`` has in ISO 8601; without a zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _refuse_empty(path: str, names: list[str]) -> None:
    if not names:
        raise ConfigError(source=path, faults=("names no files: the inventory is empty or not finished",))


def _in_bucket(path: str, keys: list[str]) -> tuple[str, ...]:
    _refuse_empty(path, keys)
    root = _bucket_of(path, keys[0])
    return tuple(f"{root}/{key}" for key in keys)


def _bucket_of(path: str, key: str) -> str:
    """Return where the destination bucket begins: the authority of a URL, or the directory where the first file is found."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        return f"{scheme}://{rest.partition('/')[0]}"
    local = Path(rest if separator else path).absolute()
    for parent in local.parents:
        if (parent / PurePosixPath(key)).is_file():
            return str(parent)
    raise ConfigError(source=path, faults=(f"{key} is not there: copy the files beside it as they lie in the bucket",))
