"""The cleaner lane in random histories: kills, elections, late swaps of deposed leaders, a broker's own cleaner, slow readers,
deletes that are undone.

After every step the remote log must hold for each key the value that the whole log has; and a reader that gets from the
start to the end within delete.retention.ms must have built the same table, whatever was swapped under it.  Readers go on below
the remote log start, as if all deletes were undone at that moment.  Faults that are
planted must be found, or these histories would say little; what takes a rarer turn of events has a test of its own in
unit/tasks/test_clean.py (S-256, S-257, S-258, S-265, S-273, S-276, S-277).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import CleanWorld, KilledError, live
from tests.support.compacted_logs import ABORT, COMMIT, LogSegment, clean, committed_records, table
from tiersidecar.decide.trash import TrashDelays, user_delete
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats import native
from tiersidecar.formats.native import NativeCore
from tiersidecar.ports.state_log import PartitionState

pytestmark = pytest.mark.slow

PLACES = ("mapped", "rewritten", "started", "uploaded", "proven", "finishing", "finished", "trashed", "published")
RETENTION_MS, KEYS, STEPS, SEEDS = 1000, 6, 30, 8
MOST_SEEDS = 20
"""Within which a planted fault must be found."""


@dataclass(slots=True)
class Reader:
    """Reads a segment a step, from the log's start on."""

    since_ms: int
    offset: int = 0
    read: list[LogSegment] = field(default_factory=list)


