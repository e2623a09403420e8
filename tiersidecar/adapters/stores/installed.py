"""Kinds of store from other packages (entry points of the group ``tiersidecar.stores``)."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from tiersidecar.domain.errors import ConfigError
from tiersidecar.ports.store import ENTRY_POINTS, StoreKind


def installed_kinds() -> frozenset[str]:
    """Return the names that ``store.type`` may have beside the built-in ones."""
    return frozenset(entry_points(group=ENTRY_POINTS).names)


def load_kind(name: str) -> StoreKind:
    """Return the kind of store that the package's entry point names.

    Raises:
        ConfigError: no package has it, two do, or it cannot be imported.
    """
    found = tuple(entry_points(group=ENTRY_POINTS, name=name))
    if len(found) != 1:
        which = "no installed package brings it" if not found else f"several packages bring it: {_packages(found)}"
        raise ConfigError(source="store", faults=(f"type: {name!r}: {which}",))
    try:
        kind: StoreKind = found[0].load()
    except (ImportError, AttributeError) as error:
        reason = f"type: {name!r}: {found[0].value} of {_packages(found)} cannot be loaded: {error}"
        raise ConfigError(source="store", faults=(reason,)) from error
    return kind


def _packages(found: tuple[EntryPoint, ...]) -> str:
    return ", ".join(sorted(point.dist.name if point.dist is not None else point.value for point in found))
