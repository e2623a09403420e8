"""Repair: looks again at each finding of a report, and does what :mod:`tiersidecar.decide.reconcile_repair` says.

What is deleted is decided twice: when the plan is made, for people to see, and again right before it goes, on metadata that
have caught up and on what the store says then.  One repair acts at a time: it holds the lease ``repair``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import structlog

from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.app.builders.store import open_store
from tiersidecar.app.commands.session import Session
from tiersidecar.app.config.config import Config
from tiersidecar.app.deletion_doubts import is_native, reason_not_ours, reason_not_to_delete
from tiersidecar.app.held_lease import HeldLease, claimed_lease, kept_renewed
from tiersidecar.app.reconcile_facts import TopicBounds
from tiersidecar.app.repair_look import Mark, PartitionFacts, PartitionLook, drop_marks, put_marks, read_marks
from tiersidecar.app.repair_recopy import RecopyDesk, RecopyOutcome, owner_of, request_for
from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.metadata_doubt import FormerLook, MetadataFacts, doubt_of_topic
from tiersidecar.decide.reconcile_findings import ACTIONS, Action, Finding, FindingKind
from tiersidecar.decide.reconcile_repair import (
    Repair,
    RepairStep,
    ReportFacts,
    decide_repair,
    is_repairable,
)
from tiersidecar.decide.trash import TrashDelays, needless
from tiersidecar.domain.errors import ConfigError, MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.lease import REPAIR_LEASE, decision_ms
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.ports.state_records import segments_of
from tiersidecar.ports.store import Store, StoredObject
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.reading.remote_objects import SegmentPresence
from tiersidecar.tasks.ownership import LeasedOwnership
from tiersidecar.tasks.removal import SegmentRemover

_log = structlog.get_logger(__name__)

LEASE = REPAIR_LEASE
_MARKS_KEPT_GRACES = 20
_DELETIONS = frozenset({Repair.DELETE_OBJECT, Repair.DELETE_SEGMENT, Repair.TRASH_SEGMENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A finding with what is to be done about it.  ``metadata`` is its segment's, where an event names it."""

    finding: Finding
    step: RepairStep
    metadata: RemoteLogSegmentMetadata | None
    stored: StoredObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairSettings:
    """The operator's settings.  ``wait_ms`` is how long at most for what the sidecars copy again."""

    grace_ms: int
    copy_grace_ms: int
    wait_ms: int = 0


def read_report(directory: Path) -> tuple[Mapping[str, Any], list[Finding]]:
    """Read the summary, and the findings that repair may do something about.

    Raises:
        ConfigError: there is no whole report.
    """
    from tiersidecar.reconcile.report import SUMMARY_FILE, read_findings

    try:
        summary = json.loads((directory / SUMMARY_FILE).read_text())
        rows = [row for row in read_findings(directory) if is_repairable(FindingKind(row["kind"]))]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(source=str(directory), faults=(f"is no report of tiersidecar reconcile: {error}",)) from error
    names = Finding.__slots__
    return summary, [
        Finding(**{**{name: row[name] for name in names}, "kind": FindingKind(row["kind"])}) for row in rows
    ]


def report_facts(summary: Mapping[str, Any], config: Config, cluster_id: str, metadata: TopicBounds) -> ReportFacts:
    """Return facts for :func:`tiersidecar.decide.reconcile_repair.refusal`; ``metadata`` is the topic as it is now."""
    seen = FormerLook(
        run_id=summary["run_id"],
        topic_id=summary.get("metadata_topic_id", ""),
        end={int(partition): end for partition, end in summary["metadata_end"].items()},
    )
    now = MetadataFacts(
        topic=config.remote_log_metadata_topic_name,
        topic_id=metadata.topic_id,
        begin=metadata.begin,
        end=metadata.end,
        former=seen,
    )
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
        metadata_doubt=summary.get("metadata_doubt", "") or doubt_of_topic(now),
    )


