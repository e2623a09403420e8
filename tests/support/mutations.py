"""Faults planted in the daemon's own code, one at a time: each has to be caught by the simulation (issue text, Must show).

``seed`` is the first one, counted from 0, whose run catches it, in the kind of run that is named.  Those that are not
``in_every_run`` are planted by ``make planted``: each takes a run of a kind that has others for every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tests.simulation.scenario import Kind
from tests.support import cleaner_mutations
from tiersidecar.adapters.metadata_topic.log import TopicBasedMetadataLog
from tiersidecar.adapters.read_back import ReadBack as TopicReadBack
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.app import tier_role
from tiersidecar.decide import copy as decide_copy_module
from tiersidecar.decide import expire, expiry_reach
from tiersidecar.decide import expire as expire_decision
from tiersidecar.decide import pin as decide_pin_module
from tiersidecar.decide.cleanup import decide_cleanup
from tiersidecar.decide.expire import Due, decide_expiry
from tiersidecar.decide.expiry_standing import Standing, first_start
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.decide.gateway_fill import OutOfRange, TiersView, decide_out_of_range
from tiersidecar.decide.pressure_trim import decide_pressure
from tiersidecar.decide.topics import TieredPartition, reason_to_doubt_directory
from tiersidecar.decide.trash import TrashPlan, TrashView, decide_trash
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.decide.trim import TrimStep
from tiersidecar.domain.errors import OffsetOutOfRangeError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import NO_OFFSET, Lineage, Offset
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.domain.segments import LocalSegment, Pin, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.formats.kafka.producer_state import ProducerState
from tiersidecar.formats.wire.fetch import FETCH_SESSION_ID_NOT_FOUND, write_session_error
from tiersidecar.reading import batch_cutter, local_cut, segment_lookup
from tiersidecar.reading.carried_transactions import CarriedTransactions
from tiersidecar.reading.lineage import LineageKeeper, StateLogStarts
from tiersidecar.reading.remote_log_reader import FetchedBatches, RemoteLogReader
from tiersidecar.reading.segment_lookup import Located, SegmentLookup
from tiersidecar.services.gateway import (
    leader_epoch_rewrite,
    list_offsets_rewrite,
    out_of_range,
    remote_fills,
)
from tiersidecar.services.gateway.exchange import Exchange, FetchSession
from tiersidecar.services.gateway.fetch_fill import BorderTransactions
from tiersidecar.services.gateway.fetch_rewrite import FetchRewrite
from tiersidecar.services.gateway.list_offsets_rewrite import ListOffsetsRewrite
from tiersidecar.services.gateway.remote_fills import FillWant, RemoteFills
from tiersidecar.services.gateway.tiered_partitions import DeletedRecords
from tiersidecar.services.reader.continuous_log import ContinuousLog, LogRead
from tiersidecar.tasks import copy as copy_module
from tiersidecar.tasks import disk_watch, partition_table
from tiersidecar.tasks import expiry_look as expiry_look_module
from tiersidecar.tasks.copy import FirstStart
from tiersidecar.tasks.expire import ExpireTask
from tiersidecar.tasks.ownership import InFlight
from tiersidecar.tasks.read_back import ReadBack
from tiersidecar.tasks.removal import SegmentRemover
from tiersidecar.tasks.segment_objects import SegmentObjects
from tiersidecar.tasks.tier_lease import TierLease
from tiersidecar.tasks.topic_owners import TopicOwners

Patches = list[Any]
_DELETING, _DELETED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_background: set[asyncio.Future[Any]] = set()


def _later(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _background.add(task)
    task.add_done_callback(_looked_at)


def _looked_at(done: asyncio.Future[Any]) -> None:
    _background.discard(done)
    done.cancelled() or done.exception()


def finished_before_upload() -> Patches:
    original = SegmentObjects.put

    async def put(self: SegmentObjects, *args: Any, **named: Any) -> bytes | None:
        _later(original(self, *args, **named))
        return None

    return [patch.object(SegmentObjects, "put", put)]


def upload_before_started() -> Patches:
    original = TopicBasedMetadataLog.publish

    async def publish(self: TopicBasedMetadataLog, event: Any, **named: Any) -> None:
        if isinstance(event, RemoteLogSegmentMetadata):
            _later(original(self, event, **named))
        else:
            await original(self, event, **named)

    return [patch.object(TopicBasedMetadataLog, "publish", publish)]


def last_stable_offset_off_by_one() -> Patches:
    original = decide_copy_module.decide_copy
    return [
        patch.object(
            copy_module,
            "decide_copy",
            lambda view: original(replace(view, last_stable_offset=view.last_stable_offset + 1)),
        )
    ]


def last_stable_offset_ignored() -> Patches:
    original = decide_copy_module.decide_copy
    return [patch.object(copy_module, "decide_copy", lambda view: original(replace(view, last_stable_offset=2**62)))]


def unpinned_too_early() -> Patches:
    return [patch.object(decide_pin_module, "is_remote", lambda lineage, segment_at, segment: True)]


def trimmed_without_read_back() -> Patches:
    async def verify(self: ReadBack, step: TrimStep, log_start_offset: int) -> None:
        return None

    return [patch.object(ReadBack, "verify", verify)]


def trimmed_further_than_proven() -> Patches:
    return [patch.object(TrimStep, "offset", property(lambda self: Offset(self.local.next_base_offset + 3)))]


def objects_deleted_before_delete_started() -> Patches:
    async def remove(self: Any, metadata: RemoteLogSegmentMetadata) -> None:
        await self._store.delete_objects(self._keys_of(metadata))
        await self._publish(metadata, _DELETING)
        await self._publish(metadata, _DELETED)

    return [patch.object(SegmentRemover, "_remove", remove)]


def objects_left_behind() -> Patches:
    async def remove(self: Any, metadata: RemoteLogSegmentMetadata) -> None:
        await self._publish(metadata, _DELETING)
        await self._publish(metadata, _DELETED)

    return [patch.object(SegmentRemover, "_remove", remove)]


def own_copies_in_flight_ignored() -> Patches:
    return [patch.object(InFlight, "ids", property(lambda self: frozenset()))]


def remote_log_start_too_high() -> Patches:
    original = decide_expiry

    def decide(view: ExpiryView) -> Any:
        plan = original(view)
        start = plan.remote_log_start_offset
        return replace(plan, remote_log_start_offset=Offset(start + 20) if start > 0 else start)

    return [patch.object(expiry_look_module, "decide_expiry", decide)]


def retention_by_time_too_short() -> Patches:
    original = ExpiryView.is_past_retention
    return [
        patch.object(ExpiryView, "is_past_retention", lambda self, timestamp_ms: original(self, timestamp_ms - 40_000))
    ]


def retention_by_size_too_small() -> Patches:
    original = expiry_reach._excess_bytes
    return [patch.object(expiry_reach, "_excess_bytes", lambda *args: original(*args) + 4000)]


def leftovers_never_cleaned() -> Patches:
    original = decide_expiry
    return [patch.object(expiry_look_module, "decide_expiry", lambda view: replace(original(view), leftovers=()))]


def copying_from_the_next_boundary() -> Patches:
    original = decide_copy_module.pending_segments

    def pending(segments: Any, copied_offset: int) -> Any:
        return tuple(one for one in original(segments, copied_offset) if one.base_offset > copied_offset)

    return [patch.object(decide_copy_module, "pending_segments", pending)]


def lineage_from_the_brokers_file() -> Patches:
    async def lineage(self: Any, topic_id_partition: Any, *, max_age_s: float = 30.0) -> Lineage:
        return Lineage(tuple(self._live.file.leader_epochs(topic_id_partition)))

    return [patch.object(LineageKeeper, "lineage", lineage), patch.object(LineageKeeper, "refresh", lineage)]


def own_writes_not_read_back() -> Patches:
    async def wait(self: TopicReadBack, offset: int) -> None:
        return None

    return [patch.object(TopicReadBack, "wait", wait)]


def users_delete_not_shown() -> Patches:
    return [
        patch.object(StateLogStarts, "remote_log_start_offset", lambda self, topic_id_partition, lineage: NO_OFFSET)
    ]


def open_transactions_not_carried() -> Patches:
    """Behave as the first release: what the broker has lost of producers, the remote tier has not either."""

    async def at(*args: Any) -> tuple[ProducerState, ...]:
        return ()

    return [patch.object(CarriedTransactions, "at", at)]


def store_errors_swallowed() -> Patches:
    original = SegmentObjects.put

    async def put(self: SegmentObjects, *args: Any, **named: Any) -> bytes | None:
        with suppress(StoreError):
            return await original(self, *args, **named)
        return None

    return [patch.object(SegmentObjects, "put", put)]


# -- what readers get


def readers_ignore_the_lineage() -> Patches:
    def find(
        self: SegmentLookup, topic_id_partition: TopicIdPartition, offset: int, lineage: Lineage
    ) -> Located | None:
        for segment in self._metadata.list_remote_log_segments(topic_id_partition):
            if (
                segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                and segment.start_offset <= offset <= segment.end_offset
            ):
                return Located(segment, segment.next_offset)
        return None

    return [patch.object(SegmentLookup, "_find", find)]


def readers_follow_a_truncated_epoch() -> Patches:
    return [patch.object(segment_lookup, "agreed_stop", lambda metadata, lineage, offset: metadata.next_offset)]


def readers_trust_the_store() -> Patches:
    return [patch.object(batch_cutter, "check_batch", lambda *args, **named: None)]


def local_reads_may_end_early() -> Patches:
    def check(self: local_cut._Visit) -> None:
        self.position = self._byte_range.stop
        if not self._is_through:
            self._hand_over(is_last=True)

    return [patch.object(local_cut._Visit, "_check", check)]


def between_the_tiers_is_out_of_range() -> Patches:
    async def refusal(self: ContinuousLog, read: LogRead, offset: int, error: OffsetOutOfRangeError) -> Exception:
        return error

    return [patch.object(ContinuousLog, "_refusal", refusal)]


def gateway_sends_away_while_not_ready() -> Patches:
    return [patch.object(out_of_range, "RETRY", out_of_range.STANDS)]


def logs_moved_before_their_first_record_are_doubted() -> Patches:
    return [
        patch.object(
            partition_table, "reason_to_doubt_directory", lambda view, local, _: reason_to_doubt_directory(view, local)
        )
    ]


def readers_send_away_by_metadata_that_are_behind() -> Patches:
    return [patch.object(RemoteLogReader, "current_bounds", RemoteLogReader.bounds)]


def gateway_sends_away_by_what_it_remembers() -> Patches:
    original = decide_out_of_range

    def decide(offset: int, view: TiersView) -> OutOfRange:
        verdict = original(offset, view)
        return OutOfRange.STANDS if verdict in (OutOfRange.RETRY, OutOfRange.HOLE) else verdict

    return [patch.object(out_of_range, "decide_out_of_range", decide)]


def gateway_forgets_transactions_over_the_border() -> Patches:
    async def beyond(*args: Any) -> tuple[AbortedTransaction, ...]:
        return ()

    return [patch.object(BorderTransactions, "aborted_beyond", beyond)]


def gateway_begins_where_the_broker_does() -> Patches:
    async def earliest(self: Any, question: Any) -> Any:
        return question.row

    return [patch.object(ListOffsetsRewrite, "_earliest", earliest)]


def gateway_gives_what_was_deleted() -> Patches:
    return [patch.object(DeletedRecords, "is_suspect", lambda self, key, offset: False)]


def read_service_gives_what_was_deleted() -> Patches:
    return [
        patch.object(
            SegmentLookup, "check_batch_start", lambda self, topic_id_partition, offset, leader_epoch, end: None
        )
    ]


def fills_one_batch_too_far() -> Patches:
    original = RemoteFills._look_ahead

    def look_ahead(self: RemoteFills, want: FillWant, fetched: FetchedBatches) -> None:
        original(self, want, fetched)
        if fetched.slices:
            wrong = replace(want, offset=Offset(fetched.next_offset + 2))
            run = remote_fills._Run(following=wrong, fills=9, left=9)
            self._ready.put(wrong, remote_fills._Ready(fetched, self._clock.monotonic_s(), run), 1)

    return [patch.object(RemoteFills, "_look_ahead", look_ahead)]


# -- fetch sessions


def sessions_keep_their_first_offsets() -> Patches:
    return [patch.object(FetchSession, "update", lambda self, request: None)]


def sessions_of_other_connections_are_sent_away() -> Patches:
    original = FetchRewrite.rewrite

    def rewrite(self: FetchRewrite, exchange: Exchange, response: memoryview) -> Any:
        rewritten = original(self, exchange, response)
        ends_session = [write_session_error(exchange.api_version, 0, FETCH_SESSION_ID_NOT_FOUND)]
        return None if rewritten == ends_session else rewritten

    return [patch.object(FetchRewrite, "rewrite", rewrite)]


# -- offsets that clients ask for


def gateway_passes_over_what_is_between_the_tiers() -> Patches:
    async def check(*args: Any) -> None:
        return None

    return [patch.object(one, "check_gap", check) for one in (list_offsets_rewrite, leader_epoch_rewrite)]


def gateway_looks_for_timestamps_at_the_broker_only() -> Patches:
    async def by_timestamp(self: Any, question: Any) -> Any:
        return question.row

    return [patch.object(ListOffsetsRewrite, "_by_timestamp", by_timestamp)]


def gateway_answers_epochs_as_the_broker_does() -> Patches:
    return [patch.object(leader_epoch_rewrite, "epoch_end", lambda lineage, leader_epoch: None)]


# -- disks that fill


def pressure_trims_what_is_not_remote() -> Patches:
    original = decide_pressure

    def decide(*args: Any) -> Any:
        return {topic_id_partition: replace(trim, drops=True) for topic_id_partition, trim in original(*args).items()}

    return [
        patch.object(disk_watch, "decide_pressure", decide),
        patch.object(disk_watch.DiskWatch, "_remote", lambda self, topic_id_partition, sealed: len(sealed)),
    ]


def pressure_does_nothing() -> Patches:
    return [patch.object(disk_watch, "decide_pressure", lambda *args: {})]


def trash_is_due_at_once() -> Patches:
    return [patch.object(TrashTime, "is_due", lambda self, entry: True)]


def starts_move_without_an_entry() -> Patches:
    async def unsaid(self: ExpireTask, *args: Any) -> bool:
        return True

    return [patch.object(ExpireTask, "_publish_trash", unsaid)]


# -- what fresh eyes found (issue 16): each finding with its mend taken out


def start_from_what_is_remote() -> Patches:
    """No sidecar publishes a start before the first copy, and then the first remote segment's is taken for it."""

    async def ensure(self: FirstStart, *args: Any) -> None:
        return None

    def start(*, found: Sequence[Standing], **others: Any) -> Offset:
        return Offset(min((standing.segment.start_offset for standing in found if standing.serves), default=NO_OFFSET))

    return [patch.object(FirstStart, "ensure", ensure), patch.object(expire_decision, "first_start", start)]


