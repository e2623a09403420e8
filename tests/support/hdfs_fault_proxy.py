"""A proxy in front of HDFS that fails requests that a test picks: what a name node sends on to a data node comes back to it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tests.support.s3_fault_proxy import S3FaultProxy, forward_request

_DATA_NODE = "tests.data.node"


@dataclass(slots=True)
class HdfsFaultProxy(S3FaultProxy):
    """The address of the data node goes into the query of what the client is sent on to; data nodes pass over it."""

    def name_of(self, request: web.BaseRequest) -> str:
        """Return the name: an object is written when it gets its name."""
        return request.query.get("destination", request.path)

    async def forward(
        self, request: web.BaseRequest, body: bytes, upstream: str, session: aiohttp.ClientSession
    ) -> web.Response:
        data_node = request.query.get(_DATA_NODE)
        answer = await forward_request(request, body, upstream if data_node is None else f"http://{data_node}", session)
        place = urlsplit(answer.headers.get("Location", ""))
        if place.scheme == "http":
            # By the host that the client has asked, which may be another proxy before this one.
            query = f"{place.query}&{_DATA_NODE}={place.netloc}"
            answer.headers["Location"] = place._replace(netloc=request.host, query=query).geturl()
        return answer
