"""Uploads of the same files by bare clients: what ours is held against."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import aioboto3
import obstore
from boto3.s3.transfer import TransferConfig
from obstore.store import S3Store as ObstoreS3Store

from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tiersidecar.adapters.stores.s3_settings import S3Settings


async def make_bucket(settings: S3Settings) -> None:
    async with aioboto3.Session().client("s3", **settings.client_arguments()) as client:
        await client.create_bucket(Bucket=settings.bucket)


async def upload_by_aioboto3(settings: S3Settings, lanes: Iterable[Iterable[Path]]) -> None:
    """``upload_fileobj``, with the settings of ours: no payload signing, as many parts at once."""
    transfer = TransferConfig(
        multipart_threshold=settings.part_size_bytes,
        multipart_chunksize=settings.part_size_bytes,
        max_concurrency=settings.parts_in_flight,
    )
    async with aioboto3.Session().client("s3", **settings.client_arguments()) as client:

        async def lane(paths: Iterable[Path]) -> None:
            for path in paths:
                with path.open("rb") as file:
                    await client.upload_fileobj(
                        file, settings.bucket, f"aioboto3/{path.parent.name}/{path.name}", Config=transfer
                    )

        await asyncio.gather(*map(lane, lanes))


def obstore_client(settings: S3Settings, server: S3Server) -> ObstoreS3Store:
    """obstore's own client of the bucket."""
    return ObstoreS3Store(
        settings.bucket,
        endpoint=server.url,
        region=settings.region,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


async def upload_by_obstore(settings: S3Settings, server: S3Server, lanes: Iterable[Iterable[Path]]) -> None:
    """``put_async`` of the open file."""
    store = obstore_client(settings, server)

    async def lane(paths: Iterable[Path]) -> None:
        for path in paths:
            with path.open("rb") as file:
                await obstore.put_async(
                    store,
                    f"obstore/{path.parent.name}/{path.name}",
                    file,
                    use_multipart=True,
                    chunk_size=settings.part_size_bytes,
                    max_concurrency=settings.parts_in_flight,
                )

    await asyncio.gather(*map(lane, lanes))
