"""The first page: the whole cluster, and what in it an operator must look at."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tiersidecar.domain.readable import duration_text, moment_text, size_text
from tiersidecar.services.status.anomalies import Anomaly, Severity, find_anomalies
from tiersidecar.services.status.cluster import Cluster, Disk, Overview, Sidecar, TopicLine
from tiersidecar.services.status.history import INTERVAL_MS
from tiersidecar.services.status.page.drawing import Html, hour_chart, join, share_bar, tag, tier_line
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

MOST_ANOMALIES = 40
_MOST_READ = 10
_CHARTS = {"copied": "Copied to the store", "read": "Read from the store", "lag": "Lag, not remote yet"}
_STATES = {"ok": ("ok", "good"), "filling": ("fills", "warn"), "below_reserve": ("below reserve", "bad")}


def cluster_page(cluster: Cluster, *, version: str, page: int = 1) -> str:
    """Return the document; ``page`` is of the topics."""
    anomalies = find_anomalies(cluster)
    name = cluster.cluster_id or "not known yet"
    body = join(
        tag("h1", "Cluster ", tag("span", name, class_="id")),
        tag("p", _verdict(anomalies), class_="lead"),
        _facts(cluster),
        anomalies_section(anomalies, cluster),
        _topics(cluster, page),
        _throughput(cluster),
        section("Brokers", _brokers(cluster.sidecars)),
        section("Disks", _disks(cluster.answers)),
        _store(cluster),
        _gateways(cluster),
    )
    return whole_page(title="Cluster", where=f"version {version}", crumbs=(), body=body, asked_ms=cluster.asked_ms)


def anomalies_section(anomalies: Sequence[Anomaly], cluster: Cluster) -> Html | None:
    """Return each with what to do, and a link to its subject in ``cluster``; None where there is none."""
    if not anomalies:
        return None
    known = {one.topic for one in cluster.topics}
    shown = [_anomaly(anomaly, known) for anomaly in anomalies[:MOST_ANOMALIES]]
    rest = len(anomalies) - MOST_ANOMALIES
    more = (
        tag("p", f"and {rest} more: the JSON documents of the sidecars have all", class_="soft") if rest > 0 else None
    )
    return section("What needs attention", tag("ul", shown, class_="troubles"), more)


def _anomaly(one: Anomaly, known: Collection[str]) -> Html:
    kind, word = ("act", "Act") if one.severity is Severity.ACT else ("look", "Look")
    details = one.details
    list_of_details = tag("p", details[0]) if len(details) == 1 else tag("ul", [tag("li", text) for text in details])
    return tag(
        "li",
        tag("h3", tag("span", word, class_="kind"), one.title),
        list_of_details if details else None,
        tag("p", tag("b", "What to do: "), _with_code(one.advice), " ", _link(one, known), class_="advice"),
        class_=kind,
    )


def _link(one: Anomaly, known: Collection[str]) -> Html | None:
    """Return a link to the topic's page; a topic that is not tiered has none."""
    if one.topic not in known:
        return None
    if one.partition is None:
        return tag("a", "See the topic", href=href("topic", name=one.topic))
    return tag("a", "See the partition", href=href("partition", topic=one.topic, partition=one.partition))


def _with_code(text: str) -> list[Html]:
    """Mark text between backticks as code."""
    return [tag("code", part) if number % 2 else join(part) for number, part in enumerate(text.split("`"))]


def _verdict(anomalies: Sequence[Anomaly]) -> Html:
    acts = sum(anomaly.severity is Severity.ACT for anomaly in anomalies)
    if acts:
        return pill(f"{acts} thing{'s' if acts > 1 else ''} to act on", "bad")
    if anomalies:
        return pill(f"{len(anomalies)} thing{'s' if len(anomalies) > 1 else ''} to look at", "warn")
    return pill("All is well", "good")


