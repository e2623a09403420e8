"""Repair: looks again at each finding of a report, and does what :mod:`tiersidecar.decide.reconcile_repair` says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.config.config import Config
from tiersidecar.app.repair_marks import Mark, drop_marks, put_marks, read_marks
from tiersidecar.app.repair_recopy import RecopyDesk, RecopyOutcome, owner_of, request_for
from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.reconcile_findings import ACTIONS, Action, Finding, FindingKind
from tiersidecar.decide.reconcile_repair import (
    Repair,
    RepairStep,
    RepairView,
    ReportFacts,
    decide_repair,
    is_repairable,
)
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import ConfigError, ObjectNotFoundError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import ObjectKind
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.ports.recopy import segments_of
from tiersidecar.ports.store import Store, StoredObject
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.manifests import recorded_keys
from tiersidecar.reading.segment_presence import SegmentPresence
from tiersidecar.tasks.removal import SegmentRemover

_MARKS_KEPT_GRACES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A finding with what is to be done about it.  ``metadata`` is its segment's, where an event names it."""

    finding: Finding
    step: RepairStep
    metadata: RemoteLogSegmentMetadata | None
    stored: StoredObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSettings:
    """As the operator wants it.  ``wait_ms`` is how long at most for what the sidecars copy again."""

    grace_ms: int
    copy_grace_ms: int
    wait_ms: int = 0


def read_report(directory: Path) -> tuple[Mapping[str, Any], list[Finding]]:
    """The summary, and the findings that repair may do something about.

    Raises:
        ConfigError: there is no whole report.
    """
    from tiersidecar.spark.report import SUMMARY_FILE, read_findings

    try:
        summary = json.loads((directory / SUMMARY_FILE).read_text())
        rows = [row for row in read_findings(directory) if is_repairable(FindingKind(row["kind"]))]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(source=str(directory), faults=(f"is no report of tiersidecar reconcile: {error}",)) from error
    names = Finding.__slots__
    return summary, [
        Finding(**{**{name: row[name] for name in names}, "kind": FindingKind(row["kind"])}) for row in rows
    ]


def report_facts(summary: Mapping[str, Any], config: Config, cluster_id: str) -> ReportFacts:
    """For :func:`tiersidecar.decide.reconcile_repair.refusal`."""
    return ReportFacts(
        schema_version=summary["schema_version"],
        cluster_id=summary["cluster_id"],
        this_cluster_id=cluster_id,
        key_prefix=summary["key_prefix"],
        this_key_prefix=config.store.key_prefix,
        metadata_topic=summary["metadata_topic"],
        this_metadata_topic=config.remote_log_metadata_topic_name,
        begins_at_zero=not any(summary["metadata_begin"].values()),
        object_count=summary["object_count"],
        orphan_count=summary["orphan_count"],
    )


class Repairer:
    """Looks, and acts.  Every step may be abandoned and done again."""

    def __init__(self, session: Session, settings: RepairSettings) -> None:
        self._session, self._settings = session, settings
        self._key_prefix, self._desk = session.config.store.key_prefix, RecopyDesk(session)

    async def plan(self, findings: Iterable[Finding]) -> list[PlannedStep]:
        """What is to be done now: every finding has been looked at again.

        Raises:
            MetadataNotReadyError: the metadata topic could not be replayed.
            StoreError: the store is away.
        """
        planned: list[PlannedStep] = []
        async with self._open_store() as store:
            marks = await read_marks(store, self._key_prefix)
            for owner, group in groupby(sorted(findings, key=owner_of), key=owner_of):
                segments = (await self._session.remote_segments([owner]))[owner]
                of_this = list(group)
                requests = self._session.state.recopies(owner)
                doubted = {one.segment_id for one in of_this if ACTIONS[one.kind] is Action.RECOPY}
                doubted |= {format_uuid(uuid) for uuid in segments_of(requests)}
                looked = _Partition(store, segments, marks, self._key_prefix, self._desk, doubted)
                for finding in of_this:
                    planned.append(await self._planned(looked, finding))  # noqa: PERF401 - one at a time, on purpose
        return planned

    async def apply(self, planned: Sequence[PlannedStep]) -> list[RecopyOutcome]:
        """Do it.  An object is looked at once more right before it goes.  Gives what became of what is to be copied again.

        Raises:
            TiersidecarError: the first that stands in the way; what was done stays done.
        """
        now_ms = self._session.clock.now_ms()
        async with self._open_store() as store:
            marks = [
                Mark(
                    key=one.stored.key,
                    size_bytes=one.stored.size_bytes,
                    modified_ms=one.stored.modified_ms,
                    marked_ms=now_ms,
                )
                for one in planned
                if one.step.repair is Repair.MARK and one.stored is not None
            ]
            if marks:
                await put_marks(
                    store, self._key_prefix, marks, name=f"{now_ms}-{format_uuid(SystemIds().random_uuid())}"
                )
            for one in planned:
                if one.step.repair is Repair.DELETE_OBJECT and one.stored is not None:
                    await _delete_unchanged(store, one.stored)
            await self._delete_segments(store, [one for one in planned if one.step.repair is Repair.DELETE_SEGMENT])
            await drop_marks(
                store,
                self._key_prefix,
                older_than_ms=now_ms - _MARKS_KEPT_GRACES * self._settings.grace_ms - 86_400_000,
            )
        wanted = (one.finding for one in planned if one.step.repair in {Repair.RECOPY, Repair.UNRECOVERABLE})
        asked = await self._desk.ask([request_for(finding, now_ms=now_ms) for finding in wanted])
        outcomes = await self._desk.wait(asked, most_s=self._settings.wait_ms / 1000)
        await self._desk.withdraw(outcomes)
        return outcomes

    async def _delete_segments(self, store: Store, planned: Sequence[PlannedStep]) -> None:
        """Those that still are what they were when they were looked at: metadata are kept of one partition at a time."""
        for owner, group in groupby(planned, key=lambda one: owner_of(one.finding)):
            metadata = await self._session.follow([owner])
            for one in group:
                now = None if one.metadata is None else metadata.segment(one.metadata.remote_log_segment_id)
                if now is not None and one.metadata is not None and now.state is one.metadata.state:
                    reason = f"reconcile: {one.step.reason}"
                    await self._remover(store, now).remove(Removal(metadata=now, reason=reason))

    async def _planned(self, partition: _Partition, finding: Finding) -> PlannedStep:
        view, metadata, stored = await partition.look(finding)
        step = decide_repair(
            finding,
            view,
            grace_ms=self._settings.grace_ms,
            copy_grace_ms=self._settings.copy_grace_ms,
            now_ms=self._session.clock.now_ms(),
        )
        if step.repair is Repair.DELETE_SEGMENT:
            partition.give_up(finding.segment_id)
        return PlannedStep(finding=finding, step=step, metadata=metadata, stored=stored)

    def _remover(self, store: Store, metadata: RemoteLogSegmentMetadata) -> SegmentRemover:
        assert self._session.metadata is not None
        return SegmentRemover(
            metadata_log=self._session.metadata,
            store=store,
            keys_of=lambda segment: recorded_keys(segment, self._key_prefix).in_upload_order,
            clock=self._session.clock,
            failpoints=NO_FAILPOINTS,
            telemetry=NoTelemetry(),
            broker_id=metadata.broker_id,
        )

    @asynccontextmanager
    async def _open_store(self) -> AsyncIterator[Store]:
        clock = self._session.clock
        pace = UploadPace(None, clock)
        async with open_store(
            self._session.config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()
        ) as store:
            yield store


