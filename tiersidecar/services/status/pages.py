"""The pages over HTTP: the cluster is asked, and a thread makes a page of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import web

from tiersidecar.ports.clock import Blocking
from tiersidecar.services.status.answers import Answer
from tiersidecar.services.status.asker import ClusterAsker
from tiersidecar.services.status.cluster import Cluster, PartitionLine
from tiersidecar.services.status.page.cluster_page import cluster_page
from tiersidecar.services.status.page.frame import POLICY, missing_page
from tiersidecar.services.status.page.partition_page import partition_page
from tiersidecar.services.status.page.topic_page import topic_page
from tiersidecar.services.status.shares import Share

_DIGITS = 19
_UNREADABLE = Answer(problem="what it answered is nothing that this version reads")


class Pages:
    """Handlers; ``asker`` limits the requests that a crowd can cause."""

    def __init__(self, asker: ClusterAsker, *, blocking: Blocking, version: str) -> None:
        self._asker, self._blocking, self._version = asker, blocking, version
        self._drawing = Share(at_once=1, waiting=64, rest=3.0)  # a thread also takes time of the whole process

    async def cluster(self, request: web.Request) -> web.Response:
        cluster = await self._asker.cluster()
        page = _number(request, "page") or 1
        return await self._drawn(partial(cluster_page, cluster, version=self._version, page=page))

    async def topic(self, request: web.Request) -> web.Response:
        cluster, name = await self._asker.cluster(), request.query.get("name", "")
        topic = cluster.topic(name)
        if topic is None:
            return _missing(cluster, f"topic {name}")
        page = _number(request, "page") or 1
        return await self._drawn(partial(topic_page, cluster, topic, page=page))

    async def partition(self, request: web.Request) -> web.Response:
        cluster, name, number = (
            await self._asker.cluster(),
            request.query.get("topic", ""),
            _number(request, "partition"),
        )
        topic = cluster.topic(name)
        line = None if topic is None else next((one for one in topic.partitions if one.partition == number), None)
        if line is None:
            return _missing(cluster, f"partition {name}/{number}")
        offset = _number(request, "offset")
        segments, explained = await asyncio.gather(
            self._asker.segments(cluster, name, line.partition),
            self._asker.explanation(cluster, name, line.partition, offset),
        )
        page = _number(request, "page") or 1
        return await self._drawn(partial(_partition, cluster, line, segments, explained, offset, page))

    async def _drawn(self, make: Callable[[], str]) -> web.Response:
        async with self._drawing.place():
            return _page(await self._blocking.run(make))


def _partition(
    cluster: Cluster, line: PartitionLine, segments: Answer, explained: Answer, offset: int | None, page: int
) -> str:
    """Make the page; another sidecar's answer may not have the expected form."""
    make = partial(partition_page, cluster, line, offset=offset, page=page)
    try:
        return make(segments=segments, explained=explained)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return make(segments=_UNREADABLE, explained=_UNREADABLE)


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def _page(text: str, code: int = 200) -> web.Response:
    return web.Response(text=text, status=code, content_type="text/html", headers={"Content-Security-Policy": POLICY})


def _missing(cluster: Cluster, what: str) -> web.Response:
    return _page(missing_page(cluster, what), code=404)
