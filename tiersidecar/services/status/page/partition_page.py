"""A partition: its segments as a line and as a table, and why each is where it is, by its leader's sidecar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiersidecar.domain.readable import moment_text, size_text
from tiersidecar.services.status.anomalies import find_anomalies
from tiersidecar.services.status.answers import Answer
from tiersidecar.services.status.cluster import Cluster, PartitionLine
from tiersidecar.services.status.page.cluster_page import anomalies_section
from tiersidecar.services.status.page.drawing import STATE_TIERS, Html, join, segment_line, swatch, tag
from tiersidecar.services.status.page.frame import (
    PER_PAGE,
    facts,
    href,
    legend,
    pages_of,
    pill,
    scrolled,
    section,
    table,
    whole_page,
    within,
)
from tiersidecar.services.status.page.topic_page import offset_text, partition_state

_ABOUT = {"copy": "Remote", "trim": "Local", "expiry": "Kept"}
"""Headings of the subjects of ``tiersidecar explain``."""


def partition_page(
    cluster: Cluster, line: PartitionLine, *, segments: Answer, explained: Answer, offset: int | None, page: int
) -> str:
    """Return the document; ``offset`` is of the segment that is explained, None where the first of each kind is."""
    name = f"{line.topic}/{line.partition}"
    anomalies = [
        anomaly
        for anomaly in find_anomalies(cluster)
        if (anomaly.topic, anomaly.partition) == (line.topic, line.partition)
    ]
    body = join(
        tag("h1", name),
        tag("p", f"led by broker {line.node_id} in epoch {line.leader_epoch} · ", partition_state(line), class_="lead"),
        _facts(line),
        anomalies_section(anomalies, cluster),
        _segments(line, segments, page),
        _explained(line, explained, offset),
    )
    crumbs = (("Cluster", "."), (line.topic, href("topic", name=line.topic)))
    return whole_page(
        title=f"Partition {line.partition}", where="", crumbs=crumbs, body=body, asked_ms=cluster.asked_ms
    )


def _facts(line: PartitionLine) -> Html:
    return facts(
        [
            ("Remote", size_text(line.remote_bytes), f"{line.remote_segments:,} segments", False),
            ("On the leader's disk", size_text(line.local_bytes), f"{line.local_segments:,} segments", False),
            ("Not remote yet", size_text(line.lag_bytes), f"{line.lag_segments:,} segments", False),
            ("Log start", offset_text(line.remote_log_start_offset), "of the whole log", False),
            ("Local log start", offset_text(line.local_log_start_offset), "of the broker", False),
            ("Copied to", offset_text(line.copied_offset), "inclusive", False),
        ]
    )


def _segments(line: PartitionLine, answer: Answer, page: int) -> Html:
    rows = _listed(answer, "segments")
    if rows is None:
        return section("Segments", _without_answer(line, answer))
    if not rows:
        return section("Segments", tag("p", "It has no segment.", class_="soft"))
    page = within(len(rows), page)
    columns = (
        ("First offset", "n"),
        ("Last offset", "n"),
        ("State", ""),
        ("Size", "n"),
        ("Newest record", ""),
        ("Copied or changed", ""),
        ("Segment id", ""),
        ("Why", ""),
    )
    shown = rows[(page - 1) * PER_PAGE : page * PER_PAGE]
    query: dict[str, object] = {"topic": line.topic, "partition": line.partition}
    return section(
        "Segments",
        segment_line(
            [(str(row["state"]), int(row["size_bytes"] or 0)) for row in rows],
            label=f"{len(rows)} segments: {_counted(rows)}",
        ),
        tag("p", tag("span", f"offset {rows[0]['start_offset']:,}"), tag("span", "log end"), class_="ends"),
        legend(),
        scrolled(
            table(
                columns, (_segment(line, one) for one in shown), caption=f"{len(rows):,} segments: {_counted(rows)}."
            ),
            label="Segments",
        ),
        pages_of(len(rows), page, query, "partition"),
    )


def _segment(line: PartitionLine, one: Mapping[str, Any]) -> tuple[object, ...]:
    state = str(one["state"]) + (", pinned" if one["pinned"] and one["state"] != "pinned" else "")
    start = int(one["start_offset"])
    link = href("partition", topic=line.topic, partition=line.partition, offset=start)
    return (
        f"{start:,}",
        None if one["end_offset"] is None else f"{int(one['end_offset']):,}",
        tag("span", swatch(STATE_TIERS.get(str(one["state"]), "local")), state, class_="state"),
        "" if one["size_bytes"] is None else size_text(int(one["size_bytes"])),
        _moment(one["max_timestamp_ms"]),
        _moment(one["remote_event_ms"]),
        tag("span", one["segment_id"] or "", class_="id") if one["segment_id"] else None,
        tag("a", "Explain", href=f"{link}#why", aria_label=f"Explain the segment from offset {start}"),
    )


def _explained(line: PartitionLine, answer: Answer, offset: int | None) -> Html:
    of_all = href("partition", topic=line.topic, partition=line.partition) + "#why"
    title = "Why it is where it is" if offset is None else f"Why offset {offset:,} is where it is"
    back = None if offset is None else tag("p", tag("a", "The first segment of each kind", href=of_all))
    accounts = _listed(answer, "accounts")
    if accounts is None:
        return tag("section", tag("h2", title), _without_answer(line, answer), back, id="why")
    missing = (answer.document or {}).get("missing")
    listed = (
        tag("p", missing) if missing else [_account(account) for account in accounts] or tag("p", "It has no segment.")
    )
    return tag("section", tag("h2", title), listed, back, id="why")


def _account(one: Mapping[str, Any]) -> Html:
    row, count = one["segment"], int(one["segments"])
    last = "" if row["end_offset"] is None else f" to {int(row['end_offset']):,}"
    size = "" if row["size_bytes"] is None else f", {size_text(int(row['size_bytes']))}"
    more = f", the first of {count:,} such segments" if count > 1 else ""
    head = f"Offset {int(row['start_offset']):,}{last}{size}: {row['state']}{more}"
    return join(tag("h3", head), tag("ul", [_finding(finding) for finding in one["findings"]], class_="rules"))


def _finding(one: Mapping[str, Any]) -> Html:
    until = _moment(one["changes_ms"])
    tail = f" Until {until}." if until else " With the next round." if one["is_due"] else ""
    return tag(
        "li", tag("b", _ABOUT.get(str(one["about"]), str(one["about"]))), f" {_sentence(str(one['says']))}{tail}"
    )


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if not text or text[-1] in ".!?" else f"{text}."


def _listed(answer: Answer, name: str) -> Sequence[Mapping[str, Any]] | None:
    if answer.code != 200 or answer.document is None or answer.problem:
        return None
    found = answer.document.get(name)
    return found if isinstance(found, list) else None


def _without_answer(line: PartitionLine, answer: Answer) -> Html:
    problem = answer.problem or str((answer.document or {}).get("problem", "")) or f"HTTP {answer.code}"
    return tag("p", pill("no answer", "warn"), f" The sidecar of broker {line.node_id} did not answer: {problem}")


def _counted(rows: Sequence[Mapping[str, Any]]) -> str:
    states = [str(row["state"]) for row in rows]
    return ", ".join(f"{states.count(state):,} {state}" for state in dict.fromkeys(states))


def _moment(time_ms: object) -> str:
    return moment_text(time_ms) if isinstance(time_ms, int) and time_ms >= 0 else ""
