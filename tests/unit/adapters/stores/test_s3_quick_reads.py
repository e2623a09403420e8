"""Ranged GETs through object_store: where they go, and when they are given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from obstore.store import S3Store as RustS3Store
from structlog.testing import capture_logs

from tests.support.loopback_ports import free_port
from tiersidecar.adapters.stores.s3_quick_reads import S3QuickReads, address_of
from tiersidecar.adapters.stores.s3_settings import S3Settings
from tiersidecar.domain.offsets import ByteRange

AMAZON = "https://s3.eu-central-1.amazonaws.com"
OTHER = "https://objects.example.com"


@pytest.mark.parametrize(
    ("endpoint", "bucket", "addressing", "expected"),
    [
        pytest.param(AMAZON, "tier", "auto", ("https://tier.s3.eu-central-1.amazonaws.com", True), id="Amazon's way"),
        pytest.param(AMAZON, "my.tier", "auto", (AMAZON, False), id="a dot in the bucket's name"),
        pytest.param(AMAZON, "tier", "path", (AMAZON, False), id="Amazon by path"),
        pytest.param(OTHER, "tier", "auto", (OTHER, False), id="another server, as botocore does"),
        pytest.param(OTHER, "tier", "virtual", ("https://tier.objects.example.com", True), id="another by host name"),
        pytest.param(AMAZON, "arn:aws:s3:eu-central-1:1:accesspoint/x", "auto", None, id="an access point"),
    ],
)
def test_where_a_bucket_is_found(
    endpoint: str, bucket: str, addressing: Literal["auto", "path", "virtual"], expected: tuple[str, bool] | None
) -> None:
    settings = replace(S3Settings(bucket="b", region="eu-central-1"), bucket=bucket, addressing=addressing)
    assert address_of(endpoint, settings) == expected


async def test_after_three_failures_that_the_other_way_did_not_share_it_is_not_tried_any_more() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    nowhere = RustS3Store(
        "bucket", endpoint=endpoint, region="us-east-1", access_key_id="a", secret_access_key="b",
        client_options={"allow_http": True}, retry_config={"max_retries": 0},
    )  # fmt: skip
    reads = S3QuickReads(nowhere, description="s3://bucket")
    with capture_logs() as logs:
        for key in ("a/b", "a//b", "a/b", "a/b", "a/b"):  # the second cannot be a key there
            assert await reads.fetch_range(key, ByteRange(0, 10)) is None
            reads.other_way_did()
    assert [log["event"] for log in logs] == ["store.quick_read.failed"] * 2 + [
        "store.quick_read.failed",
        "store.quick_reads.off",
    ]