class History:
    """One random history of one partition."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.world, self.draw = CleanWorld(scratch=scratch), random.Random(seed)
        self.writing, self.written = Writing(), list[LogSegment]()
        self.readers, self.epoch = list[Reader](), 0
        self.world.dedupe_bytes = 24 * self.draw.choice([8, 20, 1000])
        if self.draw.random() < 0.3:
            self.world.configure(segment_bytes="14")
        self.producers = self.draw.choice([(-1,), (-1, 2, 3)])
        """Segments of transactions have no filters."""
        self.deletes, self.generation = seed % 4 == 1, 0

    async def run(self) -> None:
        await self.append()
        for _ in range(STEPS):
            await self._step()
            await self._check()

    async def _step(self) -> None:
        acts: list[tuple[int, Callable[[], Any]]] = [
            (6, self.append),
            (4, self.clean),
            (2, self.killed),
            (2, self.late),
            (2, self.expire),
            (1, self.elect),
        ]
        if self.deletes:
            acts += [(2, self.delete), (1, self.undelete)]
        self.world.clock.jump(self.draw.choice([0.001, 0.001, 0.1, 0.2, 1.5]))
        (act,) = self.draw.choices([one for _, one in acts], [weight for weight, _ in acts])
        await act()

    async def append(self) -> None:
        """A segment is copied: as it was written, or as the broker's cleaner has left it, long ago."""
        self.writing.batches.clear()
        for _ in range(self.draw.randint(1, 3)):
            producer_id = self.draw.choice(self.producers)
            if producer_id in self.writing.open_now and self.draw.random() < 0.6:
                self.writing.end(producer_id, self.draw.choice([ABORT, COMMIT]))
                continue
            records: list[tuple[bytes | None, bytes | None]] = [
                (b"%d" % self.draw.randrange(KEYS), None if self.draw.random() < 0.4 else self.draw.randbytes(4))
                for _ in range(self.draw.randint(1, 3))
            ]
            self.writing.data(records, self.draw.choice([0, 4]), producer_id)
        written = segment_of(self.writing.batches)
        self.written.append(written)
        if self.draw.random() < 0.5 or self.writing.open_now or len(self.written) < 2:
            await self.world.add(written)
            return
        long_ago_ms = self.world.clock.now_ms() - 10 * RETENTION_MS
        local = clean([written], now_ms=long_ago_ms, delete_retention_ms=RETENTION_MS, aborted=())
        await self.world.add(*local.segments)

    async def clean(self) -> None:
        await self.world.clean()

    async def killed(self) -> None:
        left = self.draw.randint(1, 3)

        async def kill() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError

        try:
            await self.world.clean({f"clean.{self.draw.choice(PLACES)}": kill})
        except KilledError:
            return

    async def late(self) -> None:
        """Right before its COPY_SEGMENT_FINISHED another leads, and goes on; then it is finished all the same."""
        is_late = False

        async def others() -> None:
            nonlocal is_late
            if is_late:
                return
            is_late = True
            await self.elect()
            for act in self.draw.choices([self.append, self.clean], k=3):
                self.world.clock.jump(0.001)
                await act()

        await self.world.clean({"clean.finishing": others})

    async def elect(self) -> None:
        self.epoch += 1
        self.world.lead(self.epoch)

    async def delete(self) -> None:
        """Up to the end of a segment; nothing of it is carried out."""
        segments = self.world.segments(State.COPY_SEGMENT_FINISHED)
        stop = self.draw.choice(segments).next_offset
        if stop <= self.world.state.partition_state(self.world.owner).remote_log_start_offset:
            return
        entry = user_delete(
            stop,
            LeaderEpoch(0),  # all records are of this one
            generation=self.generation,
            delays=TrashDelays(retention_ms=3_600_000, user_ms=3_600_000),
            now_ms=self.world.clock.now_ms(),
            by="a user",
        )
        await self.world.state.put_into_trash(self.world.owner, [entry])
        await self._begin_at(stop)

    async def undelete(self) -> None:
        """All comes back that was deleted."""
        undone = [one for one in self.world.state.trash(self.world.owner) if one.kind is TrashKind.USER]
        if undone:
            self.generation += 1
            await self._begin_at(Offset(0))
            await self.world.state.take_out_of_trash(self.world.owner, undone)

    async def _begin_at(self, offset: Offset) -> None:
        said = PartitionState(
            remote_log_start_offset=offset,
            remote_log_start_epoch=LeaderEpoch(0),
            start_generation=self.generation,
        )
        await self.world.state.publish_partition_state(self.world.owner, said)

    async def expire(self) -> None:
        """What is in the trash, and readers are not given, goes."""
        in_trash = self.world.in_trash()
        given = {one.remote_log_segment_id for one in self._given()}
        for segment in self.world.segments(State.COPY_SEGMENT_FINISHED):
            name = segment.remote_log_segment_id
            if name.uuid in in_trash and name not in given:
                await self.world.builder.move(segment, State.DELETE_SEGMENT_STARTED)
                await self.world.builder.move(segment, State.DELETE_SEGMENT_FINISHED)

    def _given(self) -> list[Any]:
        found, offset = [], 0
        while (segment := self.world.given(offset)) is not None:
            found.append(segment)
            offset = segment.next_offset
        return found

    async def _check(self) -> None:
        expected = live(table(committed_records(self.written)))
        assert live(await self.world.table_read()) == expected
        end = self.written[-1].next_base_offset if self.written else 0
        now_ms = self.world.clock.now_ms()
        if self.draw.random() < 0.5:
            self.readers.append(Reader(since_ms=now_ms))
        for reader in [*self.readers]:
            for _ in range(self.draw.randint(1, 6)):
                if (segment := self.world.given(reader.offset)) is None:
                    break
                log = await self.world.log_of(segment)
                stop = segment.next_offset
                reader.read.append(LogSegment(base_offset=segment.start_offset, next_base_offset=stop, log=log))
                reader.offset = stop
            if now_ms - reader.since_ms >= RETENTION_MS or reader.offset == end:
                self.readers.remove(reader)
                if now_ms - reader.since_ms < RETENTION_MS:
                    assert live(table(committed_records(reader.read))) == expected, "of a slow reader"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_key_is_lost_and_none_comes_back(tmp_path: Path, seed: int) -> None:
    await History(tmp_path / "cleaned", seed).run()


@pytest.mark.parametrize(
    ("place", "instead"),
    [
        pytest.param(
            "tiersidecar.formats.compaction.cleaning.Cleaner._keeps_tombstone",
            lambda self, header, newest_ms: False,
            id="tombstones go at once",
        ),
        pytest.param(
            "tiersidecar.tasks.clean_look.horizons_due_by",
            lambda view: None,
            id="tombstones go though a delete may be undone",
        ),
        pytest.param(
            "tiersidecar.tasks.clean.open_states", lambda states: (), id="transactions that are open count as committed"
        ),
        pytest.param(
            "tiersidecar.formats.compaction.key_filter.KeyFilter.rules_out",
            lambda self, offset_map, *, now_ms: now_ms < self.due_ms,
            id="filters rule out what has a key of the map",
        ),
    ],
)
async def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, instead: Any
) -> None:
    """The faults are Python's: the native core would go past them."""
    monkeypatch.setattr(native, "core", NativeCore(walks=None, reason="this test says so"))
    monkeypatch.setattr(place, instead)
    for seed in range(MOST_SEEDS):
        try:
            await History(tmp_path / str(seed), seed).run()
        except AssertionError:
            return
    pytest.fail(f"{MOST_SEEDS} histories went well")
