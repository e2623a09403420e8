"""Multipart uploads that nobody will finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from tiersidecar.adapters.stores.s3_errors import code_of, s3_errors
from tiersidecar.adapters.stores.s3_settings import S3Settings
from tiersidecar.domain.errors import StoreError
from tiersidecar.formats.aiven.keys import parse_object_key

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


async def abort_stale_uploads(client: S3Client, settings: S3Settings, *, older_than_ms: int) -> int:
    """Abort those that began before ``older_than_ms``, of keys of our layout under ``key_prefix`` only: the bucket may be
    shared.  Returns how many.

    Raises:
        StoreError: the uploads cannot be listed or aborted.
    """
    aborted = 0
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=settings.bucket, Prefix=settings.key_prefix)
    with s3_errors("list uploads under", settings.key_prefix):
        async for page in pages:
            for upload in page.get("Uploads", ()):
                is_stale = upload["Initiated"].timestamp() * 1000 < older_than_ms
                if is_stale and parse_object_key(upload["Key"], settings.key_prefix) is not None:
                    aborted += await _abort(client, settings.bucket, upload["Key"], upload["UploadId"])
    return aborted


async def _abort(client: S3Client, bucket: str, key: str, upload_id: str) -> int:
    try:
        with s3_errors("abort the upload of", key):
            await client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
    except StoreError as error:
        if isinstance(error.__cause__, ClientError) and code_of(error.__cause__) == "NoSuchUpload":
            return 0  # another sidecar was faster
        raise
    return 1
