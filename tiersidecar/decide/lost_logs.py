"""Proof that one of the sidecars' own topics has lost a partition: what the other one says of it.

A state record is durable before a sidecar makes anything of a partition remote, as is its claim of the topic id in the
store, and what was trimmed was remote.  What native tiering left to a sidecar that takes over has neither.
"""

from __future__ import annotations

from dataclasses import dataclass

_ACCEPT = "Restore it, or accept the loss with `tiersidecar accept-topic-loss`"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOfPartition:
    """The partition, led here, in both topics; both have been read to their ends.

    ``has_record``: the state topic names it.  ``was_claimed``: the store says that its topic id is this cluster's.
    ``has_segments``: the metadata topic has a segment of it that is finished.  ``was_seen``: the state topic says that its
    segments were seen in the store.  ``held_offset`` is how far trims gave up what was remote.  The offsets are as of the
    partition's history.  The last two say whether an operator has accepted what the topics, as they are now, have lost.
    """

    has_record: bool
    was_claimed: bool
    has_segments: bool
    was_seen: bool
    remote_log_start_offset: int
    held_offset: int
    state_loss_accepted: bool
    metadata_loss_accepted: bool


def reason_log_lost(known: KnownOfPartition) -> str:
    """Return what is proven to be lost, for the operator; empty where nothing is."""
    if known.has_segments and known.was_claimed and not known.has_record and not known.state_loss_accepted:
        return (
            "segments of it are remote, but the state topic has no record of it: the topic lost what users deleted, where the "
            f"remote log starts and how the topic is tiered. {_ACCEPT}; nothing is copied, trimmed or deleted until then"
        )
    trimmed = known.was_seen and known.held_offset > max(known.remote_log_start_offset, 0)
    if trimmed and not known.has_segments and not known.metadata_loss_accepted:
        return (
            f"the local log was trimmed to {known.held_offset} because that was remote, but the remote log metadata topic "
            f"has no segment of it: the topic lost its events. {_ACCEPT}; nothing is copied, trimmed or deleted until then"
        )
    return ""
