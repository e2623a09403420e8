"""The follow lane: pins of led and followed partitions, made and dropped (S-044, S-049, S-053)."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from tests.support.clean_world import COMPACTED
from tests.support.pin_shell import LOG_DIR, PinShell
from tests.support.pins import local_partition, pin_of
from tests.support.recopy_requests import request_for
from tests.support.segments import TOPIC_ID_PARTITION, local_segments, remote_segment
from tiersidecar.decide.topics import PartitionRole, read_cleaner_settings
from tiersidecar.domain.errors import BrokerRefusedError, MetadataNotReadyError, PinError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.ports.metrics.copying import PINS_DROPPED
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.state_records import RecopyRequest
from tiersidecar.tasks.partition_table import FollowNote


async def test_a_leader_pins_what_lies_below_the_high_watermark_that_the_broker_tells() -> None:
    shell = PinShell()
    shell.broker.last_stable_offsets[TOPIC_ID_PARTITION] = 100
    await shell.open(0, 50, 100, 150)
    await shell.round()
    assert shell.pins.ranges == shell.known == [(0, 50), (50, 100)]


async def test_a_follower_takes_the_high_watermark_from_the_checkpoint() -> None:
    shell = PinShell()
    shell.be(role=PartitionRole.FOLLOWER)
    await shell.open(0, 50, 100)
    await shell.round()
    assert shell.pins.ranges == [], "not in the checkpoint yet"
    shell.log_dirs.offsets[TOPIC_ID_PARTITION] = 50
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]


async def test_a_deposed_leader_pins_nothing_until_it_knows_better() -> None:
    shell = PinShell()
    await shell.open(0, 50)
    shell.broker.error = "FENCED_LEADER_EPOCH"
    with pytest.raises(BrokerRefusedError, match="FENCED_LEADER_EPOCH"):
        await shell.round()
    assert shell.pins.ranges == []


async def test_unpinned_once_the_copy_is_finished() -> None:
    shell = PinShell()
    await shell.open(0, 50, 100)
    await shell.round()
    await shell.finish_copy(0, 49)
    await shell.round()
    assert shell.pins.ranges == shell.known == [(50, 100)]
    assert shell.telemetry.value(PINS_DROPPED, reason="remote") == 1


@pytest.mark.parametrize(
    "state",
    [State.COPY_SEGMENT_STARTED, State.DELETE_SEGMENT_STARTED],
    ids=["its copy has only begun", "its copy is on its way out"],
)
async def test_a_pin_stays_unless_its_copy_is_finished_and_stays_so(state: State) -> None:
    """A pin may be the only copy until COPY_SEGMENT_FINISHED is read back."""
    shell = PinShell(pin_of(0, 50))
    await shell.open(100, 150)
    await shell.metadata.publish(remote_segment(0, 49, state=State.COPY_SEGMENT_STARTED))
    if state is not State.COPY_SEGMENT_STARTED:
        await shell.metadata.publish(
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=remote_segment(0, 49).remote_log_segment_id,
                broker_id=BrokerId(1),
                event_timestamp_ms=0,
                state=state,
            )
        )
    await shell.round()
    assert (0, 50) in shell.pins.ranges


async def test_a_hole_that_is_filled_below_the_copied_offset_is_noticed() -> None:
    """What is highest does not change by it."""
    shell = PinShell(pin_of(0, 50))
    await shell.open(100, 150)
    await shell.finish_copy(50, 149)
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]
    await shell.finish_copy(0, 49)
    await shell.round()
    assert shell.pins.ranges == []


async def test_nothing_is_asked_of_the_broker_while_nothing_changes() -> None:
    shell = PinShell()
    await shell.open(0, 50)
    await shell.round()
    shell.broker.error = "asked again"
    await shell.round()
    assert not shell.follow.has_work(shell.tiered)
    shell.see(0, 50, 100)
    assert shell.follow.has_work(shell.tiered)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"epoch": 7}, "an epoch that may have cut the log", id="new leader epoch"),
        pytest.param({"role": PartitionRole.FOLLOWER}, "another source of the high watermark", id="new role"),
        pytest.param({"policy": TopicPolicy(copy_disabled=True)}, "another policy", id="new policy"),
    ],
)
async def test_a_change_of_hands_is_looked_at(change: dict[str, object], reason: str) -> None:
    shell = PinShell()
    await shell.open(0, 50)
    await shell.round()
    await shell.round()
    assert not shell.follow.has_work(shell.tiered)
    shell.be(**change)  # type: ignore[arg-type]
    assert shell.follow.has_work(shell.tiered), reason


async def test_of_a_topic_that_is_not_tiered_any_more_nothing_is_pinned() -> None:
    shell = PinShell()
    await shell.open(0, 50)
    assert shell.follow.may_act(shell.tiered)
    shell.table.refused_topics[shell.tiered.view.topic_id_partition.topic] = "native tiered storage has it"
    assert not shell.follow.may_act(shell.tiered)
    assert not shell.follow.has_work(shell.tiered)


async def test_a_partition_with_nothing_sealed_has_no_lane() -> None:
    shell = PinShell()
    await shell.open(0)
    assert not shell.follow.has_work(shell.tiered)


async def test_a_refused_topic_is_left_alone() -> None:
    shell = PinShell()
    await shell.open(0, 50)
    shell.table.refused_topics[TOPIC_ID_PARTITION.topic] = "remote.storage.enable is true"
    assert not shell.follow.has_work(shell.tiered)


async def test_before_the_replay_race_mode_pins_and_drops_nothing() -> None:
    """A metadata topic that is away must not cost data that the broker deletes meanwhile."""
    shell = PinShell(pin_of(0, 50))
    shell.be(policy=TopicPolicy(mode=RetentionMode.RACE))
    await shell.open(50, 100, ready=False)
    await shell.round()
    assert shell.pins.ranges == [(0, 50), (50, 100)]
    assert shell.follow.has_work(shell.tiered), "to drop what turns out to be remote"


@pytest.mark.parametrize("mode", list(RetentionMode))
async def test_while_the_metadata_topic_cannot_be_relied_on_no_pin_goes_because_of_a_copy(mode: RetentionMode) -> None:
    """In race mode the broker deletes all the same, and the event that names the copy may be lost."""
    shell = PinShell(pin_of(0, 50))
    shell.be(policy=TopicPolicy(mode=mode))
    await shell.open(50, 100)
    await shell.finish_copy(0, 49)
    shell.metadata.halted_reason = "__remote_log_metadata has min.insync.replicas 1, 2 are configured"
    for _ in range(2):
        await shell.round()
    assert (0, 50) in shell.pins.ranges
    assert not shell.follow.has_work(shell.tiered)
    shell.metadata.halted_reason = None
    shell.table.looks += 1
    await shell.round()
    assert shell.pins.ranges == [(50, 100)]


async def test_a_truncated_pin_goes_and_the_new_segment_of_its_offsets_is_pinned() -> None:
    shell = PinShell()
    await shell.open(0, 50, 100)
    await shell.round()
    shell.see(0, 50, 90, 140, epochs=((0, 0), (1, 60)))
    shell.be(epoch=1)
    await shell.round()
    assert shell.pins.ranges == shell.known == [(0, 50), (50, 90), (90, 140)]
    assert shell.telemetry.value(PINS_DROPPED, reason="truncated") == 1


@pytest.mark.parametrize(
    ("hole", "left", "told"),
    [
        pytest.param(None, [(0, 100)], [], id="a log that was built anew has rolled elsewhere"),
        pytest.param(Offset(50), [(0, 100), (50, 100)], [50], id="a file is gone from the middle of the log"),
    ],
)
async def test_a_pin_is_replaced_only_by_files_that_have_its_offsets(
    hole: Offset | None, left: list[tuple[int, int]], told: list[int]
) -> None:
    """The file before a hole seems to reach over it, and the pin is the only copy."""
    shell = PinShell()
    await shell.open(0, 50, 100)
    await shell.round()
    shell.pins.hole = hole
    shell.see(0, 100)
    await shell.round()
    with capture_logs() as events:
        await shell.round()
    assert shell.pins.ranges == shell.known == left
    assert [event["base_offset"] for event in events if event["event"] == "pin.not_replaced"] == told


async def test_a_segment_that_the_broker_deleted_first_is_told_and_the_others_are_pinned() -> None:
    shell = PinShell()
    shell.pins.gone = {0}
    await shell.open(0, 50, 100)
    with capture_logs() as events:
        await shell.round()
    assert shell.pins.ranges == [(50, 100)]
    missed = [(event["base_offset"], event["reason"]) for event in events if event["event"] == "pin.too_late"]
    assert missed == [(0, "it is gone")]


async def test_a_leader_pins_what_retention_has_renamed_and_not_removed_yet() -> None:
    """The active segment of a quiet topic is rolled and renamed in one step: it is never seen sealed (race mode)."""
    shell = PinShell()
    await shell.open(0, 50)
    for _ in range(3):
        await shell.round()
    shell.see(120, deleted=(0, 50))
    await shell.round()
    assert shell.pins.ranges == shell.known == [(0, 50), (50, 120)]
    local = shell.table.local_partition(TOPIC_ID_PARTITION)
    assert local is not None
    assert [(segment.base_offset, segment.pinned) for segment in local.segments] == [
        (0, True),
        (50, True),
        (120, False),
    ]


async def compacted(shell: PinShell, *bases: int) -> None:
    """Have the topic compacted, and looked at as often as it takes to know what is renamed from then on."""
    settings = read_cleaner_settings({**COMPACTED, "cleanup.policy": "compact,delete"})
    assert settings is not None
    shell.table.compacted_topics = {TOPIC_ID_PARTITION.topic: settings}
    await shell.open(*bases)
    for _ in range(3):
        await shell.round()


async def test_a_picture_has_what_retention_has_renamed_and_not_removed_yet() -> None:
    """Of a compacted topic, too: with the pins of before, and with what was sealed since."""
    shell = PinShell()
    await compacted(shell, 0, 50)
    shell.see(120, 150, deleted=(0, 50))
    await shell.round()
    assert shell.pins.ranges == shell.known == [(0, 50), (50, 120), (120, 150)]
    local = shell.table.local_partition(TOPIC_ID_PARTITION)
    assert local is not None
    assert [one.base_offset for one in local.segments] == [0, 50, 120, 150]


async def test_a_picture_goes_without_a_renamed_segment_that_is_gone() -> None:
    shell = PinShell()
    await compacted(shell, 0, 50)
    shell.pins.gone = {50}
    shell.see(120, 150, deleted=(0, 50))
    with capture_logs() as events:
        await shell.round()
    assert shell.pins.ranges == shell.known == [(0, 50), (120, 150)]
    assert [one["base_offset"] for one in events if one["event"] == "pin.too_late"] == [50]
    shell.pins.gone = {150}
    shell.see(200, deleted=(150,))
    await shell.round()
    assert shell.known == [(0, 50), (120, 150)], "nothing is left to be pinned"


@pytest.mark.parametrize("role", [PartitionRole.LEADER, PartitionRole.FOLLOWER])
async def test_a_picture_has_nothing_that_may_have_been_cut_off(role: PartitionRole) -> None:
    """A follower cuts off, and what was renamed before this epoch may be of a follower."""
    shell = PinShell()
    shell.be(role=role)
    shell.log_dirs.offsets[TOPIC_ID_PARTITION] = 10_000
    is_leader = role is PartitionRole.LEADER
    await compacted(shell, 0, 50)
    if is_leader:
        shell.table.forget(TOPIC_ID_PARTITION)
    shell.see(120, deleted=(0, 50))
    for _ in range(4):
        await shell.round()
    assert shell.pins.ranges == [(0, 50)]


async def test_a_follower_that_always_has_segments_above_the_high_watermark_takes_pictures_for_ever() -> None:
    """The checkpoint tells of the high watermark as it was some seconds ago (simulation, compaction seed 301)."""
    shell = PinShell()
    shell.be(role=PartitionRole.FOLLOWER)
    await compacted(shell, 0, 50)
    for number in range(1, 20):
        end = 50 * (number + 1)
        shell.see(*range(0, end + 50, 50))
        shell.log_dirs.offsets[TOPIC_ID_PARTITION] = end - 50
        shell.pins.brokers_cleaner_offset = end
        shell.clock.jump(0.1)  # delete.retention.ms is a second
        await shell.round()
        assert shell.known[-1] == (end - 100, end - 50)


async def test_a_look_without_a_high_watermark_says_nothing() -> None:
    """The broker's cleaner knows it, and may be at work below it."""
    shell = PinShell()
    shell.be(role=PartitionRole.FOLLOWER)
    await compacted(shell, 0, 50)
    assert shell.pins.look is None
    shell.log_dirs.offsets[TOPIC_ID_PARTITION] = 40
    await shell.round()
    assert shell.pins.look is not None