def copy_passes_over_what_is_past_retention() -> Patches:
    original = decide_copy_module.pending_segments

    def decide(view: decide_copy_module.CopyView) -> decide_copy_module.CopyPlan:
        def pending(*args: Any) -> tuple[LocalSegment, ...]:
            return tuple(one for one in original(*args) if not decide_copy_module._is_past_retention(view, one))

        with patch.object(decide_copy_module, "pending_segments", pending):
            return decide_copy(replace(view, may_expire=False))

    decide_copy = decide_copy_module.decide_copy
    return [*start_from_what_is_remote(), patch.object(copy_module, "decide_copy", decide)]


def start_passes_over_pins() -> Patches:
    """Segments that only pins have lie below the broker's log start, and count as given up."""
    original = first_start

    def start(**view: Any) -> Offset:
        return original(**{**view, "broker_expires": False})

    return [patch.object(one, "first_start", start) for one in (copy_module, expire_decision)]


def start_passes_over_what_no_scan_has_missed_yet() -> Patches:
    """Segments that the broker has deleted since the log dir was read, and only pins have, count as given up."""

    def listed(log_start_offset: Offset, segments: Sequence[LocalSegment], pins: Sequence[Pin]) -> Any:
        return tuple(segments)

    return [patch.object(one, "gone_below", listed) for one in (copy_module, expiry_look_module)]


