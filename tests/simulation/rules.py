"""The rules of the protocol that hold at every single step, looked at when something becomes durable.

What a consumer finds in the end is the oracle's part; these rules say which step was wrong, and catch what luck would hide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.cluster import SimulatedPartition
from tiersidecar.domain.ids import RemoteLogSegmentId
from tiersidecar.domain.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from tiersidecar.domain.states import RemoteLogSegmentState, is_valid_transition
from tiersidecar.formats.metadata.serde import read_event
from tiersidecar.reading.remote_objects import recorded_keys

_STARTED, _FINISHED, _DELETING, _DELETED = RemoteLogSegmentState


@dataclass(slots=True)
class SegmentFate:
    """One segment by the metadata topic, folded plainly.  ``read_back``: its .log was fetched after it was finished."""

    metadata: RemoteLogSegmentMetadata
    finished_at: int = 0
    read_back: bool = False

    @property
    def is_finished(self) -> bool:
        return self.metadata.state is _FINISHED

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(recorded_keys(self.metadata, "").in_upload_order)


class Rules:
    """``complain`` takes each breach as a sentence; ``exists`` says whether an object is in the bucket, ``is_spoiled`` whether
    the store lied about it, ``is_late`` whether the network put it there when its writer had given up, or a second time: such
    a one may come after its deletion, and is an orphan for reconcile."""

    def __init__(
        self,
        complain: Callable[[str], None],
        exists: Callable[[str], bool],
        is_spoiled: Callable[[str], bool] = lambda key: False,
        is_late: Callable[[str], bool] = lambda key: False,
    ) -> None:
        self._complain, self._exists = complain, exists
        self._is_spoiled, self._is_late = is_spoiled, is_late
        self.segments: dict[RemoteLogSegmentId, SegmentFate] = {}
        self._by_key: dict[str, SegmentFate] = {}
        self.native: set[RemoteLogSegmentId] = set()
        """Copies that the broker itself began: no sidecar deletes one."""

        self.delete_started: Callable[[RemoteLogSegmentMetadata], None] = lambda metadata: None
        self.changed: Callable[[RemoteLogSegmentMetadata], None] = lambda metadata: None
        """Called when a segment is finished, or its deletion has begun."""

    # -- the metadata topic

    def event(self, value: bytes, partition_of: Callable[[RemoteLogSegmentId], SimulatedPartition]) -> None:
        """Note that a record became durable; what the state machine refuses changes nothing."""
        event = read_event(value, where="simulated metadata topic")
        assert isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate), "4.3.1 writes no others"
        fate = self.segments.get(event.remote_log_segment_id)
        if not is_valid_transition(fate.metadata.state if fate else None, event.state):
            return
        if isinstance(event, RemoteLogSegmentMetadata):
            self._began(event, partition_of(event.remote_log_segment_id))
        elif fate is not None and fate.metadata.state is not event.state:
            if event.state is _DELETING and event.remote_log_segment_id in self.native:
                self._complain(f"{_name(fate.metadata)}, a copy of the broker's own, is deleted")
            if fate.is_finished and event.state is _DELETING:
                self.delete_started(fate.metadata)
            fate.metadata = fate.metadata.with_update(event)
            self._by_key.update(dict.fromkeys(fate.keys, fate))
            if event.state is _FINISHED:
                self._finished(fate)
            elif event.state is _DELETED:
                self._check_gone(fate)
            if event.state in (_FINISHED, _DELETING):
                self.changed(fate.metadata)

    def _began(self, metadata: RemoteLogSegmentMetadata, partition: SimulatedPartition) -> None:
        fate = self.segments[metadata.remote_log_segment_id] = SegmentFate(metadata)
        self._by_key.update(dict.fromkeys(fate.keys, fate))
        if partition.unclean_elections or partition.leader is None:
            return
        stable = partition.last_stable_offset()
        if metadata.broker_id == partition.leader and metadata.end_offset >= stable:
            self._complain(f"{_name(metadata)} is copied, but the last stable offset is {stable}")

    def _finished(self, fate: SegmentFate) -> None:
        fate.finished_at += 1
        missing = [key for key in fate.keys if not self._exists(key)]
        if missing:
            self._complain(f"{_name(fate.metadata)} is finished without its objects {missing}")

    def _check_gone(self, fate: SegmentFate) -> None:
        left = [key for key in fate.keys if self._exists(key) and not self._is_late(key)]
        if left:
            self._complain(f"{_name(fate.metadata)} is deleted, but not its objects {left}")

    def is_spoiled(self, fate: SegmentFate) -> bool:
        """Return whether the store does not have one of its objects as it was written."""
        return any(map(self._is_spoiled, fate.keys))

    # -- the bucket

    def put(self, key: str) -> None:
        """Note that an object arrives in the bucket for the first time."""
        if key.endswith((".log", ".indexes", ".rsm-manifest")) and key not in self._by_key:
            self._complain(f"object {key} is stored before COPY_SEGMENT_STARTED is durable")

    def delete(self, keys: Sequence[str]) -> None:
        """Note that objects are deleted."""
        for key in keys:
            fate = self._by_key.get(key)
            if fate is not None and fate.metadata.state in (_STARTED, _FINISHED):
                self._complain(f"object {key} is deleted before DELETE_SEGMENT_STARTED is durable")

    def fetched(self, key: str) -> None:
        """Note that bytes of an object were given back."""
        fate = self._by_key.get(key)
        if fate is not None and key.endswith(".log") and fate.metadata.state is _FINISHED:
            fate.read_back = True

    # -- the broker

    def proven_without_hole(self, partition: SimulatedPartition, remote_log_start: int) -> int:
        """Return up to which offset (exclusive) all is remote and was read back, from the broker's log start or the remote log
        start on."""
        next_needed = max(partition.leader_log.log_start_offset, remote_log_start)
        proven = [fate for fate in self._held(partition) if fate.read_back and not self.is_spoiled(fate)]
        while holders := [one for one in proven if _holds(one, next_needed)]:
            next_needed = max(holder.metadata.next_offset for holder in holders)
        return next_needed

    def trimmed(self, partition: SimulatedPartition, offset: int, remote_log_start: int) -> None:
        """Note that DeleteRecords moves the log start to ``offset``; what lies below the remote log start needs no remote
        copy."""
        next_needed, held = max(partition.leader_log.log_start_offset, remote_log_start), self._held(partition)
        while next_needed < offset:
            holders = [one for one in held if _holds(one, next_needed)]
            if not holders:
                self._complain(
                    f"{partition.topic_id_partition} is trimmed to {offset}, but {next_needed} is not remote"
                )
                return
            if all(self.is_spoiled(holder) for holder in holders):
                self._complain(
                    f"{partition.topic_id_partition} is trimmed to {offset}, but of {next_needed} the store kept something else"
                )
                return
            if not any(holder.read_back for holder in holders):
                self._complain(
                    f"{partition.topic_id_partition} is trimmed to {offset}, but {next_needed} was not read back"
                )
                return
            next_needed = max(holder.metadata.next_offset for holder in holders)

    def _held(self, partition: SimulatedPartition) -> list[SegmentFate]:
        return [
            fate
            for fate in self.segments.values()
            if fate.is_finished and fate.metadata.topic_id_partition == partition.topic_id_partition
        ]


def _holds(fate: SegmentFate, offset: int) -> bool:
    return fate.metadata.start_offset <= offset <= fate.metadata.end_offset


def _name(metadata: RemoteLogSegmentMetadata) -> str:
    return f"segment {metadata.remote_log_segment_id} [{metadata.start_offset}, {metadata.end_offset}]"
