"""Faults planted in the daemon's code: the simulation catches each, and not without it (issue text, Must show)."""

from __future__ import annotations

import os

import pytest

from tests.simulation.scenario import Kind
from tests.simulation.simulate import simulate
from tests.support.mutations import MUTATIONS, Mutation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a planted fault may keep the cluster busy for long
MOST_TURNS = 400_000
"""Several times what any of these seeds takes without a fault.  A fault by which a run never ends is caught so much sooner."""
PLANTED = [one for one in MUTATIONS if one.in_every_run or "TIERSIDECAR_ALL_PLANTED" in os.environ]
"""``make planted`` takes all of the table."""


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda mutation: mutation.name)
def test_a_planted_fault_is_caught(mutation: Mutation) -> None:
    with mutation.planted():
        assert simulate(mutation.kind, mutation.seed, most_turns=MOST_TURNS).violations


@pytest.mark.parametrize(("kind", "seed"), sorted({(mutation.kind, mutation.seed) for mutation in PLANTED}))
def test_without_it_the_same_seed_passes(kind: Kind, seed: int) -> None:
    assert simulate(kind, seed, most_turns=MOST_TURNS).violations == ()


def test_there_are_enough_of_them() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) >= 15
