"""The plan of a mount, as a file: `mount plan` writes it, `mount seed` and `mount publish` go by it.  People may change it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiersidecar.decide.mount import mounted_name_fault
from tiersidecar.domain.cluster_topics import NewPartition, NewTopic, TopicPartition
from tiersidecar.domain.errors import ConfigError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid, parse_uuid

FORMAT, FORMAT_VERSION = "tiersidecar-mount", 1
_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that was open where a partition's log goes on: nothing will end it any more."""

    producer_id: int
    producer_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """``topics`` are what the new cluster begins with, ``open_transactions`` by topic and partition.  ``former_cluster_id`` is
    empty if no cluster had claimed the data: then native tiering wrote them."""

    made_ms: int
    former_cluster_id: str
    topics: tuple[NewTopic, ...]
    next_producer_id: int
    open_transactions: Mapping[TopicPartition, tuple[OpenTransaction, ...]]

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
    """Write the file, which must not be there yet.

    Raises:
        ConfigError: it is, it cannot be written, or ``read_plan`` would refuse it.
    """
    document = plan_document(plan)
    try:
        _plan_of(document)
    except (TypeError, ValueError) as error:
        raise ConfigError(source=str(path), faults=(f"is not written: {error}",)) from error
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    try:
        with path.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(source=str(path), faults=("it is there already: another plan may be in use",)) from None
    except OSError as error:
        raise ConfigError(source=str(path), faults=(f"cannot be written: {error}",)) from error


def read_plan(path: Path) -> MountPlan:
    """Read the file.

    Raises:
        ConfigError: it is no such file, or a value in it cannot be used.
    """
    try:
        document = json.loads(path.read_bytes())
        if (document["format"], document["version"]) != (FORMAT, FORMAT_VERSION):
            fault = f"it is {document['format']!r} {document['version']!r}: use the release that wrote it"
            raise ConfigError(source=str(path), faults=(fault,))
        return _plan_of(document)
    except OSError as error:
        raise ConfigError(source=str(path), faults=(f"cannot be read: {error}",)) from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(source=str(path), faults=(f"no plan of `mount plan`: {error!r}",)) from error


def plan_document(plan: MountPlan) -> dict[str, Any]:
    """Return the plan as JSON data."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "made_ms": plan.made_ms,
        "former_cluster_id": plan.former_cluster_id,
        "next_producer_id": plan.next_producer_id,
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
    return MountPlan(
        made_ms=int(document["made_ms"]),
        former_cluster_id=str(document["former_cluster_id"]),
        topics=topics,
        next_producer_id=int(document["next_producer_id"]),
        open_transactions={
            (str(topic["topic"]), int(one["partition"])): tuple(
                OpenTransaction(producer_id=int(pid), producer_epoch=int(epoch), first_offset=int(first))
                for pid, epoch, first in one["open_transactions"]
            )
            for topic in document["topics"]
            for one in topic["partitions"]
            if one["open_transactions"]
        },
    )


def _topic_of(document: Mapping[str, Any]) -> NewTopic:
    if fault := mounted_name_fault(str(document["topic"])):
        raise ValueError(fault)
    partitions = tuple(_partition_of(one) for one in document["partitions"])
    if [one.partition for one in partitions] != list(range(len(partitions))):
        raise ValueError(f"{document['topic']}: its partitions are not 0, 1, 2…")
    return NewTopic(
        name=str(document["topic"]),
        topic_id=parse_uuid(document["topic_id"]),
        partitions=partitions,
        configs=tuple(sorted((str(key), str(value)) for key, value in document["configs"].items())),
    )


def _partition_of(document: Mapping[str, Any]) -> NewPartition:
    one = NewPartition(
        partition=int(document["partition"]),
        replicas=tuple(int(replica) for replica in document["replicas"]),
        leader_epoch=int(document["leader_epoch"]),
        start_offset=int(document["start_offset"]),
    )
    if not one.replicas or len(set(one.replicas)) != len(one.replicas) or min(one.replicas) < 0:
        raise ValueError(f"replicas {list(one.replicas)}")
    if one.start_offset < 0 or not 0 <= one.leader_epoch < _MOST_INT32:
        raise ValueError(f"start_offset {one.start_offset}, leader_epoch {one.leader_epoch}")
    return one
