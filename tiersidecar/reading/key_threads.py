"""In which threads a data key is wrapped or unwrapped."""

from __future__ import annotations

from tiersidecar.domain.data_keys import KeyContext
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.key_wrapping import asked_keys


def key_threads(blocking: Blocking, keys: DataKeys | None, text: str | None, context: KeyContext) -> Blocking:
    """Return ``blocking``, or the threads of a key service that is to be asked for what a manifest has, with None for a new
    key."""
    asked = asked_keys(keys)
    return blocking if asked is None or asked.is_at_hand(text, context) else asked.blocking
