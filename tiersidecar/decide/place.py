"""Proof that the directory of a led partition is the one that its broker writes, not one of the same name and topic id.

Another may be left of a disk that was replaced, or show under another mount than the broker's.  The proof: a broker that
becomes leader writes its leader epoch as the last entry of the leader-epoch-checkpoint, of an empty log too, and flushes it
(``UnifiedLog.assignEpochStartOffset``); and it changes to another log dir by a restart, which ends the epoch, or by a move.

A move takes over only the epochs in which records were written: a log that was moved before the first record of its leader
epoch does not know that epoch until there is one.  Then the broker's answer decides (:class:`UnwrittenEpoch`): it does not
know the epoch either, and ends the last one of our file at the high watermark, not before our active segment.  Records of one
epoch are the same wherever they are, for one leader wrote them: our sealed segments are the broker's, whatever the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView, LocalPartition

TELL_AFTER_S = 60.0
"""A new partition, an election, or a move between log dirs has settled by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwrittenEpoch:
    """Answer of the broker that its log does not know ``leader_epoch``, in which it leads, and ends ``last_epoch``, and itself,
    at ``end_offset`` (exclusive)."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    end_offset: Offset


def may_be_unwritten(view: LeaderView, local: LocalPartition) -> LeaderEpoch | None:
    """Return the last epoch of ``local`` if it may be last only because nothing was written in the epoch of ``view``."""
    if not local.leader_epochs or local.leader_epochs[-1].epoch >= view.leader_epoch:
        return None
    return local.leader_epochs[-1].epoch


def reason_to_doubt_directory(view: LeaderView, local: LocalPartition, unwritten: UnwrittenEpoch | None = None) -> str:
    """Return why ``local`` is not taken for the log of the leader that ``view`` names; empty where it is proven.

    Right after an election the file may not have the epoch yet, and an answer of the broker be older than the file.
    """
    last_epoch = local.leader_epochs[-1].epoch if local.leader_epochs else None
    if last_epoch == view.leader_epoch:
        return ""
    if (
        unwritten is not None
        and (unwritten.leader_epoch, unwritten.last_epoch) == (view.leader_epoch, last_epoch)
        and local.segments
        and local.segments[-1].base_offset <= unwritten.end_offset
    ):
        return ""
    ends = "has no leader epoch" if last_epoch is None else f"ends with leader epoch {last_epoch}"
    return (
        f"{local.directory} {ends}, and the broker leads in {view.leader_epoch}: it is not the directory that the broker "
        "writes. Nothing of the partition is copied, trimmed or expired. Compare log.dirs and mounts of broker and sidecar"
    )


_FAULTS_NAMED = 3
"""Each of thousands of partitions may have this reason, and each of their directories be faulty."""


def reason_unseen(faults: Mapping[str, str]) -> str:
    """Return why a led partition is not tiered at all; ``faults`` are those of the log dirs."""
    named = sorted(faults)[:_FAULTS_NAMED]
    more = f" and {len(faults) - len(named)} others" if len(faults) > len(named) else ""
    faulty = f", unless in what cannot be read: {', '.join(named)}{more}" if faults else ""
    return (
        f"the broker leads it, and no log dir of this configuration has its directory{faulty}: it is not tiered. Compare "
        "log.dirs and mounts of broker and sidecar"
    )
