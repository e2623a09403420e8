"""When the gateway's process says that it is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app import gateway_role
from tiersidecar.ports.log_dirs import LogDirsView


async def test_it_is_not_ready_before_it_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It looks at its disks first, and a load balancer that goes by /readyz sent clients to a port that was not open."""
    looked, keeps_looking = asyncio.Event(), asyncio.Event()

    async def scan() -> LogDirsView:
        await looked.wait()
        return LogDirsView(partitions={}, faults={})

    async def open_audit(*_: object) -> None:
        return None

    async def keep_looking(*_: object) -> None:
        keeps_looking.set()

    tier = SimpleNamespace(mounts=None, second_steps=SimpleNamespace(end=None))
    monkeypatch.setattr(gateway_role, "_open_audit", open_audit)
    monkeypatch.setattr(gateway_role, "open_remote_tier", lambda *_: tier)
    monkeypatch.setattr(gateway_role, "_keep_looking", keep_looking)
    status = SimpleNamespace(reasons=[], before_stop=SimpleNamespace(take=lambda _: None))
    parts: Any = SimpleNamespace(
        config=load(tmp_path, LEAST),
        status=status,
        shares=None,
        log_dirs=SimpleNamespace(scan=scan),
        table=SimpleNamespace(local=LogDirsView(partitions={}, faults={})),
    )
    running = asyncio.create_task(gateway_role.run_gateway(parts))
    await asyncio.sleep(0)
    assert [reason() for reason in status.reasons] == ["the gateway does not listen yet"]
    looked.set()
    await running
    assert keeps_looking.is_set()
    assert [reason() for reason in status.reasons] == [""]
