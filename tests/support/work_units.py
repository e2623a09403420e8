"""A pytest plugin for ``--dist loadfile``: what goes to one worker together, and what is begun first.

xdist gives a file to one worker, because its tests share servers, and begins with the files of most tests.  That leaves the
long ones of one or two tests for the end, where one worker runs and the others have nothing to do.
"""

from __future__ import annotations

from collections import Counter

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SPARK_SESSION = "tests/spark/test_"
"""All files of one session, which takes as long to start as the tests of a file."""
SHARES_NOTHING = "tests/unit/simulation/"
"""Each test by itself, last: they need only a processor, so no worker ends long before the others."""
CLUSTERS = "clusters of three brokers"
"""One such cluster at a time: two with their sidecars leave two cores nothing, and brokers are fenced."""
OF_THREE_BROKERS = frozenset(
    f"tests/integration/test_{name}.py"
    for name in (
        "chaos",
        "cli_cluster",
        "cut_transactions",
        "daemon_expiry_cluster",
        "failover",
        "gateway_clients_cluster",
        "leadership",
        "metadata_topic_failover",
        "pins",
        "recopy_cluster",
        "upgrade_cluster",
    )
)
LONG = (
    CLUSTERS,
    SPARK_SESSION,
    "tests/integration/test_daemon_crash.py",
    "tests/integration/test_gateway_recreated.py",
    "tests/integration/test_kafka_broker.py",
    "tests/integration/test_compose.py",
    "tests/integration/test_mount.py",
    "tests/integration/test_back_to_local.py",
    "tests/integration/test_handover.py",
    "tests/integration/test_s3_faults.py",
)
"""Begun first, in this order."""


def unit_of(nodeid: str) -> str:
    """Return the name of what the test shares a worker with."""
    path = nodeid.partition("::")[0]
    if path in OF_THREE_BROKERS:
        return CLUSTERS
    if path.startswith(SPARK_SESSION):
        return SPARK_SESSION
    return nodeid if path.startswith(SHARES_NOTHING) else path


def in_order(nodeids: list[str]) -> dict[str, tuple[int, int, str]]:
    """Return what to sort each test by: the long units, those of many tests, those that share nothing."""
    tests = Counter(unit_of(nodeid) for nodeid in nodeids)
    ranks = {unit: (LONG.index(unit) if unit in LONG else len(LONG), -tests[unit], unit) for unit in tests}
    last = (len(LONG) + 1, 0, "")
    return {nodeid: last if nodeid.startswith(SHARES_NOTHING) else ranks[unit_of(nodeid)] for nodeid in nodeids}


class UnitScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist carries no types
    """Hands out units as they come in the collection, which :func:`pytest_collection_modifyitems` has sorted."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> UnitScheduling | None:
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return UnitScheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["by_units"] = node.config.getvalue("dist") == "loadfile"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if getattr(config, "workerinput", {}).get("by_units"):
        order = in_order([item.nodeid for item in items])
        items.sort(key=lambda item: order[item.nodeid])
