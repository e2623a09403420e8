"""After the last fault: everything sealed comes to be remote, nothing stays half done, nothing is stored that nothing names."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tests.support.chaos.world import METADATA_TOPIC, PARTITIONS, PASSING, World
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.remote_events import object_keys_in, read_events
from tiersidecar.domain.errors import IllegalTransitionError, UnknownSegmentError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.reading.remote_objects import recorded_keys

Segments = dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]
_TIMEOUT_S = 180.0


def wait_until_settled(world: World) -> Segments:
    """Return all segments that are left, once they hold everything sealed, and deleted topics have none.

    Raises:
        TimeoutError: something stays behind, which the message names.
    """
    found: Segments = {}
    behind = ["nothing was looked at"]

    def settled() -> bool:
        found.clear()
        found.update(_segments(world))
        behind[:] = [*_not_covered(world, found), *_half_done(found), *_left_of_deleted(world, found)]
        return not behind

    try:
        wait_until(settled, "everything is settled", _TIMEOUT_S)
    except TimeoutError as late:
        raise TimeoutError(f"{late}: {behind}\n{world.sidecars.log_tails()}") from late
    return found


def assert_objects_fit(world: World, segments: Segments) -> None:
    """Check that what is finished has its objects; what has objects is named by the metadata."""
    left = [one for ones in segments.values() for one in ones]
    objects = object_keys_in(world.bucket)
    missing = _keys(one for one in left if one.state is State.COPY_SEGMENT_FINISHED) - objects
    assert not missing, f"finished segments without their objects: {sorted(missing)[:5]}"
    orphans = objects - _keys(left)
    assert not [key for key in orphans if key.startswith(PASSING)], f"of deleted topics: {sorted(orphans)[:5]}"


def _segments(world: World) -> Segments:
    caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
    for event in read_events(world.cluster.client_settings, METADATA_TOPIC):
        assert isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate), event
        owner = event.remote_log_segment_id.topic_id_partition
        # What a sidecar said too late every reader of the topic drops.
        with suppress(IllegalTransitionError, UnknownSegmentError):
            caches.setdefault(owner, RemoteLogMetadataCache(owner)).apply(event)
    for cache in caches.values():
        cache.mark_loaded()
    return {owner: list(cache.list_remote_log_segments()) for owner, cache in caches.items()}


def _not_covered(world: World, found: Segments) -> Iterable[str]:
    for topic, partitions in PARTITIONS.items():
        for partition in range(partitions):
            try:
                directory = world.leader_of(topic, partition).partition_dir(topic, partition)
                active = max(int(log.stem) for log in directory.glob("*.log"))
            except (OSError, KafkaAdminError, TimeoutError, ValueError) as error:
                yield f"{topic}-{partition}: {error}"
                continue
            ours = [ones for owner, ones in found.items() if (owner.topic, owner.partition) == (topic, partition)]
            stop = _stop_without_hole(one for ones in ours for one in ones)
            if stop < active:
                yield f"{topic}-{partition} is remote up to {stop}, its active segment begins at {active}"


def _stop_without_hole(segments: Iterable[RemoteLogSegmentMetadata]) -> int:
    stop = 0
    finished = (one for one in segments if one.state is State.COPY_SEGMENT_FINISHED)
    for segment in sorted(finished, key=lambda one: one.start_offset):
        if segment.start_offset <= stop:
            stop = max(stop, segment.next_offset)
    return stop


def _half_done(found: Segments) -> Iterable[str]:
    for owner, ones in found.items():
        for one in ones:
            if one.state is State.DELETE_SEGMENT_STARTED:
                yield f"{one.remote_log_segment_id} of {owner.topic} is half deleted"


def _left_of_deleted(world: World, found: Segments) -> Iterable[str]:
    for owner, ones in found.items():
        if owner.topic.startswith(PASSING) and ones:
            yield f"{owner.topic}-{owner.partition} is deleted and has {len(ones)} segments"
    objects = [key for key in object_keys_in(world.bucket) if key.startswith(PASSING)]
    if objects:
        yield f"{len(objects)} objects of deleted topics: {objects[:2]}"


def _keys(segments: Iterable[RemoteLogSegmentMetadata]) -> set[str]:
    return {key for segment in segments for key in recorded_keys(segment).in_upload_order}
