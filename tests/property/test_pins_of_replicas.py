"""Two replicas of a partition in race mode while the store is away, beside whose brokers sidecars pin: no pin goes that is the
last copy of what the partition's history has, and none stays, below a leader's log, that the history does not have.

The brokers do what Kafka's do to segment files and to the leader-epoch-checkpoint: truncations in place, logs that begin anew
at the leader's start, retention, lost directories, unclean elections.  The sidecars look after each of their steps: what one
that was away for several cannot see is a limit of its own (docs/design/0004-pins.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.pins import local_partition, pin_of
from tiersidecar.decide.pin import PinView, decide_pin
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import DropReason, LocalPartition, LocalSegment, Pin

RACE = TopicPolicy(mode=RetentionMode.RACE)
SEGMENT = 3
"""Records in a segment."""


@dataclass(eq=False)
class File:
    """A .log: epochs of its records by offset.  Pins see what becomes of it."""

    inode: int
    base: int
    changed_ms: int
    records: dict[int, int] = field(default_factory=dict)


class Clock:
    """Later with each step."""

    def __init__(self) -> None:
        self.now_ms = self.inode = 0

    def tick(self) -> int:
        self.now_ms += 1
        return self.now_ms


class Replica:
    """A broker's log.  ``past`` are the epochs of all offsets of the history that it is of, also of those that it has no
    more."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.begin()

    def begin(self) -> None:
        """Make the directory."""
        self.made_ms = self.clock.tick()
        self.past: list[int] = []
        self.epochs: list[tuple[int, int]] = []
        self.start = self.high_watermark = 0
        self.files = [self._file(0)]

    @property
    def end(self) -> int:
        return len(self.past)

    def append(self, epoch: int) -> None:
        if len(self.files[-1].records) >= SEGMENT:
            self.files.append(self._file(self.end))
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.assign(epoch)
        self.files[-1].records[self.end] = epoch
        self.files[-1].changed_ms = self.clock.tick()
        self.past.append(epoch)

    def assign(self, epoch: int) -> None:
        """As ``LeaderEpochFileCache.assign`` does."""
        self.epochs = [one for one in self.epochs if one[1] < self.end] + [(epoch, self.end)]

    def truncate(self, offset: int) -> None:
        """As ``LocalLog.truncateTo`` does: in place."""
        self.past, self.high_watermark = self.past[:offset], min(self.high_watermark, offset)
        self.epochs = [one for one in self.epochs if one[1] < offset]
        self.files = [one for one in self.files if one.base <= offset]
        active = self.files[-1]
        active.records = {at: epoch for at, epoch in active.records.items() if at < offset}
        active.changed_ms = self.clock.tick()

    def begin_at(self, offset: int, past: list[int]) -> None:
        """As ``truncateFullyAndStartAt`` does."""
        self.past, self.epochs, self.start, self.files = past[:offset], [], offset, [self._file(offset)]
        self.high_watermark = offset

    def raise_start(self, offset: int) -> None:
        """As DeleteRecords and retention do."""
        if offset <= self.start:
            return
        self.start = offset
        kept = [one for one in self.epochs if one[1] > offset]
        at = [one for one in self.epochs if one[1] <= offset]
        self.epochs = [(at[-1][0], offset), *kept] if at else kept
        following = [*(one.base for one in self.files[1:]), self.end + 1]
        self.files = [one for one, end in zip(self.files, following, strict=True) if end > offset]

    def local(self) -> LocalPartition:
        ends = [*(one.base for one in self.files[1:]), None]
        segments = tuple(
            LocalSegment(
                directory="/logs/orders-3",
                base_offset=Offset(one.base),
                next_base_offset=None if end is None else Offset(end),
                size_bytes=len(one.records),
                modified_ms=one.changed_ms,
                inode=one.inode,
            )
            for one, end in zip(self.files, ends, strict=True)
        )
        return local_partition(segments, epochs=self.epochs, made_ms=self.made_ms)

    def _file(self, base: int) -> File:
        self.clock.inode += 1
        return File(self.clock.inode, base, self.clock.tick())


