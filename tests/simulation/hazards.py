"""Faults beside the sidecars rather than in them: settings and clocks at the first decision, and other processes that use the
same topics, log dirs or store.  One of them in each run of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.simulation.chances import Chances

DAYS_AHEAD_MS = 10 * 24 * 3_600_000
LONG_RETENTION_MS = 3_600_000
"""Nothing in a run is as old."""
LEASE_MS, LONG_LEASE_MS = 15_000, 60_000
TOPIC_GRACE_MS = 15_000


class What(StrEnum):
    """``TYPED``: a retention much too small, which is corrected.  ``CLOCK``: the sidecars' clocks are ahead when they decide
    first.  ``DELETED``: users delete at the broker before the first copy.  ``TWINS``: two tier sidecars beside one broker.
    ``BACK``: in race mode, the role goes from one of two to the other and back, and meanwhile nothing can be copied.
    ``NATIVE``: the broker's own tiering is switched on.  ``REHEARSAL``: another cluster begins with mirrored topics, on the
    same store.  ``PINNED``: a transaction stays open until only pins have what the log began with.  ``KEPT``: in race mode, as
    where tiering is switched off, the broker keeps much more than our retention would.  ``LOWERED``: the broker
    deletes at once what it has kept for long, as is meant in race mode and a mistake in strict mode, and a transaction has held
    up the copies until then; file events are late.  ``COMPACTED``: the topic is compacted, and the brokers' cleaners run beside
    ours."""

    TYPED = "retention typed too small"
    CLOCK = "clocks ahead at the first judgement"
    DELETED = "records deleted before the first copy"
    TWINS = "two sidecars beside one broker"
    BACK = "the role goes to another sidecar and back"
    NATIVE = "native tiering beside the sidecars"
    REHEARSAL = "a rehearsal with mirrored topics"
    PINNED = "only pins have the beginning"
    KEPT = "the broker keeps more than retention"
    LOWERED = "the broker's retention is lowered before the first copy"
    COMPACTED = "a compacted topic"


BROKER_EXPIRES = (What.PINNED, What.KEPT, What.LOWERED)
"""Hazards about the broker's own retention."""
_OTHERS = tuple(one for one in What if one not in (*BROKER_EXPIRES, What.BACK, What.COMPACTED))
_COMPACTED_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """``what`` begins at ``begins_s`` and, where it ends, ends at ``ends_s``.  The sidecars are there from ``sidecars_from_s``
    on: the log has a past by then.  ``typed_ms`` is the retention that was typed, and ``may_delete`` whether deletes were
    enabled by then; ``skew_ms`` how far the clocks are ahead; ``targets`` are drawn for what is picked;
    ``is_strict`` whether the mode is, of those of the broker's own retention."""

    what: What
    begins_s: float
    ends_s: float
    sidecars_from_s: float = 0.0
    typed_ms: int = -1
    may_delete: bool = True
    skew_ms: int = 0
    is_strict: bool = False
    targets: tuple[float, ...] = ()
    lease_ms: int = LEASE_MS

    @property
    def is_guarded(self) -> bool:
        """Return whether the guard on shares is what holds."""
        return self.what in (What.TYPED, What.CLOCK)

    @property
    def from_start(self) -> bool:
        """Return whether nothing has been copied before it."""
        return self.sidecars_from_s > 0


def hazard_of(duration_s: float, chances: Chances) -> Hazard:
    """Draw the hazard of a run's own lots."""
    what: What = What.PINNED if chances.draw("pinned") < 0.1 else chances.choose("hazard", _OTHERS)
    # Of a lot of its own, so that seeds of before strike as they did.
    if chances.draw("kept") < 0.08:
        what = What.KEPT
    if chances.draw("role in turns") < 0.08:
        what = What.BACK
    if chances.draw("lowering") < 0.08:
        what = What.LOWERED
    if chances.draw("compacted") < _COMPACTED_SHARE:
        return compacted_hazard(duration_s, chances)
    targets = tuple(chances.draw("hazard target") for _ in range(4))
    if what in (What.TWINS, What.NATIVE, What.REHEARSAL):
        begins_s = chances.between("hazard begins", 0.1, 0.5) * duration_s
        if what is What.TWINS and chances.draw("twins start together") < 0.5:
            begins_s = chances.between("twins begin", 20, 50)
            return Hazard(
                what=what,
                begins_s=begins_s,
                ends_s=duration_s,
                sidecars_from_s=begins_s,
                targets=targets,
                lease_ms=chances.choose("lease of twins", (LEASE_MS, LONG_LEASE_MS)),
            )
        from_s = 0.0
        if what is What.NATIVE and chances.draw("native with a past") < 0.7:
            from_s = begins_s + 20
            begins_s = from_s + chances.between("native after", 0.5, 8)
        return Hazard(what=what, begins_s=begins_s, ends_s=duration_s, sidecars_from_s=from_s, targets=targets)
    if what in (What.PINNED, What.KEPT):
        return Hazard(what=what, begins_s=0.0, ends_s=chances.between("hazard lasts", 70, 110), targets=targets)
    if what is What.LOWERED:
        begins_s = chances.between("lowered at", 60, 120)
        is_mistake = chances.draw("lowered in strict mode") < 0.5
        return Hazard(what=what, begins_s=begins_s, ends_s=begins_s + 15, is_strict=is_mistake, targets=targets)
    if what is What.BACK:
        begins_s = chances.between("twin begins", 15, 60)
        return Hazard(what=what, begins_s=begins_s, ends_s=begins_s + 270, targets=targets)
    begins_s = chances.between("hazard begins", 40, 80)
    ends_s = begins_s + chances.between("hazard lasts", 20, 60)
    is_late = what is What.TYPED and chances.draw("typed while it runs") < 0.4
    return Hazard(
        what=what,
        begins_s=begins_s,
        ends_s=ends_s,
        sidecars_from_s=0.0 if is_late else begins_s,
        typed_ms=int(1000 * begins_s * chances.between("typed", 0.1, 0.25)) if what is What.TYPED else -1,
        may_delete=chances.draw("deletes are enabled") < 0.7,
        skew_ms=_skew_ms(begins_s, chances) if what is What.CLOCK else 0,
        targets=targets,
    )


def compacted_hazard(duration_s: float, chances: Chances) -> Hazard:
    """Draw the hazard of a compacted topic; its targets say when leaders' sidecars stand still while others take over."""
    targets = tuple(chances.draw("deposed at") for _ in range(int(chances.between("deposed", 0, 4))))
    return Hazard(what=What.COMPACTED, begins_s=0.0, ends_s=duration_s, targets=targets)


def _skew_ms(begins_s: float, chances: Chances) -> int:
    """Return a skew so far that all is past retention; or just so far that the youngest are not, and there is no silence to
    doubt."""
    young_ms = int(1000 * begins_s * chances.between("young", 0.1, 0.25))
    return chances.choose("clock ahead", (DAYS_AHEAD_MS, LONG_RETENTION_MS - young_ms, LONG_RETENTION_MS - young_ms))
