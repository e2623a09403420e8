"""A node is prepared before its first start (issue 21): only what is not there is made, and what has run is refused."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.unit.formats.kafka.test_cluster_metadata import FORMATTED
from tiersidecar.app.mount_file import MountPlan, OpenTransaction, read_plan, write_plan
from tiersidecar.app.mount_seed import look_at_node, sow, stopped_node
from tiersidecar.domain.cluster_topics import NewPartition, NewTopic
from tiersidecar.domain.errors import ConfigError, MountRefusedError
from tiersidecar.domain.ids import Uuid, format_uuid

TOPIC_ID = Uuid(b"orders-topic-id!")
PLAN = MountPlan(
    made_ms=1,
    former_cluster_id="former",
    topics=(
        NewTopic(
            name="orders",
            topic_id=TOPIC_ID,
            partitions=(
                NewPartition(partition=0, replicas=(1, 2), leader_epoch=1007, start_offset=20),
                NewPartition(partition=1, replicas=(2, 1), leader_epoch=1007, start_offset=5_000_000_000),
                NewPartition(partition=2, replicas=(1, 2), leader_epoch=1007),
                NewPartition(partition=3, replicas=(2, 3), leader_epoch=1007, start_offset=7),
            ),
            configs=(("retention.ms", "-1"),),
        ),
    ),
    next_producer_id=1_000_004,
    open_transactions={
        ("orders", 0): (OpenTransaction(producer_id=4, producer_epoch=1, first_offset=12),),
    },
)
BOOTSTRAP = "bootstrap.checkpoint"


class Node:
    """Node 1, formatted: its first log dir has the cluster's metadata."""

    def __init__(self, root: Path) -> None:
        self.dirs = [root / "a", root / "b"]
        for directory in self.dirs:
            directory.mkdir()
            (directory / "meta.properties").write_text("version=1\ncluster.id=fresh\nnode.id=1\ndirectory.id=x\n")
        (self.dirs[0] / BOOTSTRAP).write_bytes(FORMATTED)
        self.properties = root / "server.properties"
        self.have_roles("broker,controller")

    def have_roles(self, roles: str) -> None:
        dirs = ",".join(map(str, self.dirs))
        self.properties.write_text(f"process.roles={roles}\nnode.id=1\nlog.dirs={dirs}\n")

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(one.parent)): path.read_bytes()
            for one in self.dirs
            for path in one.rglob("*")
            if path.is_file() and path.name not in ("meta.properties", ".lock")
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_replicas_begin_where_the_copied_data_end_spread_over_log_dirs(node: Node) -> None:
    before = node.files()
    seed = look_at_node(PLAN, node.properties)
    assert node.files() == before, "looking changes nothing"
    sow(seed)
    topic_id = f"version: 0\ntopic_id: {format_uuid(TOPIC_ID)}".encode()
    made = node.files()
    assert made.pop(f"a/{BOOTSTRAP}.before-mount") == FORMATTED
    assert made.pop(f"a/{BOOTSTRAP}")[:336] == FORMATTED[:336]
    assert made == {
        "a/orders-0/00000000000000000020.log": b"",
        "a/orders-0/partition.metadata": topic_id,
        "b/orders-1/00000000005000000000.log": b"",
        "b/orders-1/partition.metadata": topic_id,
    }, "not partition 2, which begins at 0, nor 3, of which it has no replica"


def test_a_second_time_there_is_nothing_to_do(node: Node) -> None:
    sow(look_at_node(PLAN, node.properties))
    before = node.files()
    again = look_at_node(PLAN, node.properties)
    assert (again.steps, again.partitions, again.present, again.is_controller_seeded) == ([], 2, 2, True)
    sow(again)
    assert node.files() == before


def test_it_goes_on_where_it_was_ended(node: Node) -> None:
    (node.dirs[1] / "orders-0").mkdir()
    (node.dirs[1] / "orders-0" / "00000000000000000020.log.new").write_bytes(b"")
    sow(look_at_node(PLAN, node.properties))
    assert "b/orders-0/00000000000000000020.log" in node.files(), "in the log dir in which it was begun"
    assert look_at_node(PLAN, node.properties).steps == []


def test_what_may_not_be_read_by_others_stays_so(node: Node) -> None:
    """The first records have the SCRAM credentials of users."""
    (node.dirs[0] / BOOTSTRAP).chmod(0o600)
    sow(look_at_node(PLAN, node.properties))
    assert {path.stat().st_mode & 0o777 for path in node.dirs[0].glob(f"{BOOTSTRAP}*")} == {0o600}


