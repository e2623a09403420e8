"""Services that keep the keys under which the data keys of segments lie: a KMS, an HSM (docs/security.md).

A package brings one through an entry point of the group ``tiersidecar.key_wrapping``, whose object is a
:class:`KeyWrappingKind`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from tiersidecar.domain.data_keys import WrappedKey

ENTRY_POINTS = "tiersidecar.key_wrapping"
"""Group of entry points; each is a :class:`KeyWrappingKind`, named as ``encryption.key.wrapping`` names it."""

Options = Mapping[str, Any]
"""What ``encryption.key.wrapping.options`` says, secrets as texts."""


class KeyWrapping(Protocol):
    """One service.  Called in threads, from several at once; a call returns or fails within a minute or so."""

    def wrap(self, data_key: bytes) -> WrappedKey:
        """Return a data key of 32 bytes under the key for new segments.

        Raises:
            KeyServiceError: the service is away, or turns everybody away for now.
            KeyRefusedError: it refuses; the reason says what to do.
        """

    def unwrap(self, wrapped: WrappedKey) -> bytes:
        """Return the data key, also of one that was wrapped under a former key.

        Raises:
            KeyServiceError: as :meth:`wrap`.
            KeyRefusedError: the key may not be used, is disabled, or is gone.
            DataKeyError: the service says that this is nothing that its key has wrapped.
        """


class KeyWrappingKind(Protocol):
    def faults(self, options: Options) -> Iterable[tuple[str, str]]:
        """Return what is wrong with ``options``: the option, and a sentence that says what it must be.  No I/O."""

    def open_wrapping(self, options: Options) -> KeyWrapping:
        """Return the service, for the life of the process.  One that is away does not fail here, but when it is used."""
