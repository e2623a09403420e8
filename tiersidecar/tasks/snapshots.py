"""The snapshot lane: records of both topics about the partitions that this broker leads, in the store, a few minutes old at
most.

It reads, and writes objects of its own; nothing that copies, trims or deletes waits for it.  What decides that something is
deleted is not put off: a change of the trash, of the remote log start's generation or of users' deletes is written at the next
look, so that the trash is in the store before the first DELETE_SEGMENT_STARTED that comes of it.

A topic that has lost data must not take the snapshots with it: what the last one has, the topics lack and the store still holds
was never deleted, and then it is not replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

import structlog

from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError, ObjectExistsError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.metadata_cache_rows import SegmentPicture
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import Pause
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.metrics.process import SNAPSHOT_AGE, SNAPSHOTS
from tiersidecar.ports.partition_snapshots import (
    PartitionSnapshot,
    SnapshotShelf,
    SnapshotVersion,
    snapshot_directory,
    state_with,
)
from tiersidecar.ports.state_log import PartitionOfTopic, PartitionState, TopicState
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.tasks.edges import Edges, Sources
from tiersidecar.tasks.topic_owners import Claimant, ClaimLook

_log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 15.0
"""Time between looks for partitions that are due, or have changed in the state topic: 0.1 % of a core for 4,000."""
_RETRY_S = 30.0
"""Pause after a failure, unless the interval is shorter."""
_AT_ONCE = 4
_SLICE = 50
_MOST_LOOKED_FOR = 8
"""Most segments that are gone and looked for: the last ones, which retention takes last."""
_RECOVER = "the last snapshot is kept: rebuild the topic with `tiersidecar recover`"
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_SPREAD = 1 << 16
_MARKED_AT_ONCE = 1000
"""About 50 us."""


_Paused = Mapping[Uuid | None, Sequence[Pause]]
"""Pauses by topic id; None for what holds for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Records of the state topic that a snapshot repeats."""

    state: PartitionState
    topic_state: TopicState | None
    trash: tuple[TrashEntry, ...]
    pauses: tuple[Pause, ...]

    @property
    def deletes(self) -> object:
        """Return what must not be late in the store."""
        return self.trash, self.state.user_deletes, self.state.undone, self.state.start_generation, self.pauses


@dataclass(slots=True, kw_only=True)
class _Note:
    """Last snapshot of a partition in this leader epoch.  ``due_s`` is when the next may be, on the monotonic clock;
    ``changed_s`` since when something is known that no snapshot has, None while nothing is.  ``found`` is what was said before
    the first one was written."""

    leader_epoch: LeaderEpoch
    due_s: float
    version: SnapshotVersion | None = None
    said: _Said | None = None
    found: _Said | None = None
    segments: int | None = None
    changed_s: float | None = None
    fails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """``interval_s`` is between two snapshots of a partition without deletes; ``recorded`` is what each says of the sidecar's
    configuration."""

    interval_s: float
    recorded: Mapping[str, str]


class SnapshotLane:
    """``is_ours`` gives whether this process holds its broker's tier role, ``is_doubted`` whether one of the topics may have
    lost data; ``settings`` go into each snapshot."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        claimant: Claimant,
        settings: SnapshotSettings,
        shelf: SnapshotShelf,
        claims: ClaimLook,
        presence: SegmentPresence,
        is_ours: Callable[[], bool],
    ) -> None:
        self._table, self._metadata, self._state = sources.table, sources.metadata, sources.state
        self._clock, self._blocking, self._telemetry = edges.clock, edges.blocking, edges.telemetry
        self._claimant, self._settings, self._interval_s = claimant, settings.recorded, settings.interval_s
        self._shelf, self._claims, self._presence, self._is_ours = shelf, claims, presence, is_ours
        self._notes: dict[TopicIdPartition, _Note] = {}
        self._turn = sources.table.turns
        self._reported_s = edges.clock.monotonic_s()
        self._state_changes = -1
        self._stirred: set[PartitionOfTopic] = set()
        """Partitions of which the state topic may say what no snapshot has."""
        for outcome in ("written", "failed"):  # a series that begins with its first event shows no increase
            edges.telemetry.count(SNAPSHOTS, 0, outcome=outcome)

    async def run(self) -> None:
        """Look, until cancelled.  A fault of a look ends nothing but the look: this process also copies."""
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001
                self._telemetry.count(SNAPSHOTS, outcome="failed")
                _log.exception("snapshots.look.failed", reason=str(error) or repr(error))
            await self._clock.sleep(min(LOOK_INTERVAL_S, self._interval_s))

    async def look(self) -> None:
        """Write what is due, some partitions at once.  Of thousands, a slice is looked at before other work has the loop."""
        turn, led = asyncio.Semaphore(_AT_ONCE), set[TopicIdPartition]()
        if self._turn != self._table.turns:  # another process has written meanwhile, be it only between two looks
            self._turn = self._table.turns
            self._notes.clear()
        paused = self._paused()
        self._note_changes()

        async def write(topic_id_partition: TopicIdPartition, tiered: TieredPartition) -> None:
            async with turn:
                await self._write(topic_id_partition, tiered)

        async with asyncio.TaskGroup() as writing:
            is_ours, now_s = self._is_ours(), self._clock.monotonic_s()
            for count, (topic_id_partition, tiered) in enumerate(list(self._table.assignment.items()), 1):
                if count % _SLICE == 0:
                    await asyncio.sleep(0)
                    is_ours, now_s = self._is_ours(), self._clock.monotonic_s()
                if is_ours and self._rests(topic_id_partition, tiered, now_s):
                    led.add(topic_id_partition)
                    continue
                if not (is_ours and self._is_led(topic_id_partition, tiered)):
                    continue
                led.add(topic_id_partition)
                if self._is_due(topic_id_partition, tiered.view.leader_epoch, paused):
                    writing.create_task(write(topic_id_partition, tiered), name=f"snapshot {topic_id_partition}")
        for topic_id_partition in self._notes.keys() - led:
            del self._notes[topic_id_partition]
        if self._stirred:  # the state topic has all partitions of the cluster
            self._stirred &= {(one.topic_id, one.partition) for one in led}
        self._report_age()

    def _note_changes(self) -> None:
        since, self._state_changes = self._state_changes, self._state.changes
        changed = self._state.changed_since(since)
        if changed is None:
            changed = frozenset((one.topic_id, one.partition) for one in self._table.assignment)
        self._stirred |= changed

    def _report_age(self) -> None:
        """Set the gauge of how long the longest change waits.  A look at thousands may take long, if each write has to be given
        up."""
        self._reported_s = now_s = self._clock.monotonic_s()
        changed = (note.changed_s for note in self._notes.values() if note.changed_s is not None)
        self._telemetry.gauge(SNAPSHOT_AGE, max(0.0, now_s - min(changed, default=now_s)))

    def _leads(self, topic_id_partition: TopicIdPartition, tiered: TieredPartition) -> bool:
        return self._is_led(topic_id_partition, tiered) and self._is_ours()

    def _is_led(self, topic_id_partition: TopicIdPartition, tiered: TieredPartition) -> bool:
        return tiered.role is PartitionRole.LEADER and self._table.leads(topic_id_partition, tiered.view.leader_epoch)

    def _rests(self, topic_id_partition: TopicIdPartition, tiered: TieredPartition, now_s: float) -> bool:
        """Return whether nothing of it waits to be written, and nothing is said that could be due: so it is with nearly all of
        thousands, and whether it is led, too, is asked when it has its turn."""
        note = self._notes.get(topic_id_partition)
        return (
            note is not None
            and now_s < note.due_s
            and note.changed_s is None
            and note.found is not None
            and tiered.role is PartitionRole.LEADER
            and tiered.view.leader_epoch == note.leader_epoch
            and (topic_id_partition.topic_id, topic_id_partition.partition) not in self._stirred
        )

    def _is_due(self, topic_id_partition: TopicIdPartition, leader_epoch: LeaderEpoch, paused: _Paused) -> bool:
        now_s = self._clock.monotonic_s()
        note = self._notes.get(topic_id_partition)
        if note is None or note.leader_epoch != leader_epoch:
            # Thousands of partitions do not write at once when a sidecar starts.
            share = crc32(topic_id_partition.qualified.encode()) % _SPREAD / _SPREAD
            note = self._notes[topic_id_partition] = _Note(
                leader_epoch=leader_epoch, due_s=now_s + share * self._interval_s
            )
            note.found = self._said(topic_id_partition, paused)
        if now_s >= note.due_s:
            return True
        owner = (topic_id_partition.topic_id, topic_id_partition.partition)
        if note.found is not None and owner not in self._stirred:
            return False
        said = self._said(topic_id_partition, paused)
        if said is None or note.fails:  # it has its turn
            return False
        note.found = note.found or said
        is_due = said.deletes != (note.said or note.found).deletes
        if not is_due:
            self._stirred.discard(owner)
        return is_due

    def _paused(self) -> _Paused:
        """Return the pauses, once for a look: thousands of partitions times hundreds of pauses would take the loop for
        seconds."""
        paused: dict[Uuid | None, list[Pause]] = {}
        with suppress(MetadataNotReadyError):  # then nothing is said of any partition
            for pause in self._state.pauses():
                paused.setdefault(pause.thing.topic_id, []).append(pause)
        return paused

    def _said(self, topic_id_partition: TopicIdPartition, paused: _Paused | None = None) -> _Said | None:
        paused = self._paused() if paused is None else paused
        try:
            return _Said(
                state=self._state.partition_state(topic_id_partition),
                topic_state=self._state.topic_state(topic_id_partition.topic_id),
                trash=tuple(self._state.trash(topic_id_partition)),
                pauses=(*paused.get(None, ()), *paused.get(topic_id_partition.topic_id, ())),
            )
        except MetadataNotReadyError:
            return None

    async def _write(self, topic_id_partition: TopicIdPartition, tiered: TieredPartition) -> None:
        """Do one turn of a partition; whatever goes wrong in it concerns no other one, and nothing but its snapshot."""
        note, began_s = self._notes[topic_id_partition], self._clock.monotonic_s()
        note.due_s, note.fails = began_s + self._interval_s, False
        try:
            await self._write_if_changed(topic_id_partition, tiered, note)
        except ObjectExistsError:
            note.version = None  # another process of this broker's wrote it: look again which is the last
        except MetadataNotReadyError:
            return  # it is led no more, or its metadata are being read
        except Exception as error:  # noqa: BLE001  copying and deleting go on without
            self._telemetry.count(SNAPSHOTS, outcome="failed")
            note.fails, note.due_s = True, began_s + min(_RETRY_S, self._interval_s)
            if self._clock.monotonic_s() - self._reported_s >= LOOK_INTERVAL_S:
                self._report_age()
            _log.warning(
                "snapshot.failed",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                reason=str(error) or repr(error),
            )

    async def _write_if_changed(
        self, topic_id_partition: TopicIdPartition, tiered: TieredPartition, note: _Note
    ) -> None:
        said, now_s = self._said(topic_id_partition), self._clock.monotonic_s()
        if said is None or not self._metadata.is_ready(topic_id_partition):
            return
        picture = self._metadata.picture(topic_id_partition)
        mark = await self._mark_of(picture)
        if (note.said, note.segments) == (said, mark) or _is_empty(note, said, picture):
            note.changed_s = None
            return
        if not await self._claims.has_claimed(topic_id_partition.topic_id):
            note.changed_s = None  # not ours to write
            return
        note.changed_s = now_s if note.changed_s is None else note.changed_s
        segments = await self._blocking.run(picture.segments)
        if not await self._may_write(topic_id_partition, note, said, segments):
            return
        epochs = await self._blocking.run(_epochs_of, segments)
        # The store was asked meanwhile.  From here on nothing is awaited until all is taken: it is of one moment, the highest
        # offsets too.  A segment that they count and the snapshot lacks would be taken for a deleted one.
        said = self._said(topic_id_partition)
        if said is None or not self._leads(topic_id_partition, tiered):
            return
        picture, written_ms = self._metadata.picture(topic_id_partition), self._clock.now_ms()
        highest = self._highest_offsets(
            topic_id_partition, epochs | {entry.epoch for entry in said.state.leader_epochs} | {note.leader_epoch}
        )
        former, mark = mark, await self._mark_of(picture)
        if mark != former:
            segments = await self._blocking.run(picture.segments)
        snapshot = self._taken(topic_id_partition, note, said, segments, highest, written_ms)
        if not self._leads(topic_id_partition, tiered):
            return
        await self._shelf.put(snapshot)
        note.version, note.said, note.segments, note.changed_s = snapshot.version, said, mark, None
        self._telemetry.count(SNAPSHOTS, outcome="written")
        _log.debug(
            "snapshot.written",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            leader_epoch=snapshot.version.leader_epoch,
            serial=snapshot.version.serial,
            segments=len(snapshot.segments),
        )

    async def _mark_of(self, picture: SegmentPicture) -> int:
        """Return the mark, made in a thread where there are many segments: of few it takes less than the way there."""
        return picture.mark if len(picture) <= _MARKED_AT_ONCE else await self._blocking.run(_made_mark, picture)

    async def _may_write(
        self,
        topic_id_partition: TopicIdPartition,
        note: _Note,
        said: _Said,
        segments: Sequence[RemoteLogSegmentMetadata],
    ) -> bool:
        """Learn what the last snapshot is: once in a leader epoch, and while a topic is in doubt.  It stays if it is a later
        leader's, or knows more than the topics do."""
        if note.version is not None and not (self._metadata.halted_reason or self._state.halted_reason):
            return True
        version, last = await self._shelf.latest(topic_id_partition)
        if version is not None and version.leader_epoch > note.leader_epoch:
            # A deposed leader learns of it soon.  In a cluster that was set up anew, epochs begin at 0 again: that stays.
            _log.warning(
                "snapshot.left",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                leader_epoch=note.leader_epoch,
                reason=f"the store has one of leader epoch {version.leader_epoch}, which readers would take; where no broker "
                f"leads in that epoch, remove {snapshot_directory('<key.prefix>', topic_id_partition)}",
            )
            return False
        if last is not None and (reason := await self._forgotten(last, said, segments)):
            _log.error(
                "snapshot.kept", topic=topic_id_partition.topic, partition=topic_id_partition.partition, reason=reason
            )
            return False
        is_ours = version is not None and version.leader_epoch == note.leader_epoch
        serial = version.serial if is_ours and version is not None else 0
        note.version = SnapshotVersion(leader_epoch=note.leader_epoch, serial=serial)
        return True

    async def _forgotten(
        self, last: PartitionSnapshot, said: _Said, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> str:
        """Return what the topics have lost since ``last``, as text; "" where nothing shows it."""
        highest = state_with(last.state, said.state).highest_start
        deletes = said.state.merged_with(last.state).user_deletes
        if highest > said.state.highest_start or set(deletes) != set(said.state.user_deletes):
            return f"the state topic has forgotten deletes that the last snapshot knows; {_RECOVER}"
        known = {segment.remote_log_segment_id for segment in segments}
        missing = [
            segment
            for segment in last.segments
            if segment.state is _FINISHED and segment.remote_log_segment_id not in known
        ]
        for one in missing[-_MOST_LOOKED_FOR:]:
            if await self._presence.is_whole(one):
                lost = f"segment {one.remote_log_segment_id}, which the store has whole"
                return f"the metadata topic has forgotten {lost}; {_RECOVER}"
        return ""

    def _highest_offsets(self, topic_id_partition: TopicIdPartition, epochs: Iterable[int]) -> dict[int, int]:
        highest = (
            (epoch, self._metadata.highest_offset_for_epoch(topic_id_partition, epoch)) for epoch in sorted(epochs)
        )
        return {epoch: offset for epoch, offset in highest if offset is not None}

    def _taken(
        self,
        topic_id_partition: TopicIdPartition,
        note: _Note,
        said: _Said,
        segments: tuple[RemoteLogSegmentMetadata, ...],
        highest_offsets: Mapping[int, int],
        written_ms: int,
    ) -> PartitionSnapshot:
        assert note.version is not None, "it was learnt right before"
        return PartitionSnapshot(
            cluster_id=self._claimant.cluster_id,
            topic_id_partition=topic_id_partition,
            version=SnapshotVersion(leader_epoch=note.leader_epoch, serial=note.version.serial + 1),
            written_ms=written_ms,
            broker_id=self._claimant.broker_id,
            incarnation=self._claimant.incarnation,
            segments=segments,
            highest_offsets=highest_offsets,
            state=said.state,
            topic_state=said.topic_state,
            trash=said.trash,
            pauses=said.pauses,
            settings=self._settings,
        )


def _made_mark(picture: SegmentPicture) -> int:
    return picture.mark


def _epochs_of(segments: Sequence[RemoteLogSegmentMetadata]) -> set[int]:
    return {int(entry.epoch) for one in segments for entry in one.segment_leader_epochs}


def _is_empty(note: _Note, said: _Said, picture: SegmentPicture) -> bool:
    """Return whether there is nothing to keep yet: nothing was ever copied, and nothing said."""
    return note.said is None and not len(picture) and not said.trash and said.state == PartitionState()
