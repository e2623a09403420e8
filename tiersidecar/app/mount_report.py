"""The findings of a mount plan, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tiersidecar.app.mount_findings import Findings, FoundPartition
from tiersidecar.app.reconcile_parts import UNREADABLE_OWNER
from tiersidecar.decide.mount import NATIVE_CONFIGS
from tiersidecar.domain.cluster_topics import NewTopic
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.readable import moment_text

_NAMED = 5
_SEGMENT_BYTES, _MEBIBYTE = "segment.bytes", 2**20
_MOST_DIGITS = 20


def rows_of(found: Findings) -> list[dict[str, Any]]:
    """Return a row for each topic: where its partitions begin and go on."""
    return [
        {
            "topic": topic.name,
            "topic_id": format_uuid(topic.topic_id),
            "segments": sum(one.end.segments for one in found.partitions[topic.name, topic.topic_id]),
            "replicas": max((len(one.replicas) for one in topic.partitions), default=0),
            "leader_epoch": max((one.leader_epoch for one in topic.partitions), default=0),
            "ends": [
                {
                    "partition": one.owner.partition,
                    "start": one.end.start,
                    "end": one.end.end,
                    "holes": [list(hole) for hole in one.end.holes],
                    "later_offsets": one.end.cut,
                    "open_transactions": len(one.open_transactions),
                    "snapshot_ms": one.snapshot_ms,
                }
                for one in sorted(found.partitions[topic.name, topic.topic_id], key=lambda one: one.owner.partition)
                if one.owner.partition < len(topic.partitions)
            ],
        }
        for topic in found.plan.topics
    ]


def deleted_rows(found: Findings) -> list[dict[str, Any]]:
    """Return a row for each topic that users had deleted."""
    return [
        {
            "topic": one.name,
            "topic_id": format_uuid(one.topic_id),
            "segments": one.segments,
            "bytes": one.size,
            "sign": one.sign,
            "mounted": one.is_mounted,
        }
        for one in found.deleted
    ]


def notes_of(found: Findings) -> list[str]:
    """Return what people must know before they go by the plan."""
    partitions = [one for several in found.partitions.values() for one in several]
    if found.plan.is_read_only:
        return [*_of_what_is_missing(found), *_of_deleted(found), *_of_others(found)]
    return [
        *_of_settings(found),
        *_of_time(found),
        *_of_partitions(partitions),
        *_of_deleted(found),
        *_of_others(found),
    ]


def _of_settings(found: Findings) -> Iterator[str]:
    if found.cluster is None:
        yield (
            "the bucket has no snapshot of the cluster: where consumer groups stood and how topics were set is not known. "
            "Topics get retention.ms=-1 and retention.bytes=-1, and as many partitions as the bucket knows: edit the file"
        )
        return
    if doubtful := [f"{topic} ({epoch})" for topic, epoch in found.doubtful_epochs.items()]:
        yield f"groups have committed leader epochs that no leader had, which are left out: {_named(doubtful)}"
    if found.cluster.groups_problem:
        yield f"some groups are older than the snapshot of the cluster says: {found.cluster.groups_problem}"
    unknown = sorted(topic.name for topic in found.plan.topics if topic.name not in found.cluster.topics)
    if unknown:
        settings = "retention.ms=-1 and retention.bytes=-1"
        yield f"the bucket does not have the settings of {_named(unknown)}: they get {settings}; edit the file"
    few = [
        f"{topic.name} ({wanted})"
        for topic in found.plan.topics
        if (wanted := _number(topic, "min.insync.replicas", 1))
        > min((len(one.replicas) for one in topic.partitions), default=wanted)
    ]
    if few:
        yield f"min.insync.replicas is higher than there are replicas, and producers with acks=all will fail: {_named(few)}"
    if small := [one.name for one in found.plan.topics if _number(one, _SEGMENT_BYTES, _MEBIBYTE) < _MEBIBYTE]:
        yield (
            f"segment.bytes is below 1 MiB, which brokers of Kafka 4 do not start with: raise it in the file: {_named(small)}"
        )
    odd = [
        f"{topic.name} ({name}={value!r})"
        for topic in found.plan.topics
        for name, value in topic.configs
        if name in ("min.insync.replicas", _SEGMENT_BYTES) and not value.isdecimal()
    ]
    if odd:
        yield f"settings that are no numbers: {_named(odd)}"
    native = sorted(
        name
        for topic in found.plan.topics
        if (described := found.cluster.topics.get(name := topic.name)) is not None
        and NATIVE_CONFIGS & described.configs.keys()
    )
    if native:
        yield f"settings of native tiering are left out: {_named(native)}"
    never = sorted(found.cluster.topics.keys() - {topic.name for topic in found.plan.topics})
    if never:
        yield f"nothing of {_named(never)} is in the bucket: create these topics when the cluster runs"


def _of_what_is_missing(found: Findings) -> Iterator[str]:
    """Yield what is missing, for a read-only mount: the source's topics say all else."""
    if found.cluster is None:
        yield "the bucket has no snapshot of the cluster: partitions of which nothing was copied yet are not mounted"
        return
    if never := sorted(found.cluster.topics.keys() - {topic.name for topic in found.plan.topics}):
        yield f"nothing of {_named(never)} is in the bucket: they are not mounted"


