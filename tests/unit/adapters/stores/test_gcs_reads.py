"""What reads, listings and deletes in Google Cloud Storage take for the service's answer.

The service is a few lines of HTTP: no server gives these answers when it is asked to.
"""

from __future__ import annotations

import pytest
from aiohttp import web

from tests.support.scripted_gcs import scripted_gcs_store
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError


async def test_a_proxys_page_says_of_no_object_that_it_is_gone() -> None:
    async with scripted_gcs_store(lambda _: web.Response(status=404, text="<html>nginx</html>")) as (store, _):
        for asking in (store.fetch_object("k"), store.head_object("k"), store.delete_objects(["k"])):
            with pytest.raises(StoreError, match="not the service") as raised:
                await asking
            assert not isinstance(raised.value, ObjectNotFoundError)


@pytest.mark.parametrize("said", ['{"status": "please log in"}', "{}", '{"kind": "storage#buckets", "items": []}'])
async def test_what_is_no_listing_is_no_empty_bucket(said: str) -> None:
    async with scripted_gcs_store(lambda _: web.Response(text=said)) as (store, _):
        with pytest.raises(StoreError, match="not the service's"):
            _ = [stored async for stored in store.list_objects()]
