"""Why a topic that is mounted read-only is not served, though its log here is as it was seeded: its source has lost it, or what
says where it goes on, or the store is another one than the source's.

In both cases an empty log would send clients whose offsets lie above its end back to its beginning.  So they get errors
instead that they try again after, and their groups keep what they have committed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.ids import TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """The source's two topics on a partition: whether its topic is in the trash, how many of its segments are left in any
    state, and whether there are events and a state of it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The store's evidence that a partition was copied up to ``offset``, inclusive, as written in ``leader_epoch``; both are -1
    where it only shows that something was.  ``sign`` is the evidence, for people."""

    sign: str
    leader_epoch: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """How much of a partition's history the source's topics have: whether any event; the highest offset that was copied in the
    leader epoch that ``copied`` names, None where none was; the highest remote log start; how far trims gave up what was
    remote, and whether segments of it were seen in the store.  ``copied`` is what the store shows, None where nothing was
    looked for, or found.  ``is_recovered``: a `recover` at the source has ended since."""

    has_events: bool
    highest_offset: int | None
    log_start: int
    held_offset: int
    was_seen: bool
    copied: Copied | None
    is_recovered: bool


def history_loss(partition: TopicIdPartition, view: HistoryView) -> str:
    """Return why the source's topics do not have all that was copied of the partition, for the operator; empty where nothing
    says so.

    Topics that were lost and made anew are empty, or filled in part, until `recover` has ended: clients of data that was
    copied long ago would see an empty log, or one that ends too early.
    """
    copied = view.copied
    if not view.has_events and view.was_seen and view.held_offset > max(view.log_start, 0):
        sign = f"its state says that it was remote up to offset {view.held_offset}"
    elif copied is not None and not _has(view, copied):
        sign = copied.sign
    else:
        return ""
    lacking = "not all events" if view.has_events else "no event"
    return (
        f"{partition} is mounted read-only, and its source's topics have {lacking} of it, though {sign}: the source has lost "
        "them, or is being recovered. Clients get errors that they try again after, and groups keep their offsets. It goes on "
        "by itself once `tiersidecar recover --carry-out` has ended at the source"
    )


def _has(view: HistoryView, copied: Copied) -> bool:
    if 0 <= copied.offset < view.log_start:
        return True  # it has expired, or was deleted
    if not view.has_events:
        return False
    if copied.offset < 0:
        return True
    return view.is_recovered or (view.highest_offset is not None and view.highest_offset >= copied.offset)


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
