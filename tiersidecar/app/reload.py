"""SIGHUP reads the configuration again and puts into force what may change while the process runs (U14)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.report import effective_settings
from tiersidecar.app.tuning import RELOADABLE, Tuning
from tiersidecar.domain.errors import ConfigError

log = structlog.get_logger(__name__)


class Reloader:
    """Holds what is in force against what the file says.  A file with a fault changes nothing."""

    def __init__(self, config: Config, tuning: Tuning, load: Callable[[], Config]) -> None:
        self._started_with, self._in_force, self._tuning, self._load = config, config, tuning, load

    def reload(self) -> None:
        """Read, compare, apply, and say what came of it."""
        try:
            wanted = self._load()
        except ConfigError as error:
            log.error("config.reload.refused", faults=list(error.faults))  # noqa: TRY400  the faults say it all
            return
        applied = sorted(changed_keys(self._in_force, wanted) & RELOADABLE)
        self._tuning.apply(wanted)
        self._in_force = wanted
        log.info("config.reloaded", applied=applied)
        if waiting := sorted(changed_keys(self._started_with, wanted) - RELOADABLE):
            log.warning("config.reload.needs_restart", keys=waiting)


@asynccontextmanager
async def reloading_on_hangup(reloader: Reloader) -> AsyncIterator[None]:
    """While the body runs, SIGHUP reloads; without it the signal would end the process."""
    loop = asyncio.get_running_loop()
    # On the loop: a file of some kilobytes, rarely, and nothing else sees rates that are half applied.
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def changed_keys(before: Config, after: Config) -> frozenset[str]:
    """Dotted names of the keys whose values differ.  Secrets are masked, so that a changed one is not told."""
    old, new = (dict(_flat(effective_settings(config, units=False))) for config in (before, after))
    return frozenset(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def _flat(settings: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{below}{key}.")
        else:
            yield f"{below}{key}", value
