"""Services that keep the keys under which the data keys of segments lie: a KMS, an HSM (docs/security.md).

A package brings one through an entry point of the group ``tiersidecar.key_wrapping``, whose object is a
:class:`KeyWrappingKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from tiersidecar.domain.data_keys import KeyContext, WrappedKey
from tiersidecar.ports.clock import Blocking

ENTRY_POINTS = "tiersidecar.key_wrapping"
"""Group of entry points; each is a :class:`KeyWrappingKind`, named as ``encryption.key.wrapping`` names it."""

Options = Mapping[str, Any]
"""The values of ``encryption.key.wrapping.options``, secrets as texts."""


class KeyWrapping(Protocol):
    """One service.  Called in threads of its own, from four at once; a call returns or fails within ten seconds or so."""

    def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
        """Return a data key of 32 bytes under the key for new segments, bound to ``context``: at most 6,144 bytes, and a key id
        of at most 2,048 characters.

        Raises:
            KeyServiceError: the service is away, or turns all callers away for now.  With ``is_away`` False it failed this
                one request, with ``key_id`` all under that key: others are still asked.
            KeyRefusedError: it refuses; the reason says what to do.
        """

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Return the data key, also of one that was wrapped under a former key.

        Raises:
            KeyServiceError: as :meth:`wrap`.
            KeyRefusedError: the key may not be used, is disabled, or is gone.
            DataKeyError: the service says that this is nothing that its key has wrapped with this context.
        """


class KeyWrappingKind(Protocol):
    def faults(self, options: Options) -> Iterable[tuple[str, str]]:
        """Return what is wrong with ``options``: the option, and a sentence that says what it must be.  No I/O."""

    def open_wrapping(self, options: Options) -> KeyWrapping:
        """Return the service, for the life of the process.  One that is away does not fail here, but when it is used."""


@runtime_checkable
class HasThreads(Protocol):
    """Data keys that are asked for: a service that hangs must not take the threads of everything else."""

    @property
    def blocking(self) -> Blocking:
        """Return the threads that may wait for the service."""

    def is_at_hand(self, text: str | None, context: KeyContext) -> bool:
        """Return whether what a manifest has, or with None a new key, needs no question."""

    @property
    def closed_reason(self) -> str:
        """Return why no new key is to be had for now; empty while the service answers."""

    def probe(self, random_bytes: Callable[[int], bytes]) -> None:
        """Ask for a new key as the request did that came last, and forget it.

        Raises:
            KeyServiceError, KeyRefusedError: there is none yet, or none is asked for before the service has rested.
        """


def asked_keys(keys: object) -> HasThreads | None:
    """Return ``keys`` if they are asked for; None for a ring, and for no keys at all."""
    return keys if isinstance(keys, HasThreads) else None


def key_threads(blocking: Blocking, keys: object, text: str | None, context: KeyContext) -> Blocking:
    """Return the threads in which a data key is wrapped or unwrapped: those of a key service that is to be asked for what a
    manifest has as ``text``, or with None for a new key; else ``blocking``."""
    asked = asked_keys(keys)
    return blocking if asked is None or asked.is_at_hand(text, context) else asked.blocking
