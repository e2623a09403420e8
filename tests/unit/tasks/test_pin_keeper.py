"""The keeper of all pins: start, bounds, and what pins are of that is gone (U8)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.clean_world import COMPACTED
from tests.support.pin_shell import LOG_DIR, PinShell
from tests.support.pins import pin_of
from tests.support.recopy_requests import request_for
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.decide.pin_room import PinLimits
from tiersidecar.decide.topics import read_cleaner_settings
from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import Pin
from tiersidecar.ports.metrics.copying import PINS_BYTES, PINS_DROPPED, PINS_ROOM_BYTES, PINS_SEGMENTS, PINS_UNAVAILABLE
from tiersidecar.ports.pins import DiskSpace
from tiersidecar.ports.state_log import PartitionState

PINS = (pin_of(0, 50, modified_ms=1), pin_of(50, 100, modified_ms=2), pin_of(100, 150, modified_ms=3))


async def test_before_the_pins_are_read_nothing_may_be_copied() -> None:
    """A copy that began at the directory's first segment would leave a hole where only pins hold the data."""
    shell = PinShell(*PINS)
    assert not shell.table.pins.are_known(LOG_DIR)
    shell.pins.faults[LOG_DIR] = "its disk hangs"
    await shell.open(100, 150)
    assert not shell.table.pins.are_known(LOG_DIR)
    shell.pins.faults.clear()
    await shell.keeper.keep()
    assert shell.table.pins.are_known(LOG_DIR)
    local = shell.table.local_partition(TOPIC_ID_PARTITION)
    assert local is not None
    assert [(segment.base_offset, segment.pinned) for segment in local.segments] == [
        (0, True),
        (50, True),
        (100, False),
        (150, False),
    ]


async def test_a_log_dir_whose_pins_cannot_be_read_does_not_hold_up_the_others() -> None:
    shell = PinShell(*PINS)
    shell.pins.faults["/logs2"] = "its disk hangs"
    with capture_logs() as events:
        await shell.open(100, 150)
        await shell.keeper.keep()
    assert shell.table.pins.are_known(LOG_DIR)
    assert not shell.table.pins.are_known("/logs2")
    assert [event["log_dir"] for event in events if event["event"] == "pins.unreadable"] == ["/logs2"], "said once"


async def test_pins_are_read_once() -> None:
    shell = PinShell(*PINS)
    await shell.open(100, 150)
    shell.pins.pins.clear()
    await shell.keeper.keep()
    assert len(shell.known) == 3


async def test_the_table_knows_the_epochs_that_the_broker_has_dropped() -> None:
    shell = PinShell(pin_of(0, 50), pin_of(50, 100, epochs=[(0, 0), (2, 60)]))
    await shell.open(100, 150)
    shell.see(100, 150, epochs=((2, 100),))
    known = shell.table.lineage_on_disk(TOPIC_ID_PARTITION).entries
    assert known == (EpochEntry(LeaderEpoch(0), Offset(0)), EpochEntry(LeaderEpoch(2), Offset(60)))


async def test_over_pins_max_bytes_the_oldest_go_with_a_data_loss_event() -> None:
    shell = PinShell(*PINS, limits=PinLimits(max_bytes=150, disk_reserve_percent=0))
    with capture_logs() as events:
        await shell.open(150, 200)
    assert shell.pins.ranges == shell.known == [(100, 150)]
    lost = [event for event in events if event["event"] == "pin.dropped"]
    assert [(one["log_level"], one["data_lost"], one["base_offset"]) for one in lost] == [
        ("error", True, 0),
        ("error", True, 50),
    ]
    assert lost[0]["topic"] == TOPIC_ID_PARTITION.topic
    assert shell.telemetry.value(PINS_DROPPED, reason="pins_max_bytes") == 2


async def test_what_the_broker_still_has_takes_no_room() -> None:
    shell = PinShell(*PINS, limits=PinLimits(max_bytes=0, disk_reserve_percent=10))
    shell.pins.spaces[LOG_DIR] = DiskSpace(device=1, size_bytes=10_000, free_bytes=0)
    await shell.open(0, 50, 100, 150)
    assert len(shell.pins.ranges) == 3
    assert shell.telemetry.value(PINS_BYTES, log_dir=LOG_DIR) == 0
    assert shell.telemetry.value(PINS_SEGMENTS, log_dir=LOG_DIR) == 3


