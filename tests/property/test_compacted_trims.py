"""Trims of a compacted topic in random histories: replicas whose cleaners are at different points, elections, a late copy lane,
kills between any two steps of the remote cleaner, and readers that go from the remote log into the leader's.

At each trim every record that the leader's log loses must be in the remote log; and a reader that gets to the end within half
of ``delete.retention.ms`` must have the table of all that was written, wherever the leader's log began meanwhile (S-266, S-275,
S-282).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import KilledError, live
from tests.support.compacted_logs import ABORT, COMMIT, LogSegment, clean, committed_records, data_batch, table
from tests.support.trim_world import TrimWorld, records_below
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.record_batches import iter_batch_headers

pytestmark = pytest.mark.slow

RETENTION_MS, STEPS, SEEDS, REPLICAS = 2000, 60, 12, 2
MOST_SEEDS = 60
"""Within which a planted fault must be found."""
STALL = range(15, 45)
LANE_MS = 500
"""The copy lane and the cleaner's are no later than this; cleaning is due within half of ``delete.retention.ms``."""
PLACES = ("mapped", "rewritten", "started", "uploaded", "finished", "trashed", "published")


class TimedWriting(Writing):
    """Records have the time at which they are written."""

    now_ms = 0

    def data(self, records: list[tuple[bytes | None, bytes | None]], codec: int, producer_id: int) -> None:
        super().data(records, codec, producer_id)
        transactional = producer_id >= 2
        first = self.sequences[producer_id] - len(records)
        self.batches[-1] = data_batch(
            self.offset - len(records),
            records,
            codec=codec,
            producer=(producer_id, 0, first) if producer_id >= 0 else (-1, -1, -1),
            transactional=transactional,
            base_timestamp=self.now_ms,
        )


@dataclass(slots=True)
class Replica:
    """A local log: as its own cleaner has left it."""

    log: list[LogSegment] = field(default_factory=list)
    cleaned_to: int = -1
    segment_bytes: int = 1


@dataclass(slots=True)
class Reader:
    """Reads the remote log below the leader's log start, and the leader's log from there on."""

    since_ms: int
    offset: int = 0
    read: list[LogSegment] = field(default_factory=list)


