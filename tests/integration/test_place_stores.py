"""The stores of two places on two S3 servers, of which one stands still: the other answers as before (S-193, S-293)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.support.s3_server import s3_client
from tests.support.two_buckets import COLD, COLD_PREFIX, TwoBuckets, running_two_buckets, standing_still
from tiersidecar.adapters.clock import SystemClock, SystemIds
from tiersidecar.adapters.stores.paced import UploadPace
from tiersidecar.adapters.stores.placed import stores_by_place
from tiersidecar.app.builders.store import OpenedStore, open_store
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import StoreError
from tiersidecar.ports.store import BytesBody
from tiersidecar.ports.telemetry import NoTelemetry

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ANSWERS_WITHIN_S = 1.0


def config_of(buckets: TwoBuckets) -> Config:
    settings = {
        "log.dirs": ["/var/lib/kafka"],
        "broker": {"bootstrap.servers": "127.0.0.1:9"},
        **{key: value for key, value in buckets.shared("unused").items() if key in ("store", "places")},
    }
    return Config.model_validate(settings, by_alias=True, by_name=False)


async def test_one_server_that_stands_still_holds_up_no_request_to_the_other(tmp_path: Path) -> None:
    with running_two_buckets(tmp_path) as buckets:
        await _try(buckets)


async def _try(buckets: TwoBuckets) -> None:
    clock = SystemClock()
    opening = open_store(
        config_of(buckets), pace=UploadPace(None, clock), clock=clock, ids=SystemIds(), telemetry=NoTelemetry()
    )
    async with opening as store:
        for probed in stores_by_place(store).values():
            await probed.check_writable()
        await store.put_object("t/0/1.log", BytesBody(b"hot"))
        await store.put_object("@cold/t/0/1.log", BytesBody(b"cold"))
        assert [one.key async for one in store.list_objects("")] == ["t/0/1.log"]
        assert [one.key async for one in store.list_objects("@cold/")] == ["@cold/t/0/1.log"]
        head = s3_client(buckets.cold.url).head_object(Bucket=COLD, Key=f"{COLD_PREFIX}t/0/1.log")
        assert head["ContentLength"] == len(b"cold")

        with standing_still(buckets.cold):
            for _ in range(5):
                assert "place cold (s3://" in await refusal(store, "@cold/t/0/1.log")
            began_s = time.monotonic()
            for _ in range(20):
                await refusal(store, "@cold/t/0/1.log")
                assert await store.fetch_object("t/0/1.log", max_bytes=9) == b"hot"
            assert time.monotonic() - began_s < 20 * ANSWERS_WITHIN_S, "it is not waited for each time"
            with pytest.raises(StoreError, match="place cold"):
                await store.delete_objects(["t/0/1.log", "@cold/t/0/1.log"])
            assert [one.key async for one in store.list_objects("")] == []

        for _ in range(100):
            if not await refusal(store, "@cold/t/0/1.log"):
                break
            await asyncio.sleep(0.2)
        assert await store.fetch_object("@cold/t/0/1.log", max_bytes=9) == b"cold"


async def refusal(store: OpenedStore, key: str) -> str:
    """Why it cannot be fetched; empty where it can."""
    try:
        await store.fetch_object(key, max_bytes=9)
    except StoreError as error:
        return str(error)
    return ""
