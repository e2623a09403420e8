"""A partition directory is of the topic whose id is written in it now, whatever it was of before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tiersidecar.adapters.log_dirs_fs.log_dirs import TopicIdsNow
from tiersidecar.domain.ids import Uuid, format_uuid

FORMER, LATTER = Uuid(b"f" * 16), Uuid(b"l" * 16)


def made(log_dir: Path, topic_id: Uuid | None) -> Path:
    directory = log_dir / "orders-3"
    directory.mkdir(parents=True)
    if topic_id is not None:
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_uuid(topic_id)}")
    return directory


def test_a_topic_that_is_made_anew_is_seen_at_once(tmp_path: Path) -> None:
    ids, former = TopicIdsNow([str(tmp_path / "a"), str(tmp_path / "b")]), made(tmp_path / "b", FORMER)
    assert [ids.find("orders", 3) for _ in range(2)] == [FORMER, FORMER]
    former.rename(tmp_path / "b" / "orders-3.0123456789abcdef-delete")
    assert ids.find("orders", 3) is None
    made(tmp_path / "b", LATTER)
    assert ids.find("orders", 3) == LATTER


def test_it_may_come_back_in_another_log_dir(tmp_path: Path) -> None:
    ids, former = TopicIdsNow([str(tmp_path / "a"), str(tmp_path / "b")]), made(tmp_path / "b", FORMER)
    assert ids.find("orders", 3) == FORMER
    shutil.rmtree(former)
    made(tmp_path / "a", LATTER)
    assert ids.find("orders", 3) == LATTER


def test_while_nothing_is_written_down_it_is_of_none(tmp_path: Path) -> None:
    directory = made(tmp_path, None)
    ids = TopicIdsNow([str(tmp_path)])
    assert ids.find("orders", 3) is None
    (directory / "partition.metadata").write_text("version: 0\n")
    assert ids.find("orders", 3) is None
    assert ids.find("orders", 4) is None


@pytest.mark.parametrize(
    ("checkpoint", "epoch"),
    [
        pytest.param("0\n2\n0 0\n4 120\n", 4, id="the last one counts"),
        pytest.param("0\n0\n", None, id="none has begun"),
        pytest.param("0\n2\n0 0\n", None, id="cut short"),
        pytest.param(None, None, id="no file"),
    ],
)
def test_the_leader_epoch_that_the_broker_has_written_down_last(
    tmp_path: Path, checkpoint: str | None, epoch: int | None
) -> None:
    directory = made(tmp_path, LATTER)
    if checkpoint is not None:
        (directory / "leader-epoch-checkpoint").write_text(checkpoint)
    found = TopicIdsNow([str(tmp_path)]).leader_epoch("orders", 3)
    assert found == (None if epoch is None else (LATTER, epoch))


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        pytest.param("../elsewhere/orders", 3, id="up, and into another directory"),
        pytest.param("orders-3/../../elsewhere/orders", 3, id="up from one that is there"),
        pytest.param("{elsewhere}/orders", 3, id="from the root"),
        pytest.param("orders\0", 3, id="with a NUL"),
        pytest.param("", 3, id="without a name"),
        pytest.param("..", 3, id="two dots"),
        pytest.param("o" * 250, 3, id="longer than Kafka's"),
        pytest.param("orders", -3, id="of a negative partition: orders- has such a directory"),
    ],
)
def test_no_name_leads_out_of_the_log_dir(tmp_path: Path, topic: str, partition: int) -> None:
    """A client may send any, before the broker has looked at it."""
    log_dir, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    for directory in (made(log_dir, FORMER), made(elsewhere, LATTER)):
        (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (log_dir / "orders-3").rename(log_dir / "orders--3")
    ids = TopicIdsNow([str(log_dir)])
    name = topic.format(elsewhere=elsewhere)
    assert (ids.find(name, partition), ids.leader_epoch(name, partition)) == (None, None)
    assert ids.find("orders-", 3) == FORMER
