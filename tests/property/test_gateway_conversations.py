"""Hostile clients through the gateway's core, against a model broker (issue 17; rules 7 and 13).

Each answer goes to the request that it answers; no byte of a topic that the broker refused, and no delete that it refused; and
with an honest broker nothing else is lost.  ``make fuzz`` runs 200,000 of these conversations.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import structlog

from tests.support.gateway_conversations import converse
from tests.support.gateway_faults import FAULTS, Patches, planted

CONVERSATIONS = int(os.environ.get("TIERSIDECAR_FUZZ_CONVERSATIONS", "2000"))
FIRST_SEED = int(os.environ.get("TIERSIDECAR_FUZZ_SEED", "0"))
_ENOUGH = 2000
"""Each planted fault is caught within so many: most within a hundred."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


@pytest.mark.timeout(7200)
async def test_nothing_is_wrong_with_any_conversation() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + CONVERSATIONS):
        assert await converse(seed) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_without_one_of_its_defences_something_is(fault: Callable[[], Patches]) -> None:
    with planted(fault):
        for seed in range(_ENOUGH):
            if await converse(seed):
                return
    pytest.fail(f"{_ENOUGH} conversations have not shown it")