def first_start_goes_by_the_last_check_of_settings() -> Patches:
    async def expires(self: FirstStart, partition: TieredPartition, *args: Any) -> bool:
        topic = partition.view.topic_id_partition.topic
        return partition.policy.mode is RetentionMode.RACE or topic in self._table.untrimmable_topics

    return [patch.object(FirstStart, "_broker_expires", expires)]


def retention_is_over_what_the_broker_keeps() -> Patches:
    """In race mode, as in strict mode, what retention gives up is deleted at the broker."""
    original = decide_trash
    walk = expiry_reach._Walk

    def decide(view: TrashView) -> TrashPlan:
        return original(replace(view, broker_keeps=False))

    return [
        patch.object(expire_decision, "decide_trash", decide),
        patch.object(expiry_reach, "_Walk", lambda **given: walk(**{**given, "broker_start": None})),
    ]


def guard_counts_only_what_is_remote() -> Patches:
    original = expire_decision._dues

    def dues(view: ExpiryView, found: Sequence[Standing], start: int) -> Due:
        reach = expiry_reach.find_reach(view, found, start, past_in_flight=True)
        due = original(view, found, start)
        local_bytes = sum(part.weight_bytes for part in reach.local)
        return replace(
            due,
            segments=due.segments - len(reach.local),
            size_bytes=due.size_bytes - local_bytes,
            all_bytes=due.all_bytes - reach.only_local_bytes,
        )

    return [patch.object(expire_decision, "_dues", dues)]


