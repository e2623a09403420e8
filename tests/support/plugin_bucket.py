"""A bucket that the real plugin filled, in every form of the fixtures, with its events."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tests.support.golden import AIVEN_OBJECTS, read_json_lines
from tests.support.remote_runs import RUNS
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import read_custom_metadata, write_custom_metadata
from tiersidecar.formats.metadata.serde import read_event, write_event
from tiersidecar.reconcile.inputs import KnownTopic

NOW_MS = 4_000_000_000_000


class PluginBucket:
    """Objects of all runs in one directory, and their events; deletions left out, for the objects were kept.

    One run was made under a key prefix, which only its custom metadata say.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[bytes] = []
        self.topics: dict[str, str] = {}
        for run in RUNS:
            shutil.copytree(AIVEN_OBJECTS / run, root, dirs_exist_ok=True)
            self._add_events(run, {path.parent.parent.name for path in (AIVEN_OBJECTS / run).rglob("*.log")})

    def _add_events(self, run: str, kept: set[str]) -> None:
        for line in read_json_lines("remote-log-metadata", f"{run}.jsonl"):
            event = read_event(bytes.fromhex(line["value"]), where=run)
            assert not isinstance(event, RemotePartitionDeleteMetadata)
            owner = event.remote_log_segment_id.topic_id_partition
            if owner.qualified.partition("/")[0] in kept and event.state < State.DELETE_SEGMENT_STARTED:
                self.events.append(bytes.fromhex(line["value"]))
                self.topics[format_uuid(owner.topic_id)] = owner.topic

    def move_a_topic(self, root: Path) -> str:
        """Move the first topic to the place cold, the new directory ``root``: its objects, and what its events say.  Gives the
        name of its directory."""
        moved = min(path.name for path in self.root.iterdir() if path.is_dir() and path.name[-22:] in self.topics)
        root.mkdir()
        (self.root / moved).rename(root / moved)
        self.events = [_placed(value) if moved[-22:] == _topic_id(value) else value for value in self.events]
        return moved

    def move_a_segment(self, root: Path) -> str:
        """Move the first segment that others follow to the place cold, the new directory ``root``.  Gives the key of its log
        below that."""
        logs = sorted(path for path in self.root.rglob("*.log") if path.parent.parent.name[-22:] in self.topics)
        log = next(one for one, other in pairwise(logs) if one.parent == other.parent and _offset(one) < _offset(other))
        there = root / log.parent.relative_to(self.root)
        there.mkdir(parents=True)
        for path in log.parent.glob(f"{log.stem}.*"):
            path.rename(there / path.name)
        self.events = [_placed(value) if log.stem[-22:] == _segment_id(value) else value for value in self.events]
        return str(log.relative_to(self.root))

    def known_topics(self) -> list[KnownTopic]:
        """Return the topics: the runs copied the same log, so each holds what the others hold: as of a compacted topic."""
        return [KnownTopic(topic=name, topic_id=topic_id, is_compacted=True) for topic_id, name in self.topics.items()]


def _read(value: bytes) -> RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate:
    event = read_event(value, where="a fixture")
    assert not isinstance(event, RemotePartitionDeleteMetadata)
    return event


def _topic_id(value: bytes) -> str:
    return format_uuid(_read(value).remote_log_segment_id.topic_id_partition.topic_id)


def _segment_id(value: bytes) -> str:
    return format_uuid(_read(value).remote_log_segment_id.uuid)


def _offset(log: Path) -> int:
    return int(log.name[:20])


def _placed(value: bytes) -> bytes:
    event = _read(value)
    custom = write_custom_metadata(replace(read_custom_metadata(event.custom_metadata), place="cold"))
    return write_event(replace(event, custom_metadata=custom), knows_txn_index_empty=True)
