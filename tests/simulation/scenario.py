"""The scenario of a seed: the cluster, the topic's policy, how bad it gets, and what happens when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tests.simulation.chances import Chances
from tests.simulation.compacted_topic import CompactedTopic, compacted_topic_of
from tests.simulation.file_events import FileEvents
from tests.simulation.hazards import BROKER_EXPIRES, LONG_RETENTION_MS, Hazard, What, compacted_hazard, hazard_of
from tests.simulation.network import NO_FAULTS, FaultRates
from tests.simulation.planned_faults import (
    LOSSES,
    Fault,
    PlannedFault,
    plan_far_behind,
    plan_faults,
    plan_losses,
    plan_lost_producers,
    plan_moved_unwritten,
)
from tiersidecar.services.gateway.fetch_in_hand import MAX_SESSION_PARTITIONS

RACE_RETENTION_MS = 45_000
_RACE_ABSENCE_S = 5.0
"""In race mode the broker deletes what a sidecar that is away for longer than the retention has not linked: so it never is."""

_SHOWN_LATE_S = 35.0
"""Time by which a change of log dirs may show later where file events are late or never come: all is read every 30 s, and again
5 s after the broker did not answer."""
LIES = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.03)
"""Shares of writes that a store acknowledges, and does not keep as they were."""
_REREAD_BAD = 0.05
"""Share of reads that come short or damaged where consumers go back again and again."""
_LATE_EVENTS_SHARE = 0.5
"""Share of hazard runs in which file events of log dirs are late, or never come."""
_HELD_FETCHES_SHARE = 0.5
"""Share of runs with losses in which brokers hold Fetches; in runs of other kinds a poll sees everything at once."""
_SESSIONS_SHARE = 0.4
"""Share of cluster runs with consumers that keep fetch sessions."""


class Kind(StrEnum):
    """``FAULTS``: one broker, a bad store, a sidecar that crashes at any await.  ``CLUSTER``: everything.  ``QUESTIONS``: as
    ``CLUSTER``, and clients ask for offsets.  ``LOSSES``: as ``CLUSTER``, and brokers forget their producers.  ``HAZARDS``: as
    ``CLUSTER``, and beside the sidecars one thing more is wrong (:mod:`tests.simulation.hazards`).  ``COMPACTION``: as
    ``HAZARDS``, and always with a compacted topic."""

    FAULTS = "faults"
    CLUSTER = "cluster"
    QUESTIONS = "questions"
    LOSSES = "losses"
    HAZARDS = "hazards"
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Times in virtual seconds from the start; retentions as in :class:`~tiersidecar.domain.policy.TopicPolicy`.
    ``disk_bytes`` is each broker's, None where it never fills; ``reads_apart``: gateways are processes of their own;
    ``store_is_local``: what lies in the store is read as files of this machine are; ``rereads``: consumers go back again and
    again to what only the store has, and the store is bad at that.  ``fetch_sessions``: there are consumers that keep them, of
    which each gateway remembers ``most_in_sessions`` partitions; ``questions``: clients ask for offsets by timestamp and epoch;
    records' timestamps are up to ``timestamps_late_ms`` before the time at which they are written; ``holds_fetches``: brokers
    hold the sidecars' own Fetches while there is nothing to answer; ``compacted`` are the settings of a compacted topic."""

    kind: Kind
    seed: int
    brokers: int
    partitions: int
    mode: str
    duration_s: float
    produce_every_s: float
    transactional_share: float
    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_bytes: int = -2
    broker_retention_ms: int = -1
    store_rates: FaultRates = NO_FAULTS
    broker_rates: FaultRates = NO_FAULTS
    topic_rates: FaultRates = NO_FAULTS
    disk_rate: float = 0.0
    disk_bytes: int | None = None
    disk_policy: str = "keep"
    reads_apart: bool = False
    store_is_local: bool = False
    rereads: bool = False
    fetch_sessions: bool = False
    most_in_sessions: int = MAX_SESSION_PARTITIONS
    questions: bool = False
    timestamps_late_ms: int = 0
    holds_fetches: bool = False
    file_events: FileEvents = FileEvents.AT_ONCE
    hazard: Hazard | None = None
    compacted: CompactedTopic | None = None
    faults: tuple[PlannedFault, ...] = ()

    @property
    def reader_rates(self) -> FaultRates:
        """Return the store's rates, as consumers' reads meet them."""
        return replace(self.store_rates, bad_read=_REREAD_BAD) if self.rereads else self.store_rates

    @property
    def drops_oldest(self) -> bool:
        return self.disk_bytes is not None and self.disk_policy == "drop-oldest"

    @property
    def trims_for_space(self) -> bool:
        return self.disk_bytes is not None and self.disk_policy != "keep"


