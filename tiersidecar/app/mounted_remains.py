"""Evidence in the source's store of mounted partitions, where the source's topics have nothing of them, or may not have all: a
topic that was lost and made anew is as empty as one to which nothing was ever copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from tiersidecar.adapters.snapshots.shelf import list_snapshots, read_latest
from tiersidecar.app.at_once import at_once
from tiersidecar.decide.mounted_topics import Copied
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import parse_object_key
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.partition_snapshots import PartitionSnapshot
from tiersidecar.ports.store import Store

_SNAPSHOTS_AT_ONCE = 4
"""Each may have many megabytes."""
_LISTINGS_AT_ONCE = 16
_MOST_LISTED = 1_000
"""A page of a topic's objects.  In a topic with more, each partition in doubt is asked for by itself."""


class StoreRemains:
    """Looks into ``store``, under ``key_prefix``."""

    def __init__(self, store: Store, key_prefix: str, blocking: Blocking) -> None:
        self._store, self._key_prefix, self._blocking = store, key_prefix, blocking

    async def look(
        self, topic: str, topic_id: Uuid, partitions: Collection[int], *, with_objects: Collection[int]
    ) -> dict[int, Copied]:
        """Return what was copied of each of the ``partitions``, as far as snapshots show it; of those ``with_objects`` that
        have none, as far as objects do.  Snapshots are listed once for all.

        Raises:
            StoreError: the store is away.
        """
        keys = await list_snapshots(self._store, self._key_prefix, topic_id)
        with_keys = [number for number in partitions if (topic_id, number) in keys]
        read = partial(self._copied, topic_id, {number: keys[topic_id, number] for number in with_keys})
        copied = zip(with_keys, await at_once(read, with_keys, _SNAPSHOTS_AT_ONCE), strict=True)
        found = {number: one for number, one in copied if one is not None}
        if left := [number for number in with_objects if number not in found]:
            for number in await self._with_objects(topic, topic_id, left):
                found[number] = Copied(sign="the store has segments of it")
        return found

    async def _copied(self, topic_id: Uuid, keys: Mapping[int, list[str]], number: int) -> Copied | None:
        """Return what was copied; None where the snapshot is of a partition of which nothing was yet."""
        snapshot, faults = await read_latest(self._store, keys[number], (topic_id, number), self._blocking)
        if snapshot is not None:
            return _copied_in(snapshot, keys[number][0])
        return Copied(sign=f"the store has a snapshot of it, which cannot be read: {faults[0]}") if faults else None

    async def _with_objects(self, topic: str, topic_id: Uuid, partitions: Collection[int]) -> set[int]:
        stem = f"{self._key_prefix}{topic}-{format_uuid(topic_id)}/"
        found, listed = set[int](), 0
        async for stored in self._store.list_objects(stem):
            if (parsed := parse_object_key(stored.key, self._key_prefix)) is not None:
                found.add(parsed.segment_id.topic_id_partition.partition)
            listed += 1
            if listed == _MOST_LISTED:
                break
        else:
            return found & set(partitions)
        left = [number for number in partitions if number not in found]
        has_any = await at_once(partial(self._has_any, stem), left, _LISTINGS_AT_ONCE)
        return (found & set(partitions)) | {number for number, has in zip(left, has_any, strict=True) if has}

    async def _has_any(self, stem: str, number: int) -> bool:
        async for stored in self._store.list_objects(f"{stem}{number}/"):
            if parse_object_key(stored.key, self._key_prefix) is not None:
                return True
        return False


def _copied_in(snapshot: PartitionSnapshot, key: str) -> Copied | None:
    """Return what is still live, else what ever was: the source's state says how much of that has expired."""
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ends = [
        (int(one.segment_leader_epochs[-1].epoch), int(one.end_offset))
        for one in snapshot.segments
        if one.state is finished
    ]
    ends = ends or [(int(epoch), offset) for epoch, offset in snapshot.highest_offsets.items() if offset >= 0]
    if not ends:
        return None
    epoch, offset = max(ends)
    return Copied(sign=f"the snapshot {key} has it up to offset {offset}", leader_epoch=epoch, offset=offset)
