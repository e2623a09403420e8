"""Snapshots of clusters in the store: ``<key.prefix>.tiersidecar/clusters/<cluster id>/<written ms>-<broker id>.snapshot``.

Of two writers, each has keys of its own: nothing is overwritten, and readers take the one that was written last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

import structlog

from tiersidecar.adapters.snapshots.cluster_codec import MOST_BYTES, read_cluster_snapshot, write_cluster_snapshot
from tiersidecar.decide.cluster_snapshots import superseded
from tiersidecar.domain.errors import CorruptDataError, ObjectNotFoundError, ObjectTooLargeError
from tiersidecar.domain.own_objects import CLUSTERS
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.cluster_snapshots import ClusterSnapshot
from tiersidecar.ports.store import BytesBody, Store

log = structlog.get_logger(__name__)

_NAME = re.compile(r"(?P<written_ms>[0-9]{19})-[0-9]{1,10}\.snapshot")
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: no clock is there, and what has a later name is none of ours."""


def cluster_directory(key_prefix: str, cluster_id: str) -> str:
    """Return what the keys of a cluster's snapshots begin with."""
    return f"{key_prefix}{CLUSTERS}{quote(cluster_id, safe='')}/"


class StoreClusterShelf:
    """The :class:`~tiersidecar.ports.cluster_snapshots.ClusterSnapshotShelf` under ``key_prefix`` of ``store``."""

    def __init__(self, store: Store, key_prefix: str, blocking: Blocking) -> None:
        self._store, self._key_prefix, self._blocking = store, key_prefix, blocking

    async def latest(self, cluster_id: str) -> ClusterSnapshot | None:
        """Return the latest snapshot of the cluster."""
        for key in reversed(await self._keys(cluster_id)):
            try:
                data = await self._store.fetch_object(key, max_bytes=MOST_BYTES)
                return await self._blocking.run(_read, data, key, cluster_id)
            except (CorruptDataError, ObjectNotFoundError, ObjectTooLargeError):
                continue
        return None

    async def key_at(self, cluster_id: str, at_ms: int) -> str | None:
        """Return the key of the last one that was written by then, else of the first one; None where there is none.

        Raises:
            StoreError: the store is away.
        """
        keys = await self._keys(cluster_id)
        return max((key for key in keys if _written_ms(key) <= at_ms), default=keys[0] if keys else None)

    async def at(self, key: str) -> ClusterSnapshot:
        """Return the one under a key, whichever cluster's.

        Raises:
            CorruptDataError: it is none.
            StoreError: there is no object of that key, or the store is away.
        """
        data = await self._store.fetch_object(key, max_bytes=MOST_BYTES)
        return await self._blocking.run(read_cluster_snapshot, data, key)

    async def put(self, snapshot: ClusterSnapshot) -> None:
        """Put the snapshot into the store."""
        before = await self._keys(snapshot.cluster_id)
        named = replace(snapshot, written_ms=_later_than(before, snapshot.written_ms))
        directory = cluster_directory(self._key_prefix, snapshot.cluster_id)
        key = f"{directory}{named.written_ms:019d}-{named.broker_id}.snapshot"
        data = await self._blocking.run(write_cluster_snapshot, named, key)
        await self._store.put_object(key, BytesBody(data), if_absent=True)
        keys = [*before, key]
        if older := [keys[position] for position in superseded([_written_ms(one) for one in keys])]:
            await self._store.delete_objects(older)

    async def _keys(self, cluster_id: str) -> list[str]:
        """List the keys, ascending by the time of writing."""
        listed = self._store.list_objects(cluster_directory(self._key_prefix, cluster_id))
        return sorted([stored.key async for stored in listed if _written_ms(stored.key) >= 0])


def _read(data: bytes, key: str, cluster_id: str) -> ClusterSnapshot:
    snapshot = read_cluster_snapshot(data, key)
    if (snapshot.cluster_id, snapshot.written_ms) != (cluster_id, _written_ms(key)):
        reason = f"it is a snapshot of cluster {snapshot.cluster_id} at {snapshot.written_ms}"
        raise CorruptDataError(where=key, position=0, reason=reason)
    return snapshot


def _written_ms(key: str) -> int:
    """Return when it was written; -1 for a key of something else."""
    match = _NAME.fullmatch(key.rpartition("/")[2])
    written_ms = -1 if match is None else int(match["written_ms"])
    return written_ms if written_ms <= _LATEST_MS else -1


def _later_than(keys: Sequence[str], now_ms: int) -> int:
    """Return the time to name the next one by.  Readers take the highest: that of a clock that ran ahead is overtaken."""
    highest_ms = _written_ms(keys[-1]) if keys else -1
    if highest_ms > now_ms:
        log.warning("cluster_snapshot.clock.behind", key=keys[-1], ahead_s=(highest_ms - now_ms) // 1000)
    return max(now_ms, highest_ms + 1)