def _of_time(found: Findings) -> Iterator[str]:
    at_ms = found.plan.at_ms
    if at_ms is None:
        return
    if cut := [(one.owner, one.end.cut) for several in found.partitions.values() for one in several if one.end.cut]:
        named = _named([f"{owner} ({offsets:,})" for owner, offsets in sorted(cut, key=lambda one: str(one[0]))])
        total = sum(offsets for _, offsets in cut)
        yield f"{total:,} copied offsets are later than {moment_text(at_ms)}, and are not mounted: {named}"
    if found.cluster is not None and found.cluster.written_ms > at_ms:
        yield (
            "the bucket has no snapshot of the cluster that is as old: settings and groups are as of "
            f"{moment_text(found.cluster.written_ms)}, and groups that have read on since do not read that again"
        )


def _number(topic: NewTopic, name: str, default: int) -> int:
    value = dict(topic.configs).get(name, "")
    return int(value) if value.isdecimal() and len(value) < _MOST_DIGITS else default


def _of_partitions(partitions: list[FoundPartition]) -> Iterator[str]:
    for one in partitions:
        for problem in one.problems:
            yield f"{one.owner}: {problem}"
    if holes := [f"{one.owner} [{a}, {b})" for one in partitions for a, b in one.end.holes]:
        yield f"offsets that no segment has: {_named(holes)}"
    if without := sorted(str(one.owner) for one in partitions if one.snapshot_ms is None and one.end.is_known):
        yield (
            f"{len(without):,} partitions have no snapshot, such as {_named(without)}: what users deleted is not known, and "
            "readable again as far as its objects are there"
        )
    if open_ones := [str(one.owner) for one in partitions if one.open_transactions]:
        yield f"transactions were open where the copies end: `mount publish` aborts them in {_named(open_ones)}"
    left = sum(len(one.left) for one in partitions)
    if left:
        named = [
            f"{one.owner} at {segment.start_offset} ({segment.reason})" for one in partitions for segment in one.left
        ]
        yield f"{left:,} segments cannot be mounted: {_named(named)}"


def _of_deleted(found: Findings) -> Iterator[str]:
    """Yield a line for each: if it were live, all of it would be missing."""
    reused = {one.name for one in found.plan.topics}
    for one in found.deleted:
        if one.is_mounted:
            if found.plan.is_read_only:
                yield f"mounted since --topic names it, and not served where the source has it in the trash: {one.text()}"
            else:
                yield f"mounted since --topic names it: {one.text()}"
        elif one.name in reused:
            yield f"left out: {one.text()}. Another topic has its name"
        else:
            yield f"left out: {one.text()}. To mount it nevertheless, name it with --topic"


def _of_others(found: Findings) -> Iterator[str]:
    if found.refused:
        yield f"left alone: {_named(list(found.refused))}"
    for name, topic_id in found.shadowed:
        yield f"left alone: {name}-{format_uuid(topic_id)}, an earlier topic of that name"
    for cluster, owners in sorted(found.foreign.items()):
        whose = f"of cluster {cluster}" if cluster else "that no cluster has claimed"
        whose = "whose owner object cannot be read" if cluster == UNREADABLE_OWNER else whose
        yield f"left alone: {len(owners):,} topics {whose}, such as {_named(sorted(name for name, _ in owners))}"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
