"""The rule of the lease: a process that is not its broker's tier role asks for nothing that cannot be taken back.

Read plainly from the records' JSON, in the order of the topic: this shares no code with what writes and folds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable


class LeaseRules:
    """``complain`` takes each breach as a sentence.  What is looked at is the moment in which a request leaves its process: one
    that is on its way by then may still arrive."""

    def __init__(self, complain: Callable[[str], None], cluster_id: str) -> None:
        self._complain, self._cluster_id = complain, cluster_id
        self._held: dict[str, tuple[int, str]] = {}

    def record(self, key: bytes | None, value: bytes | None) -> None:
        """Note that a record of the state topic became durable; of several claims to one term the first counts, and one of a
        mirrored topic's not at all."""
        kind, _, broker = (key or b"").decode().partition("/")
        if kind != "lease" or value is None:
            return
        document = json.loads(value)
        if document["cluster_id"] != self._cluster_id:
            return
        claim = (document["term"], document["incarnation"])
        known = self._held.get(broker)
        if document.get("released") and claim == known:
            self._held[broker] = (claim[0], "")
        elif known is None or claim[0] == known[0] + 1:
            self._held[broker] = claim

    def holder(self, broker: int) -> str:
        """Return the incarnation that has the tier role; empty while none has, as after it was given back."""
        return self._held.get(str(broker), (0, ""))[1]

    def acting(self, broker: int, incarnation: str) -> Callable[[str], None]:
        """Return what one process beside ``broker`` is to call before it acts."""

        def acts(what: str) -> None:
            holder = self.holder(broker)
            if holder != incarnation:
                self._complain(
                    f"{incarnation} {what}, but the tier role of broker {broker} is {holder or 'no process'}'s"
                )

        return acts