async def test_a_log_that_is_built_anew_beside_its_old_pins_does_not_fill_the_disk() -> None:
    """By their offsets the broker would still have them: they would count nowhere, and no limit would let them go."""
    shell = PinShell(limits=PinLimits(disk_reserve_percent=10))
    await shell.open(0, 50, 100, 150)
    await shell.round()
    pins = [replace(pin, segment=replace(pin.segment, inode=7)) for pin in shell.pins.pins]
    shell.pins.pins = pins
    shell.table.pins.add_all(pins)
    shell.table.uncleaned_topics.add(TOPIC_ID_PARTITION.topic)
    shell.see(0, 60, 120)
    shell.pins.spaces = {LOG_DIR: DiskSpace(device=1, size_bytes=10_000, free_bytes=999)}
    await shell.keeper.keep()
    assert shell.pins.ranges == [(50, 100), (100, 150)]
    assert shell.telemetry.value(PINS_DROPPED, reason="replaced") == 1, "the broker has it again"
    shell.pins.spaces = {LOG_DIR: DiskSpace(device=1, size_bytes=10_000, free_bytes=0)}
    await shell.keeper.keep()
    assert shell.pins.ranges == []
    assert shell.telemetry.value(PINS_DROPPED, reason="disk_reserve") == 1, "the broker has not got so far yet"


async def test_below_disk_reserve_those_go_first_that_are_remote() -> None:
    shell = PinShell(*PINS, limits=PinLimits(disk_reserve_percent=10))
    shell.see(150, 200)
    await shell.metadata.assign([TOPIC_ID_PARTITION])
    await shell.finish_copy(100, 149)
    shell.pins.spaces[LOG_DIR] = DiskSpace(device=1, size_bytes=10_000, free_bytes=850)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(50, 100)]
    assert shell.telemetry.value(PINS_DROPPED, reason="remote") == 1
    assert shell.telemetry.value(PINS_DROPPED, reason="disk_reserve") == 1


async def test_what_is_to_be_copied_again_is_not_taken_for_remote() -> None:
    """Rule 1: the store has lost something of it (`tiersidecar repair`), so that its pin may be the only copy: it goes in its
    turn and with a data-loss event, not first and without."""
    shell = PinShell(*PINS, limits=PinLimits(disk_reserve_percent=10))
    shell.see(150, 200)
    await shell.metadata.assign([TOPIC_ID_PARTITION])
    await shell.finish_copy(100, 149)
    (remote,) = shell.metadata.list_remote_log_segments(TOPIC_ID_PARTITION)
    await shell.state.request_recopy(request_for(remote))
    shell.pins.spaces[LOG_DIR] = DiskSpace(device=1, size_bytes=10_000, free_bytes=850)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(100, 150)]
    assert shell.telemetry.value(PINS_DROPPED, reason="disk_reserve") == 2
    assert shell.telemetry.value(PINS_DROPPED, reason="remote") == 0


async def test_a_pin_of_what_the_broker_has_only_renamed_is_not_dropped_for_room() -> None:
    """It frees nothing before the broker removes the file (file.delete.delay.ms, a minute): twelve rounds would each drop as
    much as one had to."""
    shell = PinShell(*PINS, limits=PinLimits(disk_reserve_percent=10))
    shell.see(150, 200, deleted=(50, 100))
    shell.pins.spaces[LOG_DIR] = DiskSpace(device=1, size_bytes=10_000, free_bytes=950)
    for _ in range(3):
        await shell.keeper.keep()
    assert shell.pins.ranges == [(50, 100), (100, 150)], "what is the pin's alone goes"
    shell.see(150, 200)
    shell.pins.spaces[LOG_DIR] = DiskSpace(device=1, size_bytes=10_000, free_bytes=1_000)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(50, 100), (100, 150)]


async def test_how_much_room_is_left_is_told() -> None:
    shell = PinShell(*PINS, limits=PinLimits(max_bytes=1000, disk_reserve_percent=10))
    await shell.open(100, 150)
    assert shell.telemetry.value(PINS_BYTES, log_dir=LOG_DIR) == 200
    assert shell.telemetry.value(PINS_SEGMENTS, log_dir=LOG_DIR) == 3
    assert shell.telemetry.value(PINS_ROOM_BYTES, log_dir=LOG_DIR) == 800


