"""The status service as Prometheus, Kubernetes and people call it, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import pytest

from tests.support.expiry import segments
from tests.support.inline_blocking import InlineBlocking
from tests.unit.decide.test_explain import Given
from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.decide.explain import Explanation, Stops, explain
from tiersidecar.decide.segment_rows import PartitionView, SegmentRow, segment_rows
from tiersidecar.domain.errors import ListenError, MetadataNotReadyError, NotLedHereError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metrics.copying import COPY_LAG_BYTES
from tiersidecar.services.http_listener import HttpServer
from tiersidecar.services.status.server import serve_status
from tiersidecar.services.status.source import PartitionStatus, SidecarStatus, StatusSummary

T = TypeVar("T")


def partition(topic: str, number: int, **values: Any) -> PartitionStatus:
    topic_id_partition = TopicIdPartition(topic_id=Uuid(bytes(15) + b"\x07"), topic=topic, partition=number)
    return PartitionStatus(topic_id_partition=topic_id_partition, role="leader", mode="strict", **values)


@dataclass
class Source:
    reasons: list[str] = field(default_factory=list)
    rows: list[PartitionStatus] = field(default_factory=list)
    view: PartitionView | None = None
    misplaced: dict[str, str] = field(default_factory=dict)
    disk_troubles: dict[str, str] = field(default_factory=dict)
    halted_mounts: Sequence[str] = ()

    def ready_reasons(self) -> Sequence[str]:
        return self.reasons

    def partitions(self, topic: str | None = None) -> Iterator[PartitionStatus]:
        return (row for row in self.rows if topic is None or row.topic_id_partition.topic == topic)

    def sidecars(self) -> Sequence[SidecarStatus]:
        if self.reasons:
            raise MetadataNotReadyError(subject="the state topic")
        return [SidecarStatus(node_id=3, address="b3:8091", host="b3", version="1.2.3", is_over=False)]

    async def segment_rows(self, topic: str, partition: int) -> Sequence[SegmentRow]:
        if topic != "orders":
            raise NotLedHereError(topic=topic, partition=partition, leader_id=2)
        return segment_rows(self.view) if self.view is not None else ()

    async def explanation(self, topic: str, partition: int, offset: int | None) -> Explanation:
        if self.view is None:
            raise MetadataNotReadyError(subject="the state topic")
        return explain(self.view, Stops(), offset)

    def summary(self) -> StatusSummary:
        return StatusSummary(
            version="1.2.3",
            core="Python core: not installed",
            roles=("tier", "read"),
            mode="enforce",
            deletes_enabled=True,
            store="filesystem /srv/tier",
            started_ms=0,
            cluster_id="abc",
            node_id=3,
            refused_topics={"native": "remote storage is enabled"},
            misplaced=self.misplaced,
            disk_troubles=self.disk_troubles,
            halted_mounts=self.halted_mounts,
        )


@dataclass
class Asked:
    server: HttpServer
    session: aiohttp.ClientSession
    telemetry: PrometheusTelemetry

    async def get(self, path: str) -> tuple[int, str, aiohttp.ClientResponse]:
        async with self.session.get(self.server.url + path) as response:
            return response.status, await response.text(), response

    async def document(self, path: str) -> Any:
        async with self.session.get(self.server.url + path) as response:
            return await response.json()


@asynccontextmanager
async def serving(
    source: Source, *, always_per_partition: bool = False, blocking: Blocking | None = None
) -> AsyncIterator[Asked]:
    telemetry = PrometheusTelemetry(version="1.2.3")
    async with (
        serve_status(
            host="127.0.0.1",
            port=0,
            source=source,
            metrics=telemetry,
            blocking=blocking or InlineBlocking(),
            always_per_partition=always_per_partition,
        ) as server,
        aiohttp.ClientSession() as session,
    ):
        yield Asked(server, session, telemetry)


async def test_alive_is_200_even_when_not_ready() -> None:
    async with serving(Source(reasons=["broker not reachable"])) as asked:
        assert (await asked.get("/healthz"))[:2] == (200, '{"alive": true}')


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        pytest.param([], "1.0", id="ready"),
        pytest.param(["broker not reachable"], "0.0", id="not ready, as /readyz says at that moment"),
    ],
)
async def test_metrics_say_whether_it_is_ready(reasons: list[str], told: str) -> None:
    async with serving(Source(reasons=reasons)) as asked:
        _, body, _ = await asked.get("/metrics")
        assert f"tiersidecar_ready {told}" in body.splitlines()


async def test_ready_is_200_without_reasons_and_503_with_each_of_them() -> None:
    source = Source()
    async with serving(source) as asked:
        assert (await asked.get("/readyz"))[:2] == (200, '{"ready": true, "reasons": [], "warnings": []}')
        source.reasons = ["broker at h:1 could not be reached: refused", "metadata is not ready"]
        status, _, _ = await asked.get("/readyz")
        assert status == 503
        assert (await asked.document("/readyz"))["reasons"] == source.reasons


async def test_warnings_stand_beside_the_answer() -> None:
    source = Source(misplaced={"a-1": "not here"}, disk_troubles={"/d1": "full in 2 h"})
    async with serving(source) as asked:
        assert (await asked.get("/readyz"))[0] == 200
        assert (await asked.document("/readyz"))["warnings"] == ["/d1: full in 2 h", "a-1: not here"]
        source.misplaced |= {"b-0": "neither", "a-0": "nor here"}
        assert (await asked.document("/readyz"))["warnings"][1:] == ["a-0 and 2 others: nor here"]
        assert (await asked.document("/status"))["misplaced"] == source.misplaced


async def test_mounted_partitions_that_are_not_served_are_a_warning() -> None:
    source = Source(halted_mounts=["a-1 is mounted read-only, and empty"])
    async with serving(source) as asked:
        assert (await asked.get("/readyz"))[0] == 200
        for path, name in (("/readyz", "warnings"), ("/status", "halted_mounts")):
            assert (await asked.document(path))[name] == source.halted_mounts


async def test_metrics_have_partitions_only_on_request() -> None:
    async with serving(Source()) as asked:
        asked.telemetry.gauge(COPY_LAG_BYTES, 7, topic="orders", partition="0")
        status, text, response = await asked.get("/metrics")
        assert status == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'kafka_remote_copy_lag_bytes{topic="orders"} 7.0' in text
        assert 'partition="0"' not in text
        assert 'partition="0",topic="orders"' in (await asked.get("/metrics?partitions=1"))[1]
        assert 'partition="0"' not in (await asked.get("/metrics?partitions=0"))[1]


async def test_metrics_may_always_have_partitions() -> None:
    async with serving(Source(), always_per_partition=True) as asked:
        asked.telemetry.gauge(COPY_LAG_BYTES, 7, topic="orders", partition="0")
        assert 'partition="0"' in (await asked.get("/metrics"))[1]


async def test_status_tells_partitions_in_order_and_unknown_offsets_as_null() -> None:
    source = Source(
        rows=[
            partition("orders", 10, halted_reason="segment is corrupt"),
            partition("orders", 2, leader_epoch=LeaderEpoch(4), copied_offset=Offset(99), copy_lag_bytes=12),
            partition("clicks", 0),
        ]
    )
    async with serving(source) as asked:
        document = await asked.document("/status")
        assert [(row["topic"], row["partition"]) for row in document["partitions"]] == [
            ("clicks", 0),
            ("orders", 2),
            ("orders", 10),
        ]
        assert document["partitions"][1]["leader_epoch"] == 4
        assert document["partitions"][1]["copied_offset"] == 99
        assert document["partitions"][1]["copy_lag_bytes"] == 12
        assert document["partitions"][1]["local_log_start_offset"] is None
        assert document["partitions"][1]["topic_id"] == "AAAAAAAAAAAAAAAAAAAABw"
        assert (document["node_id"], document["cluster_id"], document["ready"]) == (3, "abc", True)
        assert document["refused_topics"] == {"native": "remote storage is enabled"}


@pytest.mark.parametrize(
    ("query", "partitions"),
    [
        pytest.param("?topic=orders", [2, 10], id="one topic"),
        pytest.param("?halted=1", [10], id="halted ones"),
        pytest.param("?topic=clicks&halted=1", [], id="both"),
        pytest.param("?topic=nowhere", [], id="a topic that is not here"),
    ],
)
async def test_status_is_narrowed_by_its_query(query: str, partitions: list[int]) -> None:
    source = Source(rows=[partition("orders", 10, halted_reason="x"), partition("orders", 2), partition("clicks", 0)])
    async with serving(source) as asked:
        document = await asked.document("/status" + query)
        assert [row["partition"] for row in document["partitions"]] == partitions


async def test_status_of_thousands_lets_the_process_do_other_things() -> None:
    class Large(Source):
        had_its_turn = False

        def partitions(self, topic: str | None = None) -> Iterator[PartitionStatus]:
            asyncio.get_running_loop().call_soon(self.turn)
            yield from (partition("orders", number) for number in range(200))
            assert self.had_its_turn, "200 partitions were looked at in one go"

        def turn(self) -> None:
            self.had_its_turn = True

    async with serving(Large()) as asked:
        assert len((await asked.document("/status"))["partitions"]) == 200


async def test_where_the_others_are_does_not_wait_for_a_large_answer_and_its_rest() -> None:
    """A command asks for it first, and for half a second alone."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Held(InlineBlocking):
        async def run(self, function: Callable[..., T], /, *args: Any) -> T:
            begun.set()
            await go_on.wait()
            return await super().run(function, *args)

    async with serving(Source(), blocking=Held()) as asked, asyncio.timeout(10):
        status = asyncio.create_task(asked.get("/status"))
        await begun.wait()
        assert (await asked.get("/sidecars"))[0] == 200
        go_on.set()
        assert (await status)[0] == 200