def stop_of_expiry_clears_itself() -> Patches:
    """It is not kept, and copies in flight cut what is due, as in the first release."""
    original = expiry_reach.find_reach

    def reach(*args: Any, past_in_flight: bool = False) -> Any:
        return original(*args)

    return [
        patch.object(expire, "_has_cause_ended", lambda view, known: True),
        patch.object(expire_decision, "find_reach", reach),
    ]


def lease_is_ignored() -> Patches:
    return [
        patch.object(TierLease, "is_ours", property(lambda self: True)),
        patch.object(TierLease, "reason_not_held", property(lambda self: "")),
    ]


def lease_is_valid_for_ever() -> Patches:
    """A process that has held it asks no clock any more."""
    original = TierLease.reason_not_held

    def reason(self: TierLease) -> str:
        return "" if self._held is not None else str(original.fget(self))  # type: ignore[attr-defined]

    return [patch.object(TierLease, "reason_not_held", property(reason))]


def role_comes_back_with_what_was_known() -> Patches:
    """Pins of the process that had it meanwhile are never read."""
    return [patch.object(tier_role, "_forget_role", lambda parts: None)]


def lease_is_not_read_back() -> Patches:
    """A process that has said that it holds the lease does, whichever was faster."""
    original = TierLease._publish

    async def publish(self: TierLease, lease: Lease) -> None:
        leases = self._leases

        class Unread:
            async def publish_lease(self, lease: Lease) -> Lease:
                await leases.publish_lease(lease)
                return lease

        with patch.object(self, "_leases", Unread()):
            await original(self, lease)

    return [patch.object(TierLease, "_publish", publish)]