async def test_what_the_brokers_cleaner_has_replaced_is_told_and_stays() -> None:
    """By its offsets the directory has it, and yet the link alone keeps the old file; no limit may take a picture apart."""
    shell = PinShell(*PINS, limits=PinLimits(max_bytes=0))
    shell.pins.replaced = {0, 100}
    await shell.open(0, 50, 100, 150)
    settings = read_cleaner_settings(COMPACTED)
    assert settings is not None
    shell.table.compacted_topics = {TOPIC_ID_PARTITION.topic: settings}
    await shell.keeper.keep()
    assert shell.telemetry.value(PINS_BYTES, log_dir=LOG_DIR) == 200
    assert len(shell.pins.ranges) == 3
    shell.pins.replaced = set()
    await shell.keeper.keep()
    assert shell.telemetry.value(PINS_BYTES, log_dir=LOG_DIR) == 0


async def test_no_pin_goes_for_its_age() -> None:
    """Issue 16, finding 1: it may be the only copy, and a retention typed in too short, or a clock, makes anything old.  What
    is past its retention the leader's expiry gives up, by the remote log start."""
    shell = PinShell(pin_of(0, 50, max_timestamp_ms=1, modified_ms=1))
    shell.be(policy=TopicPolicy(retention_ms=3_600_000))
    await shell.open(100, 150)
    shell.clock.jump(10 * 24 * 3600)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(0, 50)]


async def test_a_full_disk_frees_the_pins_in_a_log_dir_that_the_partition_has_left() -> None:
    """Finding 6: the directory in the other log dir has these segments, so nothing is lost."""
    shell = PinShell(*PINS, limits=PinLimits(disk_reserve_percent=10))
    await shell.open(0, 50, 100, 150)
    assert shell.pins.ranges == [(0, 50), (50, 100), (100, 150)]
    local = shell.table.local.partitions[TOPIC_ID_PARTITION]
    moved = replace(local, log_dir="/logs2", directory="/logs2/x")
    shell.table.local = replace(shell.table.local, partitions={TOPIC_ID_PARTITION: moved})
    shell.pins.spaces[LOG_DIR] = DiskSpace(device=1, size_bytes=10_000, free_bytes=900)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(50, 100), (100, 150)]
    assert shell.telemetry.value(PINS_DROPPED, reason="moved") == 1


async def test_below_the_remote_log_start_a_pin_has_no_right() -> None:
    shell = PinShell(*PINS)
    shell.state.partition_states[TOPIC_ID_PARTITION] = PartitionState(
        remote_log_start_offset=Offset(100), remote_log_start_epoch=LeaderEpoch(0)
    )
    await shell.open(150, 200)
    assert shell.pins.ranges == [(100, 150)]


async def test_a_log_start_of_a_history_that_was_cut_off_counts_no_further() -> None:
    """It was said in epoch 0, of which only the offsets below 60 are left."""
    shell = PinShell(pin_of(0, 50), pin_of(60, 100, epochs=[(0, 0), (1, 60)]))
    shell.state.partition_states[TOPIC_ID_PARTITION] = PartitionState(
        remote_log_start_offset=Offset(100), remote_log_start_epoch=LeaderEpoch(0)
    )
    shell.see(100, 150, epochs=((0, 0), (1, 60)))
    await shell.keeper.keep()
    assert shell.pins.ranges == [(60, 100)]


async def test_a_pin_below_the_log_start_stays_until_what_gave_it_up_is_due() -> None:
    """It may be the only copy, in race mode: an undelete brings it back (issue 16, trash)."""
    shell = PinShell(pin_of(0, 50), pin_of(50, 100))
    start = PartitionState(remote_log_start_offset=Offset(100), remote_log_start_epoch=LeaderEpoch(0))
    shell.state.partition_states[TOPIC_ID_PARTITION] = start
    now_ms = shell.clock.now_ms()
    entry = user_delete(
        Offset(100),
        LeaderEpoch(0),
        generation=0,
        delays=TrashDelays(retention_ms=1, user_ms=60_000),
        now_ms=now_ms,
        by="a user",
    )
    await shell.state.put_into_trash(TOPIC_ID_PARTITION, [entry])
    shell.see(100, 150)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(0, 50), (50, 100)]
    shell.clock.jump(2 * 3600)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(0, 50), (50, 100)], "nothing is due by a clock that jumped"
    await shell.state.put_into_trash(TOPIC_ID_PARTITION, [replace(entry, purged_ms=entry.decided_ms)])
    await shell.keeper.keep()
    assert shell.pins.ranges == []


