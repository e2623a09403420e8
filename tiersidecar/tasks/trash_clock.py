"""The time by which the trash becomes due: the wall clock, as far as this process and those before it saw it go."""

from __future__ import annotations

import structlog

from tiersidecar.decide.expiry_stops import ClockReading, reason_to_doubt_clock
from tiersidecar.decide.seen_time import seen_at_start
from tiersidecar.decide.trash_time import TrashTime
from tiersidecar.domain.errors import StateDirError
from tiersidecar.domain.seen_time import SeenTime
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.seen_times import SeenTimes

log = structlog.get_logger(__name__)

_KEEP_INTERVAL_S = 60.0


class TrashClock:
    """One per process, from its start on.  ``known`` is what former processes kept in ``times``."""

    def __init__(self, *, clock: Clock, times: SeenTimes, known: SeenTime | None) -> None:
        self._clock, self._times = clock, times
        self._first = self._reading()
        self._unseen = seen_at_start(known, self._first.wall_ms).unseen
        self._trouble = self._doubt = ""
        if known is None:
            log.info(
                "clock.begun", delays_count_from_ms=self._first.wall_ms, reason="state.dir tells of no time before"
            )
        elif self._unseen != known.unseen:
            log.warning("clock.unseen", from_ms=known.until_ms, to_ms=self._first.wall_ms)

    def now(self) -> TrashTime:
        """This moment.  A doubt lasts until the process ends: what others decided by this clock meanwhile has a time that is as
        doubtful."""
        now = self._reading()
        self._doubt = self._doubt or reason_to_doubt_clock(self._first, now)
        return TrashTime(
            now_ms=now.wall_ms,
            doubt=self._doubt,
            unseen=self._unseen,
            seen_ms=self._first.wall_ms + self._passed_ms(now),
        )

    async def keep(self) -> None:
        """Keep what was seen; never ends."""
        while True:
            await self.note()
            await self._clock.sleep(_KEEP_INTERVAL_S)

    async def note(self) -> None:
        """Keep what was seen until now.  A jump of the wall clock is not seen: the monotonic one counts."""
        now = self.now()
        try:
            await self._times.write(SeenTime(until_ms=now.seen_ms, unseen=self._unseen))
        except StateDirError as error:
            if str(error) != self._trouble:
                log.warning("seen_time.not_written", error=str(error))
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _passed_ms(self, now: ClockReading) -> int:
        return int((now.monotonic_s - self._first.monotonic_s) * 1000)

    def _reading(self) -> ClockReading:
        return ClockReading(wall_ms=self._clock.now_ms(), monotonic_s=self._clock.monotonic_s())