def journal_is_ignored() -> Patches:
    """Each copy that is not in flight here is a dead one of ours, as it was without a journal, and it is not asked right before
    whether the broker tiers the topic itself."""
    original, init = decide_cleanup, ExpireTask.__init__

    class Unasked:
        async def check(self, topics: Sequence[str]) -> None:
            return None

        async def reason_to_leave(self, topic: str) -> str:
            return ""

    def cleanup(segments: Sequence[RemoteLogSegmentMetadata], begun: Any, *others: Any) -> Any:
        return original(segments, {segment.remote_log_segment_id.uuid for segment in segments}, *others)

    def unasked(self: ExpireTask, **parts: Any) -> None:
        init(self, **{**parts, "checks": Unasked()})

    return [
        patch.object(expire_decision, "decide_cleanup", cleanup),
        patch.object(ExpireTask, "__init__", unasked),
    ]


def owners_are_not_asked() -> Patches:
    async def claim(self: TopicOwners, topic_id_partition: TopicIdPartition, **asked: Any) -> None:
        return None

    return [
        patch.object(TopicOwners, "claim", claim),
        patch.object(StateFold, "_is_of_another_cluster", lambda self, key, document: False),
        patch.object(StateFold, "is_ours", lambda self, owner: True),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A planted fault."""

    plant: Callable[[], Patches]
    kind: Kind
    seed: int
    in_every_run: bool = True

    @property
    def name(self) -> str:
        return self.plant.__name__

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant it for the length of the block."""
        patches = self.plant()
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()


_F, _C, _Q, _H, _X = Kind.FAULTS, Kind.CLUSTER, Kind.QUESTIONS, Kind.HAZARDS, Kind.COMPACTION

MUTATIONS = (
    Mutation(plant=finished_before_upload, kind=_F, seed=0),
    Mutation(plant=upload_before_started, kind=_F, seed=0),
    Mutation(plant=last_stable_offset_off_by_one, kind=_F, seed=15),
    Mutation(plant=last_stable_offset_ignored, kind=_F, seed=2),
    Mutation(plant=unpinned_too_early, kind=_C, seed=0),
    Mutation(plant=trimmed_without_read_back, kind=_F, seed=2),
    Mutation(plant=trimmed_further_than_proven, kind=_F, seed=2),
    Mutation(plant=objects_deleted_before_delete_started, kind=_F, seed=0),
    Mutation(plant=objects_left_behind, kind=_F, seed=0),
    Mutation(plant=own_copies_in_flight_ignored, kind=_F, seed=2),
    Mutation(plant=remote_log_start_too_high, kind=_C, seed=2),
    Mutation(plant=retention_by_time_too_short, kind=_C, seed=10),
    Mutation(plant=retention_by_size_too_small, kind=_C, seed=0),
    Mutation(plant=leftovers_never_cleaned, kind=_F, seed=0),
    Mutation(plant=copying_from_the_next_boundary, kind=_C, seed=3),
    Mutation(plant=lineage_from_the_brokers_file, kind=_C, seed=0),
    Mutation(plant=own_writes_not_read_back, kind=_F, seed=2),
    Mutation(plant=users_delete_not_shown, kind=_C, seed=10),
    Mutation(plant=open_transactions_not_carried, kind=_C, seed=3),
    Mutation(plant=store_errors_swallowed, kind=_F, seed=0),
    Mutation(plant=between_the_tiers_is_out_of_range, kind=_C, seed=0),
    Mutation(plant=gateway_sends_away_by_what_it_remembers, kind=_C, seed=0),
    Mutation(plant=gateway_forgets_transactions_over_the_border, kind=_C, seed=2),
    Mutation(plant=gateway_begins_where_the_broker_does, kind=_C, seed=15),
    Mutation(plant=gateway_gives_what_was_deleted, kind=_C, seed=12),
    Mutation(plant=read_service_gives_what_was_deleted, kind=_C, seed=33),
    Mutation(plant=readers_ignore_the_lineage, kind=_C, seed=6),
    Mutation(plant=readers_follow_a_truncated_epoch, kind=_C, seed=6),
    Mutation(plant=readers_trust_the_store, kind=_C, seed=5),
    Mutation(plant=local_reads_may_end_early, kind=_C, seed=35),
    Mutation(plant=fills_one_batch_too_far, kind=_C, seed=5),
    Mutation(plant=gateway_sends_away_while_not_ready, kind=_C, seed=41),
    Mutation(plant=logs_moved_before_their_first_record_are_doubted, kind=_C, seed=8),
    Mutation(plant=readers_send_away_by_metadata_that_are_behind, kind=_C, seed=801519),
    Mutation(plant=sessions_keep_their_first_offsets, kind=_C, seed=3),
    Mutation(plant=sessions_of_other_connections_are_sent_away, kind=_C, seed=31),
    Mutation(plant=gateway_passes_over_what_is_between_the_tiers, kind=_Q, seed=0),
    Mutation(plant=gateway_looks_for_timestamps_at_the_broker_only, kind=_Q, seed=0),
    Mutation(plant=gateway_answers_epochs_as_the_broker_does, kind=_Q, seed=2),
    Mutation(plant=pressure_trims_what_is_not_remote, kind=_C, seed=1),
    Mutation(plant=pressure_does_nothing, kind=_C, seed=1),
    Mutation(plant=trash_is_due_at_once, kind=_C, seed=2),
    Mutation(plant=starts_move_without_an_entry, kind=_C, seed=2),
    Mutation(plant=start_from_what_is_remote, kind=_H, seed=4),
    Mutation(plant=copy_passes_over_what_is_past_retention, kind=_H, seed=12),
    Mutation(plant=start_passes_over_pins, kind=_H, seed=3),
    Mutation(plant=start_passes_over_what_no_scan_has_missed_yet, kind=_H, seed=15),
    Mutation(plant=first_start_goes_by_the_last_check_of_settings, kind=_H, seed=16),
    Mutation(plant=guard_counts_only_what_is_remote, kind=_H, seed=12),
    Mutation(plant=stop_of_expiry_clears_itself, kind=_H, seed=12),
    Mutation(plant=retention_is_over_what_the_broker_keeps, kind=_H, seed=2),
    Mutation(plant=owners_are_not_asked, kind=_H, seed=5),
    Mutation(plant=journal_is_ignored, kind=_H, seed=1),
    Mutation(plant=lease_is_ignored, kind=_H, seed=33),
    Mutation(plant=lease_is_not_read_back, kind=_H, seed=33),
    Mutation(plant=lease_is_valid_for_ever, kind=_H, seed=39),
    Mutation(plant=role_comes_back_with_what_was_known, kind=_H, seed=7),
    Mutation(plant=cleaner_mutations.old_segments_are_marked_before_the_new_one_is_published, kind=_X, seed=0),
    Mutation(plant=cleaner_mutations.only_what_is_dirty_is_rewritten, kind=_X, seed=0, in_every_run=False),
    Mutation(plant=cleaner_mutations.copies_are_of_what_the_broker_has_by_now, kind=_X, seed=1),
    Mutation(plant=cleaner_mutations.tombstones_go_before_their_time, kind=_X, seed=1, in_every_run=False),
    Mutation(
        plant=cleaner_mutations.transactions_that_are_open_count_as_committed, kind=_X, seed=2, in_every_run=False
    ),
    Mutation(plant=cleaner_mutations.cleaner_takes_the_whole_disk, kind=_X, seed=10),
    Mutation(plant=cleaner_mutations.compaction_lag_is_ignored, kind=_X, seed=21, in_every_run=False),
)
