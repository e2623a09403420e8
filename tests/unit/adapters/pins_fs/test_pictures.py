"""Segments that are pinned at one moment, while a broker's cleaner replaces them (issue 23)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.compacted_logs import data_batch
from tests.support.pins import local_partition
from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.domain.errors import PinError, SegmentChangedError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment, PictureLook

KINDS = ("log", "index", "timeindex", "snapshot")


class AtLinks:
    """Does something when the links of a picture are made, before it is looked at again."""

    def __init__(self) -> None:
        self.act: Callable[[], None] = lambda: None

    def reach_blocking(self, point: str) -> None:
        if point == "picture.linked":
            self.act()


class Broker:
    """A log dir with one partition, of which the segments begin at 0, 50 and 100."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.directory = log_dir / str(TOPIC_ID_PARTITION)
        self.directory.mkdir(parents=True)
        (log_dir / "meta.properties").write_text("version=1\n")
        for base in (0, 50, 100):
            for kind in KINDS:
                self.file(base, kind).write_text(f"{kind} of {base}")

    def file(self, base: int, kind: str) -> Path:
        return self.directory / f"{base:020d}.{kind}"

    @property
    def local(self) -> LocalPartition:
        bases = sorted(int(one.stem) for one in self.directory.glob("*.log"))
        segments = tuple(
            LocalSegment(
                directory=str(self.directory),
                base_offset=Offset(base),
                next_base_offset=None if stop is None else Offset(stop),
                size_bytes=self.file(base, "log").stat().st_size,
                modified_ms=0,
            )
            for base, stop in zip(bases, [*bases[1:], None], strict=True)
        )
        local = local_partition(segments, log_dir=str(self.log_dir))
        return LocalPartition(
            topic_id_partition=local.topic_id_partition,
            log_dir=str(self.log_dir),
            directory=str(self.directory),
            segments=segments,
            leader_epochs=local.leader_epochs,
        )

    def expire(self, stop: int, *, records: int) -> LocalPartition:
        """As retention does where nothing is written: the active segment, of so many records, is rolled at ``stop`` and
        renamed, and so are all others."""
        self.file(100, "log").write_bytes(data_batch(100, [(b"key", None)] * records))
        for path in self.directory.glob("0*"):
            path.rename(f"{path}.deleted")
        for kind in KINDS:
            self.file(stop, kind).write_text(f"{kind} of {stop}")
        renamed = replace(
            self.local.segments[0],
            base_offset=Offset(100),
            next_base_offset=Offset(stop),
            file_suffix=".deleted",
        )
        return replace(self.local, deleted=(renamed,))

    def replace(self, base: int, text: str) -> None:
        """As a cleaner puts a cleaned segment in the place of another."""
        new = self.file(base, "log").with_suffix(".log.swap")
        new.write_text(text)
        new.replace(self.file(base, "log"))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "logs")


async def opened(broker: Broker, links: AtLinks, blocking: ThreadBlocking) -> FilesystemPins:
    pins = FilesystemPins([str(broker.log_dir)], blocking=blocking, failpoints=links)
    assert await pins.prepare() == {}
    return pins


async def test_a_picture_has_all_files_with_the_snapshot_where_each_segment_begins(broker: Broker) -> None:
    (broker.log_dir / "cleaner-offset-checkpoint").write_text(
        f"0\n1\n{TOPIC_ID_PARTITION.topic} {TOPIC_ID_PARTITION.partition} 77\n"
    )
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, AtLinks(), blocking)
        picture = await pins.take_picture(broker.local, broker.local.sealed_segments)
        assert await pins.without_other_names(picture.pins) == []
        broker.replace(0, "cleaned")
        found = (await pins.scan(sweep=True)).pins
        assert await pins.without_other_names(found) == [found[0]], "the broker has the file of the other one"
    assert picture.cleaner_offset == 77
    assert [(one.base_offset, one.next_base_offset, one.is_whole) for one in found] == [(0, 50, True), (50, 100, True)]
    assert [Path(one.segment.log_path).read_text() for one in found] == ["log of 0", "log of 50"]
    earlier = Path(found[1].segment.path_of(f"{50:020d}.snapshot"))
    assert earlier.read_text() == "snapshot of 50"


async def test_a_segment_that_is_replaced_meanwhile_leaves_no_picture(broker: Broker) -> None:
    links = AtLinks()
    links.act = lambda: broker.replace(0, "cleaned")
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, links, blocking)
        with pytest.raises(SegmentChangedError, match="replaced while they were pinned"):
            await pins.take_picture(broker.local, broker.local.sealed_segments)
        assert (await pins.scan(sweep=False)).pins == ()
        links.act = lambda: None
        again = await pins.take_picture(broker.local, broker.local.sealed_segments)
    assert [Path(one.segment.log_path).read_text() for one in again.pins] == ["cleaned", "log of 50"]


async def test_a_segment_that_was_merged_away_meanwhile_leaves_no_picture(broker: Broker) -> None:
    links, local = AtLinks(), broker.local
    links.act = lambda: broker.file(50, "log").unlink()
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, links, blocking)
        with pytest.raises(SegmentChangedError):
            await pins.take_picture(local, local.sealed_segments)
        with pytest.raises(SegmentChangedError):  # and one that had gone before
            await pins.take_picture(local, local.sealed_segments)
        assert (await pins.scan(sweep=False)).pins == ()


