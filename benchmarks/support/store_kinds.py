"""Each kind of store on a server of its own, ours and the same client bare: what ours is held against."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import obstore
from obstore.store import AzureStore as ObstoreAzureStore
from yarl import URL

from benchmarks.support.bare_reads import FetchRange, by_obstore, by_pread
from benchmarks.support.measure import MIB
from benchmarks.support.our_copy import THREADS, filesystem_store, s3_store
from benchmarks.support.s3_clients import make_bucket, upload_by_aioboto3
from hdfs_store.kind import kind as hdfs_kind
from tests.support.azurite_server import ACCOUNT, ACCOUNT_KEY, running_azurite
from tests.support.gcs_server import running_gcs_server
from tests.support.hdfs_cluster import USER, hdfs_options, running_hdfs
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, running_s3_server
from tiersidecar.adapters.clock import SystemClock, SystemIds, ThreadBlocking
from tiersidecar.adapters.stores.azure import open_azure_store
from tiersidecar.adapters.stores.azure_settings import AzureSettings
from tiersidecar.adapters.stores.gcs import open_gcs_store
from tiersidecar.adapters.stores.gcs_objects import GcsUrls
from tiersidecar.adapters.stores.gcs_settings import GcsSettings
from tiersidecar.adapters.stores.s3_settings import S3Settings
from tiersidecar.ports.store import Store, StoreTools

BUCKET = "bench"
_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``open_store`` is ours.  ``upload`` and ``fetch`` are the bare client's; the file's name is its key."""

    name: str
    open_store: Callable[[], AbstractAsyncContextManager[Store]]
    upload: Callable[[list[Path]], Awaitable[None]]
    fetch: FetchRange


@asynccontextmanager
async def filesystem(directory: Path) -> AsyncIterator[Kind]:
    """A directory; bare is a copy in a thread, a slice at a time, made durable and given its name."""
    root = directory / "objects"
    root.mkdir(parents=True)

    async def upload(paths: list[Path]) -> None:
        await asyncio.gather(*(asyncio.to_thread(_copy_file, path, root / path.name) for path in paths))

    yield Kind(name="filesystem", open_store=partial(filesystem_store, root), upload=upload, fetch=by_pread(root))


@asynccontextmanager
async def s3(directory: Path) -> AsyncIterator[Kind]:
    """versitygw; bare are aioboto3 to upload and obstore to read, which are ours underneath."""
    with running_s3_server(directory) as server:
        settings = S3Settings(
            bucket=BUCKET,
            region="us-east-1",
            endpoint_url=server.url,
            addressing="path",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
        )
        await make_bucket(settings)
        moved = partial(_upload_by_aioboto3, settings, server.directory / BUCKET)
        yield Kind(name="s3", open_store=partial(s3_store, settings), upload=moved, fetch=by_obstore(settings, server))


@asynccontextmanager
async def azure(directory: Path) -> AsyncIterator[Kind]:
    """Azurite; bare is obstore."""
    with running_azurite(directory) as server:
        server.create_container(BUCKET)
        settings = AzureSettings(
            account_name=ACCOUNT, account_key=ACCOUNT_KEY, container=BUCKET, endpoint_url=server.url
        )
        client = ObstoreAzureStore(BUCKET, config=settings.store_config(), client_options=settings.client_options())

        async def upload_one(path: Path) -> None:
            with path.open("rb") as file:
                await obstore.put_async(
                    client,
                    path.name,
                    file,
                    use_multipart=True,
                    chunk_size=settings.block_size_bytes,
                    max_concurrency=settings.blocks_in_flight,
                )

        async def upload(paths: list[Path]) -> None:
            await asyncio.gather(*map(upload_one, paths))

        async def fetch(key: str, start: int, size_bytes: int) -> int:
            return len(await obstore.get_range_async(client, key, start=start, length=size_bytes))

        @asynccontextmanager
        async def open_store() -> AsyncIterator[Store]:
            async with (
                ThreadBlocking(max_threads=THREADS, name="store") as blocking,
                open_azure_store(settings, blocking=blocking, ids=SystemIds()) as store,
            ):
                yield store

        yield Kind(name="azure", open_store=open_store, upload=upload, fetch=fetch)


