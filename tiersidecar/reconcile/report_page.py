"""The report as one HTML page without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1c2430}
table{border-collapse:collapse;width:100%;margin:1rem 0}th,td{border-bottom:1px solid #d8dee6;padding:.3rem .6rem;
text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:13px;overflow-wrap:anywhere}
.ok{color:#0a7a3c}.bad{color:#b42318}@media(prefers-color-scheme:dark){body{background:#12161c;color:#e3e8ee}
th,td{border-color:#333c48}}
"""


def report_page(summary: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> str:
    """``shown`` are the first findings; the files beside the page have all of them."""
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
    told = f"<td><code>{escape(finding['key'])}</code></td><td>{escape(finding['detail'])}</td>"
    return f"<tr>{plain}{told}<td>{escape(finding['action'])}</td></tr>"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
