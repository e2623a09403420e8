"""Why a topic that is mounted read-only is not served, though its log here is as it was seeded: its source has lost it, or the
store is another one than the source's.

An empty log would be told in both cases, and clients whose offsets lie above its end go back to its beginning.  So they get
errors instead that they try again after, and their groups keep what they have committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.ids import TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """What the source's two topics say of a partition: whether its topic is in the trash, how many of its segments are left in
    any state, and whether there are events and a state of it."""

    is_in_trash: bool
    segments: int
    has_events: bool
    has_state: bool


def source_loss(partition: TopicIdPartition, view: SourceView) -> str:
    """Return why the source has nothing to serve of the partition any more, for the operator; empty where it has, or may have
    once something is copied.

    A partition has a state before its first event, and keeps it as long as its topic is there.
    """
    if not view.is_in_trash and (view.segments or view.has_state or not view.has_events):
        return ""
    return (
        f"{partition} is mounted read-only, and its topic was deleted at the source. Clients get errors that they try again "
        "after, and groups keep their offsets. Delete the topic in this cluster too (DeleteTopics, through the gateway); one "
        "that was made anew under its name has another id: for that, set the cluster up anew, and seed it by a new plan"
    )


def store_fault(topic: str, key: str, source_cluster_id: str, owners: tuple[str, ...]) -> str:
    """Return why the store is not the source's, for the operator, by the owners of the topic's data that its object ``key``
    names: none where there is no such object.  Empty where the source is, or was, one of them."""
    if source_cluster_id in owners:
        return ""
    found = f"says that its data are of cluster {owners[0]}" if owners else "is not there"
    return (
        f"{topic} is mounted read-only from cluster {source_cluster_id}, and in this store the object {key} {found}: it is "
        "another store than the source's, or another key.prefix. Correct the section store, and start the gateway again"
    )
