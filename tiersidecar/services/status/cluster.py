"""A cluster by its sidecars' overviews, read and put together.  Values only.

Another process's answer may not have the right form: a document that cannot be read counts as an empty answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tiersidecar.services.status.history import INTERVAL_MS, POINTS
from tiersidecar.services.status.source import TierBytes

_TIERS = tuple(one.name for one in fields(TierBytes))
_MOST_WORDS = 2000
"""Characters of a reason that are shown."""
_MOST = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """A partition as its leader's sidecar has it; offsets are -1 where they are not known, ``copied_offset`` is inclusive."""

    topic: str
    partition: int
    node_id: int
    leader_epoch: int
    remote_log_start_offset: int
    copied_offset: int
    local_log_start_offset: int
    lag_segments: int
    lag_bytes: int
    remote_segments: int
    local_segments: int
    local_bytes: int
    tiers: TierBytes
    halted: bool
    held_back: bool

    @property
    def remote_bytes(self) -> int:
        return self.tiers.trash + self.tiers.remote + self.tiers.both


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLine:
    """``unknown`` are partitions that no leader's sidecar has reported; they are missing in the sums."""

    topic: str
    mode: str
    partitions: tuple[PartitionLine, ...]
    unknown: tuple[int, ...]
    tiers: TierBytes
    lag_segments: int
    lag_bytes: int
    remote_segments: int
    local_bytes: int
    halted: int
    held_back: int

    @property
    def count(self) -> int:
        return len(self.partitions) + len(self.unknown)

    @property
    def remote_bytes(self) -> int:
        return self.tiers.trash + self.tiers.remote + self.tiers.both


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """``kind`` is ``halted`` or ``held back``."""

    topic: str
    partition: int
    node_id: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    node_id: int
    log_dirs: tuple[str, ...]
    size_bytes: int
    free_bytes: int
    seconds_to_full: int | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    node_id: int
    listener: str
    connections: int
    unmapped_brokers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads of one topic from the store by a client, since the asked process has begun."""

    node_id: int
    principal: str
    client_id: str
    topic: str
    requests: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """The last run that put its report into the store; ``findings`` has kinds with their counts, none with 0."""

    age_s: int
    findings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One sidecar's overview of itself."""

    node_id: int
    version: str
    cluster_id: str
    roles: tuple[str, ...]
    mode: str
    deletes_enabled: bool
    store: str
    started_ms: int
    reasons: tuple[str, ...]
    standing_by: str
    deletes_blocked: str
    paused: tuple[str, ...]
    refused_topics: Mapping[str, str]
    untrimmable_topics: Mapping[str, str]
    log_dir_faults: Mapping[str, str]
    disk_troubles: Mapping[str, str]
    misplaced: Mapping[str, str]
    losses: tuple[str, ...]
    disks: tuple[Disk, ...]
    gateways: tuple[Gateway, ...]
    readers: tuple[Reader, ...]
    reconcile: Reconcile | None
    modes: Mapping[str, str]
    seen: Mapping[str, frozenset[int]]
    leads: tuple[PartitionLine, ...]
    troubles: tuple[Trouble, ...]
    series: Mapping[str, Mapping[int, int]]
    read_by_topic: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """A sidecar that was asked; ``overview`` is None where ``problem`` says why.  ``is_own``: it makes this page;
    ``is_of_another_cluster``: its address leads to another cluster's sidecar, of which nothing is shown."""

    node_id: int | None
    address: str
    version: str
    problem: str = ""
    overview: Overview | None = None
    is_own: bool = False
    is_of_another_cluster: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``asked_ms`` is the time by this machine's clock; ``cluster_id`` is that of the sidecar that makes the page, empty while
    it does not know it; ``series`` are sums over all that answered, by interval."""

    asked_ms: int
    cluster_id: str
    sidecars: tuple[Sidecar, ...]
    topics: tuple[TopicLine, ...]
    series: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    read_by_topic: Mapping[str, int] = field(default_factory=dict)

    @property
    def answers(self) -> list[Overview]:
        return [sidecar.overview for sidecar in self.sidecars if sidecar.overview is not None]

    @property
    def tiers(self) -> TierBytes:
        return sum_tiers(topic.tiers for topic in self.topics)

    @property
    def reconcile(self) -> Reconcile | None:
        """Return the latest summary: all sidecars read the same one, some a little later than others."""
        found = [answer.reconcile for answer in self.answers if answer.reconcile is not None]
        return min(found, key=lambda one: one.age_s) if found else None

    def topic(self, name: str) -> TopicLine | None:
        return next((one for one in self.topics if one.topic == name), None)


def read_overview(document: Mapping[str, Any]) -> Overview:
    """Return the overview that a sidecar answered with.

    Raises:
        ValueError, KeyError, TypeError, OverflowError, AttributeError: it is none that this version reads.
    """
    node_id = -1 if document["node_id"] is None else _number(document["node_id"])
    topics: Mapping[str, Any] = document["topics"]
    columns = [str(one) for one in document["columns"]]
    history = document["history"]
    known = history["interval_ms"] == INTERVAL_MS
    return Overview(
        node_id=node_id,
        version=_words(document["version"]),
        cluster_id=_words(document["cluster_id"] or ""),
        roles=tuple(_words(one) for one in document["roles"]),
        mode=_words(document["mode"]),
        deletes_enabled=bool(document["deletes_enabled"]),
        store=_words(document["store"]),
        started_ms=_number(document["started_ms"]),
        reasons=tuple(_words(one) for one in document["reasons"]),
        standing_by=_words(document["standing_by"]),
        deletes_blocked=_words(document["deletes_blocked"]),
        paused=tuple(_words(one) for one in document["paused"]),
        refused_topics=_reasons(document["refused_topics"]),
        untrimmable_topics=_reasons(document["untrimmable_topics"]),
        log_dir_faults=_reasons(document["log_dir_faults"]),
        disk_troubles=_reasons(document["disk_troubles"]),
        misplaced=_reasons(document["misplaced"]),
        losses=tuple(_words(one) for one in document["losses"]),
        disks=tuple(_disk(node_id, one) for one in document["disks"]),
        gateways=tuple(_gateway(node_id, one) for one in document["gateways"]),
        readers=tuple(_reader(node_id, one) for one in document["cold_readers"]),
        reconcile=None if document["reconcile"] is None else _reconcile(document["reconcile"]),
        modes={_words(topic): _words(one["mode"]) for topic, one in topics.items()},
        seen={_words(topic): frozenset(map(_number, one["seen"])) for topic, one in topics.items()},
        leads=tuple(
            _partition(_words(topic), node_id, dict(zip(columns, map(_number, row), strict=True)))
            for topic, one in topics.items()
            for row in one["leads"]
        ),
        troubles=tuple(_trouble(node_id, one) for one in document["troubles"]),
        series={str(name): _points(points) for name, points in history["series"].items()} if known else {},
        read_by_topic={_words(topic): _number(amount) for topic, amount in history["read_by_topic"].items()},
    )


def put_together(sidecars: Sequence[Sidecar], asked_ms: int) -> Cluster:
    """Return the cluster; of two sidecars that claim to lead a partition, the one of the later epoch counts."""
    overviews = [sidecar.overview for sidecar in sidecars if sidecar.overview is not None]
    leaders: dict[tuple[str, int], PartitionLine] = {}
    seen: defaultdict[str, set[int]] = defaultdict(set)
    modes: dict[str, str] = {}
    for overview in overviews:
        modes |= overview.modes
        for topic, numbers in overview.seen.items():
            seen[topic] |= numbers
        for line in overview.leads:
            known = leaders.get((line.topic, line.partition))
            if known is None or known.leader_epoch < line.leader_epoch:
                leaders[line.topic, line.partition] = line
    return Cluster(
        asked_ms=asked_ms,
        cluster_id=next((one.overview.cluster_id for one in sidecars if one.is_own and one.overview is not None), ""),
        sidecars=tuple(sidecars),
        topics=tuple(_topic(topic, modes[topic], sorted(seen[topic]), leaders) for topic in sorted(seen)),
        series=_summed(overviews),
        read_by_topic=_sums(one.read_by_topic for one in overviews),
    )


def sum_tiers(several: Iterable[TierBytes]) -> TierBytes:
    """Return all of them together."""
    sums = dict.fromkeys(_TIERS, 0)
    for one in several:
        for name in _TIERS:
            sums[name] += getattr(one, name)
    return TierBytes(**sums)


def _topic(
    topic: str, mode: str, numbers: Sequence[int], leaders: Mapping[tuple[str, int], PartitionLine]
) -> TopicLine:
    lines = tuple(leaders[topic, number] for number in numbers if (topic, number) in leaders)
    return TopicLine(
        topic=topic,
        mode=mode,
        partitions=lines,
        unknown=tuple(number for number in numbers if (topic, number) not in leaders),
        tiers=sum_tiers(line.tiers for line in lines),
        lag_segments=sum(line.lag_segments for line in lines),
        lag_bytes=sum(line.lag_bytes for line in lines),
        remote_segments=sum(line.remote_segments for line in lines),
        local_bytes=sum(line.local_bytes for line in lines),
        halted=sum(line.halted for line in lines),
        held_back=sum(line.held_back for line in lines),
    )


def _summed(overviews: Sequence[Overview]) -> Mapping[str, Mapping[int, int]]:
    names = {name for one in overviews for name in one.series}
    return {name: _sums(overview.series.get(name, {}) for overview in overviews) for name in sorted(names)}


def _sums(several: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    sums: defaultdict[Any, int] = defaultdict(int)
    for one in several:
        for key, amount in one.items():
            sums[key] += amount
    return dict(sums)


def _partition(topic: str, node_id: int, row: Mapping[str, int]) -> PartitionLine:
    """Return a partition's line; fields of a later release are left out."""
    return PartitionLine(
        topic=topic,
        partition=row["partition"],
        node_id=node_id,
        leader_epoch=row["leader_epoch"],
        remote_log_start_offset=row["remote_log_start_offset"],
        copied_offset=row["copied_offset"],
        local_log_start_offset=row["local_log_start_offset"],
        lag_segments=row["copy_lag_segments"],
        lag_bytes=row["copy_lag_bytes"],
        remote_segments=row["remote_segments"],
        local_segments=row["local_segments"],
        local_bytes=row["local_size_bytes"],
        tiers=TierBytes(**{name: max(row[name], 0) for name in _TIERS}),
        halted=row["halted"] != 0,
        held_back=row["held_back"] != 0,
    )


