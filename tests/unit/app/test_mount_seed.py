"""A node is prepared before its first start (issue 21): only what is not there is made, and what has run is refused."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.unit.formats.kafka.test_cluster_metadata import FORMATTED
from tiersidecar.app.mount_file import MountPlan, OpenTransaction
from tiersidecar.app.mount_seed import look_at_node, sow, stopped_node
from tiersidecar.domain.cluster_topics import NewPartition, NewTopic
from tiersidecar.domain.errors import MountRefusedError
from tiersidecar.domain.ids import Uuid, format_uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.formats.kafka.cluster_metadata import write_topic_records

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


def started_broker(node: Node) -> None:
    node.have_roles("broker")
    started_log(node)


def snapshot_alone(node: Node) -> None:
    """As where the log was cleaned up to it, and a new segment has just begun."""
    log = node.dirs[0] / "__cluster_metadata-0"
    log.mkdir()
    (log / "00000000000000000000-0000000000.checkpoint").write_bytes(b"of kafka-storage format")
    (log / "00000000000000004711-0000000003.checkpoint").write_bytes(b"x")
    (log / "00000000000000004711.log").write_bytes(b"")


def broker_without_its_metadata_disk(node: Node) -> None:
    """All that it has left is a partition that begins at 0, which the plan lets it make itself."""
    node.have_roles("broker")
    (node.dirs[1] / "orders-2").mkdir()
    (node.dirs[1] / "orders-2" / f"{0:020d}.log").write_bytes(b"records")


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
            started_broker, "has been started", id="a broker alone has run, and lost the disk of its replicas"
        ),
        pytest.param(snapshot_alone, "has been started", id="its metadata log has but a snapshot"),
        pytest.param(
            broker_without_its_metadata_disk,
            "logs of a broker that has run",
            id="a broker alone has lost its metadata disk",
        ),
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


READ_ONLY = replace(
    PLAN,
    next_producer_id=0,
    open_transactions={},
    is_read_only=True,
    topics=tuple(
        replace(topic, partitions=tuple(replace(one, start_offset=MOUNTED_START) for one in topic.partitions))
        for topic in PLAN.topics
    ),
)
EMPTY_LOG = f"{MOUNTED_START:020d}.log"


def run(node: Node) -> None:
    """What a node of a read-only mount has on its disks once it has run: three replicas, none with a record."""
    sow(look_at_node(READ_ONLY, node.properties))
    metadata_log = node.dirs[0] / "__cluster_metadata-0"
    metadata_log.mkdir()
    records = b"".join(record for topic in READ_ONLY.topics for record in write_topic_records(topic))
    (metadata_log / "00000000000000000000.log").write_bytes(b"a batch of" + records)
    for directory in (one for log_dir in node.dirs for one in log_dir.glob("orders-*")):
        for name in (f"{MOUNTED_START:020d}.index", "leader-epoch-checkpoint"):
            (directory / name).write_bytes(b"made by the broker")


def lose(disk: Path) -> None:
    """In its place is another one, formatted."""
    shutil.rmtree(disk)
    disk.mkdir()
    (disk / "meta.properties").write_text("version=1\ncluster.id=fresh\nnode.id=1\ndirectory.id=y\n")


def test_of_a_node_that_has_run_what_a_lost_disk_had_is_seeded_again(node: Node) -> None:
    run(node)
    before = node.files()
    lost = {name for name in before if name.startswith("b/")}
    lose(node.dirs[1])
    seed = look_at_node(READ_ONLY, node.properties)
    assert (seed.partitions, seed.present, seed.is_controller_seeded) == (3, 2, True)
    assert seed.steps == [
        f"make the directories of 1 partitions in {node.dirs[1]}, whose logs begin above all offsets of the source"
    ]
    sow(seed)
    after = node.files()
    assert {name: after[name] for name in before.keys() - lost} == {name: before[name] for name in before.keys() - lost}
    made = after.keys() - (before.keys() - lost)
    assert made == {f"b/orders-1/{EMPTY_LOG}", "b/orders-1/partition.metadata"}
    assert look_at_node(READ_ONLY, node.properties).steps == []


def test_of_a_node_that_kept_its_metadata_log_alone_all_is_seeded_again(node: Node) -> None:
    run(node)
    kept = {name: data for name, data in node.files().items() if "/orders-" not in name}
    for directory in (one for log_dir in node.dirs for one in log_dir.glob("orders-*")):
        shutil.rmtree(directory)
    sow(look_at_node(READ_ONLY, node.properties))
    made = node.files()
    assert {name: made.pop(name) for name in kept} == kept
    assert sorted(Path(name).name for name in made) == [EMPTY_LOG] * 3 + ["partition.metadata"] * 3


def written(node: Node) -> None:
    (node.dirs[0] / "orders-0" / EMPTY_LOG).write_bytes(b"a record")


def written_later(node: Node) -> None:
    (node.dirs[0] / "orders-0" / f"{MOUNTED_START + 5:020d}.log").write_bytes(b"")


def begun_anew(node: Node) -> None:
    (node.dirs[0] / "orders-0" / EMPTY_LOG).rename(node.dirs[0] / "orders-0" / f"{0:020d}.log")


def of_another_topic(node: Node) -> None:
    other = format_uuid(Uuid(b"another-topic-id"))
    (node.dirs[0] / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {other}")


def of_no_topic(node: Node) -> None:
    (node.dirs[0] / "orders-0" / "partition.metadata").unlink()


def without_the_topic(node: Node) -> None:
    (node.dirs[0] / "__cluster_metadata-0" / "00000000000000000000.log").write_bytes(b"orders, and no id")


def without_metadata(node: Node) -> None:
    shutil.rmtree(node.dirs[0] / "__cluster_metadata-0")


def test_what_kafka_storage_has_formatted_has_not_run(node: Node) -> None:
    """Releases after 4.3 put the first records, or the quorum's voters, there."""
    log = node.dirs[0] / "__cluster_metadata-0"
    log.mkdir()
    (log / "00000000000000000000-0000000000.checkpoint").write_bytes(b"voters")
    assert look_at_node(PLAN, node.properties).partitions == 2


