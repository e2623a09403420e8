"""Brokers' server.properties, for what they do not show over the wire (issue 21)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiersidecar.app.handover.settings import read_broker_files
from tiersidecar.domain.errors import HandoverError


def file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_each_file_is_of_the_broker_that_it_names(tmp_path: Path) -> None:
    one, other = file(tmp_path, "1", "node.id=1\nrack=a\n"), file(tmp_path, "2", "broker.id=2\n")
    assert read_broker_files([one, other]) == {1: {"node.id": "1", "rack": "a"}, 2: {"broker.id": "2"}}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["log.dirs=/data"], "it has no node.id"),
        (["node.id=${NODE}"], "it has no node.id"),
        (["node.id=1", "node.id=1"], "another file is of broker 1, too"),
    ],
    ids=["without an id", "with a variable", "the same twice"],
)
def test_which_brokers_it_is_must_be_clear(texts: list[str], message: str, tmp_path: Path) -> None:
    paths = [file(tmp_path, str(number), text) for number, text in enumerate(texts)]
    with pytest.raises(HandoverError, match=message):
        read_broker_files(paths)
    with pytest.raises(HandoverError, match="No such file"):
        read_broker_files([tmp_path / "none"])
