"""Forms of an inventory's files."""

from __future__ import annotations

from enum import StrEnum


class InventoryFormat(StrEnum):
    """Of the files; the values are those of ``fileFormat`` in lower case."""

    CSV = "csv"
    ORC = "orc"
    PARQUET = "parquet"
