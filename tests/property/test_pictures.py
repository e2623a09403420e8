"""Pictures of a compacted partition in random histories, beside a broker's cleaner that merges segments and drops tombstones.

The broker's log lies in files; pins are real links, and what they hold is copied, cut where it must be, and cleaned remotely.
Whenever all that is pinned is copied, the remote log has for each key the value of the whole log up to there.  Faults that are
planted must be found (issue 23; S-241, S-256, S-279).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.property import test_compaction_model
from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import COMPACTED, CleanWorld, KilledError, live
from tests.support.compacted_logs import LogSegment, clean, committed_records, data_batch, table
from tests.support.inline_blocking import InlineBlocking
from tests.support.lane_parts import edges_of, sources_of
from tests.support.pins import epochs_of
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.decide.topics import PartitionRole, read_cleaner_settings
from tiersidecar.domain.errors import CleanedBeforePinnedError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment, PictureLook, Unpin
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot
from tiersidecar.ports.log_dirs import LogDirsView
from tiersidecar.tasks.partition_table import PinTable
from tiersidecar.tasks.pictures import Pictures
from tiersidecar.tasks.tail_cuts import TailCuts, is_to_be_cut
from tiersidecar.tasks.trusted_copies import TrustedCopies

pytestmark = pytest.mark.slow

RETENTION_MS, KEYS, STEPS, SEEDS, MOST_SEEDS = 1000, 5, 50, 12, 40


class Broker:
    """A partition on disk, whose cleaner runs when it is told to.  ``written`` is what was ever sealed."""

    def __init__(self, log_dir: Path, draw: random.Random) -> None:
        self.log_dir, self.draw = log_dir, draw
        self.directory = log_dir / "built-0"
        self.directory.mkdir(parents=True)
        (log_dir / "meta.properties").write_text("version=1\n")
        self.writing, self.written = Writing(), list[LogSegment]()
        self.sealed, self.cleaned_up_to = list[LogSegment](), 0
        self.epochs: tuple[tuple[int, int], ...] = ((0, 0),)
        self._write(LogSegment(base_offset=0, next_base_offset=0, log=b""))

    def roll(self) -> None:
        """What is active is sealed."""
        self.writing.batches.clear()
        for _ in range(self.draw.randint(1, 3)):
            records: list[tuple[bytes | None, bytes | None]] = [
                (b"%d" % self.draw.randrange(KEYS), None if self.draw.random() < 0.5 else self.draw.randbytes(4))
                for _ in range(self.draw.randint(1, 3))
            ]
            self.writing.data(records, 0, -1)
        self._seal()

    def _seal(self) -> None:
        segment = segment_of(self.writing.batches)
        self.written.append(segment)
        self.sealed.append(segment)
        self._write(segment)
        self._write(LogSegment(base_offset=segment.next_base_offset, next_base_offset=0, log=b""))

    def clean(self, now_ms: int, *, is_cut_short: bool = False) -> None:
        """One round over all that is sealed; small segments are merged.  One that is cut short, by the end of the broker or an
        error behind the last segment that it has put in place, leaves the checkpoint as it was."""
        if not self.sealed or self.sealed[-1].next_base_offset == self.cleaned_up_to:
            return
        done = clean(
            self.sealed,
            now_ms=now_ms,
            delete_retention_ms=RETENTION_MS,
            first_dirty_offset=self.cleaned_up_to,
            segment_bytes=self.draw.choice([1, 600, 1 << 20]),
            aborted=(),
        )
        for old in self.sealed:
            (self.directory / f"{old.base_offset:020d}.log").unlink()
        self.sealed = list(done.segments)
        for new in self.sealed:
            self._write(new)
        if is_cut_short:
            return
        self.cleaned_up_to = done.cleaner_offset
        (self.log_dir / "cleaner-offset-checkpoint").write_text(f"0\n1\nbuilt 0 {self.cleaned_up_to}\n")

    def _write(self, segment: LogSegment) -> None:
        path = self.directory / f"{segment.base_offset:020d}.log"
        path.unlink(missing_ok=True)
        path.write_bytes(segment.log)
        for kind in ("index", "timeindex"):
            path.with_suffix(f".{kind}").touch()
        path.with_suffix(".snapshot").write_bytes(write_producer_snapshot())

    def seal(self, *records: tuple[bytes, bytes | None]) -> None:
        """Write these and seal them."""
        self.writing.batches.clear()
        for record in records:
            self.writing.data([record], 0, -1)
        self._seal()

    def local(self, world: CleanWorld) -> LocalPartition:
        segments = tuple(
            LocalSegment(
                directory=str(self.directory),
                base_offset=Offset(one.base_offset),
                next_base_offset=Offset(one.next_base_offset),
                size_bytes=len(one.log),
                modified_ms=0,
            )
            for one in self.sealed
        )
        end = Offset(self.writing.offset)
        active = LocalSegment(
            directory=str(self.directory), base_offset=end, next_base_offset=None, size_bytes=0, modified_ms=0
        )
        return LocalPartition(
            topic_id_partition=world.owner,
            log_dir=str(self.log_dir),
            directory=str(self.directory),
            segments=(*segments, active),
            leader_epochs=epochs_of(*self.epochs),
        )


class Killer:
    """Ends the process at the link that is said."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.left = draw, -1

    def link(self, source: str, target: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KilledError
        os.link(source, target)


class History:
    """One sidecar beside one broker."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.draw, self.world = random.Random(seed), CleanWorld(scratch=directory / "cleaned")
        self.broker = Broker(directory / "logs", self.draw)
        settings = read_cleaner_settings({**COMPACTED, "delete.retention.ms": str(RETENTION_MS)})
        assert settings is not None
        self.settings = settings
        self.world.table.compacted_topics[self.world.owner.topic] = settings
        self.world.table.watch_trouble = ""
        self.killer = Killer(self.draw)
        self.start()
        self.cuts = TailCuts(scratch=directory / "cut", blocking=InlineBlocking())
        self.away_weight = self.draw.choice([0, 0, 1])
        self.copied_end, self.compared, self.is_halted = 0, 0, False
        self.kills = self.cut_count = 0

    def start(self) -> None:
        """A new process."""
        links: Any = self.killer.link
        self.pins = FilesystemPins([str(self.broker.log_dir)], blocking=InlineBlocking(), link=links)
        metadata, table = self.world.builder.run.metadata, self.world.table
        table.pins, table.records = PinTable(), {}
        self.pictures = Pictures(
            sources=sources_of(table=table, metadata=metadata, state=self.world.state),
            edges=edges_of(self.world.clock),
            pins=self.pins,
            copies=TrustedCopies(metadata, self.world.state),
        )

    async def killed(self) -> None:
        """In the midst of a picture, if one is due; the next process finds what was linked."""
        self.killer.left = self.draw.randint(1, 12)
        try:
            await self.look()
        except KilledError:
            self.kills += 1
        self.killer.left = -1
        self.start()
        assert await self.pins.prepare() == {}
        self.world.table.pins.add_all((await self.pins.scan(sweep=True)).pins)

    async def open(self) -> None:
        assert await self.pins.prepare() == {}
        await self.world.builder.run.metadata.assign([self.world.owner])

    async def move(self, role: PartitionRole) -> None:
        """The log is another broker's, which has fetched it: it has no pins, no looks, and no cleaner's checkpoint."""
        self.broker.epochs = (*self.broker.epochs, (len(self.broker.epochs), self.broker.writing.offset))
        self.broker.cleaned_up_to = 0
        (self.broker.log_dir / "cleaner-offset-checkpoint").unlink(missing_ok=True)
        shutil.rmtree(f"{self.broker.log_dir}.tiersidecar-pins")
        self.world.lead(self.broker.epochs[-1][0], role)
        self.start()
        assert await self.pins.prepare() == {}

    async def run(self) -> None:
        await self.open()
        for _ in range(STEPS):
            acts: list[tuple[int, Callable[[], Any]]] = [
                (5, self.roll),
                (5, self.cleaned_by_broker),
                (7, self.look),
                (6, self.copy_some),
                (2, self.world.clean),
                (self.away_weight, self.away),
                (2, self.killed),
            ]
            (act,) = self.draw.choices([one for _, one in acts], [weight for weight, _ in acts])
            await act()
            self.world.clock.jump(self.draw.choice([0.001, 0.01, 0.05, 0.1]))
            if self.is_halted:
                return
        await self.look()
        while not self.is_halted and self.world.table.pins.of(self.world.owner):
            await self.copy()
            await self.look()

    async def roll(self) -> None:
        self.broker.roll()

    async def cleaned_by_broker(self) -> None:
        self.broker.clean(self.world.clock.now_ms())

    async def away(self) -> None:
        """The sidecar stands still for longer than a tombstone stays, and the broker does not."""
        for _ in range(3):
            self.broker.roll()
            self.world.clock.jump(1.1)
            self.broker.clean(self.world.clock.now_ms())

    async def look(self) -> None:
        local = self._scan()
        try:
            await self.pictures.round(self.world.partition, local, self.settings, high_watermark=2**40, drop=self._drop)
        except CleanedBeforePinnedError:
            self.is_halted = True

    def _scan(self) -> LocalPartition:
        local = self.broker.local(self.world)
        self.world.table.local = LogDirsView(partitions={self.world.owner: local}, faults={})
        return local

    async def _drop(self, unpin: Unpin) -> None:
        await self.pins.unpin(unpin.pin)
        self.world.table.pins.remove(unpin.pin)

    async def copy_some(self) -> None:
        await self.copy()
        while self.draw.random() < 0.8:
            await self.copy()

    async def copy(self) -> None:
        """The next of what is pinned, as the copy lane does; compared once all of it is remote."""
        self._scan()
        local = self.world.table.local_partition(self.world.owner)
        waiting = [
            one
            for one in (local.segments[:-1] if local is not None else ())
            if (one.next_base_offset or 0) > self.copied_end
        ]
        if not waiting:
            return
        segment = waiting[0]
        if is_to_be_cut(segment, self.copied_end):
            start = Offset(max(self.copied_end, segment.base_offset))
            self.cut_count += 1
            async with self.cuts.cut(segment, start, self.world.lineages.known) as cut:
                await self._add(cut)
        else:
            await self._add(segment)
        if len(waiting) == 1:
            self.compared += 1
            expected = [one for one in self.broker.written if one.base_offset < self.copied_end]
            assert live(await self.world.table_read()) == live(table(committed_records(expected)))

    async def _add(self, segment: LocalSegment) -> None:
        assert segment.next_base_offset is not None
        log = Path(segment.log_path).read_bytes()
        assert segment.base_offset == self.copied_end, "a hole"
        self.copied_end = segment.next_base_offset
        await self.world.add(
            LogSegment(base_offset=segment.base_offset, next_base_offset=segment.next_base_offset, log=log)
        )


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_value_comes_back(tmp_path: Path, seed: int) -> None:
    await History(tmp_path, seed).run()


async def test_histories_have_what_there_is_to_see(tmp_path: Path) -> None:
    """Or they would say little."""
    halted = compared = kills = cuts = 0
    for seed in range(SEEDS):
        history = History(tmp_path / str(seed), seed)
        await history.run()
        halted += history.is_halted
        compared += history.compared
        kills += history.kills
        cuts += history.cut_count
    assert kills > SEEDS / 2
    assert cuts > SEEDS / 2
    assert 0 < halted < SEEDS
    assert compared > 3 * SEEDS


@pytest.mark.parametrize(
    ("place", "instead"),
    [
        pytest.param("tiersidecar.tasks.pictures.reason_missed", lambda *_, **__: "", id="a late picture is believed"),
        pytest.param(
            "tiersidecar.tasks.partition_table.pictured",
            lambda local, pins: local,
            id="what the broker has by now is copied",
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


YEAR_2100_MS = 4_102_444_800_000


async def behind(directory: Path, *, cleans: int, first_ms: int | None = None) -> History:
    """One whose leader has pinned a tombstone and not uploaded it, while its cleaner was there so often; another broker has
    what was left by then.  ``first_ms`` is the time that a producer gave what is remote."""
    history = History(directory, 1)
    await history.open()
    with pytest.MonkeyPatch.context() as patch:
        if first_ms is not None:
            patch.setattr(test_compaction_model, "data_batch", partial(data_batch, base_timestamp=first_ms))
        history.broker.seal((b"a", b"old"), (b"x", b"1"))
    await history.look()
    await history.copy()
    history.broker.seal((b"a", None), (b"b", b"1"))
    for _ in range(cleans):
        await history.look()
        history.broker.clean(history.world.clock.now_ms())
        history.world.clock.jump(1.5)
        history.broker.seal((b"c", b"1"))
    return history


@pytest.mark.parametrize(
    "first_ms",
    [pytest.param(None, id="a producer's clock was right"), pytest.param(YEAR_2100_MS, id="it was years ahead")],
)
async def test_a_replica_that_was_built_from_a_log_whose_tombstones_were_gone_halts(
    tmp_path: Path, first_ms: int | None
) -> None:
    """Its own cleaner was never there, and yet offsets are missing that it has not written itself."""
    history = await behind(tmp_path, cleans=2, first_ms=first_ms)
    await history.move(PartitionRole.LEADER)
    await history.look()
    assert history.is_halted
    assert history.world.table.pins.of(history.world.owner) == ()


async def test_it_does_not_once_its_own_cleaner_was_there_either(tmp_path: Path) -> None:
    """Nor as long as it follows; it goes on when the former leader, which has the links, has uploaded all of it."""
    history = await behind(tmp_path, cleans=2)
    await history.move(PartitionRole.FOLLOWER)
    look = PictureLook(end_offset=Offset(2), at_ms=history.world.clock.now_ms())
    await history.pins.note_look(history.broker.local(history.world), look)
    await history.look()
    assert history.is_halted
    history.is_halted = False
    history.broker.clean(history.world.clock.now_ms())
    await history.look()
    assert history.is_halted
    history.is_halted = False
    await history.world.add(*history.broker.written[1:])
    await history.look()
    assert not history.is_halted
    history.broker.seal((b"d", b"1"))
    await history.look()
    assert not history.is_halted
    assert len(history.world.table.pins.of(history.world.owner)) == 1


async def cut_short(directory: Path, *, away_s: float) -> History:
    """One whose sidecar is away for so long in all, while two rounds of the broker's cleaner are cut short."""
    history = History(directory, 1)
    await history.open()
    history.broker.seal((b"a", b"old"), (b"x", b"1"))
    await history.look()
    await history.copy()
    history.broker.seal((b"a", None), (b"b", b"1"))
    for _ in range(2):
        history.broker.clean(history.world.clock.now_ms(), is_cut_short=True)
        history.world.clock.jump(away_s / 2)
        history.broker.seal((b"c", b"1"))
    return history


async def test_rounds_that_were_cut_short_have_taken_tombstones_and_left_no_checkpoint(tmp_path: Path) -> None:
    history = await cut_short(tmp_path, away_s=3)
    await history.look()
    assert history.is_halted
    assert history.world.table.pins.of(history.world.owner) == ()


async def test_a_delete_retention_that_is_raised_while_the_sidecar_is_away_excuses_nothing(tmp_path: Path) -> None:
    """The broker's cleaner has taken the tombstone by the old one."""
    history = await cut_short(tmp_path, away_s=3)
    history.broker.clean(history.world.clock.now_ms())
    raised = read_cleaner_settings({**COMPACTED, "delete.retention.ms": str(RETENTION_MS * 100)})
    assert raised is not None
    history.settings = raised
    await history.look()
    assert history.is_halted


async def test_within_the_time_of_a_tombstone_they_have_taken_none(tmp_path: Path) -> None:
    history = await cut_short(tmp_path, away_s=0.7)
    await history.look()
    assert not history.is_halted
    while history.copied_end < history.broker.written[-1].next_base_offset:
        await history.copy()
    assert live(await history.world.table_read()) == live(table(committed_records(history.broker.written)))


async def test_a_replica_of_a_log_that_no_cleaner_was_in_goes_on(tmp_path: Path) -> None:
    history = await behind(tmp_path, cleans=0)
    await history.move(PartitionRole.LEADER)
    await history.look()
    assert not history.is_halted
    await history.copy()
    assert live(await history.world.table_read()) == live(table(committed_records(history.broker.written)))
