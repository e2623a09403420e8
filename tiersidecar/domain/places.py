"""Places: stores with a name beside the one of section ``store``, which is the default place and has none.

Everywhere above the stores, the key of an object in place ``cold`` is ``@cold/<its key below the place's own key.prefix>``, so
that whatever has a key has the place as well.  Names of topics have no ``@``.
"""

from __future__ import annotations

import re

DEFAULT_PLACE = ""
"""The store of section ``store``."""

MOST_NAME_BYTES = 32
PLACE_NAME = rf"[a-z0-9][a-z0-9-]{{0,{MOST_NAME_BYTES - 1}}}"

_MARK = "@"
_NAME, _PLACED_KEY = re.compile(PLACE_NAME), re.compile(rf"{_MARK}({PLACE_NAME})/")


def is_place_name(text: str) -> bool:
    """Return whether a place can have this name."""
    return _NAME.fullmatch(text) is not None


def is_like_placed(key_prefix: str) -> bool:
    """Return whether keys that begin so could look like those of a place."""
    return key_prefix.startswith(_MARK)


def place_prefix(place: str) -> str:
    """Return what the keys of all objects in ``place`` begin with; empty for the default place."""
    return f"{_MARK}{place}/" if place else ""


def place_of(key: str) -> str:
    """Return the place of the object under ``key``."""
    found = _PLACED_KEY.match(key) if key.startswith(_MARK) else None
    return DEFAULT_PLACE if found is None else found[1]
