"""What the process keeps for good is left alone by the garbage collector (issue 20: an idle daemon)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence

import pytest

from tests.support.manual_clock import ManualClock, settle
from tiersidecar.app.supervise import spare_what_is_known


class Status:
    """Not ready while ``reasons`` are given."""

    def __init__(self) -> None:
        self.reasons: list[str] = ["the metadata are being read"]

    def ready_reasons(self) -> Sequence[str]:
        return self.reasons


@pytest.fixture
def _unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.freeze()  # as conftest.py has it


@pytest.mark.usefixtures("_unfrozen")
async def test_what_the_topics_told_and_what_the_first_rounds_noted_is_spared() -> None:
    status, clock = Status(), ManualClock()
    sparing = asyncio.create_task(spare_what_is_known(status, clock))
    await clock.advance(5)
    assert gc.get_freeze_count() == 0, "what is being read may be much, and dies while it is read"
    status.reasons = []
    await clock.advance(1)
    frozen = gc.get_freeze_count()
    assert frozen > 0
    noted = [[number] for number in range(1000)]
    await clock.advance(60)
    assert gc.get_freeze_count() >= frozen + len(noted)
    await settle()
    assert sparing.done()
