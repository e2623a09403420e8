"""The status page: one HTML document without scripts or anything from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from tiersidecar.services.status.documents import in_order
from tiersidecar.services.status.source import PartitionStatus, StatusSummary

MAX_ROWS = 200

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #1a1a1a; background: #fff }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.5rem 0 .3rem }
table { border-collapse: collapse } th, td { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top }
th { font-weight: 600; border-bottom: 1px solid #bbb } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.bad { color: #a40000 } .ok { color: #146414 } .dim { color: #666 }
@media (prefers-color-scheme: dark) { body { color: #e4e4e4; background: #161616 }
  .bad { color: #ff8a80 } .ok { color: #8bd48b } }
"""
_COLUMNS = (
    ("topic", ""),
    ("partition", "n"),
    ("role", ""),
    ("epoch", "n"),
    ("mode", ""),
    ("remote from", "n"),
    ("copied to", "n"),
    ("local from", "n"),
    ("lag segments", "n"),
    ("lag bytes", "n"),
    ("remote segments", "n"),
    ("remote bytes", "n"),
    ("halted, held back", ""),
)


_MOST_MISPLACED = 20


def render_page(summary: StatusSummary, reasons: Sequence[str], partitions: Sequence[PartitionStatus]) -> str:
    """The page.  Partitions in trouble come first, then those with most lag; at most ``MAX_ROWS`` are shown."""
    node = "" if summary.node_id is None else f" beside broker {summary.node_id}"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>tiersidecar{escape(node)}</title><style>{_STYLE}</style>"
        f"<h1>tiersidecar {escape(summary.version)}{escape(node)}</h1>"
        f"{_facts(summary)}{_readiness(reasons)}"
        f"{_troubles('Topics that are not tiered', summary.refused_topics)}"
        f"{_troubles('Topics that are not trimmed', summary.untrimmable_topics)}"
        f"{_troubles('Log dirs with faults', summary.log_dir_faults)}"
        f"{_troubles('Disks that fill up', summary.disk_troubles)}"
        f"{_troubles('Lost', {str(number): one for number, one in enumerate(summary.losses, 1)})}"
        f"{_troubles('Paused', {str(number): one for number, one in enumerate(summary.paused, 1)})}"
        f"{_troubles('Partitions whose directory is not here', _first(summary.misplaced))}"
        f"{_troubles('Standing by', {'tier': summary.standing_by} if summary.standing_by else {})}"
        f"{_partitions(partitions)}"
        "<p class=dim><a href=status>status as JSON</a> · <a href=metrics>metrics</a> · "
        "<a href='metrics?partitions=1'>metrics by partition</a> · <a href=readyz>readiness</a></p></html>"
    )


def _first(misplaced: Mapping[str, str]) -> Mapping[str, str]:
    """A log dir has thousands: their rows say it, too."""
    return {name: misplaced[name] for name in sorted(misplaced)[:_MOST_MISPLACED]}


def _facts(summary: StatusSummary) -> str:
    started = datetime.fromtimestamp(summary.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    deletes = "" if summary.deletes_enabled else " · <span class=bad>all deletes are switched off</span>"
    facts = (
        f"cluster {summary.cluster_id or 'not known yet'} · roles {', '.join(summary.roles)} · mode {summary.mode} · "
    )
    return f"<p class=dim>{escape(facts)}{escape(summary.store)} · up since {started}{deletes}</p>"


def _readiness(reasons: Sequence[str]) -> str:
    if not reasons:
        return "<p class=ok>ready</p>"
    return "<h2 class=bad>Not ready</h2><ul>" + "".join(f"<li>{escape(reason)}" for reason in reasons) + "</ul>"


def _troubles(title: str, troubles: Mapping[str, str]) -> str:
    if not troubles:
        return ""
    rows = "".join(f"<tr><td>{escape(name)}<td>{escape(reason)}" for name, reason in sorted(troubles.items()))
    return f"<h2 class=bad>{escape(title)}</h2><table>{rows}</table>"


def _partitions(partitions: Sequence[PartitionStatus]) -> str:
    halted = sum(status.halted_reason is not None for status in partitions)
    title = f"<h2>{len(partitions)} partitions, {halted} halted</h2>"
    if not partitions:
        return title
    shown = sorted(in_order(partitions), key=_urgency)[:MAX_ROWS]
    head = "".join(f"<th class='{kind}'>{name}" for name, kind in _COLUMNS)
    rest = len(partitions) - len(shown)
    more = f"<p class=dim>and {rest} more: see the status as JSON</p>" if rest else ""
    return f"{title}<table><tr>{head}{''.join(map(_row, shown))}</table>{more}"


def _urgency(status: PartitionStatus) -> tuple[bool, bool, int]:
    return status.halted_reason is None, status.held_back_reason is None, -(status.copy_lag_bytes or 0)


def _row(status: PartitionStatus) -> str:
    trouble = status.halted_reason or status.held_back_reason or ""
    cells = (
        status.topic_id_partition.topic,
        str(status.topic_id_partition.partition),
        status.role,
        _offset(status.leader_epoch),
        status.mode,
        _offset(status.remote_log_start_offset),
        _offset(status.copied_offset),
        _offset(status.local_log_start_offset),
        _amount(status.copy_lag_segments),
        _amount(status.copy_lag_bytes),
        f"{status.remote_segments:,}",
        f"{status.remote_size_bytes:,}",
    )
    kinds = [kind for _, kind in _COLUMNS]
    row = "".join(f"<td class='{kind}'>{escape(cell)}" for cell, kind in zip(cells, kinds, strict=False))
    return f"<tr>{row}<td class=bad>{escape(trouble)}"


def _amount(amount: int | None) -> str:
    return "" if amount is None else f"{amount:,}"


def _offset(offset: int) -> str:
    return "–" if offset < 0 else f"{offset:,}"
