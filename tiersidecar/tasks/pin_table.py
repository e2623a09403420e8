"""The pins that this process knows of: read once at start, and carried on with each one made or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiersidecar.domain.epochs import EpochEntry
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.pins import Pin, PinnedPartition, epochs_with_pins


class PinTable:
    """Part of the table; single-threaded.  Pins of a partition ascend by base offset."""

    def __init__(self) -> None:
        self.unread: frozenset[str] | None = None
        """Log dirs whose pins have not been read yet; None before the first attempt."""
        self._refused: dict[PinnedPartition, frozenset[tuple[int, int]]] = {}
        self._pins: dict[PinnedPartition, tuple[Pin, ...]] = {}
        self._epochs: dict[PinnedPartition, tuple[tuple[Pin, ...], tuple[EpochEntry, ...]]] = {}

    def __iter__(self) -> Iterator[Pin]:
        for pins in tuple(self._pins.values()):
            yield from pins

    def are_known(self, log_dir: str) -> bool:
        """Whether the pins of a log dir have been read: before, a copy could begin behind what only a pin holds."""
        return self.unread is not None and log_dir not in self.unread

    @property
    def partitions(self) -> tuple[PinnedPartition, ...]:
        """Those that have a pin."""
        return tuple(self._pins)

    def of(self, topic_id_partition: TopicIdPartition) -> tuple[Pin, ...]:
        """The pins of a partition."""
        return self._pins.get(PinnedPartition.of(topic_id_partition), ())

    def epochs_of(self, topic_id_partition: TopicIdPartition) -> tuple[EpochEntry, ...]:
        """What the pins of a partition know of its leader epochs: each read asks for it, and pins change seldom."""
        owner = PinnedPartition.of(topic_id_partition)
        pins = self._pins.get(owner)
        if pins is None:
            self._epochs.pop(owner, None)
            return ()
        known = self._epochs.get(owner)
        if known is None or known[0] is not pins:
            known = self._epochs[owner] = (pins, epochs_with_pins((), pins))
        return known[1]

    def of_owner(self, owner: PinnedPartition) -> tuple[Pin, ...]:
        """The pins of a partition, by what their names say."""
        return self._pins.get(owner, ())

    def refused_of(self, topic_id_partition: TopicIdPartition) -> frozenset[tuple[int, int]]:
        """Offsets (base, next base) of segments that are not to be pinned again."""
        return self._refused.get(PinnedPartition.of(topic_id_partition), frozenset())

    def refuse(self, pin: Pin) -> None:
        """Note that the segment is not to be pinned again: nobody has a right to it."""
        self._refused[pin.owner] = self._refused.get(pin.owner, frozenset()) | {_offsets(pin)}

    def forget_refused(self, owner: PinnedPartition, first_offset: int) -> None:
        """Drop what was refused below ``first_offset``: it can be pinned no more."""
        left = frozenset(one for one in self._refused.get(owner, ()) if one[1] > first_offset)
        if left:
            self._refused[owner] = left
        else:
            self._refused.pop(owner, None)

    @property
    def refused_partitions(self) -> tuple[PinnedPartition, ...]:
        """Those with refused segments."""
        return tuple(self._refused)

    def add(self, pin: Pin) -> None:
        """Note a pin, in the place of one of the same offsets."""
        others = (other for other in self.of_owner(pin.owner) if _offsets(other) != _offsets(pin))
        self._pins[pin.owner] = tuple(sorted((*others, pin), key=_offsets))

    def add_all(self, pins: Iterable[Pin]) -> None:
        """As :meth:`add` for many, as at start."""
        found: dict[PinnedPartition, dict[tuple[int, int], Pin]] = {}
        for pin in pins:
            found.setdefault(pin.owner, {_offsets(one): one for one in self.of_owner(pin.owner)})[_offsets(pin)] = pin
        for owner, by_offsets in found.items():
            self._pins[owner] = tuple(sorted(by_offsets.values(), key=_offsets))

    def remove(self, pin: Pin) -> None:
        """Forget a pin; one that is not known is no error."""
        left = tuple(other for other in self.of_owner(pin.owner) if _offsets(other) != _offsets(pin))
        if left:
            self._pins[pin.owner] = left
        else:
            self._pins.pop(pin.owner, None)


def _offsets(pin: Pin) -> tuple[int, int]:
    return pin.base_offset, pin.next_base_offset