def _facts(cluster: Cluster) -> Html:
    tiers, topics = cluster.tiers, cluster.topics
    silent = sum(sidecar.overview is None for sidecar in cluster.sidecars)
    halted, unknown = sum(topic.halted for topic in topics), sum(len(topic.unknown) for topic in topics)
    remote = tiers.trash + tiers.remote + tiers.both
    lag = sum(topic.lag_bytes for topic in topics)
    read = sum(cluster.series.get("read", {}).values())
    return facts(
        [
            ("Remote", size_text(remote), f"{size_text(tiers.trash)} in the trash" if tiers.trash else "", False),
            ("On brokers' disks", size_text(sum(topic.local_bytes for topic in topics)), "of the leaders", False),
            ("Not remote yet", size_text(lag), f"{sum(topic.lag_segments for topic in topics):,} segments", False),
            (
                "Partitions",
                sum(topic.count for topic in topics),
                f"{halted:,} halted"
                if halted
                else f"{unknown:,} not known"
                if unknown
                else f"of {len(topics):,} topics",
                bool(halted),
            ),
            (
                "Sidecars",
                len(cluster.sidecars),
                f"{silent} without an answer" if silent else "all answer",
                bool(silent),
            ),
            ("Read from the store", size_text(read), "in the last hour", False),
        ]
    )


def _topics(cluster: Cluster, page: int) -> Html:
    count = len(cluster.topics)
    if not count:
        return section("Topics", tag("p", "No sidecar that answers has a tiered topic.", class_="soft"))
    page = within(count, page)
    # Topics that are halted or lag come first.
    ordered = sorted(cluster.topics, key=lambda one: (-one.halted, -len(one.unknown), -one.lag_bytes, one.topic))
    shown = ordered[(page - 1) * PER_PAGE : page * PER_PAGE]
    columns = (
        ("Topic", ""),
        ("Log, from its start to its end", "wide"),
        ("Remote", "n"),
        ("Local", "n"),
        ("Lag", "n"),
        ("Partitions", "n"),
        ("State", ""),
    )
    caption = "Sums over the leaders of all partitions. Each line is one topic's log, its parts to scale by bytes."
    return section(
        "Topics", table(columns, map(_topic, shown), caption=caption), pages_of(count, page, {}, "."), legend()
    )


def _topic(one: TopicLine) -> tuple[object, ...]:
    return (
        tag("a", one.topic, href=href("topic", name=one.topic)),
        tier_line(one.tiers, label=one.topic),
        size_text(one.remote_bytes),
        size_text(one.local_bytes),
        size_text(one.lag_bytes),
        one.count,
        topic_state(one),
    )


def topic_state(one: TopicLine) -> Html:
    """Return the state in a word or two."""
    if one.halted:
        return pill(f"{one.halted:,} halted", "bad")
    if one.unknown:
        return pill(f"{len(one.unknown):,} not known", "warn")
    if one.held_back:
        return pill(f"{one.held_back:,} held back", "warn")
    return pill("well", "good") if one.mode == "strict" else pill(f"well, {one.mode}", "good")


def _throughput(cluster: Cluster) -> Html:
    last = cluster.asked_ms // INTERVAL_MS
    # The interval that has just begun has a figure only where a sidecar has been asked since.
    last -= all(last not in points for points in cluster.series.values())
    return section(
        "The last hour",
        tag(
            "div",
            [
                hour_chart(cluster.series.get(key, {}), last, name=name, kind=key, is_rate=key != "lag")
                for key, name in _CHARTS.items()
            ],
            class_="charts",
        ),
    )


def _brokers(sidecars: Sequence[Sidecar]) -> Html:
    columns = (
        ("Broker", ""),
        ("State", ""),
        ("Leads", "n"),
        ("Partitions", "n"),
        ("Roles", ""),
        ("Version", ""),
        ("Up since", ""),
        ("Status address", ""),
    )
    return table(
        columns, map(_broker, sidecars), caption="One sidecar beside each broker; figures as each reports them."
    )


def _broker(one: Sidecar) -> tuple[object, ...]:
    name = "–" if one.node_id is None or one.node_id < 0 else str(one.node_id)
    overview, address = one.overview, one.address or ("this one" if one.is_own else "")
    if overview is None:
        state = join(pill("does not answer", "bad"), tag("span", f" {one.problem}", class_="soft"))
        return name, state, None, None, None, one.version, None, tag("span", address, class_="id")
    if overview.standing_by:
        state = pill("stands by", "warn")
    else:
        state = pill("not ready", "bad") if overview.reasons else pill("ready", "good")
    roles = ", ".join(overview.roles) + ("" if overview.mode == "enforce" else f" ({overview.mode})")
    seen = sum(len(numbers) for numbers in overview.seen.values())
    since = moment_text(overview.started_ms)
    return name, state, len(overview.leads), seen, roles, overview.version, since, tag("span", address, class_="id")