class History:
    """One random history of one partition."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = TrimWorld(directory, delete_retention_ms=RETENTION_MS)
        self.replicas = [Replica(segment_bytes=self.draw.choice([1, 400])) for _ in range(REPLICAS)]
        self.leader = self.epoch = 0
        self.writing, self.written = TimedWriting(), list[LogSegment]()
        self.pins, self.readers = list[LogSegment](), list[Reader]()
        self.worked_ms, self.trims = self.now_ms, 0
        self.brokers_rounds = self.draw.choice([1, 4])
        """Brokers' cleaners are at work seldom, or all the time."""
        self.keys, self.tombstones = self.draw.choice([5, 20]), self.draw.choice([0.1, 0.3])
        self.stalls = self.draw.random() < 0.4
        """For longer than ``delete.retention.ms`` nothing is copied or cleaned remotely, and then trims begin: readers that
        cross over could not be given what they need."""
        self.producers = self.draw.choice([(-1,), (-1, 2)])
        self.cut_short = self.draw.choice([0, 0, 0.5])
        """Share of rounds of brokers' cleaners that are cut short, and leave no checkpoint."""

    @property
    def now_ms(self) -> int:
        return self.world.remote.clock.now_ms()

    async def run(self) -> int:
        """Return how many trims there were."""
        await self.append()
        await self.work()
        for step in range(STEPS):
            is_stalled, may_trim = self.stalls and step in STALL, not self.stalls or step >= STALL.stop - 6
            await self.world.remote.clock.advance(
                self.draw.choice([0.1, 0.4] if is_stalled else [0.001, 0.05, 0.1, 0.4])
            )
            acts: list[tuple[int, Callable[[], Any]]] = [
                (6, self.append),
                (self.brokers_rounds, self.broker_cleans),
                (0 if is_stalled else 3, self.work),
                (0 if is_stalled else 2, self.killed),
                (5 if may_trim else 0, self.trim),
                (1, self.elect),
                (1, self.rebuild),
                (1, self.expire),
            ]
            (act,) = self.draw.choices([one for _, one in acts], [weight for weight, _ in acts])
            if not is_stalled and self.now_ms - self.worked_ms > LANE_MS:
                await self.work()
            await act()
            await self.read()
        return self.trims

    async def append(self) -> None:
        """A segment is sealed on all replicas, and pinned: as it was written, or as the leader's cleaner has left it."""
        self.writing.batches.clear()
        self.writing.now_ms = self.now_ms
        for _ in range(self.draw.randint(1, 3)):
            producer_id = self.draw.choice(self.producers)
            if producer_id in self.writing.open_now:
                self.writing.end(producer_id, self.draw.choice([ABORT, COMMIT]))
                continue
            records: list[tuple[bytes | None, bytes | None]] = [
                (
                    b"%d" % self.draw.randrange(self.keys),
                    None if self.draw.random() < self.tombstones else self.draw.randbytes(4),
                )
                for _ in range(self.draw.randint(1, 2))
            ]
            self.writing.data(records, self.draw.choice([0, 4]), producer_id)
        for producer_id in sorted(self.writing.open_now):
            self.writing.end(producer_id, self.draw.choice([ABORT, COMMIT]))
        sealed = segment_of(self.writing.batches)
        self.written.append(sealed)
        for replica in self.replicas:
            replica.log.append(sealed)
        if self.draw.random() < 0.3:
            done = clean([sealed], now_ms=self.now_ms, delete_retention_ms=RETENTION_MS)
            sealed = done.segments[0]
        self.pins.append(sealed)

    async def broker_cleans(self) -> None:
        """One of the brokers, all or a part of it."""
        replica = self.draw.choice(self.replicas)
        ends = [one.next_base_offset for one in replica.log if one.next_base_offset > replica.cleaned_to]
        if not ends:
            return
        stop = self.draw.choice([ends[-1], self.draw.choice(ends)])
        cleaned = [one for one in replica.log if one.next_base_offset <= stop]
        done = clean(
            cleaned,
            now_ms=self.now_ms,
            delete_retention_ms=RETENTION_MS,
            first_dirty_offset=max(replica.cleaned_to, cleaned[0].base_offset),
            segment_bytes=replica.segment_bytes,
        )
        replica.log = [*done.segments, *replica.log[len(cleaned) :]]
        if self.draw.random() >= self.cut_short:
            replica.cleaned_to = done.cleaner_offset

    async def work(self) -> None:
        """The copy lane, and the cleaner's behind it."""
        self.worked_ms = self.now_ms
        self.world.remote.builder.event_timestamp_ms = self.now_ms
        await self.world.remote.add(*self.pins)
        self.pins = []
        await self.world.remote.clean_all()

    async def killed(self) -> None:
        async def kill() -> None:
            raise KilledError

        try:
            await self.world.remote.clean({f"clean.{self.draw.choice(PLACES)}": kill})
        except KilledError:
            return

    async def elect(self) -> None:
        self.leader, self.epoch = self.draw.randrange(REPLICAS), self.epoch + 1
        self.world.written_from = self.written[-1].next_base_offset
        self.world.remote.lead(self.epoch)

    async def rebuild(self) -> None:
        """A follower is built anew from what the leader's cleaner has left; it has no checkpoint, or one of before."""
        leader, other = self.replicas[self.leader], self.replicas[1 - self.leader]
        other.log, other.cleaned_to = [*leader.log], self.draw.choice([-1, min(other.cleaned_to, leader.cleaned_to)])

    async def expire(self) -> None:
        """What was replaced, and readers are not given, goes."""
        remote = self.world.remote
        given = {one.remote_log_segment_id for one in self._given()}
        for segment in remote.segments(State.COPY_SEGMENT_FINISHED):
            name = segment.remote_log_segment_id
            if name.uuid in remote.in_trash() and name not in given:
                await remote.builder.move(segment, State.DELETE_SEGMENT_STARTED)
                await remote.builder.move(segment, State.DELETE_SEGMENT_FINISHED)

    def _given(self) -> list[Any]:
        found, offset = [], 0
        while (segment := self.world.remote.given(offset)) is not None:
            found.append(segment)
            offset = segment.next_offset
        return found

    async def trim(self) -> None:
        leader, before = self.replicas[self.leader], self.world.log_start
        self.world.log, self.world.cleaned_to = leader.log, leader.cleaned_to
        after = await self.world.trim()
        if after == before:
            return
        self.trims += 1
        lost = records_below(leader.log, after) - records_below(leader.log, before)
        assert lost <= records_below(await self.world.remote.read(), after), "only the broker had them"
        for replica in self.replicas:
            replica.log = [one for one in replica.log if one.next_base_offset > after]

    async def read(self) -> None:
        expected = live(table(committed_records(self.written)))
        end = self.written[-1].next_base_offset
        if self.draw.random() < 0.7:
            self.readers.append(Reader(since_ms=self.now_ms))
        for reader in [*self.readers]:
            for _ in range(self.draw.choice([0, 3, 40])):
                if reader.offset < end:
                    await self._read_on(reader)
            age_ms = self.now_ms - reader.since_ms
            if age_ms >= RETENTION_MS * 0.4 or reader.offset == end:
                self.readers.remove(reader)
                if age_ms < RETENTION_MS * 0.4:
                    assert live(table(committed_records(reader.read))) == expected, "of a reader of both logs"

    async def _read_on(self, reader: Reader) -> None:
        """Read a segment further."""
        if reader.offset < self.world.log_start:
            segment = self.world.remote.given(reader.offset)
            assert segment is not None, f"no log has offset {reader.offset}"
            log = await self.world.remote.log_of(segment)
            end: int = min(segment.next_offset, self.world.log_start)
        else:
            local = next(
                one for one in self.replicas[self.leader].log if one.base_offset <= reader.offset < one.next_base_offset
            )
            log, end = local.log, local.next_base_offset
        reader.read.append(cut(LogSegment(base_offset=reader.offset, next_base_offset=end, log=log)))
        reader.offset = end


