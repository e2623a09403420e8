"""Snapshots in the store, under ``<key.prefix>.tiersidecar/snapshots/<topic id>/<partition>/<leader epoch>-<serial>.snapshot``.

A version is in the key, so nothing is ever overwritten, and no store need compare and set: a put succeeds only where nothing
is, readers take the highest key, and what a deposed leader writes sorts below what its successor wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tiersidecar.adapters.snapshots.codec import (
    MOST_SNAPSHOT_BYTES,
    read_partition_snapshot,
    write_partition_snapshot,
)
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, parse_uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.own_objects import SNAPSHOTS
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion, snapshot_directory
from tiersidecar.ports.store import BytesBody, ListObjects, Store

_KEPT = 2
"""Snapshots of a partition: the last, and the one before it, should the last be damaged."""
_NAME = re.compile(r"(?P<epoch>[0-9]{10})-(?P<serial>[0-9]{19})\.snapshot")
_PLACE = re.compile(r"(?P<topic_id>[a-zA-Z0-9_-]{22})/(?P<partition>[0-9]{1,10})/(?P<name>[^/]+)")

SnapshotKeys = dict[tuple[Uuid, int], list[str]]
"""By topic id and partition, the keys of its snapshots, the latest first."""


def snapshot_key(key_prefix: str, owner: TopicIdPartition, version: SnapshotVersion) -> str:
    """Return the key of a snapshot: later ones sort higher."""
    return f"{snapshot_directory(key_prefix, owner)}{version.leader_epoch:010d}-{version.serial:019d}.snapshot"


def version_in(key: str) -> SnapshotVersion | None:
    """Return the version that a key names; None for a key of something else."""
    match = _NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    return SnapshotVersion(leader_epoch=LeaderEpoch(int(match["epoch"])), serial=int(match["serial"]))


class StoreShelf:
    """The :class:`~tiersidecar.ports.partition_snapshots.SnapshotShelf` under ``key_prefix`` of ``store``.

    What it has put it remembers, and lists once for each leader epoch: each listing costs as much as a put.
    """

    def __init__(self, store: Store, key_prefix: str, blocking: Blocking) -> None:
        self._store, self._key_prefix, self._blocking = store, key_prefix, blocking
        self._last: dict[TopicIdPartition, list[str]] = {}

    async def latest(self, owner: TopicIdPartition) -> tuple[SnapshotVersion | None, PartitionSnapshot | None]:
        """Return the latest version and the latest readable snapshot."""
        self._last.pop(owner, None)
        keys = (await self._keys(owner))[::-1]
        found, _ = await read_latest(self._store, keys, (owner.topic_id, owner.partition), self._blocking)
        return (version_in(keys[0]) if keys else None), found

    async def put(self, snapshot: PartitionSnapshot) -> None:
        """Put the snapshot into the store."""
        owner = snapshot.topic_id_partition
        key = snapshot_key(self._key_prefix, owner, snapshot.version)
        data = await self._blocking.run(write_partition_snapshot, snapshot, key)
        before = self._last.pop(owner, None)
        await self._store.put_object(key, BytesBody(data), if_absent=True)
        older = [one for one in (await self._keys(owner) if before is None else before) if one < key]
        if len(older) >= _KEPT:
            await self._store.delete_objects(older[: 1 - _KEPT])
        self._last[owner] = [*older[1 - _KEPT :], key]

    async def _keys(self, owner: TopicIdPartition) -> list[str]:
        """List the keys, ascending by version."""
        listed = self._store.list_objects(snapshot_directory(self._key_prefix, owner))
        return sorted([stored.key async for stored in listed if version_in(stored.key) is not None])


async def list_snapshots(store: ListObjects, key_prefix: str, topic_id: Uuid | None = None) -> SnapshotKeys:
    """Return all that there are, or those of one topic.

    Raises:
        StoreError: the store is away.
    """
    found: SnapshotKeys = {}
    prefix = f"{key_prefix}{SNAPSHOTS}"
    async for stored in store.list_objects(prefix if topic_id is None else f"{prefix}{format_uuid(topic_id)}/"):
        place = _PLACE.fullmatch(stored.key.removeprefix(prefix))
        if place is None or version_in(place["name"]) is None:
            continue
        try:
            topic_id = parse_uuid(place["topic_id"])
        except ValueError:
            continue
        found.setdefault((topic_id, int(place["partition"])), []).insert(0, stored.key)
    return found


async def read_latest(
    store: Store, keys: Sequence[str], owner: tuple[Uuid, int], blocking: Blocking
) -> tuple[PartitionSnapshot | None, list[str]]:
    """Read the latest of ``keys``, which descend, that can be read and is ``owner``'s; and what is wrong with those before it.

    Raises:
        StoreError: the store is away.
    """
    faults: list[str] = []
    for key in keys:
        try:
            data = await store.fetch_object(key, max_bytes=MOST_SNAPSHOT_BYTES)
            snapshot = await blocking.run(_read, data, key, owner)
        except (CorruptDataError, ObjectNotFoundError, ObjectTooLargeError) as error:
            faults.append(str(error))
        else:
            return snapshot, faults
    return None, faults


def _read(data: bytes, key: str, owner: tuple[Uuid, int]) -> PartitionSnapshot:
    snapshot = read_partition_snapshot(data, where=key)
    named = snapshot.topic_id_partition
    if (named.topic_id, named.partition) != owner or snapshot.version != version_in(key):
        raise CorruptDataError(
            where=key, position=0, reason=f"it is a snapshot of {named.qualified}, {snapshot.version}"
        )
    return snapshot
