"""Inputs of a reconcile run, and its counts, for both engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.ids import place_of
from tiersidecar.reconcile.deep_check import DeepCheck
from tiersidecar.reconcile.segment_check import StoreOpener


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """A topic that the cluster has: its id in 22 characters.  ``is_gone``: it had one of this id, as the store says; its name
    does not matter."""

    topic: str
    topic_id: str
    is_compacted: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """How to look.  ``is_plain``: nothing compresses or encrypts, nor ever did, as far as the configuration says.

    ``place_prefixes`` are of the places besides the default one, which ``key_prefix`` is of.  Those in ``away`` did not answer,
    for the reason given there.
    """

    key_prefix: str = ""
    place_prefixes: tuple[str, ...] = ()
    away: Mapping[str, str] = field(default_factory=dict)
    graces: Graces = field(default_factory=Graces)
    open_store: StoreOpener | None = None
    reads_manifests: bool = True
    is_plain: bool = False
    deep: DeepCheck | None = None

    @property
    def prefixes(self) -> frozenset[str]:
        """Return what keys of ours begin with, as far as they can be listed."""
        return frozenset({self.key_prefix, *self.place_prefixes}) - self.away.keys()

    def without(self, away: Mapping[str, str]) -> ReconcileSettings:
        """Return the settings once more places are known to be away, for the reasons given there."""
        return replace(self, away={**self.away, **away})

    def places_out_of_reach(self, recorded: Iterable[str]) -> frozenset[str]:
        """Return those of ``recorded`` prefixes that are of places which are not configured (any more), or away: nothing can be
        looked for there."""
        return frozenset(prefix for prefix in recorded if place_of(prefix)) - self.prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Counts of what a run saw, and why its metadata may not be all there is."""

    event_count: int
    segment_count: int
    live_segment_count: int
    live_bytes: int
    object_count: int
    object_bytes: int
    orphan_count: int
    orphan_bytes: int
    metadata_doubt: str = ""
