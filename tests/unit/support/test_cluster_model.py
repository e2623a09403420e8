"""The model of a large cluster (docs/scale.md): each formula on numbers that can be done in one's head."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support.cluster_model import MIB, Cluster

SMALL = Cluster(
    brokers=10, leaders=5, replication=2, mib_per_s=10, segment_mib=100, part_mib=25, days=10, metadata_partitions=1
)
"""One segment a second."""
PAGE = Path(__file__).parents[3] / "docs" / "scale.md"


def test_a_segment_is_four_events() -> None:
    assert SMALL.segments_per_s == 1
    assert SMALL.records_per_day == 4 * 86_400
    assert SMALL.metadata_bytes_per_day == (120 + 3 * 75 + 4 * 70) * 86_400


def test_a_sidecar_reads_the_metadata_partitions_of_its_own_partitions() -> None:
    assert SMALL.followed_partitions == 1
    assert Cluster(leaders=1, replication=1, metadata_partitions=50).followed_partitions == pytest.approx(1)
    assert Cluster(leaders=1, replication=2, metadata_partitions=2).followed_partitions == 1.5
    assert Cluster().followed_partitions == pytest.approx(50)


def test_what_all_sidecars_read_grows_with_the_square_of_the_brokers() -> None:
    assert Cluster(brokers=2_000).fetched_bytes_per_s == pytest.approx(4 * Cluster(brokers=1_000).fetched_bytes_per_s)


def test_memory_is_of_the_replicas_on_the_broker() -> None:
    assert SMALL.segments_of_a_sidecar == 2 * 86_400
    assert SMALL.memory_bytes == 200 * MIB + 307 * 2 * 86_400


@pytest.mark.parametrize(
    ("segment_mib", "puts"),
    [
        pytest.param(100, 4 + 2 + 2, id="four parts, begin, complete, indexes and manifest"),
        pytest.param(101, 5 + 2 + 2, id="a part that is not full counts"),
        pytest.param(25, 1 + 2, id="one that fits a part is a single upload"),
    ],
)
def test_puts_of_a_segment(segment_mib: int, puts: int) -> None:
    assert Cluster(segment_mib=segment_mib).puts_per_segment == puts


@pytest.mark.parametrize(
    ("leaders", "snapshots"),
    [
        pytest.param(5, 50 / 300, id="each partition has changed: all of them"),
        pytest.param(5_000, 1, id="only those with a segment have"),
    ],
)
def test_snapshots_are_of_partitions_that_have_changed(leaders: int, snapshots: float) -> None:
    cluster = Cluster(brokers=10, leaders=leaders, mib_per_s=10, segment_mib=100)
    assert cluster.snapshots_per_s == pytest.approx(snapshots)


def test_a_reconcile_lists_three_objects_of_each_segment() -> None:
    assert SMALL.objects == 3 * 86_400 * 10
    assert SMALL.lists_of_reconcile == pytest.approx(2_592)


def test_the_page_has_the_figures_of_the_model() -> None:
    page = PAGE.read_text()
    assert [value for _, value, _ in Cluster().rows() if value not in page] == []
