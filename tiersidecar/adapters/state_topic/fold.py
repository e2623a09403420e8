"""The state topic, folded: what each key says, merged so that a deposed leader lowers nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog

from tiersidecar.adapters.state_topic.codec import (
    cluster_of,
    partition_key,
    read_partition_key,
    read_partition_state,
    read_topic_key,
    read_topic_state,
    read_value,
    topic_key,
    without_writer,
    write_state,
)
from tiersidecar.adapters.state_topic.entry_codec import read_trash_entry
from tiersidecar.adapters.state_topic.record_codecs import (
    TrashKey,
    cleaner_key,
    lease_key,
    read_cleaner_claims,
    read_cleaner_key,
    read_lease,
    read_lease_key,
    read_loss,
    read_loss_key,
    read_pause,
    read_pause_key,
    read_recopy,
    read_recopy_key,
    read_trash_key,
    trash_key,
    write_cleaner_claims,
    write_lease,
    write_trash_entry,
)
from tiersidecar.domain.cleaner import CleanerClaim, merged_claims
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease, accepted_lease
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.policy import Pause, PausedThing
from tiersidecar.domain.trash import TrashEntry, merged_entries
from tiersidecar.ports.state_log import ForeignState, PartitionOfTopic, PartitionState, TopicState
from tiersidecar.ports.state_records import RecopyRequest

_log = structlog.get_logger(__name__)
_NOTHING = PartitionState()


class StateFold:
    """No I/O.  ``lowered`` has the keys whose last record says less than is known: a deposed leader wrote it, or a loser of a
    lease, and compaction would leave nothing else, so what is known must be written again.

    ``losses`` has the topic ids of each acceptance of a loss, by its id, and ``pauses`` what stands still.
    Records of another cluster, which come with a mirrored topic, count for nothing; ``foreign`` has them by their keys.
    ``changes`` counts as of :class:`~tiersidecar.ports.state_log.StateChanges`, from what it is given on.
    """

    def __init__(self, cluster_id: str = "", *, changes: int = 0) -> None:
        self.cluster_id = cluster_id
        self.changes = self._all_changed_at = changes
        self._changed_at: dict[PartitionOfTopic, int] = {}
        self._named: tuple[TopicIdPartition, ...] = ()
        self._named_at = -1
        self.foreign: dict[bytes, dict[str, Any]] = {}
        self._partitions: dict[bytes, PartitionState] = {}
        self._highest_starts: dict[tuple[Uuid, int], Offset] = {}
        self._topics: dict[Uuid, TopicState] = {}
        self._recopies: dict[bytes, RecopyRequest] = {}
        self._leases: dict[bytes, Lease] = {}
        self.losses: dict[str, frozenset[str]] = {}
        self.pauses: dict[PausedThing, Pause] = {}
        self._claims: dict[bytes, tuple[CleanerClaim, ...]] = {}
        self._trash: dict[tuple[Uuid, int], dict[bytes, TrashEntry]] = {}
        self._documents: dict[bytes, dict[str, Any]] = {}
        self.lowered: set[bytes] = set()

    def emptied(self) -> StateFold:
        """Return one that knows nothing, which is a change for all."""
        return StateFold(self.cluster_id, changes=self.changes + 1)

    def apply(self, key: bytes | None, value: bytes | None, *, where: str) -> None:
        """Apply one record, in the topic's order.  An unreadable one is passed over with an error in the log."""
        if key is None:
            return
        if value is None:
            self._remove(key)
            return
        try:
            self._apply(key, value, where=where)
        except CorruptDataError as error:
            _log.error("state.record.corrupt", key=key.decode(errors="replace"), reason=str(error))

    def _is_of_another_cluster(self, key: bytes, document: dict[str, Any]) -> bool:
        written_by = cluster_of(document)
        if not self.cluster_id or written_by in ("", self.cluster_id):
            return False
        if written_by not in {cluster_of(one) for one in self.foreign.values()}:
            _log.error(
                "state.record.of_another_cluster",
                key=key.decode(errors="replace"),
                cluster_id=written_by,
                consequence="it counts for nothing here; what it names is not deleted",
            )
        self.foreign[key] = document
        self._note_change()
        if key in self._partitions or key in self._leases or key in self._claims:
            self.lowered.add(key)
        return True

    def _apply(self, key: bytes, value: bytes, *, where: str) -> None:
        document = read_value(value, where=where)
        if self._is_of_another_cluster(key, document):
            return
        self.foreign.pop(key, None)
        topic_id = read_topic_key(key)
        if topic_id is not None:
            self._topics[topic_id] = read_topic_state(document, where=where)
            self._note_change()
        elif (owner := read_partition_key(key)) is not None:
            written = read_partition_state(document, where=where)
            merged = self._partitions.get(key, PartitionState()).merged_with(written)
            self._partitions[key] = merged
            self._highest_starts[owner] = merged.highest_start
            self._note_change(owner)
            (self.lowered.discard if merged == written else self.lowered.add)(key)
        elif (named := read_recopy_key(key)) is not None:
            self._recopies[key] = read_recopy(named, document, where=where)
            self._note_change((named.topic_id, named.partition))
        elif (name := read_lease_key(key)) is not None:
            claimed = read_lease(name, document, where=where)
            counts = self._leases[key] = accepted_lease(self._leases.get(key), claimed)
            (self.lowered.discard if counts == claimed else self.lowered.add)(key)
        elif (loss_id := read_loss_key(key)) is not None:
            self.losses[loss_id] = read_loss(document, where=where)
            self._note_change()
        elif (paused := read_pause_key(key)) is not None:
            self.pauses[paused] = read_pause(paused, document)
            self._note_change()
        elif (thrown := read_trash_key(key)) is not None:
            self._apply_trash(key, thrown, document, where=where)
        elif read_cleaner_key(key) is not None:
            said = read_cleaner_claims(document, where=where)
            claims = self._claims[key] = merged_claims([*self._claims.get(key, ()), *said])
            (self.lowered.discard if claims == merged_claims(said) else self.lowered.add)(key)
        self._documents[key] = document

    def _apply_trash(self, key: bytes, thrown: TrashKey, document: dict[str, Any], *, where: str) -> None:
        written = read_trash_entry(thrown.id, document, where=where)
        entries = self._trash.setdefault((thrown.topic_id, thrown.partition), {})
        merged = entries[key].merged_with(written) if key in entries else written
        entries[key] = merged
        self._note_change((thrown.topic_id, thrown.partition))
        (self.lowered.discard if merged == written else self.lowered.add)(key)

    def _note_change(self, owner: PartitionOfTopic | None = None) -> None:
        self.changes += 1
        if owner is None:
            self._all_changed_at = self.changes
            self._changed_at.clear()  # topics come and go, and none is reported by itself any more
        else:
            self._changed_at[owner] = self.changes

    def changed_since(self, changes: int) -> frozenset[PartitionOfTopic] | None:
        """Return the partitions that changed (:meth:`tiersidecar.ports.state_log.StateChanges.changed_since`)."""
        if changes < self._all_changed_at:
            return None
        return frozenset(owner for owner, changed_at in self._changed_at.items() if changed_at > changes)

    def _remove(self, key: bytes) -> None:
        if read_lease_key(key) is None and read_cleaner_key(key) is None:
            self._note_change(None if key in self.foreign else _removed_of(key))
        self._documents.pop(key, None)
        self.foreign.pop(key, None)
        if (thrown := read_trash_key(key)) is not None:
            entries = self._trash.get((thrown.topic_id, thrown.partition), {})
            entries.pop(key, None)
            if not entries:
                self._trash.pop((thrown.topic_id, thrown.partition), None)
        if self._partitions.pop(key, None) is not None and (owner := read_partition_key(key)) is not None:
            self._highest_starts.pop(owner, None)
        self._recopies.pop(key, None)
        self._leases.pop(key, None)
        self._claims.pop(key, None)
        if (paused := read_pause_key(key)) is not None:
            self.pauses.pop(paused, None)
        self.lowered.discard(key)
        topic_id = read_topic_key(key)
        if topic_id is not None:
            self._topics.pop(topic_id, None)

    def partition_state(self, owner: TopicIdPartition) -> PartitionState:
        """Return what is known, the empty state where nothing is."""
        return self._partitions.get(partition_key(owner), _NOTHING)

    def highest_start(self, topic_id: Uuid, partition: int) -> Offset:
        """Return :attr:`PartitionState.highest_start` of what is known."""
        return self._highest_starts.get((topic_id, partition), NO_OFFSET)

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        return self._topics.get(topic_id)

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """Return every partition with a state; the same object until something changes, for they are thousands."""
        if self._named_at != self.changes:
            self._named, self._named_at = tuple(self._named_anew()), self.changes
        return self._named

    def _named_anew(self) -> Iterator[TopicIdPartition]:
        for key in self._partitions:
            identity = read_partition_key(key)
            if identity is not None:
                topic = str(self._documents[key].get("topic", ""))
                yield TopicIdPartition(topic_id=identity[0], topic=topic, partition=identity[1])

    def is_ours(self, owner: TopicIdPartition) -> bool:
        """Return whether a sidecar of this cluster wrote the state; False for records of the first format, which lack it."""
        return bool(self.cluster_id) and cluster_of(self._documents.get(partition_key(owner), {})) == self.cluster_id

    def foreign_partitions(self) -> dict[TopicIdPartition, ForeignState]:
        """Return partitions that only records of other clusters name; unreadable ones are skipped, with an error in the log."""
        found = {}
        for key, document in self.foreign.items():
            identity = read_partition_key(key)
            if identity is not None and key not in self._partitions:
                topic = str(document.get("topic", ""))
                owner = TopicIdPartition(topic_id=identity[0], topic=topic, partition=identity[1])
                try:
                    state = read_partition_state(document, where=key.decode())
                except CorruptDataError as error:
                    _log.error("state.record.corrupt", key=key.decode(), reason=str(error))
                    continue
                found[owner] = ForeignState(cluster_id=cluster_of(document), state=state)
        return found

    def recopies(self, owner: TopicIdPartition) -> list[RecopyRequest]:
        """Return the requests of the partition, ascending by offset."""
        if not self._recopies:
            return []
        ours = (one for one in self._recopies.values() if one.topic_id_partition == owner)
        return sorted(ours, key=lambda one: (one.start_offset, one.end_offset))

    def recopy(self, key: bytes) -> RecopyRequest | None:
        """Return the request of this key."""
        return self._recopies.get(key)

    def lease(self, name: str) -> Lease | None:
        """Return the lease that counts."""
        return self._leases.get(lease_key(name))

    def leases(self) -> list[Lease]:
        """Return every lease that counts, by name."""
        return sorted(self._leases.values(), key=lambda one: one.name)

    def cleaner_claims(self, owner: TopicIdPartition) -> tuple[CleanerClaim, ...]:
        """Return the leaders' claims of how far they had cleaned the partition, ascending by epoch."""
        return self._claims.get(cleaner_key(owner), ())

    def cleaner_value(self, owner: TopicIdPartition, claim: CleanerClaim) -> bytes | None:
        """Return the record that says ``claim`` and all that is known; None when that is known already."""
        known = self.cleaner_claims(owner)
        merged = merged_claims([*known, claim])
        if merged == known:
            return None
        return write_cleaner_claims(owner, merged, without_writer(self._documents.get(cleaner_key(owner), {})))

    def trash(self, owner: TopicIdPartition) -> list[TrashEntry]:
        """Return the partition's entries, ascending by id: those with a record, and those that its own record carries."""
        entries = self._trash.get((owner.topic_id, owner.partition), {}).values()
        kept = self.partition_state(owner).kept
        return list(merged_entries([*entries, *kept])) if entries or kept else []

    def trash_partitions(self) -> tuple[TopicIdPartition, ...]:
        """Return every partition with an entry."""
        keys = {owner: min(entries) for owner, entries in self._trash.items()}
        for key, state in self._partitions.items():
            if state.kept and (owner := read_partition_key(key)) is not None:
                keys.setdefault(owner, key)
        return tuple(
            TopicIdPartition(topic_id=topic_id, topic=str(self._documents[key].get("topic", "")), partition=partition)
            for (topic_id, partition), key in keys.items()
        )

    def trash_value(self, owner: TopicIdPartition, entry: TrashEntry) -> bytes | None:
        """Return the record that says ``entry`` and all that is known of its id; None when that is known already."""
        key = trash_key(owner, entry.id)
        known = self._trash.get((owner.topic_id, owner.partition), {}).get(key)
        if known is not None and known.contains(entry):
            return None
        merged = entry if known is None else known.merged_with(entry)
        return write_trash_entry(owner, merged, without_writer(self._documents.get(key, {})))

    def has_more_than(self, owner: TopicIdPartition, entry: TrashEntry) -> bool:
        """Return whether more was decided in the entry of this id than ``entry`` knows."""
        known = self._trash.get((owner.topic_id, owner.partition), {}).get(trash_key(owner, entry.id))
        return known is not None and not entry.contains(known)

    def is_known(self, key: bytes) -> bool:
        """Return whether the key has a value that a tombstone would remove."""
        return key in self._documents

    def merged_value(self, owner: TopicIdPartition, state: PartitionState) -> bytes | None:
        """Return the record that says ``state`` and all that is known; None when that is known already."""
        known = self.partition_state(owner)
        merged = known.merged_with(state)
        former = self._documents.get(partition_key(owner))
        if merged == known and former is not None and (self.is_ours(owner) or not self.cluster_id):
            return None
        return write_state(merged, without_writer({"topic": owner.topic, **(former or {})}))

    def topic_value(self, topic_id: Uuid, state: TopicState) -> bytes | None:
        """Return the record of ``state``; None when it is known already."""
        if self._topics.get(topic_id) == state:
            return None
        return write_state(state, without_writer(self._documents.get(topic_key(topic_id), {})))

    def mended_value(self, key: bytes) -> bytes | None:
        """Return what must be written for a lowered key; None when it is no longer lowered."""
        if key not in self.lowered:
            return None
        if key in self._leases:
            return write_lease(self._leases[key])
        if key in self._claims:
            return self._mended_claims(key)
        thrown = read_trash_key(key)
        if thrown is None:
            return write_state(self._partitions[key], without_writer(self._documents[key]))
        topic = str(self._documents[key].get("topic", ""))
        owner = TopicIdPartition(topic_id=thrown.topic_id, topic=topic, partition=thrown.partition)
        entry = self._trash[thrown.topic_id, thrown.partition][key]
        return write_trash_entry(owner, entry, without_writer(self._documents[key]))

    def _mended_claims(self, key: bytes) -> bytes:
        named, former = read_cleaner_key(key), self._documents[key]
        assert named is not None, "it has claims"
        owner = TopicIdPartition(topic_id=named[0], topic=str(former.get("topic", "")), partition=named[1])
        return write_cleaner_claims(owner, self._claims[key], without_writer(former))


def _removed_of(key: bytes) -> PartitionOfTopic | None:
    """Return the partition of a record that comes and goes all the time, where retention deletes; None for any other."""
    named = read_trash_key(key) or read_recopy_key(key)
    return None if named is None else (named.topic_id, named.partition)
