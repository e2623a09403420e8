"""A metadata cache at one moment, as plain values: what a snapshot stores instead of the events that led there."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from tiersidecar.domain.states import RemotePartitionDeleteState


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochImage:
    """One leader epoch: referenced rows with their spans (inclusive), ascending, and the superseded ones."""

    epoch: int
    highest_offset: int | None
    starts: array[int]
    ends: array[int]
    rows: array[int]
    superseded: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheImage:
    """All of a :class:`~tiersidecar.domain.metadata_cache.RemoteLogMetadataCache` but its partition.

    ``rows`` are packed (:data:`~tiersidecar.domain.metadata_cache_rows.ROW`); a row's epoch map is its place in
    ``epoch_maps``.  ``custom`` is in the order of the rows, None when no segment has any.
    """

    rows: bytes
    custom: tuple[bytes | None, ...] | None
    epoch_maps: tuple[tuple[tuple[int, int], ...], ...]
    epochs: tuple[EpochImage, ...]
    delete_state: RemotePartitionDeleteState | None