async def test_what_was_renamed_before_this_epoch_may_have_been_cut_off() -> None:
    shell = PinShell()
    shell.see(120, deleted=(0, 50))
    await shell.metadata.assign([TOPIC_ID_PARTITION])
    await shell.keeper.keep()
    for _ in range(4):
        await shell.round()
    assert shell.pins.ranges == []
    shell.see(160, deleted=(0, 50, 120))
    await shell.round()
    assert shell.pins.ranges == [(120, 160)]
    shell.table.forget(TOPIC_ID_PARTITION)
    shell.see(200, deleted=(160,))
    await shell.round()
    assert shell.pins.ranges == [(120, 160)], "the first look of a new epoch"


async def test_a_follower_pins_nothing_that_was_renamed() -> None:
    """It truncates: to its leader's log start, or after an election."""
    shell = PinShell()
    shell.be(role=PartitionRole.FOLLOWER)
    shell.log_dirs.offsets[TOPIC_ID_PARTITION] = 10_000
    await shell.open(50)
    for _ in range(3):
        await shell.round()
    shell.see(120, deleted=(50,))
    await shell.round()
    assert shell.pins.ranges == []


async def test_what_a_trim_has_given_up_is_not_pinned() -> None:
    """Strict mode renames every segment, all of them remote; the live file has forgotten their epochs."""
    shell = PinShell()
    await shell.open(0, 50)
    for _ in range(3):
        await shell.round()
    await shell.finish_copy(0, 119)
    shell.see(120, deleted=(0, 50), epochs=((0, 120),))
    await shell.round()
    assert shell.pins.ranges == []


