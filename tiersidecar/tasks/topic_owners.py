"""Claims of topic ids' remote data by clusters, each an object in the store: ``<key.prefix>.tiersidecar/owners/<topic
id>.json``.

Several clusters may share a bucket.  A cluster claims the ids that it leads, by a put that succeeds only where nothing is; what
another one has claimed is never copied to, trimmed or deleted.  ``tiersidecar adopt`` alone overwrites a claim.  A place
has such an object of each topic id whose segments go there: clusters with stores of their own may share a place.

An object names its place as well: where two have been exchanged in the configuration, nothing is copied, trimmed or deleted.

An object that was seen while segments were remote, and is missing now, proves that this is not the same store as before: the
state topic records that it was seen, and in which places.  It is not created again then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from tiersidecar.domain.errors import (
    NotOwnedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    OwnerMissingError,
    StoreError,
    UnknownPlaceError,
    WrongPlaceError,
)
from tiersidecar.domain.ids import (
    DEFAULT_PLACE,
    BrokerId,
    TopicIdPartition,
    Uuid,
    format_uuid,
    named_place,
    place_prefix,
)
from tiersidecar.domain.own_objects import MOST_OWNER_BYTES, OWNERS
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.ports.store import BytesBody, FetchRange, OwnerStore
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)

_READ_AGAIN = 3
_BELIEVED_S = 10.0
"""How long an answer of the store counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOwner:
    """Contents of an owner object.  ``former_clusters`` are those whose data a mount took over, latest first.  ``place`` is
    where
    the object is, None where an earlier release did not say."""

    cluster_id: str
    topic: str
    claimed_ms: int
    broker_id: int
    incarnation: str
    former_clusters: tuple[str, ...] = ()
    place: str | None = DEFAULT_PLACE

    @property
    def lineage(self) -> tuple[str, ...]:
        """Return the owner, and after it the former ones."""
        return self.cluster_id, *self.former_clusters

    def write(self, topic_id: Uuid) -> bytes:
        """Return it as JSON."""
        document: dict[str, object] = {
            "version": 1,
            "cluster_id": self.cluster_id,
            "topic": self.topic,
            "topic_id": format_uuid(topic_id),
            "claimed_ms": self.claimed_ms,
            "broker_id": self.broker_id,
            "incarnation": self.incarnation,
        }
        if self.place is not None:
            document["place"] = self.place
        if self.former_clusters:
            document["former_clusters"] = list(self.former_clusters)
        return json.dumps(document, separators=(",", ":")).encode()


def owner_key(key_prefix: str, topic_id: Uuid) -> str:
    """Return the key of a topic id's owner object."""
    return f"{key_prefix}{OWNERS}{format_uuid(topic_id)}.json"


def read_owning_cluster(data: bytes) -> str:
    """Return the cluster that an owner object names.

    Raises:
        ValueError: it names none.
    """
    cluster_id = _document(data).get("cluster_id")
    if not isinstance(cluster_id, str) or not cluster_id:
        raise ValueError("it names no cluster")
    return cluster_id


def read_owned_place(data: bytes) -> str | None:
    """Return the place that an owner object names; None where it names none, as those of earlier releases.

    Raises:
        ValueError: it is no JSON.
    """
    place = _document(data).get("place")
    return place if isinstance(place, str) else None


def read_topic_owner(data: bytes) -> TopicOwner:
    """Return all that an owner object says; what an earlier release did not write is empty, -1 or 0.

    Raises:
        ValueError: it names no cluster.
    """
    cluster_id = read_owning_cluster(data)
    document = _document(data)

    def whole(name: str, otherwise: int) -> int:
        value = document.get(name)
        return value if type(value) is int and 0 <= value < 2**63 else otherwise

    former = document.get("former_clusters")
    return TopicOwner(
        cluster_id=cluster_id,
        topic=str(document.get("topic", "")),
        claimed_ms=whole("claimed_ms", 0),
        broker_id=whole("broker_id", -1),
        incarnation=str(document.get("incarnation", "")),
        former_clusters=tuple(
            one
            for one in (former if isinstance(former, list) else ())
            if isinstance(one, str) and one not in ("", cluster_id)
        ),
        place=read_owned_place(data),
    )


