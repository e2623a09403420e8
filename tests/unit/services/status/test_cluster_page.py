"""The pages, served for real to a client on loopback by sidecars that ask each other (issue 20; S-306, S-307, U43)."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import aiohttp
import pytest

from tests.support.inline_blocking import InlineBlocking
from tests.support.shown_cluster import (
    ShownSidecar,
    broken_cluster,
    busy_cluster,
    empty_cluster,
    partition,
    serving_cluster,
    sidecar,
)
from tests.unit.app.commands.test_asking import serving, silent
from tiersidecar.adapters.telemetry_prometheus import PrometheusTelemetry
from tiersidecar.app.commands.asking import KnownSidecar, ask
from tiersidecar.reading.reader_limits import ColdReading
from tiersidecar.services.status.access import Secrets
from tiersidecar.services.status.anomalies import find_anomalies
from tiersidecar.services.status.asker import ClusterAsker
from tiersidecar.services.status.cluster import Cluster, Sidecar, put_together, read_overview
from tiersidecar.services.status.history import History
from tiersidecar.services.status.overview import Overview
from tiersidecar.services.status.peers import Peers
from tiersidecar.services.status.source import SidecarStatus, TierBytes

SECRET, PASSWORD = "s" * 32, "correct horse"
HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J\u202e"


class Seen(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    @property
    def links(self) -> list[str]:
        return [value or "" for name, value in self.attributes if name == "href"]


async def get(url: str, *, code: int = 200, **options: Any) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, **options) as response:
        text = await response.text()
        assert response.status == code, text
        return text


def row_of(page: str, name: str) -> str:
    """The text of the row whose heading is ``name``."""
    for row in re.findall(r"<tr>.*?</tr>", page):
        cells = [re.sub(r"<[^>]+>", "", one) for one in re.findall(r"<t[hd].*?</t[hd]>", row)]
        if cells and cells[0] == name:
            return " | ".join(cells)
    raise AssertionError(f"no row {name}")


async def test_any_sidecar_shows_the_whole_cluster() -> None:
    async with serving_cluster(busy_cluster()) as servers:
        pages = [await get(f"{server.url}/") for server in servers.values()]
    for page in pages:
        assert [row_of(page, str(node)).split(" | ")[1:4] for node in (1, 2, 3)] == [["ready", "36", "108"]] * 3
        assert row_of(page, "orders").startswith("orders |")
        assert "12 | well" in row_of(page, "audit-log")
        assert "All is well" in page
        assert row_of(page, "nightly-1") == "nightly-1 | User:reports | audit-log | 412 | 21.0 GiB"


async def test_an_empty_cluster_says_so() -> None:
    async with serving_cluster(empty_cluster()) as servers:
        page = await get(f"{servers[2].url}/")
    assert "No sidecar that answers has a tiered topic" in page
    assert "What needs attention" not in page


async def test_what_is_broken_comes_with_what_to_do() -> None:
    async with serving_cluster(broken_cluster(), silent=[3]) as servers:
        page = await get(f"{servers[1].url}/")
    for words in (
        "The sidecar of broker 3 does not answer",
        "orders/0 is halted",
        "user-sessions is not tiered",
        "payments is not trimmed",
        "Broker 1: a disk fills up",
        "The sidecar of broker 2 is not ready",
        "has no address for 2 brokers",
        "128 orphan-object",
        "The last reconcile run ended 9d ago",
        "Nothing remote is deleted",
        "trimming of orders is paused by ada",
        "Sidecars are of different versions",
    ):
        assert words in page, words
    assert page.count("What to do:") == page.count('class="advice"') >= 11
    assert "cannot be reached: connection refused" in row_of(page, "3")


async def test_one_that_stands_still_costs_its_time_limit_and_has_a_row() -> None:
    cluster = busy_cluster(topics=2)
    with silent() as stopped:
        async with serving_cluster(cluster, silent=[3]) as servers:
            for one in cluster:
                one.leases = [replace(lease, address=stopped) if lease.node_id == 3 else lease for lease in one.leases]
            began_s = time.monotonic()
            page = await get(f"{servers[1].url}/")
            took_s = time.monotonic() - began_s
    assert "does not answer it did not answer within 1 s" in row_of(page, "3")
    assert "4 not known" in row_of(page, "orders")
    assert took_s < 10


async def test_a_crowd_has_the_others_asked_once() -> None:
    cluster = busy_cluster(topics=1)
    async with serving_cluster(cluster) as servers:
        await asyncio.gather(*(get(f"{servers[1].url}/") for _ in range(8)))
    # Once more where the second turned while they came.
    assert all(1 <= one.asked <= 3 for one in cluster), [one.asked for one in cluster]


async def test_the_way_down_goes_by_links_from_cluster_to_segment() -> None:
    async with serving_cluster(busy_cluster()) as servers:
        base = f"{servers[1].url}/"
        topic = next(link for link in Seen(await get(base)).links if link == "topic?name=orders")
        page = await get(base + topic)
        assert [row_of(page, str(number)).split(" | ")[2] for number in (0, 1, 2)] == ["1", "2", "3"]
        # Broker 2 leads it.
        line = next(link for link in Seen(page).links if link == "partition?topic=orders&partition=1")
        page = await get(base + line)
        assert "40 segments: 0 remote" not in page
        assert "remote" in row_of(page, "0")
        assert "Total retention keeps it" in page
        segment = next(link for link in Seen(page).links if "offset=3100" in link)
        page = await get(base + segment)
        assert "Why offset 3,100 is where it is" in page


async def test_long_lists_have_pages() -> None:
    one = sidecar(1)
    one.rows = [partition("wide", number) for number in range(120)]
    async with serving_cluster([one]) as servers:
        first = await get(f"{servers[1].url}/topic?name=wide")
        last = await get(f"{servers[1].url}/topic?name=wide&page=99")
    assert "1 to 50 of 120" in first
    assert "101 to 120 of 120" in last
    assert (first.count('scope="row"'), last.count('scope="row"')) == (50, 20)


@pytest.mark.parametrize(
    "path",
    ["topic?name=nowhere", "partition?topic=orders&partition=99", "partition?topic=orders&partition=x", "topic"],
)
async def test_what_is_not_known_has_a_page_that_says_so(path: str) -> None:
    async with serving_cluster(busy_cluster(topics=1)) as servers:
        assert "is known here" in await get(f"{servers[1].url}/{path}", code=404)


def hostile_cluster() -> list[ShownSidecar]:
    """Names and reasons that would like to be markup, wherever a name or a reason may come from."""
    one, two = sidecar(1), sidecar(2)
    one.rows = [partition(HOSTILE, 0, halted_reason=HOSTILE), partition(HOSTILE, 1, held_back_reason=HOSTILE)]
    one.reasons = [HOSTILE]
    one.summary_ = replace(one.summary_, cluster_id=HOSTILE)
    bad = {HOSTILE: HOSTILE}
    two.summary_ = replace(
        two.summary_,
        version=HOSTILE,
        store=HOSTILE,
        standing_by=HOSTILE,
        deletes_blocked=HOSTILE,
        paused=[HOSTILE],
        cold_readers=[ColdReading(principal=HOSTILE, client_id=HOSTILE, topic=HOSTILE, requests=1, size_bytes=1)],
        losses=[HOSTILE],
        refused_topics=bad,
        untrimmable_topics=bad,
        log_dir_faults=bad,
        disk_troubles=bad,
        misplaced=bad,
        cluster_id=HOSTILE,
        roles=(HOSTILE,),
        mode=HOSTILE,
    )
    return [one, two]


async def test_names_are_text_and_never_markup() -> None:
    async with serving_cluster(hostile_cluster()) as servers:
        base = f"{servers[1].url}/"
        seen = [await get(base)]
        seen += [
            await get(base + link.replace("+", "%20"))
            for link in Seen(seen[0]).links
            if link.startswith(("topic", "part"))
        ]
        seen.append(await get(base + "topic?name=%3Cscript%3Ealert(1)", code=404))
    assert len(seen) > 3
    for page in seen:
        elements = Seen(page)
        assert elements.tags.count("script") == 1
        assert not [name for name, _ in elements.attributes if name.startswith("on") or name == "style"]
        assert not set(page) & {"\x1b", "\u202e"}
        assert "&lt;script&gt;alert(1)" in page


async def test_the_policy_lets_in_nothing_but_the_page_s_own() -> None:
    async with (
        serving_cluster(empty_cluster()) as servers,
        aiohttp.ClientSession() as session,
        session.get(f"{servers[1].url}/") as response,
    ):
        policy, page = response.headers["Content-Security-Policy"], await response.text()
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; ")
    assert not [link for link in Seen(page).links if "//" in link]
    assert "src=" not in page


async def test_with_a_secret_sidecars_prove_themselves_and_the_page_is_whole() -> None:
    async with serving_cluster(busy_cluster(topics=1), secrets=Secrets(cluster=SECRET)) as servers:
        page = await get(f"{servers[1].url}/")
        assert [row_of(page, str(node)).split(" | ")[1] for node in (1, 2, 3)] == ["ready"] * 3
        detail = await get(f"{servers[1].url}/partition?topic=orders&partition=1")
        assert "Total retention keeps it" in detail


@pytest.mark.parametrize(
    ("secrets", "headers", "code"),
    [
        pytest.param(Secrets(), {}, 200, id="no secret: everybody is answered"),
        pytest.param(Secrets(cluster=SECRET), {}, 200, id="a browser on the same machine"),
        pytest.param(Secrets(cluster=SECRET, page=PASSWORD), {}, 401, id="with a password there too"),
        pytest.param(
            Secrets(cluster=SECRET, page=PASSWORD), {"Authorization": "Basic bm86bm8="}, 401, id="a wrong one"
        ),
        pytest.param(Secrets(cluster=SECRET, page=PASSWORD), {"Authorization": "Basic !"}, 401, id="none at all"),
        pytest.param(
            Secrets(cluster=SECRET, page=PASSWORD), {"Authorization": "Basic é"}, 401, id="nothing of Base64's letters"
        ),
        pytest.param(
            Secrets(cluster=SECRET, page=PASSWORD),
            {"Authorization": "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()},
            200,
            id="the right one",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/", "/overview", "/status", "/sidecars"])
async def test_who_is_answered(secrets: Secrets, headers: dict[str, str], code: int, path: str) -> None:
    async with serving_cluster(empty_cluster()[:1], secrets=secrets) as servers:
        await get(f"{servers[1].url}{path}", code=code, headers=headers)
        for free in ("/healthz", "/readyz", "/metrics"):
            await get(f"{servers[1].url}{free}")


@pytest.mark.parametrize(
    ("secret", "answered"),
    [
        pytest.param(SECRET, True, id="the same secret"),
        pytest.param("x" * 32, False, id="another one"),
        pytest.param(None, False, id="none"),
    ],
)
async def test_a_command_proves_itself_too(secret: str | None, answered: bool) -> None:
    async with serving_cluster(empty_cluster()[:1], secrets=Secrets(cluster=SECRET, page=PASSWORD)) as servers:
        known = KnownSidecar(address=f"127.0.0.1:{servers[1].port}", node_id=1, secret=secret)
        (answer,) = await asyncio.to_thread(ask, [known], "/status?topic=a%2Fb", 10)
    assert (answer.document is not None, "status.cluster.secret" in answer.problem) == (answered, not answered)
    assert "x" * 32 not in repr(known)


async def test_an_answer_without_proof_is_not_believed() -> None:
    """As of what a forged lease names."""
    forged = json.dumps(await document_of(sidecar(2))).encode()
    cluster = [sidecar(1), sidecar(2)]
    with serving(forged) as elsewhere:
        for secret, words in ((None, "ready"), (SECRET, "does not prove")):
            async with serving_cluster(cluster, silent=[2], secrets=Secrets(cluster=secret)) as servers:
                cluster[0].leases = [
                    replace(lease, address=elsewhere) if lease.node_id == 2 else lease for lease in cluster[0].leases
                ]
                assert words in row_of(await get(f"{servers[1].url}/"), "2")
        (answer,) = await asyncio.to_thread(ask, [KnownSidecar(address=elsewhere, secret=SECRET)], "/status", 10)
    assert "does not prove" in answer.problem


@pytest.mark.parametrize(
    ("address", "words"),
    [
        pytest.param("{}/elsewhere?", "must be HOST:PORT", id="a path"),
        pytest.param("user@{}", "must be HOST:PORT", id="a user"),
        pytest.param("{}", "HTTP 302", id="a redirect"),
    ],
)
async def test_a_forged_lease_leads_nowhere(address: str, words: str) -> None:
    cluster = [sidecar(1), sidecar(2)]
    with (
        serving(b'{"secret": "of another server"}') as target,
        serving(b"", code=302, location=f"http://{target}/") as to,
    ):
        async with serving_cluster(cluster, silent=[2]) as servers:
            cluster[0].leases = [
                SidecarStatus(node_id=2, address=address.format(to), host="b2", version="1", is_over=False)
            ]
            page = await get(f"{servers[1].url}/")
    assert words in row_of(page, "2")
    assert "of another server" not in page


async def document_of(one: ShownSidecar) -> Any:
    telemetry = PrometheusTelemetry(version="1")
    overview = Overview(source=one, metrics=telemetry, history=History(telemetry))
    return json.loads(json.dumps(await overview.document()))


async def cluster_of(*several: ShownSidecar) -> Cluster:
    told = [read_overview(await document_of(one)) for one in several]
    return put_together([Sidecar(node_id=one.node_id, address="", version="1", overview=one) for one in told], 0)


async def test_only_leaders_count_and_followers_have_no_lag() -> None:
    one, two = sidecar(1), sidecar(2)
    tiers = TierBytes(remote=100, both=50, active=7)
    one.rows = [partition("a", 0, tiers=tiers, copy_lag_bytes=9), partition("a", 1, "follower", local_size_bytes=999)]
    two.rows = [partition("a", 1, tiers=tiers, copy_lag_bytes=1), partition("a", 0, "follower", local_size_bytes=999)]
    (topic,) = (await cluster_of(one, two)).topics
    assert (topic.count, topic.unknown, topic.lag_bytes, topic.local_bytes) == (2, (), 10, 0)
    assert topic.tiers == TierBytes(remote=200, both=100, active=14)
    (alone,) = (await cluster_of(one)).topics
    assert (alone.count, alone.unknown) == (2, (1,))


async def test_of_two_leaders_the_one_of_the_later_epoch_counts() -> None:
    one, two = sidecar(1), sidecar(2)
    one.rows = [partition("a", 0, leader_epoch=4, copy_lag_bytes=1)]
    two.rows = [partition("a", 0, leader_epoch=5, copy_lag_bytes=7)]
    for cluster in (await cluster_of(one, two), await cluster_of(two, one)):
        assert [topic.lag_bytes for topic in cluster.topics] == [7]


async def test_a_cluster_that_is_well_has_no_anomaly_but_that_nobody_has_reconciled() -> None:
    assert find_anomalies(await cluster_of(*empty_cluster())) == []
    cluster = await cluster_of(*busy_cluster())
    assert [anomaly.title for anomaly in find_anomalies(cluster)] == [
        "The store has never been compared with the metadata"
    ]


async def test_thousands_of_partitions_with_one_trouble_are_one_anomaly() -> None:
    one = sidecar(1)
    one.rows = [partition("a", number, halted_reason="the store is away") for number in range(150)]
    halted = [found for found in find_anomalies(await cluster_of(one)) if "halted" in found.title]
    assert [(found.title, len(found.details)) for found in halted] == [("a: 150 partitions halted", 1)]


@pytest.mark.parametrize(
    "change",
    [
        {"topics": []},
        {"columns": ["partition"]},
        {"disks": [{}]},
        {"version": 7},
        {"history": {}},
        {"node_id": "many"},
        {"reasons": 3},
        {"losses": [{}]},
        {"started_ms": 10**400},
        {"history": {"interval_ms": 30_000, "series": {"read": [[1, 10**400]]}, "read_by_topic": {}}},
        {"gateways": [{"listener": "x", "connections": 1 << 63, "unmapped_brokers": 0}]},
    ],
)
async def test_what_is_no_overview_is_told_and_not_shown(change: dict[str, Any]) -> None:
    one = sidecar(2)
    one.rows = [partition("a", 0)]
    changed = {**await document_of(one), **change}
    cluster = [sidecar(1), one]
    with serving(json.dumps(changed).encode()) as elsewhere:
        async with serving_cluster(cluster, silent=[2]) as servers:
            cluster[0].leases = [replace(lease, address=elsewhere) for lease in cluster[0].leases if lease.node_id == 2]
            page = await get(f"{servers[1].url}/")
    assert "is no overview that this version reads" in row_of(page, "2")


@contextmanager
def led_elsewhere(cluster: list[ShownSidecar], stranger: bytes) -> Iterator[str]:
    """The lease of broker 2 leads to a server that answers ``stranger``; its address."""
    with serving(stranger) as elsewhere:
        leases = [lease for lease in cluster[0].leases if lease.node_id == 2]
        cluster[0].leases = [replace(lease, address=elsewhere) for lease in leases]
        yield elsewhere


@pytest.mark.parametrize("node_id", [0, 2], ids=["told first", "told last"])
async def test_nothing_of_another_cluster_is_shown(node_id: int) -> None:
    """It gave the page its cluster id, its topics were added to ours, and its later epochs took ours over."""
    other, ours = sidecar(node_id), [sidecar(1), sidecar(2)]
    other.summary_ = replace(other.summary_, cluster_id="another")
    other.rows = [partition("theirs", 0), partition("orders", 0, leader_epoch=99, halted_reason="theirs")]
    ours[0].rows = [partition("orders", 0)]
    async with serving_cluster(ours, silent=[2]) as servers:
        with led_elsewhere(ours, json.dumps(await document_of(other)).encode()) as elsewhere:
            page = await get(f"{servers[1].url}/")
    own = ours[0].summary_.cluster_id
    assert f'<h1>Cluster <span class="id">{own}</span></h1>' in page
    assert f"{elsewhere} answers for cluster another, and this is cluster {own}" in row_of(page, "2")
    assert "The address of broker 2 leads to another cluster" in page
    assert "The sidecar of broker 2 does not answer" not in page
    assert row_of(page, "orders").startswith("orders |")
    assert "theirs" not in page
    assert "halted" not in page


async def test_what_a_leader_of_another_cluster_explains_is_left_out() -> None:
    """Its address led to our own sidecar when the page was made, and leads elsewhere now."""
    one, two = sidecar(1), sidecar(2)
    two.rows = [partition("orders", 0)]
    overview = read_overview(await document_of(two))
    two.summary_ = replace(two.summary_, cluster_id="another")
    blocking, metrics = InlineBlocking(), PrometheusTelemetry(version="1")
    async with serving_cluster([two]) as servers, Peers(blocking=blocking, secret=None) as peers:
        own = Overview(source=one, metrics=metrics, history=History(metrics))
        asker = ClusterAsker(source=one, overview=own, peers=peers, blocking=blocking)
        address = f"127.0.0.1:{servers[2].port}"
        cluster = put_together([Sidecar(node_id=2, address=address, version="1", overview=overview)], 0)
        answers = [await asker.segments(cluster, "orders", 0), await asker.explanation(cluster, "orders", 0, None)]
    assert [(answer.document, "answers for cluster another" in answer.problem) for answer in answers] == [
        (None, True)
    ] * 2


async def test_before_its_own_cluster_is_known_it_asks_no_others() -> None:
    one, two = sidecar(1), sidecar(2)
    one.summary_ = replace(one.summary_, cluster_id=None)
    two.rows = [partition("orders", 0)]
    async with serving_cluster([one, two]) as servers:
        page = await get(f"{servers[1].url}/")
    assert "not known yet" in page
    assert "orders" not in page
    assert two.asked == 0


async def test_half_a_letter_in_a_name_breaks_no_page() -> None:
    one = sidecar(2)
    one.rows = [partition("a\udc80", 0)]
    changed = await document_of(one)
    cluster = [sidecar(1), one]
    with serving(json.dumps(changed).encode()) as elsewhere:
        async with serving_cluster(cluster, silent=[2]) as servers:
            cluster[0].leases = [replace(lease, address=elsewhere) for lease in cluster[0].leases if lease.node_id == 2]
            page = await get(f"{servers[1].url}/")
            await get(f"{servers[1].url}/topic?name=a%3F")
    assert row_of(page, "a?")


async def test_gateways_without_a_lease_are_asked_by_their_address() -> None:
    gateway = sidecar(1, roles=("gateway",))
    async with serving_cluster([gateway]) as there:
        one = sidecar(2)
        async with serving_cluster([one], also_ask=[f"127.0.0.1:{there[1].port}", "127.0.0.1:1"]) as servers:
            page = await get(f"{servers[2].url}/")
    assert "gateway" in row_of(page, "1")
    assert "127.0.0.1:1 cannot be reached" in page


async def test_a_crowd_before_one_partition_asks_broker_and_store_no_more_than_two_at_a_time() -> None:
    one = sidecar(1)
    one.rows = [partition("a", 0)]
    asked = most = 0
    rows_of = one.segment_rows

    async def counted(topic: str, number: int) -> Any:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(0.01)
        asked -= 1
        return await rows_of(topic, number)

    one.segment_rows = counted  # type: ignore[assignment, method-assign]
    async with serving_cluster([one]) as servers:
        await asyncio.gather(*(get(f"{servers[1].url}/partition?topic=a&partition=0") for _ in range(8)))
    assert 1 <= most <= 2
