"""Read-only mounts: partitions whose whole history is another cluster's, and whose log here stays empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.offsets import Offset

MOUNTED_START = Offset(2**62)
"""Where the log of a read-only mounted partition begins: above every offset of its history, however long the source goes on.
So the broker answers each Fetch of the history OFFSET_OUT_OF_RANGE, and no log that was written from 0 on gets there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedTopic:
    """``partitions`` is how many the plan has: 0 and up."""

    topic_id: Uuid
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The topics that are mounted read-only.  ``source_cluster_id`` is empty where the plan names no cluster."""

    source_cluster_id: str = ""
    topics: Mapping[str, MountedTopic] = field(default_factory=dict)
