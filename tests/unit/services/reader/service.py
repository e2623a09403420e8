"""The read service over a golden run, and a client for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from tests.support.described import Description
from tests.support.inline_blocking import InlineBlocking
from tests.support.remote_runs import RemoteRun, load_run, open_run
from tests.support.scripted_authorizer import ScriptedAuthorizer
from tiersidecar.decide.reader_quotas import ReaderQuotaRule
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.broker import ReadLocal
from tiersidecar.ports.pins import PendingCopies
from tiersidecar.ports.store import Store
from tiersidecar.ports.telemetry import Telemetry
from tiersidecar.reading.admission import FetchQuota
from tiersidecar.reading.read_path import ReadPath, ReadSettings
from tiersidecar.services.http_listener import HttpServer
from tiersidecar.services.reader.openapi import openapi_document
from tiersidecar.services.reader.routes import ROUTES
from tiersidecar.services.reader.server import ReaderServiceSettings, serve_reader

ALL_TOPICS = frozenset(
    {
        "plain",
        "plain1m",
        "compressed",
        "idempotent",
        "transactions",
        "epochs",
        "deleted-prefix",
        "logappend",
        "fine-index",
    }
)


DESCRIPTION = Description(openapi_document(ROUTES, version="0"))


class RunCatalogue:
    """``services.reader.catalogue.PartitionCatalogue`` of a run."""

    def __init__(self, run: RemoteRun) -> None:
        self._run = run

    def partitions(self) -> Collection[TopicIdPartition]:
        return self._run.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    run: RemoteRun
    path: ReadPath
    server: HttpServer
    client: aiohttp.ClientSession
    authorizer: ScriptedAuthorizer

    async def get(self, path: str | URL, **kwargs: Any) -> tuple[int, bytes, Mapping[str, str]]:
        """The answer, which is one that the service's description has."""
        async with self.client.get(path, **kwargs) as response:
            body = await response.read()
            DESCRIPTION.check(response.url.raw_path, response.status, response.headers, body)
            return response.status, body, response.headers

    async def json(self, path: str, **kwargs: Any) -> Any:
        status, body, _ = await self.get(path, **kwargs)
        assert status == 200, body
        return json.loads(body)


@asynccontextmanager
async def open_service(
    run_name: str = "plain",
    *,
    authorizer: ScriptedAuthorizer | None = None,
    store: Callable[[Store], Store] | None = None,
    quota: FetchQuota | None = None,
    budgets: Sequence[ReaderQuotaRule] = (),
    local: ReadLocal | None = None,
    pending: PendingCopies | None = None,
    read_settings: ReadSettings | None = None,
    settings: ReaderServiceSettings | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Service]:
    run = await load_run(run_name)
    authorizer = authorizer or ScriptedAuthorizer(anonymous=ALL_TOPICS)
    wrapped = store(run.store) if store else None
    async with (
        open_run(run, store=wrapped, quota=quota, budgets=budgets, settings=read_settings) as path,
        serve_reader(
            path=path,
            catalogue=RunCatalogue(run),
            authorize=authorizer,
            blocking=InlineBlocking(),
            local=local,
            pending=pending,
            telemetry=telemetry,
            settings=settings or ReaderServiceSettings(port=0),
        ) as server,
        aiohttp.ClientSession(server.url) as client,
    ):
        yield Service(run=run, path=path, server=server, client=client, authorizer=authorizer)
