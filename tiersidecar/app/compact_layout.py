"""What driver and executors of ``tiersidecar compact --spark`` must agree on: where new segments go, and how they are written.

Each executor reads the configuration file on its own machine.  If that is another one, segments would be put where no reader
looks for them, or under a key that readers do not have.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.store import StoreSection
from tiersidecar.domain.errors import ConfigError

Layout = tuple[tuple[str, str], ...]
"""Settings by name; none of them is secret."""


def layout_of(config: Config, topic: str) -> Layout:
    """Return what decides about new segments of ``topic``."""
    place = config.place_of_topic(topic)
    section = config.places.get(place, config.store)
    found = {
        "the topic's place": place,
        "store": config.store.place,
        "store.key.prefix": config.store.key_prefix,
        "the place's store": section.place,
        "the place's key.prefix": section.key_prefix,
        **{f"store.{name}": value for name, value in _of_objects(config.store)},
    }
    return tuple(found.items())


def _of_objects(section: StoreSection) -> Iterator[tuple[str, str]]:
    yield "chunk.size", str(section.chunk_size)
    yield "compression.enabled", str(section.compression_enabled)
    yield "compression.heuristic.enabled", str(section.compression_heuristic_enabled)
    yield "encryption.enabled", str(section.encryption_enabled)
    yield "encryption.key.pair.id", str(section.encryption_key_pair_id)
    yield "encryption.key.wrapping", str(section.encryption_key_wrapping)
    key_id = section.encryption_key_wrapping_options.get("key.id")
    yield "encryption.key.wrapping.options.key.id", key_id if isinstance(key_id, str) else ""
    yield "custom.metadata.fields.include", ",".join(section.custom_metadata_fields_include)


def require_same_layout(at_driver: Layout, config: Config, topic: str) -> None:
    """Return if this executor's ``config`` writes as the driver's does.

    Raises:
        ConfigError: it does not; each setting that differs is named.
    """
    here = dict(layout_of(config, topic))
    faults = tuple(
        f"{name} is {here.get(name)!r} on this executor, and {said!r} at the driver"
        for name, said in at_driver
        if here.get(name) != said
    )
    if faults:
        raise ConfigError(source=str(config.file), faults=faults)
