"""The local log of a compacted topic is trimmed once both cleaners were there, and the remote log has each of its records.

Shown here: S-266, S-267, S-268, S-275.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import live
from tests.support.compacted_logs import NOW_MS, LogSegment, clean, committed_records, table
from tests.support.trim_world import DAY_MS, TrimWorld
from tiersidecar.decide.compacted_trim import Room
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.formats.compaction import containment
from tiersidecar.tasks import trim_compacted


def puts(base_offset: int, *records: tuple[bytes, bytes | None]) -> LogSegment:
    """A segment with a batch per record."""
    log = Writing(offset=base_offset)
    for record in records:
        one: list[tuple[bytes | None, bytes | None]] = [record]
        log.data(one, 0, -1)
    return segment_of(log.batches)


FIRST = puts(0, (b"a", b"1"), (b"b", b"1"))
SECOND = puts(2, (b"a", b"2"), (b"c", b"1"))
THIRD = puts(4, (b"d", b"1"), (b"e", b"1"))
LOG = (FIRST, SECOND, THIRD)


async def a_world(
    directory: Path, *log: LogSegment, policy: str = "compact,delete", is_enabled: bool = True
) -> TrimWorld:
    """Return one whose log was copied as it was written, and cleaned on both sides."""
    world = TrimWorld(directory, policy=policy, is_enabled=is_enabled)
    world.append(*log)
    await world.remote.add(*log)
    await world.remote.clean_all()
    world.broker_cleans()
    return world


async def test_what_both_have_cleaned_goes(tmp_path: Path) -> None:
    world = await a_world(tmp_path, *LOG)
    assert await world.trim() == 6
    assert world.reason == ""
    assert live(await world.remote.table_read()) == live(table(committed_records(LOG)))


@pytest.mark.parametrize(
    ("policy", "is_enabled", "says"),
    [
        pytest.param("compact", True, "brokers refuse DeleteRecords", id="compact alone: brokers refuse it"),
        pytest.param("compact,delete", False, "compaction.trim.enabled is false", id="it was not asked for"),
    ],
)
async def test_where_nothing_goes_the_broker_is_not_asked(
    tmp_path: Path, policy: str, is_enabled: bool, says: str
) -> None:
    world = await a_world(tmp_path, *LOG, policy=policy, is_enabled=is_enabled)
    assert await world.trim() == 0
    assert says in world.trims.reason_not_to(world.remote.owner.topic)
    assert world.remote.broker.deleted == []


async def test_a_refusal_of_the_broker_is_told_and_nothing_else(tmp_path: Path) -> None:
    """The policy was changed a moment ago."""
    world = await a_world(tmp_path, *LOG)
    world.remote.broker.refuses_deletes = "POLICY_VIOLATION"
    assert await world.trim() == 0
    assert "cleanup.policy" in world.reason


async def test_nothing_goes_before_the_remote_log_was_cleaned(tmp_path: Path) -> None:
    world = TrimWorld(tmp_path)
    world.append(*LOG)
    await world.remote.add(*LOG)
    world.broker_cleans()
    assert await world.trim() == 0
    assert "has not been cleaned yet" in world.reason


async def test_nothing_goes_that_is_above_what_the_remote_cleaner_has_done(tmp_path: Path) -> None:
    world = await a_world(tmp_path, FIRST, SECOND)
    world.append(THIRD)
    await world.remote.add(THIRD)
    assert await world.trim() == 4


async def test_nothing_goes_before_the_brokers_own_cleaner_was_there(tmp_path: Path) -> None:
    world = TrimWorld(tmp_path)
    world.append(*LOG)
    await world.remote.add(*LOG)
    await world.remote.clean_all()
    assert await world.trim() == 0
    assert "broker's cleaner" in world.reason


async def test_a_dirtier_local_log_waits_for_its_cleaner(tmp_path: Path) -> None:
    """As of a new leader whose cleaner was behind: its old value is in no remote segment any more."""
    world = await a_world(tmp_path, *LOG)
    world.log = list(LOG)
    world.cleaned_to = 6  # what another replica's checkpoint would say
    assert await world.trim() == 0
    assert "a record that the remote log does not have" in world.reason
    world.cleaned_to = -1
    world.broker_cleans()
    assert await world.trim() == 6


async def test_what_is_only_here_after_an_unclean_election_stays(tmp_path: Path) -> None:
    """The former leader had cleaned ``a`` of offset 0 because of one that the election has cut off: the remote log has
    neither."""
    cut_off = puts(2, (b"a", b"lost"), (b"c", b"1"))
    former = clean([FIRST, cut_off], now_ms=NOW_MS, segment_bytes=1).segments
    world = TrimWorld(tmp_path)
    world.append(FIRST, puts(2, (b"x", b"1"), (b"c", b"1")))
    await world.remote.add(former[0], world.log[1])
    await world.remote.clean_all()
    world.broker_cleans()
    assert await world.trim() == 0
    assert "at offset 0, a record that the remote log does not have" in world.reason


async def test_records_of_another_history_are_no_proof(tmp_path: Path) -> None:
    world = await a_world(tmp_path, *LOG)
    world.remote.lineages.known = Lineage((EpochEntry(LeaderEpoch(3), Offset(0)),))
    assert await world.trim() == 0


async def test_a_tombstone_keeps_the_local_log_until_its_time_is_over(tmp_path: Path) -> None:
    """A reader that had the value from the broker finds the tombstone there; the remote one may go any time."""
    log = (puts(0, (b"a", b"1"), (b"a", None)), puts(2, (b"b", b"1")))
    world = await a_world(tmp_path, *log)
    assert await world.trim() == 0
    assert "a tombstone" in world.reason
    await world.remote.clock.advance(DAY_MS / 1000 + 1)
    later = puts(3, (b"c", b"1"))
    world.append(later)
    await world.remote.add(later)
    await world.remote.clean_all()
    world.broker_cleans()
    assert await world.trim() == 4
    assert live(await world.remote.table_read()) == live(table(committed_records([*log, later])))


async def crossing(world: TrimWorld) -> dict[bytes, tuple[int, bytes | None]]:
    """Return the table of a reader that goes from the remote log into the broker's where that begins."""
    remote = committed_records(await world.remote.read())
    found = [one for one in remote if one.offset < world.log_start]
    return live(table([*found, *(one for one in committed_records(world.log) if one.offset >= world.log_start)]))


