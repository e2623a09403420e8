"""The report of a run: every finding in Parquet and JSON lines, and one summary in JSON and HTML.

Findings come to the driver one partition at a time and go straight to the files, so that a bucket which is lost altogether
can be reported too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tiersidecar.decide.reconcile_findings import REPORT_SCHEMA_VERSION, Finding
from tiersidecar.reconcile.report_page import report_page

SUMMARY_FILE, PARQUET_FILE, LINES_FILE, PAGE_FILE = "report.json", "findings.parquet", "findings.jsonl", "report.html"
REPORT_FILES = (PARQUET_FILE, LINES_FILE, PAGE_FILE, SUMMARY_FILE)
"""The summary last: a report without it is not whole."""

_ROWS = 5000
_SHOWN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run was and saw; times in milliseconds since 1970.

    ``metadata_begin`` is where the metadata topic's partitions began: anything but 0 means that events are missing.
    ``metadata_doubt`` says why some may be missing, or why they are another cluster's: no orphan is proposed for deletion then.
    """

    run_id: str
    cluster_id: str
    store: str
    key_prefix: str
    started_ms: int
    finished_ms: int
    metadata_topic: str
    metadata_begin: Mapping[int, int]
    metadata_cut: Mapping[int, int]
    metadata_end: Mapping[int, int]
    event_count: int
    segment_count: int
    live_segment_count: int
    live_bytes: int
    object_count: int
    object_bytes: int
    orphan_count: int
    orphan_bytes: int
    manifests_read: bool
    deep_share: float
    grace_ms: int
    copy_grace_ms: int
    findings: Mapping[str, int] = field(default_factory=dict)
    metadata_topic_id: str = ""
    metadata_doubt: str = ""
    schema_version: int = REPORT_SCHEMA_VERSION

    @property
    def finding_count(self) -> int:
        return sum(self.findings.values())

    def document(self) -> dict[str, Any]:
        """As JSON; keys of offsets are text there."""
        return asdict(self)


def finding_document(finding: Finding) -> dict[str, Any]:
    """Return ``finding`` as a row of the report: its fields, and the action that the report proposes."""
    return {**asdict(finding), "kind": finding.kind.value, "action": finding.action.value}


def write_findings(findings: Iterable[Mapping[str, Any]], directory: Path) -> Counter[str]:
    """Write the files of all findings, given as rows; return how many there are of each kind.

    JSON lines are written always, Parquet where Arrow is installed (it comes with the extra `spark`).
    """
    directory.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        lines = stack.enter_context((directory / LINES_FILE).open("w", encoding="utf-8"))
        parquet = _parquet(stack, directory / PARQUET_FILE)
        rows = iter(findings)
        while documents := [dict(row) for row in islice(rows, _ROWS)]:
            counts.update(document["kind"] for document in documents)
            parquet(documents)
            lines.writelines(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    return counts


def _parquet(stack: ExitStack, path: Path) -> Callable[[list[dict[str, Any]]], None]:
    """Return what writes rows to ``path`` until ``stack`` ends; without Arrow it leaves no file there."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from tiersidecar.reconcile.report_schema import FINDINGS
    except ImportError:
        path.unlink(missing_ok=True)  # of a former run into the same directory
        return lambda documents: None
    writer = stack.enter_context(pq.ParquetWriter(path, FINDINGS))
    return lambda documents: writer.write_table(pa.Table.from_pylist(documents, schema=FINDINGS))


def write_summary(summary: Summary, directory: Path) -> None:
    """The page, then the summary."""
    rows = list(islice(read_findings(directory), _SHOWN))
    (directory / PAGE_FILE).write_text(report_page(summary.document(), rows), encoding="utf-8")
    (directory / SUMMARY_FILE).write_text(json.dumps(summary.document(), indent=2) + "\n", encoding="utf-8")


def read_findings(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the findings of a report.  Its JSON lines say the same as its Parquet file, and are always there."""
    with (directory / LINES_FILE).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def report_files(directory: Path) -> list[str]:
    """Return the names of the files that the report in ``directory`` has, the summary last."""
    return [name for name in REPORT_FILES if (directory / name).exists()]
