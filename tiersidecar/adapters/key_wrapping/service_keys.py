"""Data keys under a key service, and those of older segments under the RSA key ring."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable

from tiersidecar.domain.errors import DataKeyError
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.transforms import DATA_KEY_SIZE
from tiersidecar.formats.aiven.wrapped_keys import is_wrapped_by, read_wrapped_key, write_wrapped_key
from tiersidecar.ports.key_wrapping import KeyWrapping

_MOST_KEYS = 10_000


class ServiceKeys:
    """``DataKeys`` of the service ``wrapping``, which manifests call ``kind``; ``ring`` opens what has another form, and wraps
    new keys if ``ring_wraps``.

    At most ``max_keys`` data keys that were unwrapped are kept, each for ``keep_s``: a service asked for each segment of each
    reader would be slow and dear.  So a key that is taken away takes effect after ``keep_s`` for those that were in use.
    """

    def __init__(
        self,
        kind: str,
        wrapping: KeyWrapping,
        *,
        keep_s: float,
        now_s: Callable[[], float],
        ring: DataKeys | None = None,
        ring_wraps: bool = False,
        max_keys: int = _MOST_KEYS,
    ) -> None:
        self._kind, self._wrapping = kind, wrapping
        self._ring, self._new_ring = ring, ring if ring_wraps else None
        self._keep_s, self._now_s, self._max_keys = keep_s, now_s, max_keys
        self._kept: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wrap(self, data_key: bytes, random_bytes: Callable[[int], bytes]) -> str:
        """See :class:`DataKeys`; the service has randomness of its own."""
        if self._new_ring is not None:
            return self._new_ring.wrap(data_key, random_bytes)
        text = write_wrapped_key(self._kind, self._wrapping.wrap(data_key))
        self._keep(text, data_key)
        return text

    def unwrap(self, text: str) -> bytes:
        """See :class:`DataKeys`."""
        if not is_wrapped_by(self._kind, text):
            if self._ring is None:
                reason = f"it is not of {self._kind}, and encryption.key.pairs has no keys"
                raise DataKeyError(key_id=text.partition(":")[0], reason=reason)
            return self._ring.unwrap(text)
        data_key = self._found(text)
        if data_key is None:
            wrapped = read_wrapped_key(self._kind, text)
            data_key = self._wrapping.unwrap(wrapped)
            if len(data_key) != DATA_KEY_SIZE:
                raise DataKeyError(key_id=wrapped.key_id, reason=f"it opens to {len(data_key)} bytes")
            self._keep(text, data_key)
        return data_key

    def _found(self, text: str) -> bytes | None:
        name = _name_of(text)
        with self._lock:
            data_key, since_s = self._kept.get(name, (None, 0.0))
            if data_key is None or self._now_s() - since_s > self._keep_s:
                self._kept.pop(name, None)
                return None
            self._kept.move_to_end(name)
            return data_key

    def _keep(self, text: str, data_key: bytes) -> None:
        with self._lock:
            self._kept[_name_of(text)] = data_key, self._now_s()
            while len(self._kept) > self._max_keys:
                self._kept.popitem(last=False)


def _name_of(text: str) -> bytes:
    """Return a short name for what a manifest has, which may be as long as its writer likes."""
    return hashlib.sha256(text.encode()).digest()