async def test_a_file_that_its_disk_refuses_does_not_keep_the_others_from_being_pinned() -> None:
    """A bad sector in one time index: in race mode the broker deletes all the others as well."""
    shell = PinShell(pin_of(0, 50))
    shell.pins.stuck, shell.pins.bad = {0}, {50}
    await shell.open(50, 100, 150, 200)
    await shell.finish_copy(0, 49)
    with pytest.raises(PinError, match="cannot be removed"):
        await shell.round()
    assert shell.pins.ranges == [(0, 50), (100, 150), (150, 200)]
    shell.pins.stuck, shell.pins.bad = set(), set()
    await shell.round()
    assert shell.pins.ranges == [(50, 100), (100, 150), (150, 200)]


async def test_what_nobody_has_a_right_to_is_not_pinned_again() -> None:
    shell = PinShell()
    await shell.open(0, 50)
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]
    shell.state.partition_states[TOPIC_ID_PARTITION] = PartitionState(
        remote_log_start_offset=Offset(50), remote_log_start_epoch=LeaderEpoch(0)
    )
    await shell.keeper.keep()
    assert shell.pins.ranges == []
    await shell.round()
    assert shell.pins.ranges == []
    shell.see(50, 100)
    await shell.keeper.keep()
    assert shell.table.pins.refused_of(TOPIC_ID_PARTITION) == frozenset()