async def test_no_picture_is_taken_while_segments_are_put_in_their_places(broker: Broker) -> None:
    broker.file(0, "log").with_suffix(".log.swap").write_text("cleaned")
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, AtLinks(), blocking)
        with pytest.raises(SegmentChangedError, match="replacing segments"):
            await pins.take_picture(broker.local, broker.local.sealed_segments)


async def test_a_segment_that_was_rolled_and_renamed_in_one_step_is_pinned_with_its_snapshots(broker: Broker) -> None:
    local = broker.expire(120, records=20)
    written = Path(local.deleted[0].log_path).read_bytes()
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, AtLinks(), blocking)
        (pin,) = (await pins.take_picture(local, local.deleted)).pins
        Path(local.deleted[0].log_path).unlink()
    assert (pin.base_offset, pin.next_base_offset, pin.is_whole) == (100, 120, True)
    assert Path(pin.segment.log_path).read_bytes() == written
    snapshots = [Path(pin.segment.path_of(f"{base:020d}.snapshot")).read_text() for base in (100, 120)]
    assert snapshots == ["snapshot of 100", "snapshot of 120"]


async def test_a_renamed_segment_that_ends_elsewhere_is_named_and_leaves_no_picture(broker: Broker) -> None:
    """What followed it is gone, or the cleaner has merged it: it would seem to hold what it has not."""
    local = broker.expire(120, records=10)
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, AtLinks(), blocking)
        with pytest.raises(SegmentChangedError, match="ends at offset 110") as caught:
            await pins.take_picture(local, local.deleted)
        assert caught.value.path == local.deleted[0].log_path
        assert (await pins.scan(sweep=False)).pins == ()


async def test_the_first_offset_that_a_cleaner_took_is_found(broker: Broker) -> None:
    """A batch that is gone, records that are gone from one, and a segment's end that is."""
    log = b"".join(data_batch(base, [(b"key", b"value")] * 10) for base in (0, 10, 30))
    broker.file(0, "log").write_bytes(log)
    broker.file(50, "log").write_bytes(data_batch(50, [(b"key", b"value")] * 50))
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, AtLinks(), blocking)
        taken = (await pins.take_picture(broker.local, broker.local.sealed_segments)).pins
        holes = [
            await pins.first_hole(taken, Offset(start), stop)
            for start, stop in ((0, 200), (0, 20), (0, 21), (30, 40), (30, 41), (50, 200))
        ]
        assert holes == [20, None, 20, None, 40, None]
        assert not await pins.hold_all(taken, Offset(0), Offset(50))
        assert await pins.hold_all(taken, Offset(50), Offset(100))
        thinned = bytearray(data_batch(50, [(b"key", b"value")] * 50))
        thinned[57:61] = (49).to_bytes(4)
        broker.file(50, "log").write_bytes(thinned)
        assert await pins.first_hole(taken, Offset(50), 200) == 50
        broker.file(50, "log").write_bytes(b"no batch" * 20)
        assert await pins.first_hole(taken, Offset(50), 200) is None, "its copy will tell"
        assert not await pins.hold_all(taken, Offset(50), Offset(100)), "it may hold nothing"
        Path(taken[1].segment.log_path).unlink()
        with pytest.raises(PinError):
            await pins.first_hole(taken, Offset(50), 200)
        with pytest.raises(PinError):
            await pins.hold_all(taken, Offset(50), Offset(100))


async def test_where_a_cleaner_was_is_found(broker: Broker) -> None:
    """It took a record, or gave tombstones their time alone."""
    first = broker.local.segments[0]
    whole = data_batch(0, [(b"key", None)] * 10)
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, AtLinks(), blocking)
        for log, found in (
            (whole + data_batch(10, [(b"key", None)] * 10), None),
            (whole + data_batch(11, [(b"key", None)] * 9), 10),
            (whole + data_batch(10, [(b"key", None)] * 10, delete_horizon=True), 10),
            (b"no batch" * 20, 0),
        ):
            broker.file(0, "log").write_bytes(log)
            assert await pins.first_cleaned(first, Offset(0), Offset(20)) == found
        assert await pins.first_cleaned(replace(first, directory="/gone"), Offset(5), Offset(20)) == 5


async def test_a_look_is_kept_for_the_next_process_unless_a_segment_was_sealed_since(broker: Broker) -> None:
    first, second = (PictureLook(end_offset=Offset(100), at_ms=at_ms) for at_ms in (1, 2))
    seen = broker.local
    async with ThreadBlocking(max_threads=1) as blocking:
        pins = await opened(broker, AtLinks(), blocking)
        assert await pins.last_look(seen) is None
        await pins.note_look(seen, first)
        broker.file(150, "log").write_text("rolled")
        await pins.note_look(seen, second)
        assert await (await opened(broker, AtLinks(), blocking)).last_look(seen) == first
        assert (await pins.scan(sweep=True)).pins == (), "it is no pin"
        await pins.forget_look(seen)
        assert await pins.last_look(seen) is None
