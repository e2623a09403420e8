"""What a command rewrites with is closed with it, however it ends (issue 23, S-276)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clean_world import KilledError
from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.app.rewriting_parts import open_swap_store
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.reading.remote_objects import ManifestCache


async def test_no_manifest_is_in_flight_any_more_though_the_body_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, aclose = list[ManifestCache](), ManifestCache.aclose

    async def note(self: ManifestCache) -> None:
        closed.append(self)
        await aclose(self)

    monkeypatch.setattr(ManifestCache, "aclose", note)
    config = load(tmp_path, LEAST.replace("/srv/tier", str(tmp_path)))
    with pytest.raises(KilledError):
        async with open_swap_store(config, (3, 9), SystemClock(), SystemIds(), NO_FAILPOINTS, name="test"):
            raise KilledError
    assert len(closed) == 1
