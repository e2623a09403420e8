"""Topics and consumer groups of a cluster, as far as they are kept in its bucket and set up again in another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tiersidecar.domain.ids import Uuid

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """An offset that a group has committed: the next to be read.  ``leader_epoch`` is -1 where the client gave none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopic:
    """A topic as it was: ``leader_epochs`` by partition, from 0 on, and ``configs``, its own overrides."""

    topic_id: Uuid
    replication_factor: int
    leader_epochs: tuple[int, ...]
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartition:
    """A partition whose log begins at ``start_offset``, and whose next leader has an epoch above ``leader_epoch``; all of
    ``replicas`` (broker ids) are in sync."""

    partition: int
    replicas: tuple[int, ...]
    leader_epoch: int
    start_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic as it is to begin in an empty cluster; ``configs`` are its overrides."""

    name: str
    topic_id: Uuid
    partitions: tuple[NewPartition, ...]
    configs: tuple[tuple[str, str], ...] = ()
