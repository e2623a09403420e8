"""From which clusters a bucket's data came to which (issue 21)."""

from __future__ import annotations

import pytest

from tiersidecar.decide.mount import Lineage, latest_clusters, lineage_of


@pytest.mark.parametrize(
    ("known", "latest", "lineage"),
    [
        pytest.param([], [], ("B",), id="nothing was claimed"),
        pytest.param([("B",)], ["B"], ("B",), id="one that took nothing over"),
        pytest.param([("B", "A")], ["B"], ("B", "A"), id="one that took over from A"),
        pytest.param([("B", "A"), ("A",)], ["B"], ("B", "A"), id="B's claims ended half-way: the rest is A's still"),
        pytest.param([("A",), ("B",)], ["A", "B"], ("B",), id="two that have nothing to do with each other"),
        pytest.param([("C", "B", "A")], ["C"], ("B", "A"), id="B is not the last"),
        pytest.param([("B", "A"), ("A", "B")], ["A", "B"], ("B", "A"), id="from each other"),
    ],
)
def test_of_owners_of_topics(known: list[Lineage], latest: list[str], lineage: Lineage) -> None:
    assert latest_clusters(known) == latest
    assert lineage_of("B", known) == lineage
