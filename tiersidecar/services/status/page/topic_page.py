"""A topic: its partitions, each as a line."""

from __future__ import annotations

from tiersidecar.domain.readable import size_text
from tiersidecar.services.status.anomalies import find_anomalies
from tiersidecar.services.status.cluster import Cluster, PartitionLine, TopicLine
from tiersidecar.services.status.page.cluster_page import anomalies_section, topic_state
from tiersidecar.services.status.page.drawing import Html, join, tag, tier_line
from tiersidecar.services.status.page.frame import (
    PER_PAGE,
    facts,
    href,
    legend,
    pages_of,
    pill,
    section,
    table,
    whole_page,
    within,
)


def topic_page(cluster: Cluster, topic: TopicLine, *, page: int = 1) -> str:
    """Return the document; ``page`` is of the partitions."""
    body = join(
        tag("h1", topic.topic),
        tag("p", f"{topic.mode} · ", topic_state(topic), class_="lead"),
        _facts(topic),
        anomalies_section([anomaly for anomaly in find_anomalies(cluster) if anomaly.topic == topic.topic], cluster),
        section("Whole log", tier_line(topic.tiers, label=topic.topic), legend()),
        _partitions(topic, page),
    )
    return whole_page(title=topic.topic, where="", crumbs=(("Cluster", "."),), body=body, asked_ms=cluster.asked_ms)


def _facts(topic: TopicLine) -> Html:
    tiers = topic.tiers
    return facts(
        [
            (
                "Remote",
                size_text(topic.remote_bytes),
                f"{topic.remote_segments:,} segments"
                + (f", {size_text(tiers.trash)} in the trash" if tiers.trash else ""),
                False,
            ),
            ("On leaders' disks", size_text(topic.local_bytes), "", False),
            ("Not remote yet", size_text(topic.lag_bytes), f"{topic.lag_segments:,} segments", False),
            ("Partitions", topic.count, f"{topic.halted:,} halted" if topic.halted else "", bool(topic.halted)),
        ]
    )


def _partitions(topic: TopicLine, page: int) -> Html:
    page = within(topic.count, page)
    known = {one.partition: one for one in topic.partitions}
    numbers = sorted([*known, *topic.unknown])[(page - 1) * PER_PAGE : page * PER_PAGE]
    columns = (
        ("Partition", ""),
        ("Log, from its start to its end", "wide"),
        ("Leader", "n"),
        ("Remote from", "n"),
        ("Copied to", "n"),
        ("Local from", "n"),
        ("Remote", "n"),
        ("Lag", "n"),
        ("State", ""),
    )
    rows = [_partition(topic.topic, number, known.get(number)) for number in numbers]
    caption = (
        "Each line is one partition's log, its parts to scale by bytes. Offsets are inclusive; followers copy nothing and have "
        "no lag."
    )
    return section(
        "Partitions",
        table(columns, rows, caption=caption),
        pages_of(topic.count, page, {"name": topic.topic}, "topic"),
    )


def _partition(topic: str, number: int, one: PartitionLine | None) -> tuple[object, ...]:
    if one is None:
        return str(number), None, None, None, None, None, None, None, pill("its leader did not answer", "warn")
    return (
        tag("a", str(number), href=href("partition", topic=topic, partition=number), aria_label=f"Partition {number}"),
        tier_line(one.tiers, label=f"{topic}/{number}"),
        str(one.node_id),
        offset_text(one.remote_log_start_offset),
        offset_text(one.copied_offset),
        offset_text(one.local_log_start_offset),
        size_text(one.remote_bytes),
        size_text(one.lag_bytes),
        partition_state(one),
    )


def partition_state(one: PartitionLine) -> Html:
    """Return the state in a word or two."""
    if one.halted:
        return pill("halted", "bad")
    return pill("held back", "warn") if one.held_back else pill("well", "good")


def offset_text(offset: int) -> str:
    """Return the offset, a dash where it is not known."""
    return "–" if offset < 0 else f"{offset:,}"
