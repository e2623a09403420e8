"""Leases in the state topic (:mod:`tiersidecar.domain.lease`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiersidecar.domain.lease import Lease


class Leases(Protocol):
    def lease(self, name: str) -> Lease | None:
        """The lease that counts, as read back; None where nobody ever claimed it.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    async def catch_up(self) -> None:
        """Return once everything is read that is in the topic now.

        Raises:
            MetadataNotReadyError: it could not be read to its end.
        """

    async def publish_lease(self, lease: Lease) -> Lease:
        """Claim, renew or release; return after read-back the lease that counts then: another's where it was faster.

        Raises:
            PublishTimeoutError: not read back in time.
        """


class KnownLeases(Protocol):
    def known_leases(self) -> Sequence[Lease]:
        """Every lease that counts, released or not, by name.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """
