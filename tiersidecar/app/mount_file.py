"""The plan of a mount, as a file: `mount plan` writes it, `mount seed` and `mount publish` go by it.  People may change it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiersidecar.decide.mount import mounted_name_fault
from tiersidecar.domain.cluster_topics import NewPartition, NewTopic, TopicPartition
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid, parse_uuid
from tiersidecar.domain.mounts import MOUNTED_START

FORMAT, FORMAT_VERSION = "tiersidecar-mount", 1
READ_ONLY_VERSION = 2
"""The version of a plan of a read-only mount: releases that know no such mount would take the data over by it."""
_MOST_INT16, _MOST_INT32, _MOST_INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
_MOST_TEXT_BYTES = 32_767
"""The most for a string in Kafka's messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that was open where a partition's log goes on: nothing will end it any more."""

    producer_id: int
    producer_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """``topics`` are what the new cluster begins with, ``open_transactions`` by topic and partition.  ``former_cluster_id`` is
    empty if no cluster had claimed the data: then native tiering wrote them.  ``at_ms`` is the time as of which it was made,
    None for the end of what was copied; ``cluster_snapshot`` is the key of the snapshot that settings and groups are of, None
    for the latest.  With ``is_read_only`` the former cluster stays the owner, and lives on: nothing is taken over."""

    made_ms: int
    former_cluster_id: str
    topics: tuple[NewTopic, ...]
    next_producer_id: int
    open_transactions: Mapping[TopicPartition, tuple[OpenTransaction, ...]]
    at_ms: int | None = None
    cluster_snapshot: str | None = None
    is_read_only: bool = False

    def partitions(self) -> Iterator[tuple[TopicIdPartition, NewPartition]]:
        """Yield all of them, topic by topic."""
        for topic in self.topics:
            for one in topic.partitions:
                owner = TopicIdPartition(topic_id=topic.topic_id, topic=topic.name, partition=one.partition)
                yield owner, one

    @property
    def brokers(self) -> list[int]:
        """Return the ids of the brokers that have a replica, ascending."""
        return sorted({replica for _, one in self.partitions() for replica in one.replicas})


def write_plan(plan: MountPlan, path: Path) -> None:
    """Write the file, whole or not at all; it must not be there yet.

    Raises:
        ConfigError: it is, it cannot be written, or ``read_plan`` would refuse it.
    """
    require_new_plan(path)
    document = plan_document(plan)
    try:
        _plan_of(document)
    except (TypeError, ValueError) as error:
        raise ConfigError(source=str(path), faults=(f"is not written: {error}",)) from error
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise ConfigError(source=str(path), faults=(f"cannot be written: {error}",)) from error


def require_new_plan(path: Path) -> None:
    """Look whether the file can be made, before the work is done whose outcome it is to have.

    Raises:
        ConfigError: it is there already, or its directory is not.
    """
    if path.is_symlink() or path.exists():
        raise ConfigError(source=str(path), faults=("it is there already: another plan may be in use",))
    if not path.parent.is_dir():
        raise ConfigError(source=str(path), faults=(f"cannot be written: {path.parent} is no directory",))


def read_plan(path: Path) -> MountPlan:
    """Read the file.

    Raises:
        ConfigError: it is no such file, or a value in it cannot be used.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT or document["version"] not in (FORMAT_VERSION, READ_ONLY_VERSION):
            fault = f"it is {document['format']!r} {document['version']!r}: use the release that wrote it"
            raise ConfigError(source=str(path), faults=(fault,))
        return _plan_of(document)
    except OSError as error:
        raise ConfigError(source=str(path), faults=(f"cannot be read: {error}",)) from error
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(source=str(path), faults=(f"no plan of `mount plan`: {reason}",)) from error


def plan_document(plan: MountPlan) -> dict[str, Any]:
    """Return the plan as JSON data."""
    return {
        "format": FORMAT,
        "version": READ_ONLY_VERSION if plan.is_read_only else FORMAT_VERSION,
        "made_ms": plan.made_ms,
        "former_cluster_id": plan.former_cluster_id,
        "next_producer_id": plan.next_producer_id,
        "at_ms": plan.at_ms,
        "cluster_snapshot": plan.cluster_snapshot,
        "topics": [
            {
                "topic": topic.name,
                "topic_id": format_uuid(topic.topic_id),
                "configs": dict(topic.configs),
                "partitions": [
                    {
                        "partition": one.partition,
                        "start_offset": one.start_offset,
                        "leader_epoch": one.leader_epoch,
                        "replicas": list(one.replicas),
                        "open_transactions": [
                            [open_one.producer_id, open_one.producer_epoch, open_one.first_offset]
                            for open_one in plan.open_transactions.get((topic.name, one.partition), ())
                        ],
                    }
                    for one in topic.partitions
                ],
            }
            for topic in plan.topics
        ],
    }


