"""Find the broker and the store of the Spark data source: the daemon's configuration file, or its keys as options."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiersidecar.domain.errors import ConfigError
from tiersidecar.spark.datasource.options import SOURCE

if TYPE_CHECKING:  # loaded where it is needed: Spark starts a Python process for each step
    from tiersidecar.app.config.config import Config

CONFIG_OPTION = "config"
_SECTIONS = ("broker.", "store.")
_BOOTSTRAP = "kafka.bootstrap.servers"
_TOPICS = ("remote.log.metadata.topic.name", "remote.log.metadata.topic.num.partitions", "state.topic.name")
_NO_LOG_DIRS = "/nonexistent"
"""A reader has none, and the configuration is a sidecar's."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A file's path, or a YAML text.  It is pickled: only the path travels with the first."""

    path: str | None = None
    text: str = ""

    def load(self) -> Config:
        """Load the configuration, which never writes: topics that are missing stay so.  Read once per process.

        Raises:
            ConfigError: with every fault.
        """
        return _load(self)


def takes_option(name: str) -> bool:
    """Return whether the option says where the configuration is, or is a part of it."""
    name = name.lower()
    return name in (CONFIG_OPTION, _BOOTSTRAP, *_TOPICS) or name.startswith(_SECTIONS)


def config_source(options: Mapping[str, str]) -> ConfigSource:
    """Find it by ``config``, the path of a sidecar's configuration file; or by its keys as options: those of the sections
    ``broker`` and ``store`` with these names in front, the topics' names as they are.

    Raises:
        ConfigError: none of them, or both.
    """
    given = {name.lower(): value for name, value in options.items() if takes_option(name)}
    path = given.pop(CONFIG_OPTION, None)
    if path is not None:
        if given:
            faults = tuple(f"{name}: config names a file, which says this" for name in sorted(given))
            raise ConfigError(source=SOURCE, faults=faults)
        return ConfigSource(path=str(Path(path).absolute()))
    if not given:
        reason = (
            "give config (a sidecar's configuration file), or kafka.bootstrap.servers and the store as store.* options"
        )
        raise ConfigError(source=SOURCE, faults=(reason,))
    return ConfigSource(text=_document(given))


def _document(given: Mapping[str, str]) -> str:
    document: dict[str, Any] = {"log.dirs": [_NO_LOG_DIRS]}
    for name, value in given.items():
        if name == _BOOTSTRAP:
            document.setdefault("broker", {})["bootstrap.servers"] = value
        elif name in _TOPICS:
            document[name] = _value(name, value)
        else:
            section, _, key = name.partition(".")
            document.setdefault(section, {})[key] = _value(name, value)
    from ruamel.yaml import YAML

    text = io.StringIO()
    YAML(typ="safe", pure=True).dump(document, text)
    return text.getvalue()


def _value(name: str, text: str) -> object:
    """Return the value as the file would have it: numbers, truths, lists and maps too."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        raise ConfigError(source=SOURCE, faults=(f"{name}: not a YAML value",)) from None


@cache
def _load(source: ConfigSource) -> Config:
    from tiersidecar.app.config.config import load_config, parse_config
    from tiersidecar.app.config.top_level import Mode

    if source.path is None:
        config = parse_config(source.text, Path(SOURCE), os.environ)
    else:
        path = Path(source.path)
        if not path.exists():
            from pyspark import SparkFiles

            # Brought by spark-submit --files.
            path = Path(SparkFiles.get(path.name))
        config = load_config(path, os.environ)
    return config.model_copy(update={"mode": Mode.OBSERVE})
