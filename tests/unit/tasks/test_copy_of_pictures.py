"""The copy lane of a compacted topic: a real broker's cleaned segments, real links, a cleaner that merges (issue 23)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.clean_world import COMPACTED
from tests.support.manual_clock import ManualClock
from tests.support.remote_events import fold, in_state
from tests.support.tier_shell import TierShell
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.pins_fs.pins import FilesystemPins
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.decide.topics import CleanerSettings, read_cleaner_settings
from tiersidecar.domain.errors import CleanedBeforePinnedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import DropReason, LocalSegment, RemoteLogSegmentMetadata, Unpin
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.segment_stream import SegmentStream
from tiersidecar.tasks.pictures import Pictures
from tiersidecar.tasks.segment_objects import LayoutSettings
from tiersidecar.tasks.trusted_copies import TrustedCopies

NAME = "compacted-0"
FIRST_WRITTEN_MS = 1_700_000_017_000
"""Time of the last record of the first segment."""


class Stage:
    """One sidecar over the golden partition, whose sealed segments begin at 0, 23, 46, 69 and so on."""

    def __init__(self, directory: Path, blocking: ThreadBlocking) -> None:
        self.shell = TierShell(
            directory,
            blocking,
            LayoutSettings(),
            TopicPolicy(),
            clock=ManualClock(FIRST_WRITTEN_MS),
            partitions=(NAME,),
        )
        self.blocking = blocking
        self.pins = FilesystemPins([str(self.shell.log_dir)], blocking=blocking)
        self.pictures = Pictures(
            sources=self.shell.sources,
            edges=self.shell.edges,
            pins=self.pins,
            copies=TrustedCopies(self.shell.metadata, self.shell.state),
        )

    @property
    def settings(self) -> CleanerSettings:
        found = read_cleaner_settings(COMPACTED)
        assert found is not None
        return found

    @property
    def owner(self) -> TopicIdPartition:
        return self.shell.topic_id_partition(NAME)

    @property
    def sealed(self) -> tuple[LocalSegment, ...]:
        return self.shell.table.local.partitions[self.owner].sealed_segments

    async def look(self) -> None:
        """A scan, and a round of the follow lane."""
        await self.shell.look()
        self.shell.table.compacted_topics[self.owner.topic] = self.settings
        assert await self.pins.prepare() == {}
        await self.pictures.round(
            self.shell.tiered(self.owner),
            self.shell.table.local.partitions[self.owner],
            self.settings,
            high_watermark=2**40,
            drop=self._drop,
        )

    async def _drop(self, unpin: Unpin) -> None:
        await self.pins.unpin(unpin.pin)
        self.shell.table.pins.remove(unpin.pin)

    async def copy(self, up_to: int = 2**40) -> list[RemoteLogSegmentMetadata]:
        self.shell.broker.last_stable_offsets[self.owner] = Offset(up_to)
        await self.shell.copy.run(self.shell.tiered(self.owner))
        return in_state(fold(self.shell.metadata.events), State.COPY_SEGMENT_FINISHED)

    async def lose_pins(self) -> None:
        for pin in self.shell.table.pins.of(self.owner):
            await self._drop(Unpin(pin=pin, reason=DropReason.DISK_RESERVE))

    def cleaned_up_to(self, offset: int) -> None:
        """What the broker's cleaner says."""
        text = f"0\n1\n{self.owner.topic} {self.owner.partition} {offset}\n"
        (self.shell.log_dir / "cleaner-offset-checkpoint").write_text(text)

    def merge(self, first: LocalSegment, second: LocalSegment, log: bytes) -> None:
        """As a broker's cleaner does, with companions of the first."""
        new = Path(first.log_path).with_suffix(".log.swap")
        new.write_bytes(log)
        for path in Path(second.directory).glob(f"{second.base_offset:020d}.*"):
            path.unlink()
        new.replace(first.log_path)

    async def stored(self, segment: RemoteLogSegmentMetadata) -> bytes:
        parts: list[bytes] = []
        stream = SegmentStream(store=self.shell.store, blocking=self.blocking)
        pace = UploadPace(None, self.shell.clock)
        async for _ in stream.feed_log(segment, lambda part: parts.append(bytes(part)), pace):
            pass
        return b"".join(parts)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with ThreadBlocking(max_threads=2) as blocking:
        yield Stage(tmp_path, blocking)