def _plan_of(document: Mapping[str, Any]) -> MountPlan:
    topics = tuple(_topic_of(one) for one in document["topics"])
    if len({topic.name for topic in topics}) != len(topics):
        raise ValueError("a topic is there twice")
    if len({topic.topic_id for topic in topics}) != len(topics):
        raise ValueError("two topics have one topic_id")
    is_read_only = document["version"] == READ_ONLY_VERSION
    if any((one.start_offset >= MOUNTED_START) != is_read_only for topic in topics for one in topic.partitions):
        raise ValueError(
            f"a start_offset of {MOUNTED_START} is that of all partitions of a read-only mount, and of no others"
        )
    return MountPlan(
        made_ms=_number(document, "made_ms", _MOST_INT64),
        former_cluster_id=_text(document["former_cluster_id"], "former_cluster_id"),
        topics=topics,
        next_producer_id=_number(document, "next_producer_id", _MOST_INT64),
        open_transactions={
            (topic["topic"], one["partition"]): tuple(_open_transaction(values) for values in one["open_transactions"])
            for topic in document["topics"]
            for one in topic["partitions"]
            if one["open_transactions"]
        },
        at_ms=None if document.get("at_ms") is None else _number(document, "at_ms", _MOST_INT64),
        cluster_snapshot=(
            None
            if document.get("cluster_snapshot") is None
            else _text(document["cluster_snapshot"], "cluster_snapshot")
        ),
        is_read_only=is_read_only,
    )


def _topic_of(document: Mapping[str, Any]) -> NewTopic:
    name = _text(document["topic"], "topic")
    if fault := mounted_name_fault(name):
        raise ValueError(fault)
    try:
        partitions = _partitions_of(document["partitions"])
        configs = {_text(key, "a setting"): _text(value, key) for key, value in document["configs"].items()}
        topic_id = parse_uuid(_text(document["topic_id"], "topic_id"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    return NewTopic(name=name, topic_id=topic_id, partitions=partitions, configs=tuple(sorted(configs.items())))


def _partitions_of(documents: Sequence[Mapping[str, Any]]) -> tuple[NewPartition, ...]:
    partitions = tuple(_partition_of(one) for one in documents)
    if [one.partition for one in partitions] != list(range(len(partitions))):
        raise ValueError("its partitions are not 0, 1, 2…")
    return partitions


def _partition_of(document: Mapping[str, Any]) -> NewPartition:
    replicas = tuple(_integer(replica, "a replica", _MOST_INT32) for replica in document["replicas"])
    if not replicas or len(set(replicas)) != len(replicas):
        raise ValueError(f"replicas {list(replicas)}")
    return NewPartition(
        partition=_number(document, "partition", _MOST_INT32),
        replicas=replicas,
        leader_epoch=_number(document, "leader_epoch", _MOST_INT32 - 1),
        start_offset=_number(document, "start_offset", _MOST_INT64),
    )


def _open_transaction(values: Sequence[object]) -> OpenTransaction:
    producer_id, producer_epoch, first_offset = values
    return OpenTransaction(
        producer_id=_integer(producer_id, "a producer id", _MOST_INT64),
        producer_epoch=_integer(producer_epoch, "a producer epoch", _MOST_INT16),
        first_offset=_integer(first_offset, "the first offset of a transaction", _MOST_INT64),
    )


def _number(document: Mapping[str, Any], name: str, most: int) -> int:
    return _integer(document[name], name, most)


def _integer(value: object, name: str, most: int) -> int:
    """Return what Kafka has as an int16, int32 or int64 that is not negative."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} {json.dumps(value)} is no integer from 0 to {most}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f'{name} {json.dumps(value)} is no string: write it as "…"')
    if len(value.encode()) > _MOST_TEXT_BYTES:  # refuses lone surrogates too, which UTF-8 does not have
        raise ValueError(f"{name} has more than {_MOST_TEXT_BYTES:,} bytes")
    return value