def test_a_plan_with_one_id_for_two_topics_is_neither_written_nor_read(tmp_path: Path) -> None:
    twice = replace(PLAN, topics=(*PLAN.topics, replace(PLAN.topics[0], name="orderz")))
    with pytest.raises(ConfigError, match="two topics have one topic_id"):
        write_plan(twice, tmp_path / "mount.json")
    assert not (tmp_path / "mount.json").exists()


def test_a_controller_alone_has_no_replicas(node: Node) -> None:
    node.have_roles("controller")
    sow(look_at_node(PLAN, node.properties))
    assert set(node.files()) == {f"a/{BOOTSTRAP}", f"a/{BOOTSTRAP}.before-mount"}


def test_a_broker_alone_has_no_first_records(node: Node) -> None:
    node.have_roles("broker")
    sow(look_at_node(PLAN, node.properties))
    assert node.files()[f"a/{BOOTSTRAP}"] == FORMATTED


def started_log(node: Node) -> None:
    (node.dirs[0] / "__cluster_metadata-0").mkdir()
    (node.dirs[0] / "__cluster_metadata-0" / "00000000000000000000.log").write_bytes(b"x")


def records(node: Node) -> None:
    (node.dirs[0] / "orders-0").mkdir()
    (node.dirs[0] / "orders-0" / "00000000000000000000.log").write_bytes(b"x")


def another_plan(node: Node) -> None:
    sow(look_at_node(replace(PLAN, next_producer_id=0), node.properties))


def former_id(node: Node) -> None:
    for directory in node.dirs:
        (directory / "meta.properties").write_text("version=1\ncluster.id=former\nnode.id=1\n")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        pytest.param(lambda node: (node.dirs[1] / "meta.properties").unlink(), "is not formatted", id="not formatted"),
        pytest.param(started_log, "has been started", id="its controller has run"),
        pytest.param(
            records, "a broker has been started here", id="a broker has made the partition, which holds records"
        ),
        pytest.param(another_plan, "another plan was used", id="another plan was used before"),
        pytest.param(former_id, "the id of the former cluster", id="formatted with the former cluster's id: no fence"),
        pytest.param(
            lambda node: (node.dirs[0] / "meta.properties").write_text("version=1\ncluster.id=fresh\nnode.id=2\n"),
            "is of node 2",
            id="another node's log dir",
        ),
        pytest.param(
            lambda node: (node.dirs[0] / BOOTSTRAP).write_bytes(FORMATTED[:-5]),
            "ends within a batch",
            id="a damaged file",
        ),
        pytest.param(lambda node: node.properties.unlink(), "No such file", id="no server.properties"),
    ],
)
def test_what_is_not_as_it_must_be_is_refused(node: Node, harm: Callable[[Node], object], reason: str) -> None:
    harm(node)
    before = node.files()
    with pytest.raises(MountRefusedError, match=reason):
        look_at_node(PLAN, node.properties)
    assert node.files() == before


def test_a_node_that_runs_is_refused(node: Node) -> None:
    """In another process, for a process may lock its own file twice."""
    lock = node.dirs[0] / ".lock"
    lock.touch()
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", hold, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(MountRefusedError, match="is in use"), stopped_node(node.properties):
            pass
        holder.communicate(b"\n")
    with stopped_node(node.properties), lock.open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


OWNER = 12_345 if os.geteuid() == 0 else os.geteuid()


@pytest.fixture
def owned_node() -> Iterator[Node]:
    """A node whose files are a user's, who can reach them: pytest's own directories are closed to others."""
    with TemporaryDirectory() as scratch:
        root = Path(scratch)
        root.chmod(0o755)
        node = Node(root)
        for path in (*node.dirs, *(one for directory in node.dirs for one in directory.iterdir())):
            os.chown(path, OWNER, -1)
        yield node


def test_root_writes_as_the_owner_of_the_log_dirs(owned_node: Node) -> None:
    before = os.geteuid(), os.getegid(), os.getgroups()
    with stopped_node(owned_node.properties):
        assert os.geteuid() == OWNER
        sow(look_at_node(PLAN, owned_node.properties))
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    made = [path for directory in owned_node.dirs for path in directory.rglob("*")]
    assert {path.stat().st_uid for path in made} == {OWNER}
    assert owned_node.dirs[0] / ".lock" in made


@pytest.mark.parametrize("name", [".lock", BOOTSTRAP, f"{BOOTSTRAP}.before-mount", "orders-0"])
def test_a_link_in_a_log_dir_leads_to_no_other_file(owned_node: Node, tmp_path: Path, name: str) -> None:
    """The user that the broker runs as may link what it likes; root must not give it away, nor write to it."""
    target = tmp_path / "shadow"
    target.write_bytes(FORMATTED)
    before = target.stat().st_uid, target.stat().st_mtime_ns
    link = owned_node.dirs[0] / name
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    with pytest.raises(MountRefusedError), stopped_node(owned_node.properties):
        sow(look_at_node(PLAN, owned_node.properties))
    assert (target.read_bytes(), target.stat().st_uid, target.stat().st_mtime_ns) == (FORMATTED, *before)