@asynccontextmanager
async def gcs(directory: Path) -> AsyncIterator[Kind]:
    """fake-gcs-server; bare is aiohttp: a resumable upload in the same chunks, and ranged GETs."""
    with running_gcs_server(directory) as server:
        server.create_bucket(BUCKET)
        settings = GcsSettings(bucket=BUCKET, endpoint_url=server.url, login="anonymous")
        urls = GcsUrls(server.url, BUCKET)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS)) as session:

            async def upload(paths: list[Path]) -> None:
                await asyncio.gather(
                    *(_upload_resumable(session, urls, path, settings.chunk_size_bytes) for path in paths)
                )

            async def fetch(key: str, start: int, size_bytes: int) -> int:
                headers = {"Range": f"bytes={start}-{start + size_bytes - 1}"}
                async with session.get(urls.object(key, alt="media"), headers=headers) as answer:
                    return len(await answer.read())

            @asynccontextmanager
            async def open_store() -> AsyncIterator[Store]:
                async with (
                    ThreadBlocking(max_threads=THREADS, name="store") as blocking,
                    open_gcs_store(settings, blocking=blocking, ids=SystemIds()) as store,
                ):
                    yield store

            yield Kind(name="gcs", open_store=open_store, upload=upload, fetch=fetch)


@asynccontextmanager
async def hdfs(directory: Path) -> AsyncIterator[Kind]:
    """HDFS with one data node, by the example of a store; bare is aiohttp, with files that are as durable."""
    with running_hdfs(directory) as cluster:
        cluster.make_directory(f"/{BUCKET}")
        files = f"{cluster.url}/webhdfs/v1/{BUCKET}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS)) as session:

            async def upload(paths: list[Path]) -> None:
                await asyncio.gather(*(_upload_to_hdfs(session, f"{files}/{path.name}", path) for path in paths))

            async def fetch(key: str, start: int, size_bytes: int) -> int:
                asked: dict[str, str | int] = {"op": "OPEN", "user.name": USER, "offset": start, "length": size_bytes}
                async with session.get(f"{files}/{key}", params=asked) as answer:
                    return len(await answer.read())

            @asynccontextmanager
            async def open_store() -> AsyncIterator[Store]:
                async with ThreadBlocking(max_threads=THREADS, name="store") as blocking:
                    tools = StoreTools(key_prefix="", blocking=blocking, clock=SystemClock(), ids=SystemIds())
                    async with hdfs_kind.open_store(hdfs_options(cluster.url, f"/{BUCKET}"), tools) as store:
                        yield store

            yield Kind(name="hdfs", open_store=open_store, upload=upload, fetch=fetch)


KINDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Kind]]] = {
    "filesystem": filesystem,
    "s3": s3,
    "azure": azure,
    "gcs": gcs,
    "hdfs": hdfs,
}


def _copy_file(source: Path, target: Path) -> None:
    part = target.with_suffix(".part")
    with source.open("rb") as read, part.open("wb") as written:
        while data := read.read(MIB):
            written.write(data)
        written.flush()
        os.fsync(written.fileno())
    part.rename(target)


async def _upload_by_aioboto3(settings: S3Settings, bucket: Path, paths: list[Path]) -> None:
    """Its keys are the helper's own; reads want them by the file's name."""
    await upload_by_aioboto3(settings, [[path] for path in paths])
    for path in paths:
        (bucket / path.name).unlink(missing_ok=True)
        os.link(bucket / "aioboto3" / path.parent.name / path.name, bucket / path.name)


async def _upload_to_hdfs(session: aiohttp.ClientSession, url: str, path: Path) -> None:
    asked = {"op": "CREATE", "user.name": USER, "overwrite": "true", "createflag": "CREATE,OVERWRITE,SYNC_BLOCK"}
    async with session.put(url, params=asked, allow_redirects=False) as answer:
        address = URL(answer.headers["Location"], encoded=True)
    with path.open("rb") as file:

        async def slices() -> AsyncIterator[bytes]:
            while data := await asyncio.to_thread(file.read, MIB):
                yield data

        async with session.put(address, data=slices()) as answer:
            answer.raise_for_status()


async def _upload_resumable(session: aiohttp.ClientSession, urls: GcsUrls, path: Path, chunk_bytes: int) -> None:
    size_bytes = path.stat().st_size
    described: dict[str, Any] = {"name": path.name}
    async with session.post(urls.upload(uploadType="resumable", name=path.name), json=described) as answer:
        address = answer.headers["Location"]
    with path.open("rb") as file:
        for start in range(0, size_bytes, chunk_bytes):
            data = await asyncio.to_thread(file.read, chunk_bytes)
            headers = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{size_bytes}"}
            async with session.put(address, data=data, headers=headers, allow_redirects=False) as answer:
                await answer.read()