def cut(segment: LogSegment) -> LogSegment:
    """Return the batches of the segment's offsets alone."""
    kept = b"".join(
        segment.log[at : at + header.size_bytes]
        for at, header in iter_batch_headers(segment.log)
        if segment.base_offset <= header.base_offset < segment.next_base_offset
    )
    return replace(segment, log=kept)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_lost_and_no_key_comes_back(tmp_path: Path, seed: int) -> None:
    await History(tmp_path, seed).run()


async def test_there_are_trims_in_these_histories(tmp_path: Path) -> None:
    assert sum([await History(tmp_path / str(seed), seed).run() for seed in range(SEEDS)]) >= SEEDS


@pytest.mark.parametrize(
    ("place", "instead"),
    [
        pytest.param(
            "tiersidecar.tasks.contained_read_back.first_lacking",
            lambda *_args, **_others: None,
            id="what the remote log lacks keeps nothing",
        ),
        pytest.param(
            "tiersidecar.formats.compaction.containment._is_same_batch",
            lambda header, other: header.base_offset == other.base_offset,
            id="a batch counts as the same whatever is left of it",
        ),
    ],
)
async def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, instead: Any
) -> None:
    monkeypatch.setattr(place, instead)
    for seed in range(MOST_SEEDS):
        try:
            await History(tmp_path / str(seed), seed).run()
        except AssertionError:
            return
    pytest.fail(f"{MOST_SEEDS} histories went well")
