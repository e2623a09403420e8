"""Settings that a broker's native tiering needs to find what the sidecar wrote, and those that it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tiersidecar.domain.ids import BrokerId

SYSTEM = "remote.log.storage.system.enable"
RSM_PREFIX, RLMM_PREFIX = "rsm.config.", "rlmm.config."
"""Defaults of ``remote.log.storage.manager.impl.prefix`` and ``remote.log.metadata.manager.impl.prefix``."""
_RSM_PREFIX_KEY = "remote.log.storage.manager.impl.prefix"
_RLMM_PREFIX_KEY = "remote.log.metadata.manager.impl.prefix"

BrokerFiles = Mapping[BrokerId, Mapping[str, str | None]]
"""The server.properties of brokers, by their ids."""

BLIND = "remote.log.metadata.common.client.bootstrap.servers"
"""Under the prefix of the metadata manager, with an address where nothing listens: Kafka's TopicBasedRemoteLogMetadataManager
never gets ready then, and a broker does nothing with remote segments whose metadata is not ready (``RLMTask.run``)."""
BLIND_SETTINGS: Mapping[str, str] = {
    BLIND: "127.0.0.1:1",
    "remote.log.metadata.common.client.default.api.timeout.ms": "1000",
    "remote.log.metadata.common.client.request.timeout.ms": "500",
    "remote.log.metadata.common.client.reconnect.backoff.ms": "30000",
    "remote.log.metadata.common.client.reconnect.backoff.max.ms": "30000",
    "remote.log.metadata.common.client.metadata.recovery.strategy": "none",
    "remote.log.metadata.initialization.retry.max.timeout.ms": "86400000",
}


_OWN_SERVERS = tuple(f"remote.log.metadata.{client}.bootstrap.servers" for client in ("consumer", "producer", "admin"))
"""Settings of one client precede those of all (``TopicBasedRemoteLogMetadataManagerConfig``)."""
_ELSEWHERE = "another value in its file, or none"


class Sight(StrEnum):
    """State of a broker's metadata manager: whether it reads the events of remote segments."""

    BLIND = "blind"
    """Its address has no listener: all of :data:`BLIND_SETTINGS` are set, and no value that is shown is another."""
    UNKNOWN = "unknown"
    """It has an address of its own, which is not shown, or not all of the settings."""
    SEEING = "seeing"


class Verdict(StrEnum):
    """Result of checking one setting."""

    SAME = "same"
    DIFFERENT = "different"
    MISSING = "missing"
    HIDDEN = "hidden"
    """It is set, and the broker does not show its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting by its name in server.properties; ``default`` is the broker's where it is not set, None: it must be."""

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


def sight_of(found: Mapping[str, str | None]) -> Sight:
    """Return whether the broker's metadata manager reads events; ``found`` as in :func:`decide_settings`.

    An address alone proves nothing: operators of tiered clusters write their own there, and a broker hides which.
    """
    set_here = {name: key for name in BLIND_SETTINGS if (key := with_own_prefixes(RLMM_PREFIX + name, found)) in found}
    own = [found[key] for name in _OWN_SERVERS if (key := with_own_prefixes(RLMM_PREFIX + name, found)) in found]
    if BLIND not in set_here or any(
        _is_another(value, BLIND_SETTINGS[BLIND]) for value in (found[set_here[BLIND]], *own)
    ):
        return Sight.SEEING
    differs = any(_is_another(found[key], BLIND_SETTINGS[name]) for name, key in set_here.items())
    return Sight.UNKNOWN if differs or len(set_here) < len(BLIND_SETTINGS) or None in own else Sight.BLIND


def with_file(found: Mapping[str, str | None], file: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return ``found`` with the values that the broker hides, as its server.properties has them.

    A setting that only the file has does not count: the broker does not run with it yet.
    """
    return {name: value if value is not None else file.get(name, _ELSEWHERE) for name, value in found.items()}


def _is_another(shown: str | None, wanted: str) -> bool:
    return shown is not None and shown.strip() != wanted


def with_own_prefixes(name: str, found: Mapping[str, str | None]) -> str:
    """Return ``name`` with the plugin prefixes that this broker was given."""
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