async def test_links_that_cannot_be_made_are_tried_again() -> None:
    shell = PinShell()
    await shell.open(0, 50)
    shell.pins.refusals[LOG_DIR] = "the disk is full"
    with pytest.raises(PinError, match="disk is full"):
        await shell.round()
    shell.pins.refusals.clear()
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]


async def test_where_no_links_can_be_made_no_lane_is_started_twice_until_they_can() -> None:
    shell = PinShell()
    shell.pins.refusals[LOG_DIR] = "it is another mount"
    await shell.open(0, 50)
    await shell.round()
    assert not shell.follow.has_work(shell.tiered)
    shell.pins.refusals.clear()
    await shell.keeper.keep()
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]


async def test_observe_mode_neither_pins_nor_drops() -> None:
    shell = PinShell(pin_of(0, 50), makes_pins=False, drops_pins=False)
    await shell.open(50, 100)
    await shell.finish_copy(0, 49)
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]
    assert not shell.pins.swept


def lost(shell: PinShell) -> RecopyRequest:
    """The request to copy again what the store has lost of the first segment."""
    (segment, *_) = shell.metadata.list_remote_log_segments(TOPIC_ID_PARTITION)
    return request_for(segment)


async def test_what_is_to_be_copied_again_keeps_its_pin_until_that_is_done() -> None:
    """U12: of a segment whose object is lost the pin of a sidecar that was away may be the only copy."""
    shell = PinShell(pin_of(0, 50), pin_of(50, 100))
    await shell.open(100, 150)
    await shell.finish_copy(0, 49)
    await shell.finish_copy(50, 99)
    await shell.state.request_recopy(lost(shell))
    await shell.round()
    assert (0, 50) in shell.pins.ranges
    assert (50, 100) not in shell.pins.ranges
    await shell.state.forget_recopy(lost(shell))
    await shell.round()
    assert (0, 50) not in shell.pins.ranges


