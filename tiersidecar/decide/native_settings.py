"""Which settings a broker's native tiering needs to find what the sidecar wrote, and which of them it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

SYSTEM = "remote.log.storage.system.enable"
RSM_PREFIX, RLMM_PREFIX = "rsm.config.", "rlmm.config."
"""Defaults of ``remote.log.storage.manager.impl.prefix`` and ``remote.log.metadata.manager.impl.prefix``."""
_RSM_PREFIX_KEY = "remote.log.storage.manager.impl.prefix"
_RLMM_PREFIX_KEY = "remote.log.metadata.manager.impl.prefix"

BLIND = "remote.log.metadata.common.client.bootstrap.servers"
"""Under the prefix of the metadata manager, with an address where nothing listens: Kafka's TopicBasedRemoteLogMetadataManager
never gets ready then, and a broker does nothing with remote segments whose metadata are not (``RLMTask.run``)."""
BLIND_SETTINGS: Mapping[str, str] = {
    BLIND: "127.0.0.1:1",
    "remote.log.metadata.common.client.default.api.timeout.ms": "1000",
    "remote.log.metadata.common.client.request.timeout.ms": "500",
    "remote.log.metadata.common.client.reconnect.backoff.ms": "30000",
    "remote.log.metadata.common.client.reconnect.backoff.max.ms": "30000",
    "remote.log.metadata.common.client.metadata.recovery.strategy": "none",
    "remote.log.metadata.initialization.retry.max.timeout.ms": "86400000",
}


class Verdict(StrEnum):
    """What a look at one setting gives."""

    SAME = "same"
    DIFFERENT = "different"
    MISSING = "missing"
    HIDDEN = "hidden"
    """It is set, and the broker does not show its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting by its name in server.properties; ``default`` is what a broker takes where it is not set, None: it must be."""

    name: str
    wanted: str
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFound:
    """``found`` is None where it is not set, or not shown."""

    setting: Setting
    found: str | None
    verdict: Verdict


def decide_settings(wanted: Iterable[Setting], found: Mapping[str, str | None]) -> tuple[SettingFound, ...]:
    """Compare; ``found`` are all settings that a broker has, with None for values that it hides."""
    return tuple(_look(setting, with_own_prefixes(setting.name, found), found) for setting in wanted)


def is_blind(found: Mapping[str, str | None]) -> bool:
    """Whether the broker's metadata manager was sent elsewhere than to its own cluster."""
    return with_own_prefixes(RLMM_PREFIX + BLIND, found) in found


def with_own_prefixes(name: str, found: Mapping[str, str | None]) -> str:
    """``name`` with the plugin prefixes that this broker was given."""
    for default, key in ((RSM_PREFIX, _RSM_PREFIX_KEY), (RLMM_PREFIX, _RLMM_PREFIX_KEY)):
        if name.startswith(default):
            return (found.get(key) or default) + name.removeprefix(default)
    return name


def _look(setting: Setting, name: str, found: Mapping[str, str | None]) -> SettingFound:
    if name not in found:
        value = setting.default
        verdict = Verdict.MISSING if value is None else _verdict(setting.wanted, value)
    else:
        value = found[name]
        verdict = Verdict.HIDDEN if value is None else _verdict(setting.wanted, value)
    own = Setting(name=name, wanted=setting.wanted, default=setting.default)
    return SettingFound(setting=own, found=value, verdict=verdict)


def _verdict(wanted: str, found: str) -> Verdict:
    is_flag = wanted in ("true", "false")  # Kafka takes any case of these, and of nothing else
    return Verdict.SAME if wanted == (found.strip().lower() if is_flag else found.strip()) else Verdict.DIFFERENT
