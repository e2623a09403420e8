"""How a bucket is addressed, and what new objects are made with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import aioboto3
import pytest

from tiersidecar.adapters.stores.s3_settings import S3Settings

AMAZON = S3Settings(
    bucket="kafka-tier", region="eu-central-1", access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key="wJalrXUtnFEMI"
)
OTHER = replace(AMAZON, endpoint_url="https://objects.example.com")


@pytest.fixture(scope="module")
def session() -> aioboto3.Session:
    """Made once: each parses megabytes of service models anew."""
    return aioboto3.Session()


@pytest.mark.parametrize(
    ("settings", "addressing", "expected"),
    [
        (AMAZON, "auto", "https://kafka-tier.s3.amazonaws.com/t/0/a.log?"),
        (AMAZON, "virtual", "https://kafka-tier.s3.eu-central-1.amazonaws.com/t/0/a.log?"),
        (AMAZON, "path", "https://s3.eu-central-1.amazonaws.com/kafka-tier/t/0/a.log?"),
        (OTHER, "auto", "https://objects.example.com/kafka-tier/t/0/a.log?"),
        (OTHER, "virtual", "https://kafka-tier.objects.example.com/t/0/a.log?"),
        (OTHER, "path", "https://objects.example.com/kafka-tier/t/0/a.log?"),
    ],
    ids=[
        "Amazon, as botocore likes it",
        "Amazon, by host",
        "Amazon, by path",
        "another server, as botocore likes it",
        "another server, by host",
        "another server, by path",
    ],
)
async def test_a_bucket_is_addressed_by_host_or_path(
    session: aioboto3.Session, settings: S3Settings, addressing: Literal["auto", "path", "virtual"], expected: str
) -> None:
    settings = replace(settings, addressing=addressing)
    async with session.client("s3", **settings.client_arguments()) as client:
        arguments = {"Bucket": settings.bucket, "Key": "t/0/a.log"}
        assert (await client.generate_presigned_url("get_object", arguments)).startswith(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"storage_class": "STANDARD_IA"}, {"StorageClass": "STANDARD_IA"}),
        ({"server_side_encryption": "AES256"}, {"ServerSideEncryption": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "kms_key_id": "alias/kafka-tier"},
            {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/kafka-tier"},
        ),
    ],
    ids=["nothing beyond the bucket's defaults", "storage class", "SSE-S3", "SSE-KMS"],
)
def test_new_objects_are_made_as_configured(change: dict[str, Any], expected: dict[str, str]) -> None:
    assert replace(AMAZON, **change).new_object_arguments() == expected


def test_the_secret_is_not_in_its_text() -> None:
    assert "wJalrXUtnFEMI" not in repr(AMAZON)