async def test_what_is_to_be_copied_again_is_pinned_anew_where_the_broker_has_it() -> None:
    """It may go there at any time, in race mode."""
    shell = PinShell()
    await shell.open(0, 50)
    await shell.finish_copy(0, 49)
    await shell.round()
    assert shell.pins.ranges == []
    await shell.state.request_recopy(lost(shell))
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]


async def test_while_it_is_not_known_what_is_to_be_copied_again_no_pin_goes() -> None:
    shell = PinShell(pin_of(0, 50))
    known = shell.state.recopies

    def unread(topic_id_partition: object) -> NoReturn:
        raise MetadataNotReadyError(subject="the state topic")

    shell.state.recopies = unread  # type: ignore[method-assign]
    await shell.open(50, 100)
    await shell.finish_copy(0, 49)
    await shell.round()
    assert shell.pins.ranges == [(0, 50)]
    shell.state.recopies = known  # type: ignore[method-assign]
    await shell.round()
    assert (0, 50) not in shell.pins.ranges


async def test_what_a_round_saw_before_the_look_took_note_of_it_is_not_taken_for_what_the_look_saw() -> None:
    """The table is as the scan left it before the lane is asked whether it has work."""
    shell = PinShell()
    await shell.open(0, 50, 120)
    for _ in range(3):
        await shell.round()
    shell.see(50, 120, deleted=(0,))
    await shell.follow.run(shell.tiered)
    assert shell.follow.has_work(shell.tiered), "something was deleted since"


async def test_a_scan_that_is_the_same_object_is_taken_note_of_twice_and_no_more() -> None:
    """What the second look sees may still be of the epoch before; the third one sees nothing else, if nothing was scanned."""
    note, first = FollowNote(), replace(local_partition(local_segments(120, 200)), deleted=local_segments(0, 120)[:1])
    for _ in range(2):
        note.look(first)
    later = replace(first, deleted=local_segments(0, 50, 120)[:2])
    note.look(later)
    assert [one.base_offset for one in note.deleted] == [50], "the others are not known for a leader's"
    told = note.deleted
    note.look(later)
    assert note.deleted is told
    note.look(replace(later, deleted=()))
    assert note.deleted == ()