def scenario_of(kind: Kind, seed: int, chances: Chances) -> Scenario:
    """Draw the scenario of ``seed``."""
    badness = chances.choose("badness", (0.0, 0.01, 0.04, 0.12))
    base = Scenario(
        kind=kind,
        seed=seed,
        brokers=1,
        partitions=1,
        mode="strict",
        duration_s=chances.between("duration", 50, 110),
        produce_every_s=chances.choose("produce every", (0.5, 1.0, 2.0)),
        transactional_share=chances.choose("transactional", (0.0, 0.3, 0.6)),
        store_rates=_rates(chances, "store", badness, bad_read=badness / 2),
        topic_rates=replace(_rates(chances, "topic", badness / 3), twice=0.0, hang_before=0.0, hang_after=0.0),
        broker_rates=replace(_rates(chances, "broker", badness / 3), twice=0.0, hang_before=0.0, hang_after=0.0),
        disk_rate=chances.choose("disk", (0.0, 0.0, 0.003)),
        local_retention_bytes=chances.choose("local retention", (-2, 1500, 4000)),
        reads_apart=chances.draw("reads apart") < 0.3,
        store_is_local=chances.draw("store is local") < 0.3,
    )
    if kind is Kind.FAULTS:
        # No retention, so that each segment has to be there at the end.
        faults = plan_faults(
            base.duration_s, chances, (Fault.CRASH, Fault.CRASH, Fault.STOP, Fault.OUTAGE, Fault.DISK_FULL), most=6
        )
        return replace(base, faults=faults)
    return _cluster(base, chances)


def _cluster(base: Scenario, chances: Chances) -> Scenario:
    is_race = chances.draw("race") < 0.2
    by_time = chances.draw("retention by time") < 0.35
    by_size = not by_time and chances.draw("retention by size") < 0.4
    scenario = replace(
        base,
        brokers=3,
        partitions=int(chances.between("partitions", 1, 3)),
        mode="race" if is_race else "strict",
        # In race mode the broker deletes without asking: what the store lied about is lost.
        store_rates=replace(base.store_rates, lie=0.0) if is_race else base.store_rates,
        duration_s=chances.between("cluster duration", 90, 200),
        produce_every_s=chances.choose("produce every", (0.7, 1.0, 1.5)),
        local_retention_bytes=-2 if is_race else base.local_retention_bytes,
        broker_retention_ms=RACE_RETENTION_MS if is_race else -1,
        retention_ms=chances.choose("retention ms", (60_000, 120_000)) if by_time else -1,
        retention_bytes=chances.choose("retention bytes", (6_000, 12_000)) if by_size else -1,
    )
    if not is_race and chances.draw("small disks") < 0.3:
        scenario = replace(
            scenario,
            disk_bytes=scenario.partitions * int(chances.between("disk bytes", 9_000, 22_000)),
            disk_policy=chances.choose("disk policy", ("keep", "trim-copied", "trim-copied", "drop-oldest")),
        )
    if not is_race and chances.draw("rereads") < 0.3:
        scenario = replace(scenario, rereads=True, local_retention_bytes=1500)
    if chances.draw("fetch sessions") < _SESSIONS_SHARE:
        most = chances.choose("most in sessions", (MAX_SESSION_PARTITIONS, MAX_SESSION_PARTITIONS, 1, 2))
        scenario = replace(scenario, fetch_sessions=True, most_in_sessions=most)
    if base.kind is Kind.QUESTIONS:
        is_by_time = scenario.retention_ms >= 0 or scenario.broker_retention_ms >= 0
        late_ms = 0 if is_by_time else chances.choose("timestamps late", (0, 5_000, 30_000))
        scenario = replace(scenario, questions=True, timestamps_late_ms=late_ms)
    beside = (Fault.FAR_BEHIND, Fault.MOVED_UNWRITTEN, *LOSSES)
    unlike = (*beside, Fault.DISK_FULL, Fault.UNCLEAN) if is_race else beside
    faults = plan_faults(scenario.duration_s, chances, tuple(fault for fault in Fault if fault not in unlike), most=9)
    if not is_race and chances.draw("far behind") < 0.3:
        faults = (*faults, plan_far_behind(scenario.duration_s, chances))
    faults = (*faults, *plan_lost_producers(scenario.duration_s, chances))
    if base.kind is Kind.LOSSES:
        faults = (*faults, *plan_losses(scenario.duration_s, chances))
        scenario = replace(scenario, holds_fetches=chances.draw("held fetches") < _HELD_FETCHES_SHARE)
    if base.kind in (Kind.HAZARDS, Kind.COMPACTION):
        return _with_hazard(replace(scenario, faults=faults), chances)
    faults = (*faults, *plan_moved_unwritten(scenario.duration_s, chances))
    if is_race:
        faults = tuple(replace(planned, lasts_s=min(planned.lasts_s, _RACE_ABSENCE_S)) for planned in faults)
    return replace(scenario, faults=faults)


