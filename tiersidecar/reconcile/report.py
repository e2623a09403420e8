"""Write the report of a run: every finding in Parquet and JSON lines, and a summary in JSON and HTML.

Findings reach the driver one partition at a time and go straight to the files, so that the loss of a whole bucket can be
reported too.  The HTML page loads nothing from elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from tiersidecar.decide.reconcile_findings import REPORT_SCHEMA_VERSION, Finding

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1c2430}
table{border-collapse:collapse;width:100%;margin:1rem 0}th,td{border-bottom:1px solid #d8dee6;padding:.3rem .6rem;
text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:13px;overflow-wrap:anywhere}
.ok{color:#0a7a3c}.bad{color:#b42318}@media(prefers-color-scheme:dark){body{background:#12161c;color:#e3e8ee}
th,td{border-color:#333c48}}
"""


def report_page(summary: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    """Return the page.  ``shown`` are the first findings; the files beside the page have all of them."""
    count = sum(summary["findings"].values())
    verdict = '<p class="ok">Clean.</p>' if count == 0 else f'<p class="bad">{count} findings.</p>'
    kinds = "".join(
        f'<tr><td>{escape(kind)}</td><td class="n">{number}</td></tr>'
        for kind, number in sorted(summary["findings"].items())
    )
    facts = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in _facts(summary))
    rows = "".join(_row(finding) for finding in shown)
    more = f"<p>The first {len(shown)} of {count}; findings.parquet has all.</p>" if count > len(shown) else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>tiersidecar reconcile</title><style>{_STYLE}</style><h1>Reconcile report</h1>{verdict}"
        f'<table><tr><th>Finding<th class="n">Count</tr>{kinds}</table><table>{facts}</table>'
        "<table><tr><th>Finding<th>Partition<th>Segment<th>Offsets<th>Key<th>What<th>Proposed</tr>"
        f"{rows}</table>{more}</html>\n"
    )


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [
        ("Run", summary["run_id"]),
        ("Finished", _time(summary["finished_ms"])),
        ("Took", f"{(summary['finished_ms'] - summary['started_ms']) / 1000:.0f} s"),
        ("Cluster", summary["cluster_id"]),
        ("Store", summary["store"]),
        ("Events", summary["event_count"]),
        ("Doubt about the metadata", summary["metadata_doubt"] or "none"),
        ("Segments, live ones", f"{summary['segment_count']}, {summary['live_segment_count']}"),
        ("Objects, bytes", f"{summary['object_count']}, {summary['object_bytes']}"),
        ("Manifests read", "yes" if summary["manifests_read"] else "no"),
        ("Share of segments read (--deep)", summary["deep_share"]),
    ]


def _row(finding: Mapping[str, Any]) -> str:
    partition = f"{finding['topic']}-{finding['partition']}" if finding["topic"] else ""
    offsets = f"{finding['start_offset']}–{finding['end_offset']}" if finding["start_offset"] >= 0 else ""
    cells = (finding["kind"], partition, finding["segment_id"], offsets)
    plain = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    where = f"<td><code>{escape(finding['key'])}</code></td><td>{escape(finding['detail'])}</td>"
    return f"<tr>{plain}{where}<td>{escape(finding['action'])}</td></tr>"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


SUMMARY_FILE, PARQUET_FILE, LINES_FILE, PAGE_FILE = "report.json", "findings.parquet", "findings.jsonl", "report.html"
REPORT_FILES = (PARQUET_FILE, LINES_FILE, PAGE_FILE, SUMMARY_FILE)
"""The summary last: a report without it is not whole."""

_ROWS = 5000
_SHOWN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The settings and totals of a run; times in milliseconds since 1970.

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
        """Return it as JSON; keys of offsets are text there."""
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
    """Write the page, then the summary."""
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
