"""A proxy in front of Azurite that fails requests that a test picks, with the answers of Azure Blob Storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tests.support.s3_fault_proxy import Fault, S3FaultProxy, error_body, forward_request, running_fault_proxy


@dataclass(slots=True)
class AzureFaultProxy(S3FaultProxy):
    """``blocks`` counts those that came as far as the server."""

    blocks: int = 0

    def name_of(self, request: web.BaseRequest) -> str:
        """As ``/container/key``: the path of an emulator begins with the account."""
        return "/" + request.path[1:].partition("/")[2]

    def refusal(self, fault: Fault) -> web.Response:
        """The code is in a header too, as HEAD has no body.  A lie has what object_store asks of a put's answer: an ETag."""
        if fault.status < 400:
            return web.Response(status=fault.status, headers={"ETag": '"0x8D0000000000000"'})
        headers = {"x-ms-error-code": fault.code}
        return web.Response(
            status=fault.status, headers=headers, text=error_body(fault), content_type="application/xml"
        )

    async def forward(
        self, request: web.BaseRequest, body: bytes, upstream: str, session: aiohttp.ClientSession
    ) -> web.Response:
        self.blocks += request.query.get("comp") == "block"
        return await forward_request(request, body, upstream, session)


@asynccontextmanager
async def running_azure_fault_proxy(service_url: str) -> AsyncIterator[AzureFaultProxy]:
    """In this process's event loop, on a free port of loopback; the account stays in the path of ``service_url``."""
    async with running_fault_proxy(AzureFaultProxy(url=""), server_of(service_url)) as proxy:
        yield proxy


def server_of(service_url: str) -> str:
    """``service_url`` without the account."""
    return urlsplit(service_url)._replace(path="").geturl()
