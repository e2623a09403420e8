"""Data keys of segments that a key service has wrapped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key under the key ``key_id`` of a service, as the service returned it.

    ``key_id`` names the same key for ever: never an alias that may point to another one later.  It is not secret.
    """

    key_id: str
    data: bytes
