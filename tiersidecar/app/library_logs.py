"""What libraries say again and again: aiokafka alone tells of a broker that is away 30 times a second."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

_INTERVAL_S = 30.0
_REMEMBERED = 256


class RepeatFilter(logging.Filter):
    """Lets each message of the libraries in ``names`` pass once in ``interval_s``; the next one that passes says in
    ``repeated`` how many were held back.  Everything else passes."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        interval_s: float = _INTERVAL_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._names, self._interval_s, self._monotonic_s = names, interval_s, monotonic_s
        self._told: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in self._names:
            return True
        key, now_s = (record.name, record.getMessage()), self._monotonic_s()
        known = self._told.get(key)
        if known is not None and now_s - known[0] < self._interval_s:
            known[1] += 1
            return False
        if known is not None and known[1]:
            record.repeated = int(known[1])
        self._told[key] = [now_s, 0]
        self._told.move_to_end(key)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return True