async def test_any_sidecar_tells_where_the_others_are() -> None:
    async with serving(Source()) as asked:
        assert await asked.document("/sidecars") == {
            "cluster_id": "abc",
            "sidecars": [{"node_id": 3, "address": "b3:8091", "host": "b3", "version": "1.2.3", "is_over": False}],
        }
    async with serving(Source(reasons=["starting"])) as asked:
        assert (await asked.get("/sidecars"))[0] == 503


async def test_segments_and_their_explanation_are_those_of_the_leader() -> None:
    view = Given(remote=segments(2), local=(100, 200), log_start=100).view
    async with serving(Source(view=view)) as asked:
        told = await asked.document("/segments?topic=orders&partition=0")
        assert [(row["state"], row["start_offset"], row["end_offset"]) for row in told["segments"]] == [
            ("remote", 0, 99),
            ("both", 100, 199),
            ("active", 200, None),
        ]
        told = await asked.document("/explain?topic=orders&partition=0&offset=50")
        assert told["accounts"][0]["segment"]["state"] == "remote"
        assert [one["about"] for one in told["accounts"][0]["findings"]] == ["expiry"]


@pytest.mark.parametrize(
    "path", ["/sidecars", "/status", "/segments?topic=orders&partition=0", "/segments?topic=clicks&partition=0"]
)
async def test_each_answer_names_the_cluster(path: str) -> None:
    """Who asks at an address that leads to another cluster leaves it out."""
    view = Given(remote=segments(2), local=(100, 200), log_start=100).view
    async with serving(Source(view=view)) as asked:
        assert json.loads((await asked.get(path))[1])["cluster_id"] == "abc"


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        pytest.param("/segments?topic=clicks&partition=0", 404, "led by broker 2", id="another broker leads it"),
        pytest.param("/explain?topic=orders&partition=0", 503, "state topic", id="not ready"),
        pytest.param("/segments?topic=orders", 400, "partition is '', must be a number", id="no partition"),
        pytest.param("/explain?topic=orders&partition=0&offset=-1", 400, "offset is '-1'", id="no offset"),
    ],
)
async def test_what_cannot_be_told_is_said(path: str, code: int, words: str) -> None:
    async with serving(Source()) as asked:
        status, text, _ = await asked.get(path)
        assert (status, words in text) == (code, True), text


async def test_the_page_is_html_that_runs_nothing_of_others() -> None:
    async with serving(Source(reasons=["<script>alert(1)</script>"])) as asked:
        status, text, response = await asked.get("/")
        assert status == 200
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert text.count("<script") == 1
        assert "&lt;script&gt;alert(1)" in text


async def test_nothing_else_is_served_and_nothing_is_cached() -> None:
    async with serving(Source()) as asked:
        assert (await asked.get("/etc/passwd"))[0] == 404
        async with asked.session.post(asked.server.url + "/status") as response:
            assert response.status == 405
        assert (await asked.get("/status"))[2].headers["Cache-Control"] == "no-store"


async def test_an_address_in_use_is_told() -> None:
    async with serving(Source()) as asked:
        with pytest.raises(
            ListenError, match=rf"^status service cannot listen on 127.0.0.1:{asked.server.port}: .*in use"
        ):
            async with serve_status(
                host="127.0.0.1",
                port=asked.server.port,
                source=Source(),
                metrics=asked.telemetry,
                blocking=InlineBlocking(),
            ):
                pass


async def test_left_means_closed() -> None:
    async with serving(Source()) as asked:
        url = asked.server.url
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url + "/healthz")
