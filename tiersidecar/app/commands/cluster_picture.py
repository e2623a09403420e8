"""A cluster as its sidecars report it, put together from their status documents: values only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiersidecar.app.commands.asking import Answer, KnownSidecar
from tiersidecar.app.commands.tables import duration, size, table
from tiersidecar.domain.readable import printable

_SHOWN = 20
"""Partitions in trouble that are listed; the JSON document has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """``node_id`` is None where only an address is known.  ``trouble`` says why it did not answer or is not ready."""

    node_id: int | None
    address: str
    answers: bool
    version: str
    roles: str
    state: str
    trouble: str
    partitions: int | None = None
    leads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRow:
    """``seconds_to_full`` is None where it does not fill, or that is not known."""

    node_id: int | None
    log_dirs: str
    size_bytes: int
    free_bytes: int
    seconds_to_full: int | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """Figures are those of the leaders; ``unknown`` counts partitions that no leader's sidecar reported."""

    topic: str
    mode: str
    partitions: int
    unknown: int
    remote_segments: int
    remote_bytes: int
    local_bytes: int
    lag_segments: int
    lag_bytes: int
    halted: int
    held_back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTrouble:
    """``kind`` is ``halted``, ``held back`` or ``not tiered``, ``not trimmed`` for a topic (``partition`` None)."""

    topic: str
    partition: int | None
    node_id: int | None
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPicture:
    """``needs_somebody``: an answer is missing, also for single partitions, or an operator has to act."""

    cluster_id: str
    brokers: tuple[BrokerRow, ...]
    disks: tuple[DiskRow, ...]
    topics: tuple[TopicRow, ...]
    troubles: tuple[PartitionTrouble, ...]
    deletes_blocked: str
    paused: tuple[str, ...] = ()

    @property
    def needs_somebody(self) -> bool:
        return (
            any(row.trouble for row in self.brokers)
            or any(topic.unknown for topic in self.topics)
            or any(one.kind == "halted" for one in self.troubles)
        )


_TEXTS = ("version", "mode", "standing_by", "deletes_blocked")
_ROW_TEXTS, _ROW_SIZES = ("topic", "role", "mode"), ("partition", "remote_segments", "remote_size_bytes")
_MOST = 1 << 63


def _is_status(document: Mapping[str, Any]) -> bool:
    """Return whether it has the form of a sidecar's: what a forged lease leads to may answer with any JSON."""
    return (
        _is_number(document["node_id"], or_none=True)
        and all(isinstance(document[name], str) for name in _TEXTS)
        and isinstance(document.get("cluster_id") or "", str)
        and isinstance(document["ready"], bool)
        and all(_are_texts(document.get(name, [])) for name in ("roles", "reasons", "paused"))
        and all(_are_texts([*document[name].values()]) for name in ("refused_topics", "untrimmable_topics"))
        and all(_are_texts(one["log_dirs"]) and isinstance(one["state"], str) for one in document.get("disks", []))
        and all(_is_number(one[name]) for one in document.get("disks", []) for name in ("size_bytes", "free_bytes"))
        and all(_is_number(one["seconds_to_full"], or_none=True) for one in document.get("disks", []))
        and all(map(_is_row, document["partitions"]))
    )


def _is_row(row: Mapping[str, Any]) -> bool:
    return (
        all(isinstance(row[name], str) for name in _ROW_TEXTS)
        and all(_is_number(row[name]) for name in _ROW_SIZES)
        and _is_number(row.get("local_size_bytes", 0))
        and all(_is_number(row[name], or_none=True) for name in ("leader_epoch", "copy_lag_segments", "copy_lag_bytes"))
        and all(isinstance(row[name], str | None) for name in ("halted_reason", "held_back_reason"))
    )


def _is_number(value: object, *, or_none: bool = False) -> bool:
    return (type(value) is int and -_MOST <= value < _MOST) or (or_none and value is None)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _checked(answer: Answer) -> Answer:
    """Return the answer, or that it is none."""
    if answer.code != 200 or answer.document is None:
        return answer
    try:
        is_status = _is_status(answer.document)
    except (KeyError, TypeError, AttributeError):
        is_status = False
    if is_status:
        return answer
    problem = "its answer is not a status that this version can read: is this a sidecar's status.listen?"
    return Answer(sidecar=answer.sidecar, code=answer.code, problem=problem)


