"""Names of a pin's files: everything that is known of a pin stands in them (docs/design/0004-pins.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiersidecar.domain.ids import format_uuid, parse_uuid
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.pins import PinnedPartition
from tiersidecar.formats.kafka.checkpoints import LEADER_EPOCH_CHECKPOINT
from tiersidecar.formats.kafka.log_names import LogFileKind, log_file_name

PIN_PREFIX = "tiersidecar-pin."
PROBE_NAME = f"{PIN_PREFIX}probe"
_NAME = re.compile(
    r"tiersidecar-pin\.(?P<topic_id>[A-Za-z0-9_-]{22})\.(?P<partition>0|[1-9][0-9]{0,9})"
    r"\.(?P<base>[0-9]{20})-(?P<following>[0-9]{20})\.(?P<file>[^/]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinName:
    """What all files of one pin have in common; ``next_base_offset`` is the exclusive end of its offsets."""

    owner: PinnedPartition
    base_offset: Offset
    next_base_offset: Offset

    @property
    def prefix(self) -> str:
        """Before it comes nothing, after it what the broker calls the file."""
        owner = f"{format_uuid(self.owner.topic_id)}.{self.owner.partition}"
        return f"{PIN_PREFIX}{owner}.{self.base_offset:020d}-{self.next_base_offset:020d}."

    @property
    def log_name(self) -> str:
        """The broker's name of the file whose link makes a pin of the others."""
        return log_file_name(self.base_offset, LogFileKind.LOG)

    @property
    def snapshot_name(self) -> str:
        """The producer snapshot at the end of the segment, which may come later, or never."""
        return log_file_name(self.next_base_offset, LogFileKind.SNAPSHOT)

    @property
    def time_index_name(self) -> str:
        return log_file_name(self.base_offset, LogFileKind.TIME_INDEX)

    @property
    def companion_names(self) -> tuple[str, ...]:
        """What else is linked where it exists, by the broker's names."""
        return (
            log_file_name(self.base_offset, LogFileKind.OFFSET_INDEX),
            self.time_index_name,
            log_file_name(self.base_offset, LogFileKind.TRANSACTION_INDEX),
            self.snapshot_name,
        )

    @property
    def usual_names(self) -> tuple[str, ...]:
        """Companions that every sealed segment has, but for the broker's accidents."""
        transaction_index = log_file_name(self.base_offset, LogFileKind.TRANSACTION_INDEX)
        return tuple(name for name in self.companion_names if name != transaction_index)

    @property
    def all_names(self) -> tuple[str, ...]:
        """In the order in which they are made: the .log last."""
        return (LEADER_EPOCH_CHECKPOINT, *self.companion_names, self.log_name)


def parse_pin_file(name: str) -> tuple[PinName, str] | None:
    """The pin that a file belongs to, and what the broker calls the file; None for any file that is no pin's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        topic_id = parse_uuid(match["topic_id"])
    except ValueError:
        return None
    pin = PinName(
        owner=PinnedPartition(topic_id, int(match["partition"])),
        base_offset=Offset(int(match["base"])),
        next_base_offset=Offset(int(match["following"])),
    )
    known = pin.base_offset < pin.next_base_offset and match["file"] in pin.all_names and name.startswith(pin.prefix)
    return (pin, match["file"]) if known else None