_NOT_BESIDE = {
    What.TYPED: frozenset({Fault.CLOCK, Fault.UNCLEAN, Fault.FAR_BEHIND, Fault.USER_DELETE, *LOSSES}),
    What.CLOCK: frozenset({Fault.CLOCK, Fault.UNCLEAN, Fault.FAR_BEHIND, Fault.USER_DELETE, *LOSSES}),
    What.DELETED: frozenset({Fault.BROKER_UNCLEAN, Fault.UNCLEAN, Fault.FAR_BEHIND, *LOSSES}),
    What.NATIVE: frozenset({Fault.UNCLEAN, Fault.FAR_BEHIND, Fault.USER_DELETE, *LOSSES}),
}
"""Faults that would excuse what the hazard is to show."""


def _with_hazard(scenario: Scenario, chances: Chances) -> Scenario:
    """Return the scenario with a hazard, in strict mode where the broker's own retention is not the hazard: it deletes what
    sidecars that come late have not linked."""
    is_compacted = scenario.kind is Kind.COMPACTION
    hazard = (compacted_hazard if is_compacted else hazard_of)(scenario.duration_s, chances)
    if chances.draw("file events are late") < _LATE_EVENTS_SHARE:
        events = chances.choose("file events", (FileEvents.LATE, FileEvents.LATE, FileEvents.NEVER))
        scenario = replace(scenario, file_events=events)
    if hazard.what is What.COMPACTED:
        return _of_compacted_topic(scenario, hazard, chances)
    if hazard.what in BROKER_EXPIRES:
        return _where_broker_expires(scenario, hazard, chances)
    if hazard.what is What.BACK:
        return _with_two_in_turn(scenario, hazard)
    began_s, duration_s = hazard.sidecars_from_s, max(scenario.duration_s, hazard.ends_s + 20)
    kept = (planned for planned in scenario.faults if planned.fault not in _NOT_BESIDE.get(hazard.what, ()))
    late = (duration_s - began_s) / scenario.duration_s
    scenario = replace(
        scenario,
        mode="strict",
        broker_retention_ms=-1,
        duration_s=duration_s,
        hazard=hazard,
        faults=tuple(replace(planned, at_s=began_s + planned.at_s * late) for planned in kept),
    )
    if hazard.is_guarded or hazard.what is What.NATIVE:
        scenario = replace(scenario, disk_bytes=None, retention_ms=-1, retention_bytes=-1)
    if hazard.is_guarded:
        scenario = replace(scenario, transactional_share=0.0)
    if hazard.what is What.CLOCK:
        scenario = replace(scenario, retention_ms=LONG_RETENTION_MS)
    if hazard.what is What.NATIVE:
        scenario = replace(scenario, local_retention_bytes=-2, rereads=False)
    return scenario


def _where_broker_expires(scenario: Scenario, hazard: Hazard, chances: Chances) -> Scenario:
    """Return it mostly in race mode, with no other fault than that no process is away for long."""
    kept = (
        planned for planned in scenario.faults if planned.fault in (Fault.CRASH, Fault.STOP, Fault.OUTAGE, Fault.LEADER)
    )
    scenario = replace(
        scenario,
        mode="strict" if hazard.is_strict else "race",
        duration_s=max(scenario.duration_s, hazard.ends_s + 20),
        retention_ms=-1,
        retention_bytes=-1,
        local_retention_bytes=-2,
        disk_bytes=None,
        rereads=False,
        store_rates=replace(scenario.store_rates, lie=0.0),
        hazard=hazard,
        faults=tuple(replace(planned, lasts_s=min(planned.lasts_s, _RACE_ABSENCE_S)) for planned in kept),
    )
    match hazard.what:
        case What.PINNED:
            return replace(scenario, transactional_share=0.6, broker_retention_ms=RACE_RETENTION_MS)
        case What.LOWERED:
            return replace(scenario, transactional_share=0.6, broker_retention_ms=-1, file_events=FileEvents.LATE)
        case _:
            kept_bytes = chances.choose("kept bytes", (3_000, 6_000))
            return replace(scenario, broker_retention_ms=-1, retention_bytes=kept_bytes)