def test_a_link_in_place_of_a_half_written_file_is_replaced(owned_node: Node, tmp_path: Path) -> None:
    target = tmp_path / "shadow"
    target.write_bytes(b"secret")
    before = target.stat().st_uid, target.stat().st_mtime_ns
    (owned_node.dirs[0] / f"{BOOTSTRAP}.new").symlink_to(target)
    with stopped_node(owned_node.properties):
        sow(look_at_node(PLAN, owned_node.properties))
    assert (target.read_bytes(), target.stat().st_uid, target.stat().st_mtime_ns) == (b"secret", *before)
    assert not (owned_node.dirs[0] / BOOTSTRAP).is_symlink()


def test_a_directory_that_is_no_log_dir_gets_no_lock(node: Node) -> None:
    (node.dirs[1] / "meta.properties").unlink()
    with pytest.raises(MountRefusedError, match="is not formatted"), stopped_node(node.properties):
        pass
    assert not list(node.dirs[0].parent.rglob(".lock"))


def test_a_plan_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    path, (soft, hard) = tmp_path / "mount.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ConfigError, match="cannot be written"):
            write_plan(PLAN, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mount.json"
    write_plan(PLAN, path)
    assert read_plan(path) == PLAN
    assert PLAN.brokers == [1, 2, 3]
    with pytest.raises(ConfigError, match="another plan may be in use"):
        write_plan(PLAN, path)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        pytest.param('"version": 1', '"version": 3', "use the release that wrote it", id="a later release's"),
        pytest.param(
            '"version": 1', '"version": 2', "of all partitions of a read-only", id="read-only, by its version"
        ),
        pytest.param(
            '"start_offset": 20', f'"start_offset": {2**62}', "and of no others", id="read-only, by an offset"
        ),
        pytest.param('"tiersidecar-mount"', '"else"', "use the release", id="another file"),
        pytest.param('"orders"', '"../../etc"', "is no name of a topic", id="a path out of the log dir"),
        pytest.param('"orders"', '"__cluster_metadata"', "is internal", id="the cluster's own metadata"),
        pytest.param('"partition": 1', '"partition": 7', "are not 0, 1, 2", id="a partition that is missing"),
        pytest.param('"start_offset": 20', '"start_offset": -20', "start_offset -20", id="an offset below 0"),
        pytest.param('"start_offset": 20', '"start_offset": 20.9', "start_offset 20.9 is no int", id="a fraction"),
        pytest.param('"start_offset": 20', '"start_offset": true', "start_offset true is no int", id="a truth value"),
        pytest.param('"start_offset": 20', f'"start_offset": {2**63}', "start_offset 9223", id="an offset, no int64"),
        pytest.param('"retention.ms": "-1"', '"retention.ms": null', "orders: retention.ms null", id="a setting, null"),
        pytest.param('"retention.ms": "-1"', '"retention.ms": 1e9', "retention.ms 1000000000.0 is no", id="a number"),
        pytest.param('"retention.ms": "-1"', '"a": "\\ud800"', "surrogates", id="text that UTF-8 does not have"),
        pytest.param(
            '"next_producer_id": 1000004', f'"next_producer_id": {2**63}', "next_producer_id 9", id="no int64"
        ),
        pytest.param("\n      1,\n      2\n", f"1, {2**31}", "a replica 2147483648 is no", id="a replica, no int32"),
        pytest.param("\n       4,\n       1,", "4, 40000,", "a producer epoch 40000 is no", id="no int16"),
        pytest.param('"start_offset": 20,', "", "'start_offset' is missing", id="a field that is missing"),
        pytest.param('"made_ms": 1', '"made_ms": 1e999', "made_ms Infinity is no", id="a number beyond all bounds"),
        pytest.param('"made_ms": 1', '"made_ms": ' + "[" * 100_000, "no plan", id="nested without end"),
        pytest.param('"leader_epoch": 1007', '"leader_epoch": 9999999999', "leader_epoch 9999999999", id="no int32"),
        pytest.param(format_uuid(TOPIC_ID), "x", "no plan", id="no topic id"),
        pytest.param("{", "[", "no plan", id="no JSON"),
    ],
)
def test_a_plan_with_a_value_that_cannot_be_used_is_refused(
    tmp_path: Path, before: str, after: str, reason: str
) -> None:
    path = tmp_path / "mount.json"
    write_plan(PLAN, path)
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(ConfigError, match=reason):
        read_plan(path)