class Repairer:
    """Looks, and acts.  Every step may be abandoned and done again."""

    def __init__(
        self, session: Session, settings: RepairSettings, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._session, self._settings, self._say = session, settings, say
        self._key_prefix, self._desk = session.config.store.key_prefix, RecopyDesk(session)
        self._damaged: defaultdict[TopicIdPartition, set[str]] = defaultdict(set)

    @property
    def reason_not_to_delete(self) -> str | None:
        """Return why nothing may be deleted: the metadata topic and the state topic do not bear it, or an operator has paused
        it, of any topic; else None."""
        return reason_not_to_delete(self._session)

    async def plan(self, findings: Iterable[Finding]) -> list[PlannedStep]:
        """Return what is to be done now: every finding has been looked at again.

        Raises:
            MetadataNotReadyError: the metadata topic could not be replayed.
            StoreError: the store is away.
        """
        planned: list[PlannedStep] = []
        async with self._open_store() as store:
            marks = await read_marks(store, self._key_prefix)
            for owner, group in groupby(sorted(findings, key=owner_of), key=owner_of):
                of_this = list(group)
                if not 0 <= owner.partition < 2**31:
                    step = RepairStep(repair=Repair.LEAVE, reason=f"partition {owner.partition} is none of Kafka's")
                    planned += [PlannedStep(finding=one, step=step, metadata=None, stored=None) for one in of_this]
                    continue
                self._damaged[owner] |= {one.segment_id for one in of_this if ACTIONS[one.kind] is Action.RECOPY}
                partition = await self._look_at(owner, store, marks)
                for finding in of_this:
                    planned.append(await self._planned(partition, finding))
        return planned

    async def apply(self, planned: Sequence[PlannedStep]) -> list[RecopyOutcome]:
        """Do it; a deletion that is no longer right by now is left out.  Gives what became of what is to be copied again.

        Raises:
            LeaseHeldError: another repair acts.
            TiersidecarError: the first that stands in the way; what was done stays done.
        """
        async with (
            self._open_store() as store,
            claimed_lease(self._session, SystemIds(), LEASE, self._say) as lease,
            kept_renewed(lease, self._session.clock),
        ):
            await self._put_marks(store, planned)
            marks = await read_marks(store, self._key_prefix)
            for one in planned:
                if one.step.repair in _DELETIONS:
                    await self._delete(store, marks, lease, one)
            kept_ms = _MARKS_KEPT_GRACES * self._settings.grace_ms + 86_400_000
            await drop_marks(store, self._key_prefix, older_than_ms=self._session.clock.now_ms() - kept_ms)
        wanted = (one.finding for one in planned if one.step.repair in {Repair.RECOPY, Repair.UNRECOVERABLE})
        now_ms = self._session.clock.now_ms()
        asked = await self._desk.ask([request_for(finding, now_ms=now_ms) for finding in wanted])
        outcomes = await self._desk.wait(asked, most_s=self._settings.wait_ms / 1000)
        await self._desk.withdraw(outcomes)
        return outcomes

    async def _put_marks(self, store: Store, planned: Sequence[PlannedStep]) -> None:
        now_ms = self._session.clock.now_ms()
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
            name = f"{now_ms}-{format_uuid(SystemIds().random_uuid())}"
            await put_marks(store, self._key_prefix, marks, name=name)

    async def _delete(self, store: Store, marks: Mapping[str, Mark], lease: HeldLease, one: PlannedStep) -> None:
        """Decide anew, on what holds now, and delete; nothing is waited for between the two.

        Raises:
            LeaseHeldError: another repair may act by now.
            MetadataNotReadyError: the topics have lost data, or their settings are weak.
        """
        await lease.renew()
        partition = await self._look_at(owner_of(one.finding), store, marks)
        now = await self._planned(partition, one.finding)
        lease.require()
        if reason := self.reason_not_to_delete:
            raise MetadataNotReadyError(subject=f"{owner_of(one.finding)} ({reason})")
        if now.step.repair is not one.step.repair:
            _log.info("repair.left", key=now.finding.key, segment_id=now.finding.segment_id, reason=now.step.reason)
        elif now.step.repair is Repair.DELETE_OBJECT and now.stored is not None:
            await store.delete_objects([now.stored.key])
        elif now.step.repair is Repair.TRASH_SEGMENT and now.metadata is not None:
            await self._put_into_trash(now.metadata, partition.leader_epoch, now.step.reason)
        elif now.metadata is not None:
            removal = Removal(metadata=now.metadata, reason=f"reconcile: {now.step.reason}")
            await self._remover(store, now.metadata, lease).remove(removal)

    async def _put_into_trash(self, segment: RemoteLogSegmentMetadata, leader_epoch: int | None, reason: str) -> None:
        """Put it into the trash: the leader's sidecar deletes it when due, if others still hold its records then."""
        owner, config = segment.topic_id_partition, self._session.config
        entry = needless(
            segment,
            LeaderEpoch(NO_EPOCH if leader_epoch is None else leader_epoch),
            generation=self._session.state.partition_state(owner).start_generation,
            delays=TrashDelays(retention_ms=config.delete_delay, user_ms=config.user_delete_delay),
            now_ms=decision_ms(self._session.clock.now_ms(), self._session.state.known_leases()),
            reason=f"repair: {reason}",
            by="tiersidecar repair",
        )
        await self._session.state.put_into_trash(owner, [entry])

    async def _look_at(self, owner: TopicIdPartition, store: Store, marks: Mapping[str, Mark]) -> PartitionLook:
        """Return the partition as it is now: both topics have been read to their ends."""
        await self._session.state.catch_up()
        segments = (await self._session.remote_segments([owner]))[owner]
        requested = segments_of(self._session.state.recopies(owner))
        views = await self._session.broker.describe_partitions([owner.topic])
        lives_here = any(view.topic_id_partition.topic_id == owner.topic_id for view in views)
        facts = PartitionFacts(
            segments=segments,
            state=self._session.state.partition_state(owner),
            trash=self._session.state.trash(owner),
            leader_epoch=next((view.leader_epoch for view in views if view.topic_id_partition == owner), None),
            doubted=self._damaged[owner] | {format_uuid(uuid) for uuid in requested},
            is_native=await is_native(self._session, owner.topic),
            not_ours=await reason_not_ours(self._session, store, owner, lives_here=lives_here),
        )
        presence = SegmentPresence(store, self._key_prefix)
        return PartitionLook(facts, presence=presence, marks=marks, desk=self._desk)

    async def _planned(self, partition: PartitionLook, finding: Finding) -> PlannedStep:
        look = await partition.look(finding)
        step = decide_repair(
            finding,
            look.view,
            grace_ms=self._settings.grace_ms,
            copy_grace_ms=self._settings.copy_grace_ms,
            now_ms=self._session.clock.now_ms(),
        )
        if step.repair in {Repair.DELETE_SEGMENT, Repair.TRASH_SEGMENT}:
            partition.give_up(finding.segment_id)
        return PlannedStep(finding=finding, step=step, metadata=look.metadata, stored=look.stored)

    def _remover(self, store: Store, metadata: RemoteLogSegmentMetadata, lease: HeldLease) -> SegmentRemover:
        """Build one that asks the lease again before each event and the objects: a publish may wait longer than it lasts."""
        assert self._session.metadata is not None
        return SegmentRemover(
            metadata_log=self._session.metadata,
            store=store,
            key_prefix=self._key_prefix,
            clock=self._session.clock,
            failpoints=NO_FAILPOINTS,
            telemetry=NoTelemetry(),
            broker_id=metadata.broker_id,
            ownership=LeasedOwnership(lease, _LookedAt()),
        )

    @asynccontextmanager
    async def _open_store(self) -> AsyncIterator[Store]:
        clock = self._session.clock
        pace = UploadPace(None, clock)
        async with open_store(
            self._session.config, pace=pace, clock=clock, ids=SystemIds(), telemetry=NoTelemetry()
        ) as store:
            yield store


class _LookedAt:
    """Claims of a segment whose owner was looked at when its deletion was decided, a moment ago."""

    async def claim(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        return None