_TRIMMED_SHARE, _TRIMMED_S = 0.6, 160.0
_BESIDE_A_CLEANER = (
    Fault.CRASH,
    Fault.STOP,
    Fault.OUTAGE,
    Fault.LEADER,
    Fault.BROKER,
    Fault.BROKER_UNCLEAN,
    Fault.BEHIND,
    Fault.DISK_FULL,
)


def _of_compacted_topic(scenario: Scenario, hazard: Hazard, chances: Chances) -> Scenario:
    """Return it without what takes values away by itself: elections of replicas that lack records, clocks that are wrong,
    deletes.  No fault lasts so long that a tombstone may be gone by its end.  Of a topic that is deleted from as well, the
    broker deletes in some runs."""
    topic = compacted_topic_of(chances)
    expires = topic.policy != "compact" and chances.draw("the broker deletes as well") < 0.5
    is_trimmed = topic.policy != "compact" and not expires and chances.draw("trimmed") < _TRIMMED_SHARE
    if is_trimmed:  # a tombstone keeps the local log for longer than most runs last, and so does a cleaner that is late
        few, room = chances.choose("tombstones of what is trimmed", (0.0, 0.01, 0.1)), 1_000_000
        topic = replace(topic, tombstones=few, dirty_ratio=0.0, dedupe_bytes=100_000, scratch_bytes=room)
    late_s = 0.0 if scenario.file_events is FileEvents.AT_ONCE else _SHOWN_LATE_S
    kept = (planned for planned in scenario.faults if planned.fault in _BESIDE_A_CLEANER)
    return replace(
        scenario,
        mode="race" if expires else "strict",
        duration_s=max(scenario.duration_s, _TRIMMED_S) if is_trimmed else scenario.duration_s,
        retention_ms=-1,
        retention_bytes=-1,
        local_retention_bytes=chances.choose("kept local bytes", (0, 1_500, 4_000)) if is_trimmed else -2,
        broker_retention_ms=RACE_RETENTION_MS + int(1000 * late_s) if expires else -1,
        disk_bytes=None,
        rereads=False,
        store_rates=replace(scenario.store_rates, lie=0.0),
        hazard=hazard,
        compacted=topic,
        faults=tuple(replace(planned, lasts_s=min(planned.lasts_s, _RACE_ABSENCE_S)) for planned in kept),
    )


def _with_two_in_turn(scenario: Scenario, hazard: Hazard) -> Scenario:
    """Return it in race mode, with few other faults: while the role changes hands no process pins, for nearly half of the
    retention, and outages of the store are the hazard's own.  Where the holder sees a sealed segment late, retention is as much
    longer: a taker pins nothing that the broker had renamed before."""
    late_s = 0.0 if scenario.file_events is FileEvents.AT_ONCE else _SHOWN_LATE_S
    hazard = replace(hazard, ends_s=hazard.ends_s + late_s)
    kept = (planned for planned in scenario.faults if planned.fault in (Fault.CRASH, Fault.LEADER))
    return replace(
        scenario,
        mode="race",
        duration_s=hazard.ends_s,
        transactional_share=max(scenario.transactional_share, 0.3),
        broker_retention_ms=RACE_RETENTION_MS + int(1000 * late_s),
        retention_ms=-1,
        retention_bytes=-1,
        local_retention_bytes=-2,
        disk_bytes=None,
        rereads=False,
        store_rates=replace(scenario.store_rates, lie=0.0),
        hazard=hazard,
        faults=tuple(replace(planned, lasts_s=min(planned.lasts_s, _RACE_ABSENCE_S)) for planned in kept),
    )


def _rates(chances: Chances, what: str, badness: float, *, bad_read: float = 0.0) -> FaultRates:
    """Draw the rates, not each kind in each run: what is rare alone may be what matters together."""

    def rate(kind: str) -> float:
        return badness if chances.draw(f"{what} {kind}") < 0.5 else 0.0

    return FaultRates(
        fail_before=rate("fail before"),
        fail_after=rate("fail after"),
        hang_before=rate("hang before") / 3,
        hang_after=rate("hang after") / 3,
        slow=rate("slow"),
        twice=rate("twice"),
        bad_read=bad_read if chances.draw(f"{what} bad read") < 0.5 else 0.0,
        lie=chances.choose(f"{what} lie", LIES) if what == "store" else 0.0,
    )