async def a_late_copy(directory: Path) -> tuple[TrimWorld, list[LogSegment]]:
    """Return a partition whose tombstone of ``b`` the broker's cleaner has removed, and only a pin has; and all that was
    written."""
    world = await a_world(directory, FIRST, SECOND)
    pinned = [puts(4, (b"b", None)), puts(5, (b"z", b"1"))]
    world.append(pinned[0])
    world.broker_cleans()
    await world.remote.clock.advance(DAY_MS / 1000 + 1)
    world.append(pinned[1])
    world.broker_cleans()
    return world, [FIRST, SECOND, *pinned]


async def test_where_the_broker_has_no_tombstone_of_a_remote_value_any_more_all_waits(tmp_path: Path) -> None:
    world, written = await a_late_copy(tmp_path)
    assert await world.trim() == 0
    assert "after the next round of the sidecar's cleaner" in world.reason
    world.remote.builder.event_timestamp_ms = world.remote.clock.now_ms()
    await world.remote.add(*written[2:])
    await world.remote.clean_all()
    assert await world.trim() == 6
    assert await crossing(world) == live(table(committed_records(written)))


async def test_without_that_rule_a_deleted_key_would_be_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, written = await a_late_copy(tmp_path)
    monkeypatch.setattr(trim_compacted, "decide_room", lambda view: Room(stop_offset=4, reason=""))
    assert await world.trim() == 4
    assert (await crossing(world)).keys() - live(table(committed_records(written))).keys() == {b"b"}


async def test_a_checkpoint_that_cannot_be_read_once_says_nothing_of_where_the_cleaner_was(tmp_path: Path) -> None:
    world, _ = await a_late_copy(tmp_path)
    world.restart()
    world.is_checkpoint_readable = False
    assert await world.trim() == 0
    world.is_checkpoint_readable = True
    assert await world.trim() == 0
    assert "after the next round of the sidecar's cleaner" in world.reason


@pytest.mark.parametrize(
    "says", [pytest.param(-1, id="its checkpoint has no line"), pytest.param(4, id="it was truncated, or reset")]
)
async def test_a_replica_that_was_built_from_a_cleaned_log_has_not_the_tombstones_that_its_cleaner_did_not_take(
    tmp_path: Path, says: int
) -> None:
    """Of a new leader: its checkpoint is below the remote cleaner offset, and yet another broker's cleaner was there twice."""
    world, written = await a_late_copy(tmp_path)
    world.restart()
    world.written_from, world.cleaned_to = 6, says
    await world.trim()
    world.broker_cleans()
    assert await world.trim() == 0
    assert "after the next round of the sidecar's cleaner" in world.reason
    world.remote.builder.event_timestamp_ms = world.remote.clock.now_ms()
    await world.remote.add(*written[2:])
    await world.remote.clean_all()
    assert await world.trim() == 6
    assert await crossing(world) == live(table(committed_records(written)))


async def test_a_new_leader_that_has_every_offset_trims_at_once(tmp_path: Path) -> None:
    world = await a_world(tmp_path, FIRST, SECOND)
    world.append(THIRD)
    world.restart()
    world.written_from = 6
    assert await world.trim() == 4