def _document(data: bytes) -> Mapping[str, object]:
    """Return what an object of JSON says; nothing where it is of another type.

    Raises:
        ValueError: it is no JSON, or nested deeper than anything that was written, or has halves of characters.
    """
    try:
        document = json.loads(data)
        json.dumps(document, ensure_ascii=False).encode()  # a cluster's id becomes part of a key
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    return document if isinstance(document, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLook:
    """Looks whether a topic id has been claimed by ``cluster_id``, and claims nothing."""

    store: FetchRange
    key_prefix: str
    cluster_id: str

    async def has_claimed(self, topic_id: Uuid) -> bool:
        """Return whether the store says so; what cannot be read counts as unclaimed.

        Raises:
                ObjectTooLargeError: it cannot be known: what is there is no owner object.
            StoreError: the store is away.
        """
        key = owner_key(self.key_prefix, topic_id)
        try:
            return (
                read_owning_cluster(await self.store.fetch_object(key, max_bytes=MOST_OWNER_BYTES)) == self.cluster_id
            )
        except (ObjectNotFoundError, ValueError):
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """Cluster whose sidecar claims a topic id or writes a snapshot: ``incarnation`` is of this process."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str


class TopicOwners:
    """The claims of one process, made on behalf of ``cluster_id``."""

    def __init__(
        self,
        *,
        store: OwnerStore,
        key_prefix: str,
        state: StateLog,
        metadata: MetadataView,
        table: PartitionTable,
        clock: Clock,
        claimant: Claimant,
        place_of_topic: Callable[[str], str] = lambda topic: DEFAULT_PLACE,
    ) -> None:
        self._store, self._key_prefix, self._clock = store, key_prefix, clock
        self._state, self._metadata, self._table = state, metadata, table
        self._claimant, self._place_of_topic = claimant, place_of_topic
        self._ours_s: dict[tuple[Uuid, str], float] = {}
        self._missing_in: dict[Uuid, str] = {}

    async def claim(
        self, topic_id_partition: TopicIdPartition, *, anew: bool = False, place: str | None = None
    ) -> None:
        """Return once the topic's id is this cluster's, claimed now where no cluster had: only for ids that this cluster leads,
        or has led.  ``anew`` believes no answer of before, and asks in each place where the partition's segments were seen, but
        for those that are away.  ``place`` is where the segment lies that it is about; by default where new ones go, and only
        there it is claimed.

        Raises:
                NotOwnedError: it is another cluster's, or it cannot be known whose.
            WrongPlaceError: the store is another place's.
            OwnerMissingError: this is not the store that segments of it were copied to.
            StoreError: the store is away.
        """
        topic_id, now_s = topic_id_partition.topic_id, self._clock.monotonic_s()
        place = self._place_of_topic(topic_id_partition.topic) if place is None else place
        found_in = {DEFAULT_PLACE, place}
        if anew or now_s - self._ours_s.get((topic_id, place), -_BELIEVED_S) >= _BELIEVED_S:
            self._ours_s.pop((topic_id, place), None)
            await self._look_in_places(topic_id_partition, place)
            if anew:
                found_in |= await self._look_where_seen(topic_id_partition, besides=place)
            self._ours_s[topic_id, place] = now_s
        if self._missing_in.get(topic_id, DEFAULT_PLACE) in found_in:
            self._table.missing_owners.pop(topic_id, None)
        await self._say_seen(topic_id_partition, place)

    async def _look_where_seen(self, topic_id_partition: TopicIdPartition, *, besides: str) -> set[str]:
        """Return the places where it was found.  One that is away, or was taken out of the configuration, halts the partition
        where its segments are asked for; one that has none of its segments any more may be emptied or given up."""
        found_in: set[str] = set()
        seen = set(self._state.partition_state(topic_id_partition).places_seen) - {besides}
        if seen and self._metadata.is_ready(topic_id_partition):
            custom = self._metadata.picture(topic_id_partition).custom_metadata
            seen &= {place_in(one) for one in custom}
        for place in sorted(seen):
            try:
                await self._look(topic_id_partition, place)
            except UnknownPlaceError:
                continue
            except StoreError as error:
                if not error.is_away:
                    raise
                continue
            found_in.add(place)
        return found_in

    async def _look_in_places(self, topic_id_partition: TopicIdPartition, place: str) -> None:
        """Look in the other places.  Of what is in one, its object there is enough while the default place is away: it is made
        only after the other."""
        away = None
        try:
            await self._look(topic_id_partition)
        except StoreError as error:
            if not place or not error.is_away:
                raise
            away = error
        if place:
            await self._look(topic_id_partition, place, instead_of=away)

    async def _look(
        self,
        topic_id_partition: TopicIdPartition,
        place: str = DEFAULT_PLACE,
        *,
        instead_of: StoreError | None = None,
    ) -> None:
        key = owner_key(place_prefix(place) or self._key_prefix, topic_id_partition.topic_id)
        reason, wrong = "", None
        for _ in range(_READ_AGAIN):  # one wrong byte on its way must not park the partition
            try:
                data = await self._fetch_or_make(key, topic_id_partition, place, instead_of)
                reason = self._reason_not_ours(data)
                wrong = read_owned_place(data) if not reason else None
            except ObjectTooLargeError as error:
                reason = _unreadable(error.reason, topic_id_partition)
            except ValueError as error:
                reason = _unreadable(str(error), topic_id_partition)
            if not reason and wrong in (None, place):
                return
        if not reason and wrong is not None:
            raise self._wrong_place(topic_id_partition, key, place, wrong)
        raise NotOwnedError(topic=topic_id_partition.topic, key=key, reason=reason)

    async def _fetch_or_make(
        self, key: str, topic_id_partition: TopicIdPartition, place: str, instead_of: StoreError | None
    ) -> bytes:
        try:
            return await self._store.fetch_object(key, max_bytes=MOST_OWNER_BYTES)
        except ObjectNotFoundError:
            self._require_never_seen(key, topic_id_partition, place)
            if instead_of is not None:
                raise instead_of from None
            return await self._make(key, topic_id_partition, place)

    def _was_seen(self, topic_id_partition: TopicIdPartition, place: str) -> bool:
        """Return whether the object was there, by what any sidecar of the cluster has said of any partition of the topic id.

        Where no new segments go, one lies that is asked about, and before that one was copied the object was made."""
        of_topic = [
            topic_id_partition,
            *(partition for partition in self._state.partitions() if partition.topic_id == topic_id_partition.topic_id),
        ]
        states = map(self._state.partition_state, of_topic)
        if not place:
            return any(state.owner_seen_ms >= 0 for state in states)
        return (
            place != self._place_of_topic(topic_id_partition.topic)
            or any(place in state.places_seen for state in states)
            or place in self._places_of_segments(topic_id_partition)
        )

    def _places_of_segments(self, topic_id_partition: TopicIdPartition) -> set[str]:
        """Return where finished segments lie."""
        if not self._metadata.is_ready(topic_id_partition):
            return set()
        return {
            place_in(segment.custom_metadata or b"")
            for segment in self._metadata.list_remote_log_segments(topic_id_partition)
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        }

    def _require_never_seen(self, key: str, topic_id_partition: TopicIdPartition, place: str) -> None:
        if not self._was_seen(topic_id_partition, place):
            return
        error = OwnerMissingError(
            topic=topic_id_partition.topic, topic_id=format_uuid(topic_id_partition.topic_id), key=key
        )
        if topic_id_partition.topic_id not in self._table.missing_owners:
            log.error(
                "topic.owner.missing",
                topic=topic_id_partition.topic,
                topic_id=format_uuid(topic_id_partition.topic_id),
                key=key,
            )
        self._table.missing_owners[topic_id_partition.topic_id] = str(error)
        self._missing_in[topic_id_partition.topic_id] = place
        raise error

    def _wrong_place(self, topic_id_partition: TopicIdPartition, key: str, place: str, said: str) -> WrongPlaceError:
        topic_id = topic_id_partition.topic_id
        error = WrongPlaceError(
            topic=topic_id_partition.topic,
            topic_id=format_uuid(topic_id),
            key=key,
            here=named_place(place),
            said=named_place(said),
        )
        self._table.missing_owners[topic_id], self._missing_in[topic_id] = str(error), place
        return error

    async def _say_seen(self, topic_id_partition: TopicIdPartition, place: str) -> None:
        """Publish it once, and only while segments are remote: until then a store may be changed for another one, nothing is in
        it."""
        known = self._state.partition_state(topic_id_partition)
        is_place_known = not place or place in known.places_seen
        if known.owner_seen_ms >= 0 and is_place_known:
            return
        places = self._places_of_segments(topic_id_partition)
        said = PartitionState(
            owner_seen_ms=self._clock.now_ms() if places and known.owner_seen_ms < 0 else -1,
            places_seen=(place,) if place in places and not is_place_known else (),
        )
        if said != PartitionState():
            await self._state.publish_partition_state(topic_id_partition, said)

    async def _make(self, key: str, topic_id_partition: TopicIdPartition, place: str) -> bytes:
        """Make it, and return what is there then: another may have been faster."""
        ours = TopicOwner(
            cluster_id=self._claimant.cluster_id,
            topic=topic_id_partition.topic,
            claimed_ms=self._clock.now_ms(),
            broker_id=self._claimant.broker_id,
            incarnation=self._claimant.incarnation,
            place=place,
        ).write(topic_id_partition.topic_id)
        try:
            await self._store.put_object(key, BytesBody(ours), if_absent=True)
        except ObjectExistsError:
            return await self._store.fetch_object(key, max_bytes=MOST_OWNER_BYTES)
        log.info(
            "topic.claimed", topic=topic_id_partition.topic, topic_id=format_uuid(topic_id_partition.topic_id), key=key
        )
        return ours

    def _reason_not_ours(self, data: bytes) -> str:
        """Return whose the data are instead; empty where they are ours.

        Raises:
            ValueError: the object does not say.
        """
        cluster_id = read_owning_cluster(data)
        return "" if cluster_id == self._claimant.cluster_id else f"says cluster {cluster_id}"


def _unreadable(reason: str, topic_id_partition: TopicIdPartition) -> str:
    adopt = f"tiersidecar adopt {format_uuid(topic_id_partition.topic_id)}"
    return f"cannot be read: {reason}. Find out what else writes to the bucket; `{adopt}` writes the object again"
