"""``tasks.delete_guard.MayDelete``, without objections as long as a test has none."""

from __future__ import annotations


class DeleteSwitch:
    """Set ``reason_not_to_delete``, or ``remote_delete_blocker`` for what is remote alone."""

    def __init__(self) -> None:
        self.reason_not_to_delete = self.remote_delete_blocker = ""

    @property
    def reason_not_to_delete_remote(self) -> str:
        return self.reason_not_to_delete or self.remote_delete_blocker
