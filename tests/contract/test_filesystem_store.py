"""The filesystem store keeps the contract, and leaves no temporary file behind whatever happens (S-071, S-193, S-194)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.filesystem import open_filesystem_store
from tiersidecar.ports.store import Store
from tiersidecar.testing.store_contract import StoreContract


class TestFilesystemStore(StoreContract):
    keeps_checksums = False

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        root = tmp_path / "store"
        root.mkdir()
        async with (
            ThreadBlocking(max_threads=4) as blocking,
            open_filesystem_store(root=str(root), blocking=blocking, clock=SystemClock(), ids=SystemIds()) as store,
        ):
            yield store
            assert list(root.glob(".tiersidecar-tmp/*")) == [], "a put left its temporary file"