def test_where_the_metadata_log_is_lost_no_topic_s_logs_are_left(node: Node) -> None:
    """Not even those that the plan does not name: consumer groups' commits, say, would be put aside."""
    run(node)
    lose(node.dirs[0])
    (node.dirs[0] / BOOTSTRAP).write_bytes(FORMATTED)
    shutil.rmtree(node.dirs[1] / "orders-1")
    (node.dirs[1] / "lost+found").mkdir()
    assert look_at_node(READ_ONLY, node.properties).steps
    (node.dirs[1] / "__consumer_offsets-7").mkdir()
    (node.dirs[1] / "__consumer_offsets-7" / f"{0:020d}.log").write_bytes(b"commits")
    with pytest.raises(MountRefusedError, match=r"the metadata log of .* is lost"):
        look_at_node(READ_ONLY, node.properties)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        pytest.param(written, "holds records", id="somebody has written to a log that is left"),
        pytest.param(written_later, "does not begin where it was seeded", id="and what was written has expired"),
        pytest.param(begun_anew, "remove this directory, and seed again", id="the broker began an empty log at 0"),
        pytest.param(of_another_topic, "is of the topic with the id", id="a log that is left is of another topic"),
        pytest.param(of_no_topic, "its topic is unknown", id="a log that is left is of no topic"),
        pytest.param(without_the_topic, "has run without them", id="another plan than the cluster's"),
        pytest.param(without_metadata, "the metadata log of .* is lost", id="the metadata were on the lost disk"),
    ],
)
def test_of_a_node_that_has_run_nothing_is_seeded_beside_what_is_not_as_it_was(
    node: Node, harm: Callable[[Node], object], reason: str
) -> None:
    run(node)
    lose(node.dirs[1])
    harm(node)
    before = node.files()
    with pytest.raises(MountRefusedError, match=reason):
        look_at_node(READ_ONLY, node.properties)
    assert node.files() == before


OTHER_ID = Uuid(b"payments-topic-i")
WITH_ANOTHER = replace(
    READ_ONLY, topics=(*READ_ONLY.topics, replace(READ_ONLY.topics[0], name="payments", topic_id=OTHER_ID))
)


@pytest.mark.parametrize(
    "is_told_of", [pytest.param(True, id="in its metadata log"), pytest.param(False, id="before its oldest snapshot")]
)
def test_a_topic_that_was_deleted_here_is_left_out(node: Node, is_told_of: bool) -> None:
    """As an operator is told to, once the source has deleted it; the plan stays the one by which all was seeded."""
    run(node)
    if is_told_of:
        of_other = next(write_topic_records(WITH_ANOTHER.topics[1]))
        removed = b"\x01\x09\x00" + OTHER_ID + b"\0"
        with (node.dirs[0] / "__cluster_metadata-0" / "00000000000000000000.log").open("ab") as file:
            file.write(of_other + b"other records" + removed)
    lose(node.dirs[1])
    seed = look_at_node(WITH_ANOTHER, node.properties)
    assert (seed.partitions, seed.present, seed.left_out) == (3, 2, ["payments"])
    sow(seed)
    assert f"b/orders-1/{EMPTY_LOG}" in node.files()
    assert not [name for name in node.files() if "payments" in name]


def deletes_orders(node: Node) -> None:
    with (node.dirs[0] / "__cluster_metadata-0" / "00000000000000000000.log").open("ab") as file:
        file.write(next(write_topic_records(WITH_ANOTHER.topics[1])) + b"\x01\x09\x00" + TOPIC_ID + b"\0")


def test_a_topic_that_was_deleted_here_may_have_given_its_name_to_another(node: Node) -> None:
    """A user's, with records: it is none of the plan's, and what else is missing is seeded all the same."""
    run(node)
    deletes_orders(node)
    of_another_topic(node)
    written(node)
    before = node.files()
    seed = look_at_node(WITH_ANOTHER, node.properties)
    assert (seed.partitions, seed.present, seed.left_out) == (3, 0, ["orders"])
    sow(seed)
    made = node.files()
    assert {name: made[name] for name in before} == before
    assert len([name for name in made.keys() - before.keys() if name.endswith(EMPTY_LOG)]) == 3


def test_where_all_topics_of_the_plan_were_deleted_here_nothing_is_to_be_done(node: Node) -> None:
    run(node)
    deletes_orders(node)
    lose(node.dirs[1])
    seed = look_at_node(READ_ONLY, node.properties)
    assert (seed.steps, seed.partitions, seed.left_out) == ([], 0, ["orders"])


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
