"""A compacted partition of which the local log is trimmed: the remote tier and the lane of :mod:`clean_world`, and a broker's
log on this disk, which its own cleaner has left in any state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.clean_world import BROKER, CleanWorld
from tests.support.compacted_logs import LogSegment, all_records, clean
from tests.support.inline_blocking import InlineBlocking
from tests.support.lane_parts import actor_of, edges_of, sources_of
from tests.support.scripted import ScriptedFailpoints
from tiersidecar.adapters.log_dirs_fs.segment_file import OpenSegmentFile
from tiersidecar.adapters.pins_fs.pin_directory import first_hole
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.decide.quota import RateQuota
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.contained_read_back import ContainedReadBack
from tiersidecar.tasks.copy_admission import CopyQuota
from tiersidecar.tasks.read_back import ReadBack
from tiersidecar.tasks.topic_checks import TopicChecks
from tiersidecar.tasks.trim import TrimTask
from tiersidecar.tasks.trim_compacted import CompactedTrims
from tiersidecar.tasks.trim_gate import GroupReads, TrimGate

TRIMMED = TopicPolicy(local_retention_bytes=0)
DAY_MS = 86_400_000


class TrimWorld:
    """``log`` is the leader's local log without its active segment, ``cleaned_to`` what the broker's cleaner says of it.
    What is below ``written_from`` another leader has written, and its cleaner may have been there."""

    def __init__(
        self,
        directory: Path,
        *,
        delete_retention_ms: int = DAY_MS,
        policy: str = "compact,delete",
        is_enabled: bool = True,
    ) -> None:
        self.remote = CleanWorld(scratch=directory / "cleaned")
        self.remote.configure(
            cleanup_policy=policy,
            retention_ms="-1",
            retention_bytes="-1",
            delete_retention_ms=str(delete_retention_ms),
        )
        self.remote.builder.event_timestamp_ms = self.remote.clock.now_ms()
        self.delete_retention_ms, self.segment_bytes = delete_retention_ms, 1
        """Of less than any segment: the broker's cleaner merges none."""
        self.directory, self.log, self.cleaned_to = directory / "local", list[LogSegment](), -1
        self.is_checkpoint_readable, self.written_from = True, 0
        self._is_enabled, self._writes = is_enabled, 0
        self.trims = self._compacted()

    @property
    def log_start(self) -> int:
        return self.remote.broker.log_starts.get(self.remote.owner, 0)

    @property
    def reason(self) -> str:
        """Return why trims wait."""
        waits = self.remote.table.record(self.remote.owner).uncleaned
        return "" if waits is None else waits.reason

    async def cleaner_offset(self, local: LocalPartition) -> int | None:
        return self.cleaned_to if self.is_checkpoint_readable else None

    async def first_cleaned(self, segment: LocalSegment, start: Offset, stop: Offset) -> Offset | None:
        return first_hole([segment], start, stop, horizons=True)

    def append(self, *segments: LogSegment) -> None:
        """Seal segments of the broker's log."""
        self.log += segments

    def broker_cleans(self, stop: int | None = None, *, now_ms: int | None = None, is_cut_short: bool = False) -> None:
        """Run a round of the broker's cleaner over what is sealed below ``stop``; cut short, it leaves no checkpoint."""
        cleaned = [one for one in self.log if stop is None or one.next_base_offset <= stop]
        first_dirty = max(self.cleaned_to, cleaned[0].base_offset) if cleaned else 0
        if not cleaned or first_dirty >= cleaned[-1].next_base_offset:
            return
        done = clean(
            cleaned,
            now_ms=self.remote.clock.now_ms() if now_ms is None else now_ms,
            delete_retention_ms=self.delete_retention_ms,
            first_dirty_offset=first_dirty,
            segment_bytes=self.segment_bytes,
        )
        self.log = [*done.segments, *self.log[len(cleaned) :]]
        self.cleaned_to = self.cleaned_to if is_cut_short else done.cleaner_offset

    async def trim(self, actions: dict[str, Callable[[], Awaitable[None]]] | None = None) -> int:
        """Look at the disk, and let the lane trim; return where the broker's log begins then."""
        self.look()
        await self._checks().check([self.remote.owner.topic])
        self.remote.table.record(self.remote.owner).copied_offset = max(
            (one.end_offset for one in self.remote.segments()), default=-1
        )
        task = self._trim_task(actions or {})
        if task.may_have_work(self.remote.partition):
            await task.run(self.remote.partition)
        self.log = [one for one in self.log if one.next_base_offset > self.log_start]
        return self.log_start

    def look(self) -> None:
        """Write the log to this disk, and scan it."""
        self._writes += 1
        directory = self.directory / str(self._writes)
        directory.mkdir(parents=True)
        segments = []
        for one in self.log:
            path = directory / f"{one.base_offset:020d}.log"
            path.write_bytes(one.log)
            segments.append(
                LocalSegment(
                    directory=str(directory),
                    base_offset=Offset(one.base_offset),
                    next_base_offset=Offset(one.next_base_offset),
                    size_bytes=len(one.log),
                    modified_ms=hash(one.log) % 1_000_000,
                )
            )
        end = segments[-1].next_base_offset or Offset(0) if segments else Offset(0)
        (directory / f"{end:020d}.log").touch()
        active = LocalSegment(
            directory=str(directory),
            base_offset=end,
            next_base_offset=None,
            size_bytes=0,
            modified_ms=0,
        )
        tiered = self.remote.partition
        local = LocalPartition(
            topic_id_partition=self.remote.owner,
            log_dir=str(self.directory),
            directory=str(directory),
            segments=(*segments, active),
            leader_epochs=(EpochEntry(LeaderEpoch(tiered.view.leader_epoch), Offset(self.written_from)),),
        )
        self.remote.table.local = LogDirsView(partitions={self.remote.owner: local}, faults={})
        self.remote.table.assignment = {self.remote.owner: replace(tiered, policy=TRIMMED)}

    def restart(self) -> None:
        """Begin a new process."""
        self.trims = self._compacted()

    def _parts(self, actions: dict[str, Callable[[], Awaitable[None]]]) -> tuple:  # type: ignore[type-arg]
        sources = sources_of(
            table=self.remote.table,
            broker=self.remote.broker,
            metadata=self.remote.builder.run.metadata,
            state=self.remote.state,
            lineages=self.remote.lineages,
        )
        return sources, edges_of(self.remote.clock, failpoints=ScriptedFailpoints(actions))

    def _compacted(self) -> CompactedTrims:
        sources, edges = self._parts({})
        blocking = InlineBlocking()
        return CompactedTrims(
            sources=sources,
            edges=edges,
            cleaner=self,
            verifier=ContainedReadBack(
                log_dirs=self,  # type: ignore[arg-type]
                remote=SegmentStream(store=self.remote.builder.run.store, blocking=blocking),
                quota=CopyQuota(quota=RateQuota(), clock=self.remote.clock),
                pace=UploadPace(None, self.remote.clock),
                blocking=blocking,
            ),
            is_enabled=self._is_enabled,
        )

    @asynccontextmanager
    async def open_segment(self, segment: LocalSegment) -> AsyncIterator[OpenSegmentFile]:
        file = OpenSegmentFile(segment, blocking=InlineBlocking())
        await file.open()
        try:
            yield file
        finally:
            await file.close()

    def _checks(self) -> TopicChecks:
        return TopicChecks(
            broker=self.remote.broker,
            table=self.remote.table,
            policy_for=lambda topic: TRIMMED,
            max_name_bytes=None,
            clock=self.remote.clock,
            telemetry=NoTelemetry(),
            tiers_compacted=True,
        )

    def _trim_task(self, actions: dict[str, Callable[[], Awaitable[None]]]) -> TrimTask:
        sources, edges = self._parts(actions)
        table, broker, clock = self.remote.table, self.remote.broker, self.remote.clock
        stream = SegmentStream(store=self.remote.builder.run.store, blocking=InlineBlocking())
        return TrimTask(
            sources=sources,
            edges=edges,
            actor=actor_of(self.remote.switch, broker_id=BROKER),
            checks=self._checks(),
            verifier=ReadBack(
                log_dirs=self,  # type: ignore[arg-type]
                remote=stream,
                quota=CopyQuota(quota=RateQuota(), clock=clock),
                pace=UploadPace(None, clock),
            ),
            gate=TrimGate(
                table=table,
                reads=GroupReads(table=table, broker=broker, clock=clock),
                clock=clock,
                telemetry=NoTelemetry(),
            ),
            compacted=self.trims,
        )


def records_below(segments: Sequence[LogSegment], offset: int) -> set[int]:
    """Return the offsets of all records of a log below ``offset``, markers too."""
    return {int(record.offset) for one in segments for record in all_records(one.log) if record.offset < offset}
