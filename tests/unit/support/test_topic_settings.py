"""The fakes return the settings with the names that are asked for, as a broker does: a name that the product leaves out is then
missing in a test too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulation.broker_port import SimulatedBroker
from tests.simulation.chances import Chances
from tests.simulation.network import FaultRates
from tests.simulation.scenario import Kind, scenario_of
from tests.simulation.virtual_time import VirtualTimeLoop
from tests.simulation.world import World
from tests.support.scripted import STRICT_SETTINGS, ScriptedBroker

ASKED = pytest.mark.parametrize(
    ("names", "left_out"),
    [
        pytest.param(None, set(), id="all of them unless names are given"),
        pytest.param(["retention.ms"], {"retention.bytes", "cleanup.policy"}, id="those with the names"),
        pytest.param(["no.such.setting"], {"retention.ms"}, id="an unknown name has no setting"),
    ],
)


@ASKED
async def test_the_scripted_broker_returns_the_settings_that_are_asked_for(
    names: Sequence[str] | None, left_out: set[str]
) -> None:
    found = (await ScriptedBroker().describe_topic_configs(["orders"], names=names))["orders"]
    assert set(found) == set(STRICT_SETTINGS) & set(STRICT_SETTINGS if names is None else names)
    assert not left_out & set(found)


@ASKED
def test_the_simulated_broker_returns_the_settings_that_are_asked_for(
    tmp_path: Path, names: Sequence[str] | None, left_out: set[str]
) -> None:
    chances, loop = Chances(0), VirtualTimeLoop()
    try:
        world = World(scenario_of(Kind.FAULTS, 0, chances), chances, tmp_path, loop)
        broker = SimulatedBroker(
            world.cluster,
            world.topics,
            world.network,
            broker_id=1,
            side=world.sides[1],
            rates=FaultRates(),
            configs=world.topic_configs,
            new_topic=world.new_topic,
        )
        found = loop.run_until_complete(broker.describe_topic_configs(["orders"], names=names))["orders"]
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    assert set(found) == set(world.topic_configs) & set(world.topic_configs if names is None else names)
    assert not left_out & set(found)
