"""Signs in a bucket that users had deleted a topic, of which something is left: no mount brings it back."""

from __future__ import annotations

from dataclasses import dataclass

from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.readable import moment_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionView:
    """The store's facts about a topic: when it came into the trash as a deleted one, -1 if it is not there; when the last of
    its segments, snapshots and claims was written.  ``cluster_ms`` is when the snapshot of the cluster that owns it was
    taken, -1 where there is none, and ``is_listed`` whether the topic is in it.  ``at_ms`` is the time that is asked about,
    None for the end."""

    trashed_ms: int
    latest_ms: int
    cluster_ms: int
    is_listed: bool
    at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A topic that users deleted, by its ``sign``; of its segments, those that are whole.  ``is_mounted``: it was asked for all
    the same."""

    name: str
    topic_id: Uuid
    sign: str
    segments: int
    size: int
    is_mounted: bool = False

    def text(self) -> str:
        """Return what it is, for people."""
        remains = f"{self.segments:,} segments, {self.size:,} bytes"
        return f"{self.name}-{format_uuid(self.topic_id)} ({remains}) was deleted: {self.sign}"


def deletion_sign(view: DeletionView) -> str:
    """Return what says that the topic was deleted, for people; empty where nothing does.

    A snapshot of the cluster that lacks the topic says so if it is later than all else that is known of it: else the topic may
    have been made since.  One that has it denies an earlier trash, which a mount of the deleted topic has left.
    """
    cluster_ms = view.cluster_ms if view.at_ms is None or view.cluster_ms <= view.at_ms else -1
    is_trashed = view.trashed_ms >= 0 and (view.at_ms is None or view.trashed_ms <= view.at_ms)
    if is_trashed and not (view.is_listed and cluster_ms > view.trashed_ms):
        return f"it is in the trash since {moment_text(view.trashed_ms)}"
    if not view.is_listed and cluster_ms > view.latest_ms:
        return f"the cluster had no such topic any more at {moment_text(cluster_ms)}, and nothing of it is later"
    return ""
