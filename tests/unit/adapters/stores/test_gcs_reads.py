"""What reads, listings and deletes in Google Cloud Storage take for the service's answer.

The service is a few lines of HTTP: no server gives these answers when it is asked to.
"""

from __future__ import annotations

import pytest
from aiohttp import web
from multidict import CIMultiDict

from tests.support.scripted_gcs import scripted_gcs_store
from tiersidecar.adapters.stores.gcs_objects import encode_crc32c
from tiersidecar.domain.errors import ObjectNotFoundError, StoreError
from tiersidecar.domain.offsets import ByteRange


async def test_a_proxys_page_says_of_no_object_that_it_is_gone() -> None:
    async with scripted_gcs_store(lambda _: web.Response(status=404, text="<html>nginx</html>")) as (store, _):
        for asking in (store.fetch_object("k", max_bytes=2**30), store.head_object("k"), store.delete_objects(["k"])):
            with pytest.raises(StoreError, match="not the service") as raised:
                await asking
            assert not isinstance(raised.value, ObjectNotFoundError)


@pytest.mark.parametrize("said", ['{"status": "please log in"}', "{}", '{"kind": "storage#buckets", "items": []}'])
async def test_what_is_no_listing_is_no_empty_bucket(said: str) -> None:
    async with scripted_gcs_store(lambda _: web.Response(text=said)) as (store, _):
        with pytest.raises(StoreError, match="not the service's"):
            _ = [stored async for stored in store.list_objects()]


@pytest.mark.parametrize(
    ("start", "headers", "is_believed"),
    [
        pytest.param(0, {}, True, id="the whole object, instead of as many bytes from its beginning"),
        pytest.param(10, {}, False, id="the whole object, as long as the range in its middle"),
        pytest.param(10, {"Content-Range": "bytes 10-19/99"}, True, id="the range"),
        pytest.param(10, {"Content-Range": "bytes 20-29/99"}, False, id="another range"),
    ],
)
async def test_a_range_is_the_one_that_was_asked_for(start: int, headers: dict[str, str], is_believed: bool) -> None:
    status = 206 if headers else 200
    async with scripted_gcs_store(lambda _: web.Response(status=status, body=bytes(10), headers=headers)) as (store, _):
        if is_believed:
            assert len(await store.fetch_range("k", ByteRange(start, start + 10))) == 10
        else:
            with pytest.raises(StoreError, match="another range"):
                await store.fetch_range("k", ByteRange(start, start + 10))


@pytest.mark.parametrize("told", ["A", "AAAAA"])
async def test_a_checksum_that_is_no_base64_is_an_error_of_the_store(told: str) -> None:
    """As a proxy may leave it: a ValueError would halt the partition as a fault of ours, and not be tried again."""
    headers = {"x-goog-hash": f"crc32c={told}"}
    async with scripted_gcs_store(lambda _: web.Response(body=b"whole", headers=headers)) as (store, _):
        with pytest.raises(StoreError, match="x-goog-hash"):
            await store.fetch_object("k", max_bytes=2**30)


async def test_the_checksum_is_found_in_the_second_of_two_headers() -> None:
    headers = CIMultiDict([("x-goog-hash", "md5=AAAA"), ("x-goog-hash", f"crc32c={encode_crc32c(1)}")])
    async with scripted_gcs_store(lambda _: web.Response(body=b"spoilt", headers=headers)) as (store, _):
        with pytest.raises(StoreError, match="another CRC32C"):
            await store.fetch_object("k", max_bytes=2**30)
