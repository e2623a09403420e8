"""A cache image as the columns of a snapshot's row: arrays stay bytes, the little that is left is JSON."""

from __future__ import annotations

import json
import zlib
from array import array
from dataclasses import dataclass
from struct import Struct

from tiersidecar.domain.metadata_cache_image import CacheImage, EpochImage
from tiersidecar.domain.states import RemotePartitionDeleteState

_LENGTH = Struct("<i")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedImage:
    """``rows`` as in the image; ``spans``: per epoch all starts, all ends (int64) and all rows (uint32), in the machine's
    byte order; ``custom``: each with an int32 length before it, -1 for none, or empty when no segment has any."""

    rows: bytes
    spans: bytes
    custom: bytes
    detail: str

    def checksum(self, owner: bytes) -> int:
        """CRC32 over all columns, and over what else makes up the row."""
        value = zlib.crc32(owner)
        for part in (self.rows, self.spans, self.custom, self.detail.encode()):
            value = zlib.crc32(part, value)
        return value


def pack_image(image: CacheImage) -> PackedImage:
    """The inverse of :func:`unpack_image`."""
    detail = {
        "epoch_maps": image.epoch_maps,
        "epochs": [
            {
                "epoch": part.epoch,
                "highest_offset": part.highest_offset,
                "count": len(part.rows),
                "superseded": part.superseded,
            }
            for part in image.epochs
        ],
        "delete_state": image.delete_state,
    }
    return PackedImage(
        rows=image.rows,
        spans=b"".join(column.tobytes() for part in image.epochs for column in (part.starts, part.ends, part.rows)),
        custom=_pack_custom(image.custom),
        detail=json.dumps(detail, separators=(",", ":")),
    )


def unpack_image(packed: PackedImage) -> CacheImage:
    """The image.

    Raises:
        ValueError: the columns do not fit together.
        KeyError: something is missing.
    """
    detail = json.loads(packed.detail)
    epochs, position = [], 0
    for part in detail["epochs"]:
        columns = []
        for code in ("q", "q", "I"):
            column = array(code)
            size = part["count"] * column.itemsize
            column.frombytes(packed.spans[position : position + size])
            position += size
            columns.append(column)
        starts, ends, rows = columns
        epochs.append(
            EpochImage(
                epoch=part["epoch"],
                highest_offset=part["highest_offset"],
                starts=starts,
                ends=ends,
                rows=rows,
                superseded=tuple(part["superseded"]),
            )
        )
    state = detail["delete_state"]
    return CacheImage(
        rows=packed.rows,
        custom=_unpack_custom(packed.custom),
        epoch_maps=tuple(tuple((epoch, first) for epoch, first in epochs) for epochs in detail["epoch_maps"]),
        epochs=tuple(epochs),
        delete_state=None if state is None else RemotePartitionDeleteState(state),
    )


def _pack_custom(custom: tuple[bytes | None, ...] | None) -> bytes:
    if custom is None:
        return b""
    return b"".join(_LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value for value in custom)


def _unpack_custom(data: bytes) -> tuple[bytes | None, ...] | None:
    if not data:
        return None
    custom: list[bytes | None] = []
    position = 0
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length < 0:
            custom.append(None)
        else:
            custom.append(data[position : position + length])
            position += length
    return tuple(custom)
