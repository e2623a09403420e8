"""``manifest.json`` of an S3 Inventory: its files, their form, and when it was begun.

Source: Amazon S3 User Guide, "Amazon S3 Inventory file locations".  Files are named by their keys in the destination bucket;
the manifest lies in that bucket too, or in a copy of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
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
    """``paths`` are as Spark reads them; ``csv_columns`` is empty unless the files are CSV; ``begun_ms`` since 1970."""

    paths: tuple[str, ...]
    form: InventoryFormat
    csv_columns: str
    begun_ms: int


def read_manifest(path: str, fetch_text: Callable[[str], str]) -> InventoryManifest:
    """Return the content of the manifest at ``path``, which ``fetch_text`` reads.

    Raises:
        ConfigError: it is none, has no files, or they are not where it says.
    """
    try:
        document: dict[str, Any] = json.loads(fetch_text(path))
        form = InventoryFormat(str(document["fileFormat"]).lower())
        keys = [str(file["key"]) for file in document["files"]]
        begun_ms = int(document["creationTimestamp"])
        schema = str(document.get("fileSchema", ""))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(source=path, faults=(f"is no manifest of an S3 Inventory: {error!r}",)) from error
    if not keys:
        raise ConfigError(source=path, faults=("names no files: the inventory is empty or not finished",))
    root = _bucket_of(path, keys[0])
    return InventoryManifest(
        paths=tuple(f"{root}/{key}" for key in keys),
        form=form,
        csv_columns=schema if form is InventoryFormat.CSV else "",
        begun_ms=begun_ms,
    )


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