def picture_of(answers: Sequence[Answer]) -> ClusterPicture:
    """Return all answers together as one picture."""
    answers = _once_each([_checked(answer) for answer in answers])
    documents = [answer.document for answer in answers if answer.code == 200 and answer.document is not None]
    return ClusterPicture(
        cluster_id=next((one["cluster_id"] for one in documents if one.get("cluster_id")), ""),
        brokers=tuple(_broker(answer) for answer in answers),
        disks=tuple(_disks(documents)),
        topics=tuple(_topics(documents)),
        troubles=tuple(_troubles(documents)),
        deletes_blocked=next((one["deletes_blocked"] for one in documents if one.get("deletes_blocked")), ""),
        paused=tuple(dict.fromkeys(sentence for one in documents for sentence in one.get("paused", ()))),
    )


def _once_each(answers: Sequence[Answer]) -> list[Answer]:
    """Return each process once, also if it is asked at two addresses: one of its lease and one that the caller named.

    Where the address of a broker's lease leads to another broker's sidecar, that broker counts as not reported.
    """
    seen: dict[tuple[object, ...], KnownSidecar] = {}
    kept: list[Answer] = []
    for answer in answers:
        known, document = answer.sidecar, answer.document
        if answer.code != 200 or document is None:
            kept.append(answer)
            continue
        node_id, started_ms = document["node_id"], document.get("started_ms")
        if None not in (known.node_id, node_id) and node_id != known.node_id:
            kept.append(_of_another_broker(known, f"the sidecar of broker {node_id}"))
            continue
        process = (node_id, started_ms if _is_number(started_ms) else known.address, *document.get("roles", ()))
        if process not in seen:
            seen[process] = known
            kept.append(answer)
        elif known.node_id is not None:
            kept.append(_of_another_broker(known, f"the process that answers at {seen[process].address}"))
    return kept


def _of_another_broker(known: KnownSidecar, answering: str) -> Answer:
    problem = f"{answering} answers at {known.address}: set status.advertised of this broker's sidecar to its own"
    return Answer(sidecar=known, problem=problem)


def _broker(answer: Answer) -> BrokerRow:
    known, document = answer.sidecar, answer.document
    if answer.code != 200 or document is None:
        problem = answer.problem or f"it answered with HTTP {answer.code}: is this a sidecar's status.listen?"
        return BrokerRow(
            node_id=known.node_id,
            address=known.address,
            answers=False,
            version=known.version,
            roles="",
            state="no answer",
            trouble=problem,
        )
    rows, standing_by = document["partitions"], document["standing_by"]
    state = "standing by" if standing_by else "ready" if document["ready"] else "not ready"
    return BrokerRow(
        node_id=document["node_id"] if document["node_id"] is not None else known.node_id,
        address=known.address,
        answers=True,
        version=document["version"],
        roles=",".join(document.get("roles", ())) + ("" if document["mode"] == "enforce" else f" ({document['mode']})"),
        state=state,
        trouble="; ".join([*document["reasons"], *([standing_by] if standing_by else [])]),
        partitions=len(rows),
        leads=sum(row["role"] == "leader" for row in rows),
    )


def _disks(documents: Iterable[Mapping[str, Any]]) -> Iterable[DiskRow]:
    for document in documents:
        for disk in document.get("disks", ()):
            yield DiskRow(
                node_id=document["node_id"],
                log_dirs=", ".join(disk["log_dirs"]),
                size_bytes=disk["size_bytes"],
                free_bytes=disk["free_bytes"],
                seconds_to_full=disk["seconds_to_full"],
                state=disk["state"],
            )


def _topics(documents: Iterable[Mapping[str, Any]]) -> list[TopicRow]:
    """Return the topics.  Of two that take themselves for the leader of a partition, the one of the later epoch counts.
    Processes without the role tier report nothing of disks and lag: they count where there is no other."""
    leaders: dict[tuple[str, int], Mapping[str, Any]] = {}
    seen: defaultdict[str, dict[int, str]] = defaultdict(dict)
    documents = list(documents)
    for document in [one for one in documents if "tier" in one.get("roles", ())] or documents:
        for row in document["partitions"]:
            key = (row["topic"], row["partition"])
            seen[row["topic"]][row["partition"]] = row["mode"]
            if row["role"] == "leader" and (key not in leaders or _epoch(leaders[key]) < _epoch(row)):
                leaders[key] = row
    return [_topic(topic, seen[topic], leaders) for topic in sorted(seen)]


def _epoch(row: Mapping[str, Any]) -> int:
    return -1 if row["leader_epoch"] is None else int(row["leader_epoch"])


