"""The pages in a real browser: read by axe, by keyboard, on a phone, in the dark, and with its script (issue 20; S-306).

``TIERSIDECAR_SCREENSHOTS=DIRECTORY`` keeps a picture of each.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.browser import bring_axe
from tests.support.chromium import Page, browsing
from tests.support.shown_cluster import ShownSidecar, broken_cluster, busy_cluster, empty_cluster, serving_cluster

pytestmark = [pytest.mark.server, pytest.mark.slow]

CLUSTERS: dict[str, tuple[Callable[[], list[ShownSidecar]], tuple[int, ...]]] = {
    "empty": (empty_cluster, ()),
    "busy": (busy_cluster, ()),
    "broken": (broken_cluster, (3,)),
}
PATHS = {"cluster": "/", "topic": "/topic?name=orders", "partition": "/partition?topic=orders&partition=0"}
LOOKS = {"light": (1280, False), "dark": (1280, True), "phone": (320, False)}
_REFRESH_S = 30.0


@asynccontextmanager
async def shown(name: str) -> AsyncIterator[tuple[Page, str, list[ShownSidecar]]]:
    """A browser, the address of a sidecar, and the cluster."""
    make, silent = CLUSTERS[name]
    cluster = make()
    async with browsing() as page, serving_cluster(cluster, silent=silent) as servers:
        yield page, servers[1].url, cluster


async def serious_findings(page: Page) -> Any:
    """What axe finds that keeps people out: rule, element and what to do."""
    await page.value(f"{await asyncio.to_thread(bring_axe().read_text)};0")
    text = await page.value(
        "axe.run(document, {resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations"
        ".filter((one) => ['serious', 'critical'].includes(one.impact))"
        ".map((one) => [one.id, one.nodes.map((node) => [node.html, node.failureSummary])])))"
    )
    return json.loads(text)


@pytest.mark.parametrize("name", CLUSTERS)
async def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_window(name: str) -> None:
    async with shown(name) as (page, url, _):
        for what, path in PATHS.items() if name != "empty" else [("cluster", "/")]:
            for look, (width, dark) in LOOKS.items():
                await page.show(url + path, width=width, dark=dark)
                if directory := os.environ.get("TIERSIDECAR_SCREENSHOTS"):
                    await page.picture(Path(directory, f"{name}-{what}-{look}.png"))
                assert await serious_findings(page) == [], (what, look)
                assert await page.value("document.documentElement.scrollWidth") <= width, (what, look)
        assert page.messages == [], "the browser complains, or its policy has refused something"


async def test_all_is_there_without_the_script() -> None:
    async with shown("busy") as (page, url, _):
        await page.show(f"{url}/", width=1280, script=False)
        assert await page.value("document.getElementById('live').hidden")
        assert await page.value("document.querySelectorAll('main section').length") >= 6
        assert await page.value("document.querySelectorAll('svg.line rect').length") > 30


async def test_the_keyboard_goes_through_and_shows_where_it_is() -> None:
    async with shown("busy") as (page, url, _):
        await page.show(f"{url}/", width=1280)
        await page.press("Tab")
        assert await page.value("document.activeElement.className") == "skip"
        seen = []
        for _ in range(6):
            await page.press("Tab")
            seen.append(await page.value("document.activeElement.textContent"))
            assert await page.value("getComputedStyle(document.activeElement).outlineWidth") == "3px", seen[-1]
        assert seen[:3] == ["tiersidecar", "Pause refresh", "shipments"]


async def test_the_page_keeps_up_with_the_cluster_and_leaves_the_focus_where_it_was() -> None:
    async with shown("busy") as (page, url, cluster):
        await page.show(f"{url}/", width=1280)
        await page.value("document.querySelector('main a[href=\"topic?name=audit-log\"]').focus()")
        for one in cluster:
            one.rows = [row for row in one.rows if row.topic_id_partition.topic != "shipments"]
        deadline_s = time.monotonic() + _REFRESH_S
        while await page.value("document.querySelector('main').textContent.includes('shipments')"):
            assert time.monotonic() < deadline_s, "the page stands still"
            await asyncio.sleep(0.2)
        assert await page.value("document.activeElement.textContent") == "audit-log"
        assert page.messages == []