def spans(segments: list[RemoteLogSegmentMetadata]) -> list[tuple[int, int]]:
    return [(one.start_offset, one.next_offset) for one in segments]


async def test_what_was_pinned_is_copied_though_the_broker_has_merged_it_since(stage: Stage) -> None:
    await stage.look()
    sealed = stage.sealed
    logs = [Path(one.log_path).read_bytes() for one in sealed]
    stage.merge(sealed[0], sealed[1], b"".join(logs[:2]))
    await stage.look()
    remote = await stage.copy()
    assert spans(remote) == [(one.base_offset, one.next_base_offset) for one in sealed]
    assert [await stage.stored(one) for one in remote] == logs
    await stage.look()
    assert stage.shell.table.pins.of(stage.owner) == (), "and is let go then"
    assert await stage.copy() == remote, "what was merged is remote already"


async def test_nothing_is_copied_before_there_is_a_picture(stage: Stage) -> None:
    await stage.shell.look()
    stage.shell.table.compacted_topics[stage.owner.topic] = stage.settings
    assert await stage.copy() == []


async def test_of_a_segment_that_was_merged_over_the_end_of_the_remote_log_the_rest_is_copied(stage: Stage) -> None:
    """As where another replica leads, which has merged otherwise."""
    await stage.look()
    sealed = stage.sealed
    logs = [Path(one.log_path).read_bytes() for one in sealed]
    assert sealed[0].next_base_offset is not None
    assert len(await stage.copy(up_to=sealed[0].next_base_offset)) == 1
    await stage.lose_pins()
    stage.merge(sealed[0], sealed[1], b"".join(logs[:2]))
    stage.cleaned_up_to(sealed[0].next_base_offset)
    await stage.look()
    first = stage.shell.table.pins.of(stage.owner)[0]
    assert (first.base_offset, first.next_base_offset) == (sealed[0].base_offset, sealed[1].next_base_offset)
    remote = await stage.copy()
    assert spans(remote) == [(one.base_offset, one.next_base_offset) for one in sealed]
    assert [await stage.stored(one) for one in remote] == logs


async def test_where_pins_were_lost_and_the_broker_had_cleaned_it_halts_and_copies_nothing_more(stage: Stage) -> None:
    await stage.look()
    stop = stage.sealed[0].next_base_offset
    assert stop is not None
    await stage.copy(up_to=stop)
    await stage.lose_pins()
    with pytest.raises(
        CleanedBeforePinnedError, match=f"offsets {stop} to .* since when: tombstones may have been removed"
    ):
        await stage.look()
    assert stage.shell.table.pins.of(stage.owner) == ()
    assert len(await stage.copy()) == 1
    with pytest.raises(CleanedBeforePinnedError):
        await stage.look()


async def test_a_picture_waits_for_the_snapshot_that_the_broker_has_still_to_write(stage: Stage) -> None:
    """Not for ever: a broker may have lost it, and then it is made from the batches."""
    await stage.shell.look()
    last = stage.sealed[-1]
    assert last.next_base_offset is not None
    snapshot = Path(last.directory, f"{last.next_base_offset:020d}.snapshot")
    data = snapshot.read_bytes()
    snapshot.unlink()
    await stage.look()
    assert stage.shell.table.pins.of(stage.owner) == ()
    snapshot.write_bytes(data)
    await stage.look()
    assert all(pin.is_whole for pin in stage.shell.table.pins.of(stage.owner))
    await stage.lose_pins()
    stage.cleaned_up_to(0)
    snapshot.unlink()
    await stage.look()
    assert stage.shell.table.pins.of(stage.owner) == ()
    clock = stage.shell.clock
    assert isinstance(clock, ManualClock)
    await clock.advance(10)
    await stage.look()
    assert not stage.shell.table.pins.of(stage.owner)[-1].is_whole