def _trouble(node_id: int, one: Mapping[str, Any]) -> Trouble:
    return Trouble(
        topic=_words(one["topic"]),
        partition=_number(one["partition"]),
        node_id=node_id,
        kind=_words(one["kind"]),
        reason=_words(one["reason"]),
    )


def _disk(node_id: int, one: Mapping[str, Any]) -> Disk:
    seconds = one["seconds_to_full"]
    return Disk(
        node_id=node_id,
        log_dirs=tuple(_words(path) for path in one["log_dirs"]),
        size_bytes=_number(one["size_bytes"]),
        free_bytes=_number(one["free_bytes"]),
        seconds_to_full=None if seconds is None else _number(seconds),
        state=_words(one["state"]),
    )


def _gateway(node_id: int, one: Mapping[str, Any]) -> Gateway:
    return Gateway(
        node_id=node_id,
        listener=_words(one["listener"]),
        connections=_number(one["connections"]),
        unmapped_brokers=_number(one["unmapped_brokers"]),
    )


def _reader(node_id: int, one: Mapping[str, Any]) -> Reader:
    return Reader(
        node_id=node_id,
        principal=_words(one["principal"]),
        client_id=_words(one["client_id"]),
        topic=_words(one["topic"]),
        requests=_number(one["requests"]),
        size_bytes=_number(one["size_bytes"]),
    )


def _reconcile(one: Mapping[str, Any]) -> Reconcile:
    findings = {_words(kind): _number(count) for kind, count in one["findings"].items()}
    return Reconcile(age_s=_number(one["age_s"]), findings=findings)


def _points(points: Sequence[Sequence[int]]) -> dict[int, int]:
    return {_number(bucket): max(_number(amount), 0) for bucket, amount in points[-POINTS - 1 :]}


def _reasons(reasons: Mapping[str, Any]) -> dict[str, str]:
    return {_words(name): _words(reason) for name, reason in reasons.items()}


def _number(value: Any) -> int:
    """Return a number that can be added up, and drawn."""
    number = int(value)
    if not -_MOST <= number < _MOST:
        raise ValueError("a number beyond 64 bits")
    return number


def _words(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{type(text).__name__} where there should be text")
    if not text.isascii():
        text = text.encode(errors="replace").decode()  # JSON may have half a letter, which no link can
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}…"
