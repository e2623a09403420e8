"""What a sidecar of another cluster answers is left out, and told: an address of this cluster leads there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.app.commands.test_asking import ROW, config_with, serving
from tests.unit.app.commands.test_cluster_picture import WELL, row
from tiersidecar.app.cli import app
from tiersidecar.app.commands.asking import cluster_of_log_dirs, find_sidecars
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import NoSidecarError

META = "version=1\ncluster.id={}\nnode.id=1\n"
SEGMENTS = {"topic": "b", "partition": 0, "segments": [], "accounts": [], "missing": None}


def answering(cluster_id: str | None, node_id: int, name: str, **values: Any) -> bytes:
    """One document for all that it is asked."""
    told = {**WELL, "cluster_id": cluster_id, "node_id": node_id, "partitions": [row(name, 0)], **values}
    return json.dumps(told).encode()


@contextmanager
def two_clusters(*, others_id: str | None = "clusterB") -> Iterator[tuple[str, str]]:
    """The address of a sidecar of cluster A, and that of cluster B's, to which the lease of A's broker 2 leads."""
    with ExitStack() as stack:
        theirs = stack.enter_context(serving(answering(others_id, 2, "b", **SEGMENTS)))
        leases = [ROW | {"node_id": 2, "address": theirs}]
        ours = stack.enter_context(serving(answering("clusterA", 1, "a", sidecars=leases)))
        yield ours, theirs


def run(tmp_path: Path, address: str, *words: str) -> tuple[int, str]:
    config_with(tmp_path, address)
    result = CliRunner().invoke(app, [*words, "--config", str(tmp_path / "tiersidecar.yaml")])
    return result.exit_code, result.output


def test_status_tells_whose_address_it_is_and_shows_nothing_of_the_other(tmp_path: Path) -> None:
    """It showed the other's topics as this cluster's, and exited with 0."""
    with two_clusters() as (ours, theirs):
        code, text = run(tmp_path, ours, "status", "--sidecar", ours, "--json")
    told = json.loads(text)
    assert code == 3
    assert told["needs_somebody"]
    assert (told["cluster_id"], [one["topic"] for one in told["topics"]]) == ("clusterA", ["a"])
    assert [(one["node_id"], one["answers"]) for one in told["brokers"]] == [(2, False), (1, True)]
    assert f"{theirs} answers for cluster clusterB, and this is cluster clusterA" in told["brokers"][0]["trouble"]
    assert "status.advertised" in told["brokers"][0]["trouble"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["topics"], 3),
        (["ls", "b"], 1),
        (["ls", "b/0"], 3),
        (["explain", "b/0"], 3),
    ],
)
def test_the_others_tell_it_too(tmp_path: Path, words: list[str], code: int) -> None:
    with two_clusters() as (ours, theirs):
        found = run(tmp_path, ours, *words)
    assert found[0] == code, found
    assert "broker 2" in found[1]
    assert f"{theirs} answers for cluster clusterB" in " ".join(found[1].split())


def test_one_that_does_not_say_its_cluster_counts(tmp_path: Path) -> None:
    """It starts, or is of a former release."""
    with two_clusters(others_id=None) as (ours, _):
        code, text = run(tmp_path, ours, "topics")
    assert (code, "b " in text) == (0, True), text


def beside_broker_of(cluster_id: str, tmp_path: Path, listen: str) -> Config:
    (tmp_path / "meta.properties").write_text(META.format(cluster_id))
    return config_with(tmp_path, listen).model_copy(update={"log_dirs": (str(tmp_path),)})


def test_the_files_of_the_configurations_broker_say_which_cluster_is_ours(tmp_path: Path) -> None:
    """Even the first one that is asked may be another cluster's: it listens on the same machine."""
    with two_clusters() as (ours, _):
        found = find_sidecars(beside_broker_of("clusterA", tmp_path, ours))
        assert [one.cluster_id for one in found] == ["clusterA"]
        config = beside_broker_of("clusterC", tmp_path, ours)
        with pytest.raises(NoSidecarError, match=f"{ours} answers for cluster clusterA, and this is cluster clusterC"):
            find_sidecars(config, [ours])
        with pytest.raises(NoSidecarError, match="cluster clusterC; and the state topic"):
            find_sidecars(config)


@pytest.mark.parametrize("text", [None, "", "version=1\nnode.id=1\n", "\x00"])
def test_files_that_do_not_say_it(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "meta.properties").write_text(text)
    assert cluster_of_log_dirs([str(tmp_path)]) == ""
