"""Staged files take their places in a stopped broker's log dirs, and nothing else does (issue 21)."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import plain_segment
from tests.support.segments import remote_segment
from tests.unit.adapters.log_dirs_fs.broker_files import TOPIC_ID, ScratchLogDir
from tiersidecar.adapters.restored_segment import STAGED, RestoredFile
from tiersidecar.app.handover.files import planned_changes
from tiersidecar.app.handover.places import (
    discard,
    leave_places,
    own_partitions,
    place_faults,
    running_brokers,
    take_places,
)
from tiersidecar.app.handover.plan import Plan, PlannedPartition, PlannedPiece, RecordsDigest, read_plan, write_plan
from tiersidecar.app.handover.restore import lacking_replicas, room_faults
from tiersidecar.app.handover.staged import (
    Staged,
    StagedPartition,
    digest_of_plan,
    faults_of_all,
    in_order,
    read_staged,
    write_staged,
)
from tiersidecar.app.handover.verify_return import least_bytes, log_start_faults
from tiersidecar.domain.errors import HandoverError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset

CLUSTER = "dGllcnNpZGVjYXItdGVzdA"
ORDERS = TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=0)
NAMES = ("00000000000000000000.log", "00000000000000000000.index", "00000000000000000010.log")
DIGEST = RecordsDigest(start_offset=0, stop_offset=100, count=7, sha256="aa")


def piece(start: int, stop: int, *, of: tuple[int, int] | None = None) -> PlannedPiece:
    first, end = of or (start, stop - 1)
    segment = remote_segment(first, end, topic_id_partition=ORDERS)
    return PlannedPiece(start_offset=Offset(start), stop_offset=Offset(stop), segment=segment)


def planned(**changes: Any) -> PlannedPartition:
    made = PlannedPartition(
        owner=ORDERS,
        log_start_offset=Offset(0),
        leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(0)),),
        high_watermark=Offset(100),
        copied_stop=Offset(40),
        broker_log_start_offset=Offset(30),
        replicas=(1, 2),
        pieces=(piece(0, 10), piece(10, 25), piece(25, 40)),
    )
    return replace(made, **changes)


def plan(*partitions: PlannedPartition) -> Plan:
    return Plan(
        made_ms=1,
        cluster_id=CLUSTER,
        partitions=partitions or (planned(),),
        to_native=False,
        back_to_local=True,
        brokers={1: "127.0.0.1:1", 2: "127.0.0.1:2"},
    )


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """As a broker leaves it that was trimmed to 30, in a segment that begins at 20."""
    scratch = ScratchLogDir(tmp_path / "data")
    directory = scratch.add_partition("orders-0", 20, 60)
    (directory / f"{20:020d}.log").write_bytes(plain_segment([100] * 40, base_offset=20))
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 30\n")
    (scratch.path / "log-start-offset-checkpoint").write_text("0\n1\norders 0 30\n")
    (scratch.path / ".kafka_cleanshutdown").touch()
    return scratch.path


def staged_for(log_dir: Path, *names: str, node_id: int = 1, local_start: int = 20) -> Staged:
    """Files of these names, as ``--stage`` leaves them."""
    directory, files = log_dir / "orders-0", []
    for name in names or NAMES:
        path = directory / f"{name}{STAGED}"
        path.write_bytes(name.encode())
        digest = hashlib.sha256(name.encode()).hexdigest()
        files.append(RestoredFile(name=name, size_bytes=len(name), sha256=digest, modified_ns=path.stat().st_mtime_ns))
    one = StagedPartition(owner=ORDERS, directory=str(directory), local_start=Offset(local_start), files=tuple(files))
    return Staged(plan_sha256="plan", cluster_id=CLUSTER, node_id=node_id, partitions=(one,))


def faults(log_dir: Path, staged: Staged, *, reads_all: bool = False) -> list[str]:
    return list(place_faults(planned_changes(plan(), [log_dir]), staged, reads_all=reads_all))


def listed(log_dir: Path) -> set[str]:
    return {path.name for path in (log_dir / "orders-0").iterdir()}


# -- what a replica lacks


def lacking(log_dir: Path, one: PlannedPartition) -> tuple[list[tuple[int, int]], list[str]]:
    found: list[str] = []
    replicas = lacking_replicas(plan(one), [log_dir], found)
    return [(each.start_offset, each.stop_offset) for replica in replicas for each in replica.pieces], found


def test_a_replica_takes_what_is_below_its_first_segment(log_dir: Path) -> None:
    assert lacking(log_dir, planned()) == ([(0, 10), (10, 20)], [])


def test_a_gap_that_nobody_gave_up_is_in_the_way(log_dir: Path) -> None:
    short = planned(pieces=(piece(0, 10),), copied_stop=Offset(10))
    found = lacking(log_dir, short)[1]
    assert "no copy has the offsets [10, 20)" in found[0]
    assert lacking(log_dir, replace(short, gaps=((5, 30),))) == ([(0, 10)], [])
    assert "no copy has the offsets [10, 20)" in lacking(log_dir, replace(short, gaps=((5, 15),)))[1][0]


def test_another_topic_of_the_name_is_no_replica(log_dir: Path) -> None:
    (log_dir / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: ICEiIyQlJicoKSorLC0uLw")
    assert "another topic" in lacking(log_dir, planned())[1][0]


def test_a_volume_without_room_is_named(log_dir: Path) -> None:
    found: list[str] = []
    replicas = lacking_replicas(plan(), [log_dir], found)
    assert list(room_faults(replicas)) == []
    huge = replace(piece(0, 10), segment=replace(piece(0, 10).segment, segment_size_in_bytes=1 << 60))
    (fault,) = room_faults([replace(replicas[0], pieces=(huge,))])
    assert "1.0 EiB go there" in fault or "go there" in fault


# -- places


def test_files_take_their_places_and_leave_them(log_dir: Path) -> None:
    staged = staged_for(log_dir)
    assert faults(log_dir, staged, reads_all=True) == []
    before = listed(log_dir)
    assert take_places(own_partitions(plan(), staged, [log_dir])) == 3
    assert set(NAMES) <= listed(log_dir)
    assert not any(name.endswith(STAGED) for name in listed(log_dir))
    assert faults(log_dir, staged) == [], "it may be carried out again"
    assert take_places(own_partitions(plan(), staged, [log_dir])) == 0
    assert leave_places(own_partitions(plan(), staged, [log_dir])) == 3
    assert listed(log_dir) == before
    assert discard(plan(), [log_dir]) == 3
    assert not any(name.endswith(STAGED) for name in listed(log_dir))


def test_an_index_is_there_before_its_log_and_gone_after_it(log_dir: Path) -> None:
    (one,) = staged_for(log_dir).partitions
    assert [file.name.rpartition(".")[2] for file in in_order(one.files)] == ["index", "log", "log"]


def test_log_start_and_epochs_follow(log_dir: Path) -> None:
    changes = planned_changes(plan(), [log_dir])
    assert changes.faults == ()
    assert {one.path.name: one.after.decode() for one in changes.files} == {
        "leader-epoch-checkpoint": "0\n1\n0 0\n",
        "log-start-offset-checkpoint": "0\n0\n",
    }


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("gone", "is not there any more"),
        ("longer", "has changed since"),
        ("touched", "has changed since"),
        ("link", "is not there any more"),
        ("restored-by-hand", "begins at 15 now"),
        ("moved", "was staged in"),
        ("both", "is there already"),
        ("other-broker", "is of broker 2"),
    ],
)
def test_what_keeps_them_from_it(log_dir: Path, what: str, word: str) -> None:
    staged = staged_for(log_dir)
    directory = log_dir / "orders-0"
    path = directory / f"{NAMES[1]}{STAGED}"
    match what:
        case "gone":
            path.unlink()
        case "longer":
            path.write_bytes(b"more than there was")
        case "touched":
            path.write_bytes(NAMES[1].encode())
        case "link":
            path.rename(log_dir / "elsewhere")
            path.symlink_to(log_dir / "elsewhere")
        case "restored-by-hand":
            (directory / "00000000000000000015.log").touch()
        case "moved":
            staged = replace(staged, partitions=(replace(staged.partitions[0], directory="/other/orders-0"),))
        case "both":
            (directory / NAMES[1]).write_bytes(b"of nobody")
        case "other-broker":
            staged = replace(staged, node_id=2)
    (fault,) = faults(log_dir, staged)
    assert word in fault


def test_other_bytes_of_the_same_age_are_seen_by_their_digest(log_dir: Path) -> None:
    staged = staged_for(log_dir)
    file = staged.partitions[0].files[0]
    path = log_dir / "orders-0" / f"{file.name}{STAGED}"
    path.write_bytes(b"x" * file.size_bytes)
    os.utime(path, ns=(file.modified_ns, file.modified_ns))
    assert faults(log_dir, staged) == []
    assert "has changed since" in faults(log_dir, staged, reads_all=True)[0]


def test_a_staged_file_leads_nowhere_else(log_dir: Path, tmp_path: Path) -> None:
    staged = staged_for(log_dir)
    for directory in ("/etc/orders-0", str(log_dir / "others-0"), str(log_dir)):
        forged = replace(staged, partitions=(replace(staged.partitions[0], directory=directory),))
        with pytest.raises(HandoverError, match="not its directory"):
            own_partitions(plan(), forged, [log_dir])
    path = tmp_path / "staged.json"
    write_staged(staged, path)
    document = json.loads(path.read_text())
    for name in ("../../.ssh/authorized_keys", "00000000000000000020.log", "leader-epoch-checkpoint"):
        document["partitions"][0]["files"][0][0] = name
        path.write_text(json.dumps(document))
        with pytest.raises(HandoverError, match="is not a file of a segment below 20"):
            read_staged(path)


# -- all of them


def test_no_replica_is_left_out(log_dir: Path, tmp_path: Path) -> None:
    one, other = staged_for(log_dir), staged_for(log_dir, node_id=2)
    assert list(faults_of_all(plan(), "plan", [one, other])) == []
    (left,) = faults_of_all(plan(), "plan", [one])
    assert "replicas of brokers 2 are not staged" in left
    half = replace(other, partitions=())
    assert "replicas of brokers 2 are not staged" in next(iter(faults_of_all(plan(), "plan", [one, half])))
    told = list(faults_of_all(plan(), "another plan", [one, other]))
    assert "is by another plan" in told[0]
    path = tmp_path / "new" / "staged.json"
    write_staged(one, path)
    assert read_staged(path) == one


def test_a_broker_that_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = list(running_brokers({1: f"127.0.0.1:{port}", 2: "127.0.0.1:1", 3: ""}, {1, 2, 3}))
    assert [one[:13] for one in found] == ["broker 1 runs"]


# -- the plan's file


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    made = plan(planned(records=DIGEST, committed=DIGEST, gaps=((3, 5),)))
    write_plan(made, path)
    assert read_plan(path) == made
    assert digest_of_plan(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("pieces", "word"),
    [
        ((piece(10, 25), piece(0, 10)), "not in order"),
        ((piece(0, 10), piece(5, 25)), "not in order"),
        ((piece(90, 101),), "not in order"),
        ((piece(0, 10, of=(0, 8)),), "not of the segment"),
        ((replace(piece(0, 10), segment=remote_segment(0, 9)),), "a piece of it is of"),
    ],
)
def test_a_plan_that_no_log_can_follow_is_refused(tmp_path: Path, pieces: tuple[PlannedPiece, ...], word: str) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan(planned(pieces=pieces)), path)
    with pytest.raises(HandoverError, match=word):
        read_plan(path)


def test_it_names_the_replicas(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan(planned(replicas=())), path)
    with pytest.raises(HandoverError, match="names no replicas"):
        read_plan(path)


# -- afterwards


@pytest.mark.parametrize(
    ("now", "deleted_to", "gaps", "word"),
    [
        (0, 0, (), ""),
        (30, 0, (), "was to start at 0"),
        (30, 30, (), ""),
        (0, 30, (), "users have deleted"),
        (10, 0, ((0, 10),), ""),
        (10, 0, ((5, 10),), "was to start at 0"),
    ],
)
def test_where_the_log_begins(now: int, deleted_to: int, gaps: tuple[tuple[int, int], ...], word: str) -> None:
    found = list(log_start_faults(planned(gaps=gaps), now, deleted_to))
    assert [word in one for one in found] == ([True] if word else [])


def test_a_replica_has_all_whole_segments_at_least() -> None:
    cut = piece(25, 40, of=(20, 39))
    assert least_bytes(planned(pieces=(piece(0, 10), piece(10, 25), cut))) == 200
