"""Names in a log dir, and the broker's small text files: checkpoints, ``partition.metadata`` and ``meta.properties``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden import CLEAN_LOG_DIR, UNCLEAN_LOG_DIR, read_json
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.offsets import EpochEntry, Offset
from tiersidecar.formats.kafka.log_dir_files import (
    DirectoryKind,
    LogDirectoryName,
    LogFileKind,
    LogFileName,
    MetaProperties,
    log_file_name,
    parse_log_directory,
    parse_log_file,
    read_leader_epochs,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    write_leader_epochs,
    write_offset_checkpoint,
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


PARTITIONS = [
    pytest.param(path.parent, id=str(path.parent.relative_to(root.parent)))
    for root in (CLEAN_LOG_DIR, UNCLEAN_LOG_DIR)
    for path in sorted(root.glob("*/partition.metadata"))
]


@pytest.mark.parametrize("directory", PARTITIONS)
def test_leader_epochs_are_written_as_the_broker_writes_them(directory: Path) -> None:
    """T-20."""
    data = (directory / "leader-epoch-checkpoint").read_bytes()
    assert write_leader_epochs(read_leader_epochs(data)) == data


def test_leader_epochs_are_those_that_the_manifest_records() -> None:
    for name, lines in read_json("log-dirs", "manifest.json")["leader_epoch_checkpoints"].items():
        entries = read_leader_epochs((CLEAN_LOG_DIR / name / "leader-epoch-checkpoint").read_bytes())
        assert [f"{epoch} {offset}" for epoch, offset in entries] == lines


def test_topic_ids_are_those_that_the_broker_tells() -> None:
    for name, told in read_json("log-dirs", "expected", "offsets.json").items():
        data = (CLEAN_LOG_DIR / name / "partition.metadata").read_bytes()
        assert format_uuid(read_partition_metadata(data)) == told["topic_id"]


def test_high_watermarks_and_log_starts_are_those_that_the_broker_tells() -> None:
    """A partition without an entry in log-start-offset-checkpoint begins with its first segment."""
    watermarks = read_offset_checkpoint(
        (CLEAN_LOG_DIR / "replication-offset-checkpoint").read_bytes(), where="replication"
    )
    starts = read_offset_checkpoint((CLEAN_LOG_DIR / "log-start-offset-checkpoint").read_bytes(), where="starts")
    for name, told in read_json("log-dirs", "expected", "offsets.json").items():
        topic, _, partition = name.rpartition("-")
        assert watermarks[topic, int(partition)] == told["latest"]
        first = min(int(path.stem) for path in (CLEAN_LOG_DIR / name).glob("*.log"))
        assert starts.get((topic, int(partition)), first) == told["earliest"]


def test_offset_checkpoints_are_written_as_the_broker_writes_them() -> None:
    for name in ("replication-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        data = (CLEAN_LOG_DIR / name).read_bytes()
        assert write_offset_checkpoint(read_offset_checkpoint(data, where=name)) == data


def test_meta_properties_tell_whose_the_log_dir_is() -> None:
    assert read_meta_properties((CLEAN_LOG_DIR / "meta.properties").read_bytes()) == MetaProperties(
        version=1,
        cluster_id="dGllcnNpZGVjYXItdGVzdA",
        node_id=1,
        directory_id="ldlWAnQgGypqhN_XSdNg2g",
    )


def test_version_0_of_meta_properties_has_broker_id_and_escapes() -> None:
    data = rb"""#
#Mon Jan 01 00:00:00 UTC 2018
version=0
broker.id=3
cluster.id=a\=b\:c
"""
    assert read_meta_properties(data) == MetaProperties(version=0, cluster_id="a=b:c", node_id=3, directory_id=None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"0\n", "version and count are missing", id="cut off after the version"),
        pytest.param(b"0\n", "version and count are missing", id="cut after the version"),
        pytest.param(b"1\n0\n", "version 1 instead of 0", id="another version"),
        pytest.param(b"0\n2\n0 0\n", "1 entries where 2 were announced", id="cut between entries"),
        pytest.param(b"0\n1\n0 0\n1 5\n", "2 entries where 1 were announced", id="too many entries"),
        pytest.param(b"0\n1\n0\n", "line 3 has 1 fields, not 2", id="cut within an entry"),
        pytest.param(b"0\nx\n", "line 2: invalid literal", id="a count that is no number"),
        pytest.param(b"0\n1\n0 \xff\n", "not UTF-8", id="not text"),
    ],
)
def test_a_damaged_checkpoint_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=f"leader-epoch-checkpoint is corrupt.*{reason}"):
        read_leader_epochs(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"node.id=1\nversion=1\n", "there is no cluster.id", id="no cluster id"),
        pytest.param(b"cluster.id=a\nversion=1\n", "invalid literal", id="no node id"),
        pytest.param(b"cluster.id=a\nnode.id=1\n", "invalid literal", id="no version"),
    ],
)
def test_incomplete_meta_properties_are_told(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_meta_properties(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "version None", id="empty"),
        pytest.param(b"version: 1\ntopic_id: AAAA\n", "version 1 instead of 0", id="another version"),
        pytest.param(b"version: 0\ntopic_id: AAAA\n", "topic_id: .*3 bytes instead of 16", id="a short id"),
        pytest.param(b"version: 0\n", "topic_id", id="no id"),
    ],
)
def test_damaged_partition_metadata_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_partition_metadata(data)


@given(st.lists(st.builds(EpochEntry, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_any_epochs_come_back(entries: list[EpochEntry]) -> None:
    assert read_leader_epochs(write_leader_epochs(entries)) == tuple(entries)


def test_a_file_that_was_made_and_not_yet_written_has_no_entries() -> None:
    """Seen beside new partitions of a real broker."""
    assert read_leader_epochs(b"", where="new") == ()
    assert read_offset_checkpoint(b"", where="new") == {}
