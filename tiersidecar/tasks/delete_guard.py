"""What forbids every delete, local or remote."""

from __future__ import annotations

from typing import Protocol

from tiersidecar.domain.ids import Uuid


class MayDelete(Protocol):
    """To be asked right before each delete: a round that reads back or removes thousands of segments lasts for hours."""

    @property
    def reason_not_to_delete(self) -> str:
        """Why nothing at all may be deleted now, locally or remotely (a switch, lost metadata); empty when it may."""

    @property
    def reason_not_to_delete_remote(self) -> str:
        """As :attr:`reason_not_to_delete`, and also why nothing remote may be deleted: a live broker of the cluster whose
        sidecar is of an earlier version, or has shown nothing yet."""

    def reason_not_to_delete_of(self, topic_id: Uuid) -> str:
        """As :attr:`reason_not_to_delete`, and also why nothing of just this topic may be: an operator has paused it."""
        ...

    def reason_not_to_delete_remote_of(self, topic_id: Uuid) -> str:
        """As :attr:`reason_not_to_delete_remote`, likewise."""
        ...
