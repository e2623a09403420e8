"""The simulated store keeps the contract while nothing fails, so that what fails in a simulation is a fault that was drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.simulation.chances import Chances
from tests.simulation.faulty_store import Bucket, NetworkStore
from tests.simulation.network import NO_FAULTS, Network
from tests.simulation.virtual_time import VirtualTimeLoop
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.ports.store import Store
from tiersidecar.testing.store_contract import StoreContract


class NoTime:
    """Of a loop as the network asks it: all arrives in the next turn."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def outside(self, after_s: float, what: Callable[..., None], *args: object) -> None:
        asyncio.get_running_loop().call_soon(what, *args)


def simulated_store() -> Store:
    bucket = Bucket(MemoryStore(clock=SystemClock(), ids=SystemIds()))
    chances = Chances(0)
    network = Network(cast(VirtualTimeLoop, NoTime()), chances)
    return NetworkStore(bucket, network, chances, NO_FAULTS, SystemIds())


class TestSimulatedStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return simulated_store()
