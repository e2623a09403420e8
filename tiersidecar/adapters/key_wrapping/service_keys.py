"""Data keys under a key service, and those of older segments under the RSA key ring."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from hmac import compare_digest

from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.adapters.key_wrapping.resting import RestingWrapping
from tiersidecar.domain.data_keys import NO_CONTEXT, KeyContext, WrappedKey, brief
from tiersidecar.domain.errors import DataKeyError, KeyRefusedError, KeyServiceError
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.transforms import DATA_KEY_SIZE
from tiersidecar.formats.aiven.wrapped_keys import is_wrapped_by, read_wrapped_key, write_wrapped_key
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.key_wrapping import KeyWrapping

_MOST_KEYS = 10_000
_THREADS = 4
"""For key services alone: if they shared the threads of all else, one that hangs would stop pins and checks too."""


class ServiceKeys:
    """``DataKeys`` of the service ``wrapping``, which manifests call ``kind``; ``ring`` opens what has another form, and wraps
    new keys if ``ring_wraps``.

    At most ``max_keys`` data keys that the service has opened are kept, each for ``keep_s``: a service asked for each segment
    of each reader would be slow and dear.  So a key that is taken away takes effect after ``keep_s`` for those that were in
    use.  What several want at once is asked for once.
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
        self._kind, self._wrapping = kind, RestingWrapping(_ProvenWrapping(kind, wrapping), now_s)
        self._ring, self._new_ring = ring, ring if ring_wraps else None
        self._keep_s, self._now_s, self._max_keys = keep_s, now_s, max_keys
        self._kept: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._asked: dict[bytes, Future[bytes]] = {}
        self._last_context = NO_CONTEXT
        self._lock = threading.Lock()
        self._threads = ThreadBlocking(max_threads=_THREADS, name="keys")

    @property
    def blocking(self) -> Blocking:
        """Return the threads that may wait for the service."""
        return self._threads

    @property
    def closed_reason(self) -> str:
        """Return why no new key is to be had for now; empty while the service answers."""
        return "" if self._new_ring is not None else self._wrapping.closed_reason

    def is_at_hand(self, text: str | None, context: KeyContext) -> bool:
        """Return whether what a manifest has, or with None a new key, needs no question."""
        if text is None:
            return self._new_ring is not None
        return not is_wrapped_by(self._kind, text) or self._found(_name_of(text, context)) is not None

    def wrap(self, data_key: bytes, random_bytes: Callable[[int], bytes], context: KeyContext = NO_CONTEXT) -> str:
        """Wrap a data key, which the service has opened again when this returns; it has randomness of its own."""
        if self._new_ring is not None:
            return self._new_ring.wrap(data_key, random_bytes)
        self._last_context = context
        text = write_wrapped_key(self._kind, self._wrapping.wrap(data_key, context))
        self._keep(_name_of(text, context), data_key)
        return text

    def probe(self, random_bytes: Callable[[int], bytes]) -> None:
        """Ask for a new key as the request did that came last, and forget it: policies may look at the context."""
        self._wrapping.wrap(random_bytes(DATA_KEY_SIZE), self._last_context)

    def unwrap(self, text: str, context: KeyContext = NO_CONTEXT) -> bytes:
        """Return the data key of a manifest's ``dataKey``."""
        if not is_wrapped_by(self._kind, text):
            if self._ring is None:
                reason = f"it is not of {self._kind}, and encryption.key.pairs has no keys"
                raise DataKeyError(key_id=text.partition(":")[0], reason=reason)
            return self._ring.unwrap(text)
        name = _name_of(text, context)
        data_key = self._found(name)
        return self._ask_once(name, text, context) if data_key is None else data_key

    def _ask_once(self, name: bytes, text: str, context: KeyContext) -> bytes:
        asking = Future[bytes]()
        with self._lock:
            asked = self._asked.setdefault(name, asking)
        if asked is not asking:
            return asked.result()
        try:
            found = self._found(name)  # by now
            data_key = self._ask(text, context) if found is None else found
        except BaseException as error:
            asking.set_exception(error)
            raise
        else:
            self._keep(name, data_key)
            asking.set_result(data_key)
            return data_key
        finally:
            with self._lock:
                del self._asked[name]

    def _ask(self, text: str, context: KeyContext) -> bytes:
        return self._wrapping.unwrap(read_wrapped_key(self._kind, text), context)

    def _found(self, name: bytes) -> bytes | None:
        with self._lock:
            data_key, since_s = self._kept.get(name, (None, 0.0))
            if data_key is None or self._now_s() - since_s > self._keep_s:
                self._kept.pop(name, None)
                return None
            self._kept.move_to_end(name)
            return data_key

    def _keep(self, name: bytes, data_key: bytes) -> None:
        with self._lock:
            self._kept[name] = data_key, self._now_s()
            while len(self._kept) > self._max_keys:
                self._kept.popitem(last=False)


class _ProvenWrapping:
    """A ``KeyWrapping`` that gives a new key only after ``wrapping`` has opened it, in the form that the manifest will have.

    The data key is in memory until the local data are trimmed, so no read-back before that would notice a missing right, or
    ciphertext that does not open.

    What another package's service raises or returns against the protocol is a KeyServiceError of that request.
    """

    def __init__(self, kind: str, wrapping: KeyWrapping) -> None:
        self._kind, self._wrapping = kind, wrapping

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        """Return a data key of 32 bytes under the key for new segments, bound to ``context``.

        Raises:
            KeyServiceError: the service is away.
            KeyRefusedError: it refuses to wrap the key or to open it again, or it opens to something else.
        """
        with self._answering("wrap"):
            wrapped = self._wrapping.wrap(data_key, context)
            text = write_wrapped_key(self._kind, wrapped)
        try:
            opened = self.unwrap(read_wrapped_key(self._kind, text), context)
        except DataKeyError as error:
            reason = f"what it has just wrapped does not open: {error.reason}"
            raise KeyRefusedError(verb="wrap", key_id=wrapped.key_id, reason=reason) from error
        if not compare_digest(opened, data_key):
            reason = "what it has just wrapped opens to another data key"
            raise KeyRefusedError(verb="wrap", key_id=wrapped.key_id, reason=reason)
        return wrapped

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Return the data key, also of one that was wrapped under a former key."""
        with self._answering("unwrap"):
            data_key = self._wrapping.unwrap(wrapped, context)
            if not isinstance(data_key, bytes):
                raise TypeError(f"it returned {type(data_key).__name__} for a data key")
        if len(data_key) != DATA_KEY_SIZE:
            raise DataKeyError(key_id=wrapped.key_id, reason=f"it opens to {len(data_key)} bytes")
        return data_key

    @contextmanager
    def _answering(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (KeyServiceError, KeyRefusedError, DataKeyError):
            raise
        except Exception as error:
            reason = brief(f"unexpected {type(error).__name__}: {error}")
            raise KeyServiceError(service=self._kind, verb=verb, reason=reason, is_away=False) from error


def _name_of(text: str, context: KeyContext) -> bytes:
    """Return a short name for what a manifest has, which may be as long as its writer likes, in its context."""
    digest = hashlib.sha256()
    for part in (text, *(one for item in sorted(context.items()) for one in item)):
        digest.update(len(part.encode()).to_bytes(8, "big") + part.encode())
    return digest.digest()
