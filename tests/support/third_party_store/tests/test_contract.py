"""The store keeps the contract: tiersidecar's own suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlite_store.store import kind

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.ports.store import Store, StoreTools
from tiersidecar.testing.store_contract import StoreContract


class TestContract(StoreContract):
    keeps_checksums = False

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        async with ThreadBlocking(max_threads=2) as blocking:
            tools = StoreTools(key_prefix="", blocking=blocking, clock=SystemClock(), ids=SystemIds())
            async with kind.open_store({"path": str(tmp_path / "objects.db")}, tools) as store:
                yield store
