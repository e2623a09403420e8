"""A fixed set of seeds in every run; ``make faults`` and ``make simulate`` take as many as asked for (issue texts; U1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.scenario import Kind
from tests.simulation.shrink import shrink
from tests.simulation.simulate import Outcome, simulate

FAULTS_SEEDS = (0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12)))
CLUSTER_SEEDS = (1, 5)
COMPACTION_SEEDS = (2, 4, 14)
"""Beside those of :mod:`tests.unit.simulation.test_mutations`, where nothing is planted."""
FOUND_SOMETHING = (15, 33, 42, 47, 53, 54, 59, 94, 221, 281, 405, 617, 684, 925, 1059, 1086, 1132, 1157, 1305, 700118)
"""Seeds that have found something once."""


@pytest.mark.parametrize("seed", FAULTS_SEEDS)
def test_every_sealed_segment_is_finished_once_and_readable_and_no_object_lies_alone(seed: int) -> None:
    assert simulate(Kind.FAULTS, seed).violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*CLUSTER_SEEDS, *FOUND_SOMETHING])
def test_consumers_find_every_record_they_may_have_in_both_isolation_levels(seed: int) -> None:
    assert simulate(Kind.CLUSTER, seed).violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", COMPACTION_SEEDS)
def test_of_compacted_topics_no_value_is_lost_and_none_comes_back(seed: int) -> None:
    """Beside the brokers' own cleaners, for readers of the archive, over HTTP and through gateways (S-241, S-256)."""
    assert simulate(Kind.COMPACTION, seed).violations == ()


@pytest.mark.slow
def test_right_after_the_first_copy_what_only_pins_had_is_not_out_of_range() -> None:
    assert simulate(Kind.HAZARDS, 99).violations == ()


@pytest.mark.slow
def test_a_deletion_behind_what_a_native_broker_keeps_is_nobody_s_to_finish() -> None:
    assert simulate(Kind.HAZARDS, 7051).violations == ()


@pytest.mark.slow
def test_what_a_holder_saw_late_is_still_there_for_the_one_that_takes_the_role() -> None:
    """A holder that looked every 30 s stood still before its next look, and the broker renamed the segment before the other
    one had the role: by the rules of pins no process could have kept it."""
    assert simulate(Kind.HAZARDS, 9080).violations == ()


@pytest.mark.slow
def test_a_transaction_that_was_open_where_an_election_cut_a_segment_stays_hidden() -> None:
    """The new leader had lost its producers, and the marker came in a segment of its own."""
    assert simulate(Kind.CLUSTER, 800213).violations == ()


@pytest.mark.parametrize(("kind", "seed"), [(Kind.FAULTS, 1), pytest.param(Kind.CLUSTER, 1, marks=pytest.mark.slow)])
def test_a_seed_replays_exactly(kind: Kind, seed: int) -> None:
    first, second = simulate(kind, seed), simulate(kind, seed)
    assert len(first.faults) > 5
    assert first.trace == second.trace


def test_a_muted_fault_leaves_the_lots_of_the_others_alone() -> None:
    whole = simulate(Kind.FAULTS, 1)
    without = simulate(Kind.FAULTS, 1, frozenset(whole.faults[-1:]))
    assert without.faults[: len(whole.faults) - 1] == whole.faults[:-1]


def test_a_run_without_an_end_is_a_failed_run_that_can_be_replayed() -> None:
    outcome, again = (simulate(Kind.CLUSTER, 1, most_turns=5000) for _ in range(2))
    assert len(outcome.violations) == 1
    assert "it does not end" in outcome.violations[0]
    assert outcome.trace == again.trace


class ScriptedRuns:
    """Fails while all of ``needed`` happen."""

    def __init__(self, needed: set[str], faults: tuple[str, ...]) -> None:
        self._needed, self._faults = needed, faults
        self.runs = 0

    def __call__(self, kind: Kind, seed: int, muted: frozenset[str] = frozenset()) -> Outcome:
        self.runs += 1
        happened = tuple(fault for fault in self._faults if fault not in muted)
        violations = ("it broke",) if self._needed <= set(happened) else ()
        return Outcome(kind=kind, seed=seed, violations=violations, faults=happened, trace=(), virtual_s=0)


@pytest.mark.parametrize("needed", [{"f3"}, {"f0", "f39"}, {"f7", "f8", "f30"}, set()])
def test_a_failing_run_shrinks_to_the_faults_it_needs(needed: set[str]) -> None:
    run = ScriptedRuns(needed, tuple(f"f{number}" for number in range(40)))
    smallest = shrink(run(Kind.CLUSTER, 7), run=run, most_runs=200)
    assert set(smallest.faults) == needed


def test_shrinking_ends_after_the_runs_it_may_take() -> None:
    run = ScriptedRuns({"f3"}, tuple(f"f{number}" for number in range(4000)))
    failed = run(Kind.CLUSTER, 7)
    smallest = shrink(replace(failed), run=run, most_runs=5)
    assert run.runs == 6
    assert smallest.violations
