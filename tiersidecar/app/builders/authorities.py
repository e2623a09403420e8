"""Read the certificates of authorities that a store's configuration names."""

from __future__ import annotations

from pathlib import Path

from tiersidecar.domain.errors import ConfigError


def read_authorities(key: str, path: str | None) -> str | None:
    """Return the content of the PEM file that ``key`` names; None without one.

    Raises:
        ConfigError: it cannot be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(source="store", faults=(f"{key}: {error}",)) from error
