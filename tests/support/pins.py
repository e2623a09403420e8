"""Short ways to make pins in tests of decisions, and pins without a disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.domain.errors import PinError, SegmentChangedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import LocalPartition, LocalSegment, Picture, PictureLook, Pin, PinnedPartition
from tiersidecar.ports.pins import DiskSpace, PinsView

LOG_DIR = "/logs"


def epochs_of(*entries: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries)


def pin_of(
    base: int,
    following: int,
    *,
    epochs: Iterable[tuple[int, int]] = ((0, 0),),
    size_bytes: int = 100,
    modified_ms: int = 0,
    max_timestamp_ms: int = 0,
    is_whole: bool = True,
    log_dir: str = LOG_DIR,
    topic_id_partition: TopicIdPartition = TOPIC_ID_PARTITION,
    inode: int = 0,
) -> Pin:
    """Return a pin of offsets [base, following)."""
    return Pin(
        owner=PinnedPartition.of(topic_id_partition),
        log_dir=log_dir,
        segment=LocalSegment(
            directory=f"{log_dir}.tiersidecar-pins",
            base_offset=Offset(base),
            next_base_offset=Offset(following),
            size_bytes=size_bytes,
            modified_ms=modified_ms,
            pinned=True,
            file_prefix=f"pin-{base}-{following}.",
            inode=inode,
        ),
        leader_epochs=epochs_of(*epochs),
        max_timestamp_ms=max_timestamp_ms,
        is_whole=is_whole,
    )


def local_partition(
    segments: tuple[LocalSegment, ...],
    *,
    epochs: Iterable[tuple[int, int]] = ((0, 0),),
    topic_id_partition: TopicIdPartition = TOPIC_ID_PARTITION,
    log_dir: str = LOG_DIR,
    made_ms: int = -1,
) -> LocalPartition:
    return LocalPartition(
        topic_id_partition=topic_id_partition,
        log_dir=log_dir,
        directory=f"{log_dir}/{topic_id_partition}",
        segments=segments,
        leader_epochs=epochs_of(*epochs),
        made_ms=made_ms,
    )


class MemoryPins:
    """``ports.pins.Pins`` that keeps pins in a list.  ``refusals`` are log dirs in which nothing can be linked, and why;
    ``faults`` those whose pins cannot be read; ``gone`` base offsets that the broker deletes first, ``stuck`` those whose links
    cannot be removed, ``bad`` those of files that cannot be linked, ``replaced`` those of which the broker's cleaner has put
    another file in the place."""

    def __init__(self, *pins: Pin) -> None:
        self.pins = list(pins)
        self.refusals: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self.spaces: dict[str, DiskSpace] = {LOG_DIR: DiskSpace(device=1, size_bytes=10_000, free_bytes=9_000)}
        self.gone: set[int] = set()
        self.stuck: set[int] = set()
        self.bad: set[int] = set()
        self.swept = False
        self.brokers_cleaner_offset: int | None = -1
        self.look: PictureLook | None = None
        self.hole: Offset | None = None
        self.replaced: set[int] = set()

    async def scan(self, *, sweep: bool) -> PinsView:
        self.swept = sweep
        return PinsView(pins=tuple(pin for pin in self.pins if pin.log_dir not in self.faults), faults=self.faults)

    async def prepare(self) -> Mapping[str, str]:
        return dict(self.refusals)

    async def pin(self, local: LocalPartition, segment: LocalSegment) -> Pin:
        if local.log_dir in self.refusals:
            raise PinError(path=local.log_dir, reason=self.refusals[local.log_dir])
        if segment.base_offset in self.bad:
            raise PinError(path=segment.log_path, reason="Input/output error")
        if segment.base_offset in self.gone or segment.next_base_offset is None:
            raise SegmentChangedError(path=segment.log_path, reason="it is gone")
        pin = pin_of(
            segment.base_offset,
            segment.next_base_offset,
            epochs=local.leader_epochs,
            size_bytes=segment.size_bytes,
            modified_ms=segment.modified_ms,
            log_dir=local.log_dir,
            topic_id_partition=local.topic_id_partition,
        )
        self.pins.append(pin)
        return pin

    async def take_picture(self, local: LocalPartition, segments: Sequence[LocalSegment]) -> Picture:
        before = list(self.pins)
        try:
            pins = [await self.pin(local, one) for one in segments]
        except SegmentChangedError:
            self.pins = before
            raise
        return Picture(pins=tuple(pins), cleaner_offset=self.brokers_cleaner_offset)

    async def first_hole(self, pins: Sequence[Pin], start: Offset, stop: int) -> Offset | None:
        return self.hole if self.hole is not None and start <= self.hole < stop else None

    async def hold_all(self, pins: Sequence[Pin], start: Offset, stop: Offset) -> bool:
        return await self.first_hole(pins, start, stop) is None

    async def cleaner_offset(self, local: LocalPartition) -> int | None:
        return self.brokers_cleaner_offset

    async def first_cleaned(self, segment: LocalSegment, start: Offset, stop: Offset) -> Offset | None:
        return self.hole if self.hole is not None and start <= self.hole < stop else None

    async def last_look(self, local: LocalPartition) -> PictureLook | None:
        return self.look

    async def note_look(self, local: LocalPartition, look: PictureLook) -> None:
        self.look = look

    async def forget_look(self, local: LocalPartition) -> None:
        self.look = None

    async def unpin(self, pin: Pin) -> None:
        if pin.base_offset in self.stuck:
            raise PinError(path=pin.log_dir, reason="its links cannot be removed")
        self.pins = [one for one in self.pins if (one.owner, one.segment) != (pin.owner, pin.segment)]

    async def disk_spaces(self) -> Mapping[str, DiskSpace]:
        return self.spaces

    async def without_other_names(self, pins: Sequence[Pin]) -> Sequence[Pin]:
        return [pin for pin in pins if pin.base_offset in self.replaced]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return sorted((pin.base_offset, pin.next_base_offset) for pin in self.pins)
