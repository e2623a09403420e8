"""``tasks.delete_guard.MayDelete``, without objections as long as a test has none."""

from __future__ import annotations


class DeleteSwitch:
    """Set ``reason_not_to_delete``."""

    def __init__(self) -> None:
        self.reason_not_to_delete = ""
