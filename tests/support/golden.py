"""The golden data of tests/golden, as values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
CLEAN_LOG_DIR = GOLDEN / "log-dirs" / "clean"
UNCLEAN_LOG_DIR = GOLDEN / "log-dirs" / "unclean"
EXPECTED = GOLDEN / "log-dirs" / "expected"
AIVEN_OBJECTS = GOLDEN / "aiven-objects"


def read_json(*parts: str) -> Any:
    return json.loads(GOLDEN.joinpath(*parts).read_text())


def read_json_lines(*parts: str) -> Iterator[dict[str, Any]]:
    with GOLDEN.joinpath(*parts).open() as lines:
        for line in lines:
            yield json.loads(line)