class _Partition:
    """One partition as it is now.  Of the segments ``doubted`` something is damaged: they stand for no other."""

    def __init__(
        self,
        store: Store,
        segments: Sequence[RemoteLogSegmentMetadata],
        marks: Mapping[str, Mark],
        key_prefix: str,
        desk: RecopyDesk,
        doubted: Iterable[str],
    ) -> None:
        self._presence, self._marks, self._desk = SegmentPresence(store, key_prefix), marks, desk
        self._segments = {format_uuid(one.remote_log_segment_id.uuid): one for one in segments}
        finished = {key: one for key, one in self._segments.items() if one.state is State.COPY_SEGMENT_FINISHED}
        entries = sorted({entry for one in finished.values() for entry in one.segment_leader_epochs})
        lineage = Lineage.of(entries)
        self._standing = {key: one for key, one in finished.items() if one.is_within(lineage)}
        for key in doubted:
            self.give_up(key)

    def give_up(self, segment_id: str) -> None:
        """It goes, or is no good: no other may go because of it."""
        self._standing.pop(segment_id, None)

    async def look(self, finding: Finding) -> tuple[RepairView, RemoteLogSegmentMetadata | None, StoredObject | None]:
        metadata = self._segments.get(finding.segment_id)
        stored = await self._presence.head(finding.key) if finding.key else None
        manifest = (
            await self._presence.manifest(f"{finding.key.rpartition('.')[0]}.{ObjectKind.MANIFEST}") if stored else None
        )
        start, end = finding.start_offset, finding.end_offset
        if manifest is not None and manifest.segment is not None:
            start, end = manifest.segment.start_offset, manifest.segment.end_offset
        mark = self._marks.get(finding.key)
        concerns_data = ACTIONS[finding.kind] is Action.RECOPY
        asked = await self._desk.standing(finding) if concerns_data else None
        is_marked = mark is not None and stored is not None and _is_unchanged(mark, stored)
        view = RepairView(
            state=None if metadata is None else metadata.state,
            since_ms=-1 if metadata is None else metadata.event_timestamp_ms,
            object_size_bytes=None if stored is None else stored.size_bytes,
            modified_ms=-1 if stored is None else stored.modified_ms,
            has_readable_manifest=manifest is not None,
            is_covered=end >= 0 and await self._is_covered(finding.segment_id, start, end),
            marked_ms=mark.marked_ms if mark is not None and is_marked else None,
            is_whole=concerns_data and metadata is not None and await self._presence.is_whole(metadata),
            is_asked=asked is not None,
            why_unrecoverable="" if asked is None else await self._desk.why_unrecoverable(asked),
        )
        return view, metadata, stored

    async def _is_covered(self, segment_id: str, start: int, end: int) -> bool:
        """Whether live segments of the lineage other than this one hold all offsets, and have all their objects."""
        next_offset = start
        for other_id, other in self._standing.items():
            if other_id == segment_id:
                continue
            if other.start_offset <= next_offset <= other.end_offset and await self._presence.is_whole(other):
                next_offset = other.end_offset + 1
        return next_offset > end


def _is_unchanged(mark: Mark, stored: StoredObject) -> bool:
    return (mark.size_bytes, mark.modified_ms) == (stored.size_bytes, stored.modified_ms)


async def _delete_unchanged(store: Store, planned: StoredObject) -> None:
    try:
        now = await store.head_object(planned.key)
    except ObjectNotFoundError:
        return
    if (now.size_bytes, now.modified_ms) == (planned.size_bytes, planned.modified_ms):
        await store.delete_objects([planned.key])
