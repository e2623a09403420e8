"""Rests of threads that open record batches: what a batch opens to is its writer's choice, and the event loop must not pay."""

from __future__ import annotations

import threading
import time

_TURN_S = 0.001
_REST_PER_WORK = 0.5
_LONGEST_REST_S = 0.005


class OpeningRests:
    """Called again and again by a thread, it sleeps after each millisecond of processor time for half as long.

    Each record of a batch is Python's to look at, so such a thread would ask for the interpreter whenever the event loop lets
    go of it, which is at each system call; and for a core, which broker and clients need as well.  At most two
    thirds of both are its own.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    def __call__(self) -> None:
        now_s = time.thread_time()
        rested_s = getattr(self._thread, "rested_s", None)
        if rested_s is not None:
            worked_s = now_s - rested_s
            if worked_s < _TURN_S:
                return
            time.sleep(min(worked_s * _REST_PER_WORK, _LONGEST_REST_S))
        self._thread.rested_s = now_s
