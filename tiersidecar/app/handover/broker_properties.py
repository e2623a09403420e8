"""A broker's server.properties, compared with what ``handover files`` is about to do to its log dirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tiersidecar.app.config.config import Config
from tiersidecar.app.handover.plan import Plan
from tiersidecar.app.handover.settings import native_settings, read_broker_file
from tiersidecar.decide.native_settings import (
    BLIND_SETTINGS,
    RLMM_PREFIX,
    Setting,
    Verdict,
    decide_settings,
)

_LOG_DIRS, _LOG_DIR, _KAFKAS_OWN = "log.dirs", "log.dir", "/tmp/kafka-logs"


def property_faults(path: Path, plan: Plan, config: Config, *, undo: bool) -> list[str]:
    """Return what in the file does not fit: its log dirs, the lines that make a broker see nothing, the plan's settings.

    The first two count for ``undo`` as well: a broker that sees the events and starts on its former files deletes by them.

    Raises:
        HandoverError: it cannot be read.
    """
    found = read_broker_file(path)
    if plan.back_to_local:  # no broker tiers anything then
        return [f"{path}: {fault}" for fault in _of_log_dirs(found, config)]
    faults = [*_of_log_dirs(found, config), *_of_sight(found), *(() if undo else _of_plan(found, plan, config))]
    return [f"{path}: {fault}" for fault in faults]


def _of_log_dirs(found: Mapping[str, str | None], config: Config) -> Iterator[str]:
    said = found.get(_LOG_DIRS) or found.get(_LOG_DIR) or _KAFKAS_OWN
    brokers = {Path(one.strip()).resolve() for one in said.split(",") if one.strip()}
    if brokers != {Path(one).resolve() for one in config.log_dirs}:
        ours = ", ".join(map(str, config.log_dirs))
        yield f"{_LOG_DIRS} is {said}, and the sidecar's configuration has {ours}: name all of them, by the same paths"


def _of_sight(found: Mapping[str, str | None]) -> Iterator[str]:
    wanted = [Setting(name=RLMM_PREFIX + name, wanted=value) for name, value in BLIND_SETTINGS.items()]
    other = [row.setting for row in decide_settings(wanted, found) if row.verdict is not Verdict.SAME]
    if other:
        yield (
            "a broker that starts with it sees the events, and deletes by files that are not all changed yet: "
            + ", ".join(f"{one.name} must be {one.wanted}" for one in other)
        )


def _of_plan(found: Mapping[str, str | None], plan: Plan, config: Config) -> Iterator[str]:
    """Yield settings that do not fit.  Values are shown of our own settings alone: the plan is another's, and may name the
    broker's secrets."""
    shown = {one.name for one in native_settings(config)}
    for name, wanted in plan.plugin.items():
        (row,) = decide_settings([Setting(name=name, wanted=wanted, default="")], found)
        if row.verdict is Verdict.SAME:
            continue
        if name in shown:
            yield f"{row.setting.name} is {row.found!r}, must be {wanted!r}"
        else:
            yield f"{name} is not what the plan says; it is none of the settings that a hand-over compares with this store"
