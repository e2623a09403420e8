"""Stores beside the one of section ``store``, and what they take from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from tiersidecar.app.config.document import KeyPath
from tiersidecar.app.config.section import dotted
from tiersidecar.app.config.store_base import StoreBase
from tiersidecar.domain.ids import MOST_PLACE_NAME_BYTES, is_like_placed, is_place_name

_EVERYWHERE = (
    "chunk_size",
    "compression_enabled",
    "compression_heuristic_enabled",
    "encryption_enabled",
    "encryption_key_pair_id",
    "encryption_key_pairs",
    "encryption_key_wrapping",
    "encryption_key_wrapping_options",
    "encryption_data_key_cache_ms",
    "encryption_data_key_cache_size",
    "custom_metadata_fields_include",
    "verify_read_back",
)
"""How segments become objects, and are checked: readers and copies know one answer."""
_OF_EACH_ALONE = "upload.rate.limit.bytes.per.second"


def with_keys_of_the_store(data: Any) -> Any:
    """Return the file's ``data``, in which each place has all of its keys."""
    if not isinstance(data, Mapping):
        return data
    store, places = data.get("store"), data.get("places")
    if not isinstance(store, Mapping) or not isinstance(places, Mapping):
        return data
    return {**data, "places": {name: _completed(place, store) for name, place in places.items()}}


def _completed(place: Any, store: Mapping[str, Any]) -> Any:
    if not isinstance(place, Mapping):
        return place
    is_alike = place.get("type", store.get("type")) == store.get("type")
    keys = set(store) - {_OF_EACH_ALONE} if is_alike else set(map(dotted, _EVERYWHERE)) & set(store)
    completed = {**{key: store[key] for key in store if key in keys}, **place}
    if is_alike and isinstance(store.get("options"), Mapping) and isinstance(place.get("options"), Mapping):
        completed["options"] = {**store["options"], **place["options"]}
    return completed


def place_faults(store: StoreBase, places: Mapping[str, StoreBase]) -> Iterator[tuple[KeyPath, str]]:
    """Check names, keys that hold everywhere, and stores that are one and the same."""
    if places and is_like_placed(store.key_prefix):
        yield (
            ("store", "key.prefix"),
            "cannot begin with @ where there are places: keys could look like those of a place",
        )
    for name, place in places.items():
        if not is_place_name(name):
            reason = (
                f"{name!r} is not a name of a place: small letters, digits and hyphens, at most {MOST_PLACE_NAME_BYTES}, "
                "and no hyphen first"
            )
            yield ("places", name), reason
        for field in _EVERYWHERE:
            if getattr(place, field) != getattr(store, field):
                yield ("places", name, dotted(field)), "is the same everywhere: set it in section store"
    for (first, one), (second, other) in combinations({"": store, **places}.items(), 2):
        if _overlap(one.location, other.location):
            beside = f"place {first}" if first else "section store"
            reason = (
                f"is in {other.place}, as {beside} is: give it a bucket or a directory of its own, or a key.prefix that the "
                "other does not begin with, nor the other with it"
            )
            yield ("places", second), reason


def _overlap(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one[0] == other[0] and (one[1].startswith(other[1]) or other[1].startswith(one[1]))