async def test_rounds_of_the_brokers_cleaner_that_are_cut_short_take_tombstones_and_leave_no_checkpoint(
    tmp_path: Path,
) -> None:
    """Its thread dies at a damaged segment each time, or the broker is restarted before the end of the round."""
    world = await a_world(tmp_path, FIRST)
    world.append(puts(2, (b"b", None)), puts(3, (b"z", b"1")))
    world.broker_cleans(is_cut_short=True)
    await world.remote.clock.advance(DAY_MS / 1000 + 1)
    world.broker_cleans(is_cut_short=True)
    assert table(committed_records(world.log)).keys() == {b"a", b"z"}, "the tombstone has gone"
    assert (await world.trim(), world.cleaned_to) == (0, 2)
    assert "after the next round of the sidecar's cleaner" in world.reason


async def test_a_delete_retention_that_is_raised_brings_no_tombstone_back(tmp_path: Path) -> None:
    """The broker's cleaner was seen below the remote cleaner offset, and what it passed then it gave a horizon by the old
    setting."""
    log = (puts(0, (b"a", b"1")), puts(1, (b"b", b"1"), (b"d", b"1")))
    world = TrimWorld(tmp_path)
    world.append(*log)
    await world.remote.add(*log)
    await world.remote.clean_all()
    world.broker_cleans(1)
    assert await world.trim() == 1
    world.append(puts(3, (b"b", None)))
    world.broker_cleans()
    await world.remote.clock.advance(DAY_MS / 1000 + 1)
    world.append(puts(4, (b"c", b"1")))
    world.broker_cleans()
    assert table(committed_records(world.log)).keys() == {b"c", b"d"}, "the tombstone has gone"
    world.remote.configure(delete_retention_ms=str(7 * DAY_MS))
    assert await world.trim() == 1
    assert "after the next round of the sidecar's cleaner" in world.reason


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_reader_of_the_broker_finds_the_tombstone_of_what_it_has_just_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    """The broker's cleaner is late: the remote log is about to drop the tombstone when the broker still shows the value."""
    if not is_kept:  # the rule's fault
        monkeypatch.setattr(containment, "is_tombstone", lambda record: False)
    written = [puts(0, (b"a", b"1")), puts(1, (b"a", None)), puts(2, (b"b", b"1"))]
    world = TrimWorld(tmp_path)
    world.append(*written)
    await world.remote.add(*written)
    await world.remote.clean_all()
    await world.remote.clock.advance(DAY_MS / 1000 + 1)
    read = committed_records(world.log[:1])
    world.broker_cleans()
    assert await world.trim() == (1 if is_kept else 3)
    newer = puts(3, (b"b", b"2"))
    written.append(newer)
    world.append(newer)
    world.remote.builder.event_timestamp_ms = world.remote.clock.now_ms()
    await world.remote.add(newer)
    await world.remote.clean_all()
    rest = committed_records(world.log if is_kept else await world.remote.read())
    shown = live(table([*read, *(one for one in rest if one.offset > 0)]))
    assert (shown == live(table(committed_records(written)))) is is_kept


async def test_the_two_cleaners_need_not_be_equally_far(tmp_path: Path) -> None:
    """The broker's was seen where ours is, a while ago: its tombstones are still there."""
    world = await a_world(tmp_path, *LOG)
    await world.trim()
    newer = puts(6, (b"f", b"1")), puts(7, (b"g", b"1"))
    world.append(*newer)
    await world.remote.add(*newer)
    world.broker_cleans()
    assert (await world.trim(), world.cleaned_to) == (6, 8)
    assert world.reason.startswith("the remote log is clean up to offset 6, and the broker's up to 8")
    await world.remote.clock.advance(DAY_MS / 1000 * 0.6)
    assert await world.trim() == 6
    assert "after the next round of the sidecar's cleaner" in world.reason
    await world.remote.clean_all()
    assert await world.trim() == 8


async def test_a_local_segment_is_read_again_only_when_something_has_changed(tmp_path: Path) -> None:
    world = await a_world(tmp_path, puts(0, (b"a", None)), puts(1, (b"b", b"1")))
    reads = 0
    verify = world.trims.verifier.verify

    async def counted(step: object) -> None:
        nonlocal reads
        reads += 1
        await verify(step)  # type: ignore[arg-type]

    world.trims.verifier.verify = counted  # type: ignore[method-assign]
    await world.trim()
    await world.trim()
    assert reads == 1


async def test_a_segment_that_is_replaced_between_proof_and_trim_is_read_again(tmp_path: Path) -> None:
    world = await a_world(tmp_path, *LOG)
    newer = puts(6, (b"d", b"2"))

    async def clean() -> None:
        await world.remote.add(newer)
        await world.remote.clean_all()

    assert await world.trim({"trim.verified": clean}) == 0


async def test_a_policy_that_is_changed_meanwhile_stops_the_trim(tmp_path: Path) -> None:
    world = await a_world(tmp_path, *LOG)

    async def change() -> None:
        world.remote.configure(cleanup_policy="compact")

    assert await world.trim({"trim.verified": change}) == 0
