"""The store in memory keeps the contract, with and without checksums, alone and behind the meter."""

from __future__ import annotations

import pytest

from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.adapters.stores.metered import MeteredStore
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import NoTelemetry
from tiersidecar.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(clock=SystemClock(), ids=SystemIds())


class TestMemoryStoreWithoutChecksums(StoreContract):
    keeps_checksums = False

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(clock=SystemClock(), ids=SystemIds(), checksums=False)


class TestMeteredStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MeteredStore(MemoryStore(clock=SystemClock(), ids=SystemIds()), NoTelemetry())
