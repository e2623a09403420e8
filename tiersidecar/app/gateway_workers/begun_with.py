"""What the workers of a gateway have to have in common: the release, and the configuration that is not read again.

A worker that is started again reads the file again.  What an operator has changed there meanwhile is in force with the next
start of the whole, and not at one of the workers: another listener at the address of the first, say, or `mode: enforce`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.report import effective_settings
from tiersidecar.app.tuning import RELOADABLE
from tiersidecar.domain.errors import ConfigError

_EACH_ALONE = ("logging.", "status.")
"""Of no effect on clients, and `status.listen` may be given on the command line."""

_DIGEST_BYTES = 8


def begun_with(config: Config) -> int:
    """Return a number that is another one with another release or configuration.  Secrets are masked: a changed one is used."""
    settings = {
        key: value
        for key, value in flat(effective_settings(config, units=False))
        if key not in RELOADABLE and not key.startswith(_EACH_ALONE)
    }
    text = json.dumps([version("tiersidecar"), settings], sort_keys=True)
    return int.from_bytes(blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest(), "big")


def require_same(config: Config, expected: int) -> None:
    """Check that a worker's ``config`` is what the process that started it has.

    Raises:
        ConfigError: it is another one.
    """
    if begun_with(config) != expected:
        fault = "it, or the release, has changed since the process with the workers was started: restart that process"
        raise ConfigError(source=str(config.file), faults=(fault,))


def flat(settings: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{below}{key}.")
        else:
            yield f"{below}{key}", value
