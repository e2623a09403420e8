"""Decide whether the metadata topic is the whole truth about a bucket.

If it is not, an object without events may be data whose events were lost, and not a leftover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerLook:
    """The metadata topic as an earlier run saw it: its id ("" where the run did not say), and its end offsets by
    partition."""

    run_id: str
    topic_id: str
    end: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFacts:
    """The metadata topic now: its id, where its partitions begin and end (exclusive); and what the last run saw, if any.

    ``segment_count`` and ``foreign_segment_count`` are of segments that events name, of topics that the cluster has and of
    others.
    """

    topic: str
    topic_id: str
    begin: Mapping[int, int]
    end: Mapping[int, int]
    former: FormerLook | None = None
    segment_count: int = 0
    foreign_segment_count: int = 0


def metadata_doubt(facts: MetadataFacts) -> str:
    """Return why the events may not be all, or not this cluster's; "" if nothing says so."""
    return doubt_of_topic(facts) or doubt_of_events(facts)


def doubt_of_topic(facts: MetadataFacts) -> str:
    """Return why the topic does not hold all events that were ever written; "" if nothing says so."""
    if any(facts.begin.values()):
        return f"{facts.topic} does not begin at offset 0: events are lost"
    former = facts.former
    if former is None:
        return ""
    if former.topic_id and former.topic_id != facts.topic_id:
        return f"{facts.topic} was created again since run {former.run_id}"
    for partition, end in sorted(former.end.items()):
        if facts.end.get(partition, 0) < end:
            return (
                f"partition {partition} of {facts.topic} ends at offset {facts.end.get(partition, 0)}, and ended at {end} "
                f"in run {former.run_id}: events are lost"
            )
    return ""


def doubt_of_events(facts: MetadataFacts) -> str:
    """Return why the events are not this cluster's; "" if nothing says so."""
    if facts.foreign_segment_count and not facts.segment_count:
        return (
            f"all {facts.foreign_segment_count} segments that {facts.topic} names are of topics that this cluster does not "
            "have: these are another cluster's metadata"
        )
    return ""
