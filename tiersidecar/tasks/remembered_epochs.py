"""The broker's leader epochs, with those that its file has forgotten and a leader's sidecar has published in the state topic.

A file forgets where an epoch began when what was written in it leaves the broker's disk.  Once some of that is remote, its
epoch blob has it.  What goes before that (the broker's own retention, DeleteRecords sent to the broker, a full disk) leaves a
file that begins in a later epoch than all that is remote: after an unclean election copies of what the election has cut off
would pass for the history before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.lineage import LiveLog


class SaidOfPartition(Protocol):
    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        """Return the state of a partition (:meth:`~tiersidecar.ports.state_log.StateLog.partition_state`)."""


class RememberedEpochs:
    """A :class:`LiveLog`: ``live``, and before its file what the state topic has of the history."""

    def __init__(self, *, live: LiveLog, state: SaidOfPartition) -> None:
        self.file, self._state = live, state

    def leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        """Return the epochs; empty where there is no file.  The published ones count only in a history that has the file's
        first epoch: then nothing is missing between the two, for all logs that have an epoch have the same before it."""
        live = self.file.leader_epochs(topic_id_partition)
        if not live:
            return ()
        try:
            said = self._state.partition_state(topic_id_partition).leader_epochs
        except MetadataNotReadyError:  # what is built by now is carried on with what is said as soon as it is read
            return live
        first = live[0]
        for number, entry in enumerate(said):
            if entry.epoch == first.epoch and entry.start_offset <= first.start_offset:
                return (*said[: number + 1], *live[1:])
        return live  # of other leaders; or epochs between the two may have come and gone unsaid, that a blob may have

    def pinned_leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        """Return what pins have kept."""
        return self.file.pinned_leader_epochs(topic_id_partition)
