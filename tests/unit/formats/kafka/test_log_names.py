"""Names in log dirs: ours to copy, or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import CLEAN_LOG_DIR
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.log_names import (
    DirectoryKind,
    LogDirectoryName,
    LogFileKind,
    LogFileName,
    log_file_name,
    parse_log_directory,
    parse_log_file,
)


@pytest.mark.parametrize(
    ("name", "topic", "partition", "kind"),
    [
        pytest.param("orders-3", "orders", 3, DirectoryKind.CURRENT, id="a partition"),
        pytest.param("a-b-0", "a-b", 0, DirectoryKind.CURRENT, id="a topic with a dash"),
        pytest.param("retention.deleted_x-0", "retention.deleted_x", 0, DirectoryKind.CURRENT, id="dots in a topic"),
        pytest.param("x-delete-0", "x-delete", 0, DirectoryKind.CURRENT, id="a topic named like a suffix"),
        pytest.param("orders-3.0f1e-delete", "orders", 3, DirectoryKind.DELETE, id="being deleted"),
        pytest.param("orders-3.0f1e-future", "orders", 3, DirectoryKind.FUTURE, id="moving between log dirs"),
        pytest.param("orders-3.0f1e-stray", "orders", 3, DirectoryKind.STRAY, id="stray"),
        pytest.param("a.b-1-3.0f1e-delete", "a.b-1", 3, DirectoryKind.DELETE, id="dots and dashes being deleted"),
    ],
)
def test_a_partition_directory_tells_topic_partition_and_kind(
    name: str, topic: str, partition: int, kind: DirectoryKind
) -> None:
    assert parse_log_directory(name) == LogDirectoryName(topic=topic, partition=partition, kind=kind)


@pytest.mark.parametrize(
    "name",
    ["remote-log-index-cache", "orders", "orders-", "-3", "orders-x", "orders-03", "or ders-1", "orders-3-delete", ""],
)
def test_other_directories_are_nobodys(name: str) -> None:
    assert parse_log_directory(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000000.log.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.log.swap",
        "00000000000000000000.index.deleted",
        "0.log",
        "partition.metadata",
        "leader-epoch-checkpoint",
        "00000000000000000000.logs",
        "00000000000000000012-00000000000000000034.checkpoint",
    ],
)
def test_other_files_are_not_ours(name: str) -> None:
    assert parse_log_file(name) is None


@given(st.integers(0, 2**63 - 1), st.sampled_from(LogFileKind))
def test_file_names_come_back(offset: int, kind: LogFileKind) -> None:
    assert parse_log_file(log_file_name(offset, kind)) == LogFileName(offset=Offset(offset), kind=kind)


def test_every_name_in_a_real_log_dir_is_known() -> None:
    plain = {"partition.metadata", "leader-epoch-checkpoint", "quorum-state"}
    for directory in filter(lambda path: path.is_dir(), CLEAN_LOG_DIR.iterdir()):
        assert str(parse_log_directory(directory.name)) == directory.name
        for path in directory.iterdir():
            parsed = parse_log_file(path.name)
            assert str(parsed) == path.name or path.name in plain
