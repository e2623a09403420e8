"""``tasks.delete_guard.MayDelete``, without objections as long as a test has none."""

from __future__ import annotations

from tiersidecar.domain.ids import Uuid


class DeleteSwitch:
    """Set ``reason_not_to_delete``, or ``remote_delete_blocker`` for what is remote alone, or what is paused by topic id."""

    def __init__(self) -> None:
        self.reason_not_to_delete = self.remote_delete_blocker = ""
        self.paused: dict[Uuid, str] = {}

    @property
    def reason_not_to_delete_remote(self) -> str:
        return self.reason_not_to_delete or self.remote_delete_blocker

    def reason_not_to_delete_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete or self.paused.get(topic_id, "")

    def reason_not_to_delete_remote_of(self, topic_id: Uuid) -> str:
        return self.reason_not_to_delete_remote or self.paused.get(topic_id, "")