class Sidecar:
    """Pins of one replica, with the files that they hold."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.pins: dict[tuple[int, int], tuple[Pin, File]] = {}
        self.seen = Lineage()

    def look(self, history: list[int], *, leads: bool) -> None:
        local = self.replica.local()
        self.seen = self.seen.extended_by(local.leader_epochs)
        pins = tuple(pin for _, (pin, _) in sorted(self.pins.items()))
        view = PinView(
            policy=RACE,
            local=local,
            pins=pins,
            can_pin=True,
            segments_at=lambda epoch, offset: (),
            epochs=self.seen,
        )
        plan = decide_pin(view).below(self.replica.high_watermark)
        for unpin in plan.drop:
            pin, file = self.pins.pop((unpin.pin.base_offset, unpin.pin.next_base_offset))
            if unpin.reason is DropReason.REPLACED and not self._holds(unpin.instead, pin):
                self.pins[pin.base_offset, pin.next_base_offset] = pin, file
                continue
            is_there = self.replica.start <= pin.base_offset and pin.next_base_offset <= self.replica.end
            assert is_there or not _is_of(history, pin, file), f"the last copy of {pin} goes as {unpin.reason}"
        for segment in plan.pin:
            self._pin(segment)
        first = self.replica.files[0].base
        if leads:
            for pin, file in self.pins.values():
                assert pin.base_offset >= first or _is_of(history, pin, file), f"{pin} would be copied: {file}"

    def _holds(self, instead: tuple[Pin, ...], pin: Pin) -> bool:
        held = {at for one in instead for at in self.pins[one.base_offset, one.next_base_offset][1].records}
        return held >= set(range(pin.base_offset, pin.next_base_offset))

    def _pin(self, segment: LocalSegment) -> None:
        (file,) = (one for one in self.replica.files if one.inode == segment.inode)
        assert segment.next_base_offset is not None
        end = segment.next_base_offset
        known = self.seen.entries_below(end)
        if Lineage(known).epoch_for_offset(segment.base_offset) is None:
            own: list[EpochEntry] = []
            for at, epoch in file.records.items():
                if not own or own[-1].epoch != epoch:
                    own.append(EpochEntry(LeaderEpoch(epoch), Offset(at)))
            known = Lineage.of(own).extended_by(known).entries
        pin = pin_of(segment.base_offset, end, epochs=known, modified_ms=segment.modified_ms, inode=segment.inode)
        self.pins[segment.base_offset, end] = pin, file


def _is_of(history: list[int], pin: Pin, file: File) -> bool:
    """Return whether the file has all that the pin says, as the history has it."""
    offsets = range(pin.base_offset, pin.next_base_offset)
    return all(at < len(history) and file.records.get(at) == history[at] for at in offsets) and set(
        file.records
    ) == set(offsets)


class World:
    def __init__(self) -> None:
        clock = Clock()
        self.replicas = [Replica(clock), Replica(clock)]
        self.sidecars = [Sidecar(replica) for replica in self.replicas]
        self.leader, self.epoch, self.is_in_sync = 0, 0, True
        self.was_lost = self.was_elected = False
        self.replicas[0].assign(0)

    @property
    def leads(self) -> Replica:
        return self.replicas[self.leader]

    @property
    def follows(self) -> Replica:
        return self.replicas[1 - self.leader]

    def look(self) -> None:
        both = (self.leads.end, self.follows.end) if self.is_in_sync else (self.leads.end,)
        self.leads.high_watermark = max(self.leads.high_watermark, min(both))
        for number, sidecar in enumerate(self.sidecars):
            sidecar.look(self.leads.past, leads=number == self.leader)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.leads.append(self.epoch)

    def fetch(self, count: int) -> None:
        """Truncate, or begin at the leader's start, and look; then fetch."""
        leader, follower = self.leads, self.follows
        agreed = next(
            (at for at, (one, other) in enumerate(zip(leader.past, follower.past, strict=False)) if one != other),
            min(leader.end, follower.end),
        )
        if agreed < follower.end:
            if agreed < follower.start:
                follower.begin_at(agreed, follower.past)
            else:
                follower.truncate(agreed)
            self.look()
        # Of an epoch in which it led and wrote nothing.
        follower.epochs = [one for one in follower.epochs if one[1] < follower.end]
        self.was_elected = False
        if follower.end < leader.start:
            follower.begin_at(leader.start, leader.past)
            self.look()
        for epoch in leader.past[follower.end : follower.end + count]:
            follower.append(epoch)
        follower.high_watermark = min(leader.high_watermark, follower.end)
        follower.raise_start(min(leader.start, follower.end))
        if follower.end == leader.end:
            self.is_in_sync, self.was_lost = True, False

    def fall_behind(self, _: int) -> None:
        self.is_in_sync = False

    def elect(self, _: int) -> None:
        """Have the follower lead; uncleanly if it is not in sync: not one that was built anew, since nothing shows then of
        which history its pins are."""
        if self.was_lost:
            return
        self.leader, self.epoch = 1 - self.leader, self.epoch + 1
        self.leads.assign(self.epoch)
        for sidecar in self.sidecars:
            sidecar.seen = Lineage()
        self.is_in_sync, self.was_elected = False, True

    def delete(self, share: int) -> None:
        self.leads.raise_start(self.leads.high_watermark * min(share, 4) // 4)

    def lose(self, _: int) -> None:
        """Lose the follower's directory: not that of one that has not followed this leader yet, for the same reason."""
        if self.was_elected:
            return
        self.follows.begin()
        self.is_in_sync, self.was_lost = False, True


STEPS = st.tuples(
    st.sampled_from(
        [World.write, World.write, World.fetch, World.fetch, World.fall_behind, World.elect, World.delete, World.lose]
    ),
    st.integers(0, 8),
)


DIRECTORY_IS_LOST = [(World.write, 4), (World.fetch, 4), (World.lose, 0)]
LEADERS_START_PASSES_WHAT_AN_ELECTION_CUT = [
    (World.write, 6),
    (World.elect, 0),
    (World.write, 7),
    (World.elect, 0),
    (World.delete, 4),
    (World.fetch, 0),
    (World.elect, 0),
]


@settings(max_examples=1500, deadline=None)
@example(steps=DIRECTORY_IS_LOST)
@example(steps=LEADERS_START_PASSES_WHAT_AN_ELECTION_CUT)
@given(steps=st.lists(STEPS, max_size=30))
def test_the_last_copy_stays_and_nothing_of_another_history_does(steps: list[tuple[object, int]]) -> None:
    world = World()
    for step, count in steps:
        step(world, count)  # type: ignore[operator]
        world.look()