def _disks(answers: Sequence[Overview]) -> Html:
    disks = [disk for one in answers for disk in one.disks]
    if not disks:
        return tag("p", "No sidecar that answers has looked at its disks yet.", class_="soft")
    columns = (("Broker", ""), ("Log dirs", ""), ("Used", ""), ("Free", "n"), ("Full in", "n"), ("State", ""))
    return table(
        columns, map(_disk, disks), caption="Time to full is by the rate of the last half hour, trims included."
    )


def _disk(one: Disk) -> tuple[object, ...]:
    used = one.size_bytes - one.free_bytes
    percent = round(100 * used / one.size_bytes) if one.size_bytes > 0 else 0
    word, kind = _STATES.get(one.state, (one.state, "plain"))
    return (
        str(one.node_id),
        tag("span", ", ".join(one.log_dirs), class_="id"),
        share_bar(used, one.size_bytes, label=f"{percent} % used", kind=kind),
        f"{size_text(one.free_bytes)} of {size_text(one.size_bytes)}",
        "–" if one.seconds_to_full is None else duration_text(one.seconds_to_full * 1000),
        pill(word, kind),
    )


def _store(cluster: Cluster) -> Html:
    stores = sorted({answer.store for answer in cluster.answers if answer.store})
    last = cluster.reconcile
    if last is None:
        outcome: object = "never, or its report was not put into the store"
    else:
        count = sum(last.findings.values())
        kinds = ", ".join(f"{amount:,} {kind}" for kind, amount in sorted(last.findings.items()))
        outcome = f"{duration_text(last.age_s * 1000)} ago: " + (
            f"{count:,} findings ({kinds})" if count else "no finding"
        )
    return section(
        "Store",
        tag(
            "dl",
            tag("dt", "Objects"),
            tag("dd", [tag("div", one, class_="id") for one in stores] or "not known yet"),
            tag("dt", "Last reconcile"),
            tag("dd", outcome),
            class_="pairs",
        ),
    )


def _gateways(cluster: Cluster) -> Html:
    rows = [
        (f"{'' if one.node_id < 0 else f'{one.node_id}: '}{one.listener}", one.connections)
        for overview in cluster.answers
        for one in overview.gateways
    ]
    known = {one.topic for one in cluster.topics}
    read = sorted(cluster.read_by_topic.items(), key=lambda one: (-one[1], one[0]))[:_MOST_READ]
    filled = sum(cluster.series.get("filled", {}).values())
    gateways = (
        table(
            (("Broker: listener", ""), ("Connections", "n")),
            rows,
            caption=f"{size_text(filled)} from the store to their clients in the last hour.",
        )
        if rows
        else tag("p", "No sidecar that answers has a gateway.", class_="soft")
    )
    reads = (
        table(
            (("Topic", ""), ("From the store", "n")),
            [(_name_of(topic, known), size_text(amount)) for topic, amount in read],
            caption="Topics whose cold data was read in the last hour, by gateway or read service.",
        )
        if read
        else tag("p", "No cold data was read in the last hour.", class_="soft")
    )
    side_by_side = tag("div", [tag("div", part) for part in (gateways, reads)], class_="charts")
    return section("Gateways and cold reads", side_by_side, _readers(cluster, known))


def _readers(cluster: Cluster, known: Collection[str]) -> Html | None:
    several = [one for overview in cluster.answers for one in overview.readers]
    if not several:
        return None
    rows = [
        (one.client_id, one.principal, _name_of(one.topic, known), one.requests, size_text(one.size_bytes))
        for one in sorted(several, key=lambda one: -one.size_bytes)[:_MOST_READ]
    ]
    columns = (("Client", ""), ("Principal", ""), ("Topic", ""), ("Reads", "n"), ("From the store", "n"))
    caption = f"Clients on cold data, since each process began; {len(several):,} in all."
    return table(columns, rows, caption=caption)


def _name_of(topic: str, known: Collection[str]) -> Html:
    """Return the name as a link; a topic that is no longer tiered has no page."""
    return tag("a", topic, href=href("topic", name=topic)) if topic in known else join(topic)