async def test_a_pin_that_an_undelete_left_in_the_trash_stays_though_the_undelete_ended_behind_its_start() -> None:
    shell = PinShell(pin_of(0, 50), pin_of(50, 100))
    entry = user_delete(
        Offset(100),
        LeaderEpoch(0),
        generation=1,
        delays=TrashDelays(retention_ms=1, user_ms=60_000),
        now_ms=shell.clock.now_ms(),
        by="a user",
    )
    shell.state.partition_states[TOPIC_ID_PARTITION] = PartitionState(
        remote_log_start_offset=Offset(50),
        remote_log_start_epoch=LeaderEpoch(0),
        start_generation=1,
        kept=(replace(entry, up_to=Offset(50)),),
    )
    shell.see(100, 150)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(0, 50), (50, 100)]


async def test_what_is_undone_while_pins_are_dropped_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader answers an undelete with what its pins hold: that must still be there."""
    shell = PinShell(pin_of(0, 50), pin_of(50, 100))
    shell.state.partition_states[TOPIC_ID_PARTITION] = PartitionState(
        remote_log_start_offset=Offset(100), remote_log_start_epoch=LeaderEpoch(0)
    )
    shell.see(100, 150)
    unpin = shell.pins.unpin

    async def unpin_slowly(pin: Pin) -> None:
        await unpin(pin)
        back = PartitionState(
            remote_log_start_offset=Offset(50), remote_log_start_epoch=LeaderEpoch(0), start_generation=1
        )
        await shell.state.publish_partition_state(TOPIC_ID_PARTITION, back)

    monkeypatch.setattr(shell.pins, "unpin", unpin_slowly)
    await shell.keeper.keep()
    assert shell.pins.ranges == [(50, 100)]


@pytest.mark.parametrize(
    ("topic_ids", "reason", "is_loss"),
    [
        pytest.param({}, "topic_gone", False, id="its topic was deleted"),
        pytest.param(
            {TOPIC_ID_PARTITION.topic: TOPIC_ID_PARTITION.topic_id},
            "partition_gone",
            True,
            id="it has left this broker",
        ),
    ],
)
async def test_a_partition_that_is_gone_for_a_minute_takes_its_pins_along(
    topic_ids: dict[str, Uuid], reason: str, is_loss: bool
) -> None:
    """Issue 16, finding 6: whether anything else holds what they hold nobody can tell where the topic is still there."""
    shell = PinShell(*PINS)
    await shell.open(100, 150)
    shell.see()
    shell.table.topic_ids = topic_ids
    await shell.keeper.keep()
    await shell.clock.advance(59)
    await shell.keeper.keep()
    assert len(shell.pins.ranges) == 3
    await shell.clock.advance(1)
    with capture_logs() as events:
        await shell.keeper.keep()
    assert shell.pins.ranges == []
    assert shell.telemetry.value(PINS_DROPPED, reason=reason) == 3
    (loss,) = {event["data_lost"] for event in events if event["event"] == "pin.dropped"}
    assert loss is is_loss


async def test_a_directory_that_comes_back_begins_anew() -> None:
    """It moves between log dirs by two renames."""
    shell = PinShell(*PINS)
    await shell.open(100, 150)
    for bases in ((), (100, 150), ()):
        shell.see(*bases)
        await shell.keeper.keep()
        await shell.clock.advance(40)
        await shell.keeper.keep()
    assert len(shell.pins.ranges) == 3


async def test_nothing_is_gone_while_log_dirs_or_broker_are_in_trouble() -> None:
    shell = PinShell(*PINS)
    await shell.open(100, 150)
    for trouble, faults in (("the broker is away", ()), ("", (LOG_DIR,))):
        shell.see(faults=faults)
        shell.table.watch_trouble = trouble
        for _ in range(3):
            await shell.keeper.keep()
            await shell.clock.advance(100)
    assert len(shell.pins.ranges) == 3


async def test_no_place_for_links_is_said_once_and_cleared() -> None:
    """Issue: say so at start-up and go on without."""
    shell = PinShell()
    shell.pins.refusals[LOG_DIR] = "fs.protected_hardlinks"
    with capture_logs() as events:
        await shell.open(0, 50)
        await shell.keeper.keep()
        assert shell.telemetry.value(PINS_UNAVAILABLE, log_dir=LOG_DIR) == 1
        assert not shell.keeper.can_pin(LOG_DIR)
        shell.pins.refusals.clear()
        await shell.keeper.keep()
    said = [(event["log_level"], event["reason"]) for event in events if event["event"] == "pins.unavailable"]
    assert said == [("warning", "fs.protected_hardlinks")]
    assert shell.telemetry.value(PINS_UNAVAILABLE, log_dir=LOG_DIR) == 0
    assert shell.keeper.can_pin(LOG_DIR)


async def test_pins_enabled_false_makes_none_and_still_lets_go() -> None:
    shell = PinShell(*PINS, makes_pins=False)
    await shell.open(150, 200)
    await shell.finish_copy(0, 49)
    await shell.round()
    assert shell.pins.ranges == [(50, 100), (100, 150)]


async def test_a_pin_that_cannot_be_removed_is_tried_again() -> None:
    shell = PinShell(*PINS, limits=PinLimits(max_bytes=0, disk_reserve_percent=0))
    shell.pins.stuck = {0}
    await shell.open(150, 200)
    assert shell.pins.ranges == shell.known == [(0, 50)]
    shell.pins.stuck.clear()
    await shell.keeper.keep()
    assert shell.pins.ranges == []


async def test_what_is_dropped_is_told_with_all_that_somebody_needs_to_find_it() -> None:
    shell = PinShell(*PINS, limits=PinLimits(max_bytes=250, disk_reserve_percent=0))
    with capture_logs() as events:
        await shell.open(150, 200)
    (lost,) = [event for event in events if event["event"] == "pin.dropped"]
    assert lost == {
        "event": "pin.dropped",
        "log_level": "error",
        "topic": "orders",
        "topic_id": format_uuid(TOPIC_ID_PARTITION.topic_id),
        "partition": 3,
        "base_offset": 0,
        "next_base_offset": 50,
        "bytes": 100,
        "reason": "pins_max_bytes",
        "data_lost": True,
    }
    assert shell.failpoints.passed == ["pin.dropped"]


async def test_a_pin_that_is_remote_goes_without_a_word() -> None:
    shell = PinShell(*PINS, limits=PinLimits(disk_reserve_percent=10))
    shell.see(150, 200)
    await shell.metadata.assign([TOPIC_ID_PARTITION])
    await shell.finish_copy(0, 149)
    shell.pins.spaces[LOG_DIR] = DiskSpace(device=1, size_bytes=10_000, free_bytes=950)
    with capture_logs() as events:
        await shell.keeper.keep()
    dropped = [(event["log_level"], event["data_lost"]) for event in events if event["event"] == "pin.dropped"]
    assert dropped == [("debug", False)]


async def test_it_keeps_every_five_seconds() -> None:
    shell = PinShell(*PINS)
    shell.pins.faults[LOG_DIR] = "its disk hangs"
    shell.see(150, 200)
    keeping = asyncio.create_task(shell.keeper.run())
    await shell.clock.advance(4.9)
    shell.pins.faults.clear()
    assert not shell.table.pins.are_known(LOG_DIR)
    await shell.clock.advance(0.1)
    assert shell.table.pins.are_known(LOG_DIR)
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


@pytest.mark.parametrize("drops_pins", [True, False], ids=["that may drop pins", "that observes"])
async def test_what_a_crash_left_of_half_made_pins_is_swept_by_a_process(drops_pins: bool) -> None:
    shell = PinShell(*PINS, drops_pins=drops_pins)
    await shell.open(100, 150)
    assert shell.pins.swept is drops_pins


async def test_each_reason_for_which_nothing_can_be_linked_is_told_once() -> None:
    shell = PinShell(*PINS)
    with capture_logs() as events:
        for reason in (
            "another file system",
            "another file system",
            "another file system",
            "read-only",
            None,
            "read-only",
        ):
            shell.pins.refusals = {} if reason is None else {LOG_DIR: reason}
            await shell.open(100, 150)
            assert shell.keeper.can_pin(LOG_DIR) is (reason is None)
            assert shell.telemetry.value(PINS_UNAVAILABLE, log_dir=LOG_DIR) == (reason is not None)
    told = [(event["log_dir"], event["reason"]) for event in events if event["event"] == "pins.unavailable"]
    assert told == [(LOG_DIR, "another file system"), (LOG_DIR, "read-only"), (LOG_DIR, "read-only")]


async def test_what_was_found_at_start_is_told_in_sum() -> None:
    shell = PinShell(*PINS)
    with capture_logs() as events:
        await shell.open(100, 150)
        await shell.keeper.keep()
    found = [(event["segments"], event["bytes"]) for event in events if event["event"] == "pins.found"]
    assert found == [(3, 300)]