def _topic(topic: str, modes: Mapping[int, str], leaders: Mapping[tuple[str, int], Mapping[str, Any]]) -> TopicRow:
    rows = [leaders[topic, partition] for partition in modes if (topic, partition) in leaders]
    return TopicRow(
        topic=topic,
        mode=next(iter(modes.values())),
        partitions=len(modes),
        unknown=len(modes) - len(rows),
        remote_segments=sum(row["remote_segments"] for row in rows),
        remote_bytes=sum(row["remote_size_bytes"] for row in rows),
        local_bytes=sum(row.get("local_size_bytes", 0) for row in rows),
        lag_segments=sum(row["copy_lag_segments"] or 0 for row in rows),
        lag_bytes=sum(row["copy_lag_bytes"] or 0 for row in rows),
        halted=sum(row["halted_reason"] is not None for row in rows),
        held_back=sum(row["held_back_reason"] is not None for row in rows),
    )


def _troubles(documents: Iterable[Mapping[str, Any]]) -> list[PartitionTrouble]:
    found: list[PartitionTrouble] = []
    topics: dict[tuple[str, str], PartitionTrouble] = {}
    for document in documents:
        node_id = document["node_id"]
        for kind, field in (("not tiered", "refused_topics"), ("not trimmed", "untrimmable_topics")):
            for topic, reason in document[field].items():
                trouble = PartitionTrouble(topic=topic, partition=None, node_id=None, kind=kind, reason=reason)
                topics.setdefault((kind, topic), trouble)
        for row in document["partitions"]:
            for kind, reason in (("halted", row["halted_reason"]), ("held back", row["held_back_reason"])):
                if reason is not None and (kind == "halted" or row["role"] == "leader"):
                    found.append(
                        PartitionTrouble(
                            topic=row["topic"], partition=row["partition"], node_id=node_id, kind=kind, reason=reason
                        )
                    )
    found.sort(key=lambda one: (one.kind != "halted", one.topic, one.partition or 0))
    return [*(topics[key] for key in sorted(topics)), *found]


def cluster_document(picture: ClusterPicture) -> dict[str, Any]:
    """Return the picture as JSON."""
    return {"needs_somebody": picture.needs_somebody, **asdict(picture)}


def cluster_text(picture: ClusterPicture) -> str:
    """Return the picture as text: what needs an operator stands in sentences below the tables."""
    parts = [f"cluster {picture.cluster_id or '(not known)'}", _broker_table(picture.brokers)]
    parts += [f"broker {_node(row.node_id)}: {row.trouble}" for row in picture.brokers if row.trouble]
    if picture.deletes_blocked:
        parts.append(f"nothing remote is deleted: {picture.deletes_blocked}")
    parts += picture.paused
    if picture.disks:
        parts += ["", _disk_table(picture.disks)]
    parts += ["", topic_text(picture.topics)]
    if picture.troubles:
        parts += ["", *(_trouble_line(one) for one in picture.troubles[:_SHOWN])]
    if len(picture.troubles) > _SHOWN:
        parts.append(f"and {len(picture.troubles) - _SHOWN} more: --json has all")
    # Reasons and pauses hold others' words, and an answer may be a forged one's.
    return "\n".join(printable(line) for part in parts for line in part.split("\n"))


def _trouble_line(one: PartitionTrouble) -> str:
    where = one.topic if one.partition is None else f"{one.topic}/{one.partition} on broker {_node(one.node_id)}"
    return f"{where} is {one.kind}: {one.reason}"


def topic_text(rows: Sequence[TopicRow]) -> str:
    """Return the topics as a table, with what is not known of them."""
    if not rows:
        return "no sidecar that answered has a tiered topic"
    columns = ("topic", "mode", "partitions", "remote", "segments", "local", "lag", "behind", "halted", "held back")
    lines = [
        (
            row.topic,
            row.mode,
            f"{row.partitions} ({row.unknown} not known)" if row.unknown else row.partitions,
            size(row.remote_bytes),
            row.remote_segments,
            size(row.local_bytes),
            size(row.lag_bytes),
            row.lag_segments,
            row.halted or None,
            row.held_back or None,
        )
        for row in rows
    ]
    return table(columns, lines)


def _broker_table(rows: Sequence[BrokerRow]) -> str:
    columns = ("broker", "state", "leads", "partitions", "version", "roles", "status address")
    lines = [
        (_node(row.node_id), row.state, row.leads, row.partitions, row.version, row.roles, row.address) for row in rows
    ]
    return table(columns, lines)


def _disk_table(rows: Sequence[DiskRow]) -> str:
    columns = ("broker", "log dirs", "size", "free", "free %", "full in", "disk")
    lines = [
        (
            _node(row.node_id),
            row.log_dirs,
            size(row.size_bytes),
            size(row.free_bytes),
            round(100 * row.free_bytes / row.size_bytes) if row.size_bytes else None,
            duration(None if row.seconds_to_full is None else row.seconds_to_full * 1000),
            row.state.replace("_", " "),
        )
        for row in rows
    ]
    return table(columns, lines)


def _node(node_id: int | None) -> str:
    return "?" if node_id is None else str(node_id)
