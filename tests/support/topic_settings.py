"""Settings of topics as DescribeConfigs returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def with_names(settings: Mapping[str, str | None], names: Sequence[str] | None) -> dict[str, str | None]:
    """Return the settings with one of ``names``, all of them if ``names`` is None; names that a broker does not know are left
    out."""
    return {name: value for name, value in settings.items() if names is None or name in names}
