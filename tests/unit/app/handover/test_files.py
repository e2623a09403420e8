"""What a hand-over changes in a broker's log dirs, and what keeps it from changing anything (issue 21)."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.adapters.log_dirs_fs.broker_files import TOPIC_ID, ScratchLogDir
from tiersidecar.app.handover.files import LogDirChanges, planned_changes
from tiersidecar.app.handover.plan import (
    Plan,
    PlannedPartition,
    PlannedSegment,
    RecordsDigest,
    read_plan,
    write_plan,
)
from tiersidecar.domain.errors import HandoverError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, HEADER_V2, LOG_OVERHEAD

CLUSTER = "dGllcnNpZGVjYXItdGVzdA"
ORDERS = TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=0)


def entries(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in pairs)


def planned(**changes: object) -> PlannedPartition:
    made = PlannedPartition(
        owner=ORDERS,
        log_start_offset=Offset(0),
        leader_epochs=entries((0, 0), (3, 20)),
        high_watermark=Offset(100),
        copied_stop=Offset(30),
        replicas=(1, 2),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def plan(*partitions: PlannedPartition, cluster_id: str = CLUSTER) -> Plan:
    return Plan(made_ms=1, cluster_id=cluster_id, partitions=partitions or (planned(),))


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """As a broker leaves it that the sidecar has trimmed to 30: two other partitions, one of them with a log start."""
    scratch = ScratchLogDir(tmp_path / "data")
    directory = scratch.add_partition("orders-0", 30, 60)
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n3 30\n4 80\n")
    scratch.add_partition("others-0", 0, topic_id=Uuid(bytes(range(2, 18))))
    (scratch.path / "log-start-offset-checkpoint").write_text("0\n2\norders 0 30\nothers 0 7\n")
    (scratch.path / ".kafka_cleanshutdown").touch()
    return scratch.path


def texts(changes: LogDirChanges) -> dict[str, str]:
    return {one.path.name: one.after.decode() for one in changes.files if one.before != one.after}


def test_log_start_goes_and_history_comes_back(log_dir: Path) -> None:
    changes = planned_changes(plan(), [log_dir])
    assert changes.faults == ()
    assert changes.node_id == 1
    assert texts(changes) == {
        "leader-epoch-checkpoint": "0\n3\n0 0\n3 20\n4 80\n",
        "log-start-offset-checkpoint": "0\n1\nothers 0 7\n",
    }
    (one,) = changes.partitions
    assert (one.former_start, one.partition.log_start_offset) == (30, 0)


def test_a_users_log_start_is_written(log_dir: Path) -> None:
    changes = planned_changes(plan(planned(log_start_offset=Offset(12))), [log_dir])
    assert texts(changes)["log-start-offset-checkpoint"] == "0\n2\nothers 0 7\norders 0 12\n"


def test_a_takeover_changes_no_files(log_dir: Path) -> None:
    (fault,) = planned_changes(replace(plan(), to_native=False), [log_dir]).faults
    assert "changes no files" in fault


def test_done_once_nothing_is_left_to_do(log_dir: Path) -> None:
    for change in planned_changes(plan(), [log_dir]).files:
        change.path.write_bytes(change.after)
    assert texts(planned_changes(plan(), [log_dir])) == {}


def test_a_broker_without_a_replica_changes_nothing(log_dir: Path) -> None:
    elsewhere = planned(owner=replace(ORDERS, partition=1), replicas=(2, 3))
    changes = planned_changes(plan(elsewhere), [log_dir])
    assert (changes.partitions, changes.faults, texts(changes)) == ((), (), {})


def test_a_replica_that_is_not_found_is_a_fault(log_dir: Path, tmp_path: Path) -> None:
    """One that is not changed deletes what is remote once it leads (issue 21)."""
    (log_dir / "orders-0").rename(tmp_path / "elsewhere")
    (fault,) = planned_changes(plan(), [log_dir]).faults
    assert fault.startswith("orders-0: broker 1 has a replica of it, and none of the configured log dirs has")


def test_a_replica_that_the_plan_does_not_know_is_a_fault(log_dir: Path) -> None:
    (fault,) = planned_changes(plan(planned(replicas=(2, 3))), [log_dir]).faults
    assert "the plan knows replicas on brokers 2, 3, not on broker 1" in fault


def no_clean_shutdown(log_dir: Path) -> None:
    (log_dir / ".kafka_cleanshutdown").unlink()


def another_history(log_dir: Path) -> None:
    (log_dir / "orders-0" / "leader-epoch-checkpoint").write_text("0\n2\n2 30\n4 80\n")


def trimmed_beyond_the_copies(log_dir: Path) -> None:
    (log_dir / "orders-0" / f"{30:020d}.log").unlink()


def another_topic(log_dir: Path) -> None:
    (log_dir / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: AgICAgICAgICAgICAgICAg")


def moved_to_another_log_dir(log_dir: Path) -> None:
    (log_dir / "orders-0.0123456789abcdef0123456789abcdef-future").mkdir()


def no_segment(log_dir: Path) -> None:
    for path in (log_dir / "orders-0").glob("*.log"):
        path.unlink()


def unclean_election_below_the_copies(log_dir: Path) -> None:
    (log_dir / "orders-0" / "leader-epoch-checkpoint").write_text("0\n2\n3 20\n4 25\n")


def unreadable_epochs(log_dir: Path) -> None:
    (log_dir / "orders-0" / "leader-epoch-checkpoint").write_text("0\n9\n3 30\n")


FAULTS = {
    "the broker was killed": (no_clean_shutdown, "was killed before it had closed its logs"),
    "an unclean election since": (another_history, "another history than the plan's"),
    "a lost branch is copied": (
        unclean_election_below_the_copies,
        "epoch 4 begins at offset 25, and the last copy ends at 30",
    ),
    "trimmed beyond what is copied": (trimmed_beyond_the_copies, "begins at offset 60, and the last copy ends at 30"),
    "made anew under its name": (another_topic, "another topic of this name"),
    "on its way to another log dir": (moved_to_another_log_dir, "is being moved to another log dir"),
    "without a segment": (no_segment, "it has no segment"),
    "a damaged epoch file": (unreadable_epochs, "1 entries where 9 were announced"),
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_what_keeps_it_from_changing_anything(sentence: str, log_dir: Path) -> None:
    spoil, fault = FAULTS[sentence]
    spoil(log_dir)
    (found,) = planned_changes(plan(), [log_dir]).faults
    assert fault in found


@pytest.mark.parametrize(("start", "refused"), [(60, False), (62, False), (63, True), (10**9, True)])
def test_a_log_start_beyond_the_end_of_the_log_is_refused(start: int, refused: bool, log_dir: Path) -> None:
    """A broker that loads such a log deletes all of it.  The last batch has offsets 60 and 61; nothing follows it."""
    batch = bytearray(BATCH_HEADER_SIZE)
    HEADER_V2.pack_into(batch, 0, 60, BATCH_HEADER_SIZE - LOG_OVERHEAD, 4, 2, 0, 0, 1, 0, 0, -1, -1, -1, 2)
    (log_dir / "orders-0" / f"{60:020d}.log").write_bytes(bytes(batch) + bytes(100))
    high = planned(log_start_offset=Offset(start), high_watermark=Offset(start))
    faults = planned_changes(plan(high), [log_dir]).faults
    assert bool(faults) == refused
    assert not refused or f"is to start at {start}, and this replica ends at 62" in faults[0]


def not_a_log_dir(log_dir: Path) -> Path:
    (log_dir / "meta.properties").unlink()
    return log_dir


def damaged_starts(log_dir: Path) -> Path:
    (log_dir / "log-start-offset-checkpoint").write_text("not a checkpoint\n")
    return log_dir


@pytest.mark.parametrize(
    ("spoil", "cluster_id", "message"),
    [
        (not_a_log_dir, CLUSTER, "No such file"),
        (damaged_starts, CLUSTER, "is corrupt"),
        (
            lambda log_dir: log_dir,
            "another",
            "it is of cluster dGllcnNpZGVjYXItdGVzdA, and the plan of cluster another",
        ),
    ],
    ids=["not a log dir", "damaged log starts", "another cluster's"],
)
def test_what_is_refused_at_once(spoil: Callable[[Path], Path], cluster_id: str, message: str, log_dir: Path) -> None:
    with pytest.raises(HandoverError, match=message):
        planned_changes(plan(cluster_id=cluster_id), [spoil(log_dir)])


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    segment = PlannedSegment(
        uuid=Uuid(bytes(16)), start_offset=0, end_offset=9, size_bytes=5, object_bytes=(5, 4, -1), goes="retention-ms"
    )
    digest = RecordsDigest(start_offset=0, stop_offset=9, count=9, sha256="ab")
    made = replace(
        plan(
            planned(segments=(segment,), records=digest, foretold_start=Offset(9)),
            planned(owner=replace(ORDERS, partition=1)),
        ),
        plugin={"rsm.config.key.prefix": "tier/"},
        to_native=False,
    )
    write_plan(made, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == made
    (tmp_path / "any").touch()
    assert (tmp_path / "plan.json").stat().st_mode == (tmp_path / "any").stat().st_mode, "a broker's user reads it"
    with pytest.raises(HandoverError, match="the file exists"):
        write_plan(made, tmp_path / "plan.json")


def of_partition(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["partitions"][0].update(changes)


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a log start beyond int64": (of_partition(log_start_offset=2**63, high_watermark=2**63), "9223372036854775808"),
    "a negative log start": (of_partition(log_start_offset=-1), "-1"),
    "a log start that is a fraction": (of_partition(log_start_offset=1.5), "1.5"),
    "a log start that is a flag": (of_partition(log_start_offset=True), "True"),
    "a log start beyond the high watermark": (of_partition(log_start_offset=101), "starts at 101, beyond its end 100"),
    "a high watermark beyond int64": (of_partition(high_watermark=10**30), str(10**30)),
    "an epoch beyond int32": (of_partition(leader_epochs=[[2**31, 0]]), "2147483648"),
    "a negative epoch": (of_partition(leader_epochs=[[-1, 0]]), "-1"),
    "an epoch that starts below 0": (of_partition(leader_epochs=[[0, -7], [3, 20]]), "-7"),
    "epochs that do not ascend": (of_partition(leader_epochs=[[3, 0], [3, 20]]), "leader epochs do not ascend"),
    "starts that do not ascend": (of_partition(leader_epochs=[[0, 20], [3, 20]]), "leader epochs do not ascend"),
    "a replica on a broker below 0": (of_partition(replicas=[-1]), "-1"),
    "no replica at all": (of_partition(replicas=[]), "orders-0: it names no replicas"),
    "a partition beyond int32": (of_partition(partition=2**31), "2147483648"),
    "a copy that ends below 0": (of_partition(copied_stop=-3), "-3"),
    "a topic that no broker has": (of_partition(topic="../../etc"), "'../../etc' is not a topic name"),
    "a topic of one dot": (of_partition(topic=".."), "no topic can be named '..'"),
    "a topic without a name": (of_partition(topic=""), "the name of a topic is empty"),
    "a topic with a name that is too long": (of_partition(topic="t" * 250), "is not a topic name"),
    "a topic that moves the cursor": (of_partition(topic="o\x1b[2Jk"), "is not a topic name"),
    "a topic that ends a line": (of_partition(topic="orders\n"), "is not a topic name"),
    "a segment with words for offsets": (
        of_partition(segments=[["AAAAAAAAAAAAAAAAAAAAAA", "\x1b[2J", 9, 5, [5, 4, -1], ""]]),
        "is no whole number",
    ),
    "a size below that of a missing object": (
        of_partition(segments=[["AAAAAAAAAAAAAAAAAAAAAA", 0, 9, 5, [5, 4, -2], ""]]),
        "-2 is no whole number",
    ),
    "a digest of words": (of_partition(records=[0, "x", 1, "ab"]), "'x' is no whole number"),
    "a time that is none": (lambda document: document.update(made_ms=float("inf")), "inf is no whole number"),
    "a direction of words": (lambda document: document.update(to_native="false"), "to_native is 'false'"),
    "a value of a million letters": (lambda document: document.update(made_ms="m" * 1_000_000), "characters)"),
    "a partition twice": (
        lambda document: document["partitions"].append({**document["partitions"][0], "log_start_offset": 55}),
        "orders-0 is named twice",
    ),
}


@pytest.mark.parametrize("sentence", DAMAGED)
def test_a_plan_that_no_broker_could_follow_is_refused(sentence: str, tmp_path: Path) -> None:
    damage, message = DAMAGED[sentence]
    write_plan(plan(), tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    damage(document)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(HandoverError, match="it is not a plan") as found:
        read_plan(tmp_path / "plan.json")
    assert message in str(found.value)
    assert len(str(found.value)) < 1_000


def test_no_room_for_a_plan_leaves_no_half_of_one(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(HandoverError, match="File too large"):
            write_plan(plan(), tmp_path / "plan.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "it is not a plan"),
        ("", "it is not a plan"),
        ("[]", "it is not a plan"),
        ('{"version": 9}', "its version is 9, must be 1"),
        ('{"version": 1, "made_ms": 1}', "it is not a plan"),
        ('{"version": 1, "made_ms": 1e999}', "it is not a plan"),
        ("[" * 100_000, "it is not a plan"),
    ],
)
def test_what_is_no_plan(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(HandoverError, match=message):
        read_plan(path)
    with pytest.raises(HandoverError, match="No such file"):
        read_plan(tmp_path / "none.json")


def test_a_plan_with_a_path_for_a_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan(planned(owner=replace(ORDERS, topic="../../etc"))), path)
    with pytest.raises(HandoverError, match="is not a topic name"):
        read_plan(path)


@pytest.mark.parametrize("border", [30, 29])
def test_what_was_deleted_after_the_plan_does_not_come_back(log_dir: Path, border: int) -> None:
    """The log starts at 30: where the leader's started later or there at the time of the plan, nothing was deleted since."""
    faults = planned_changes(plan(planned(broker_log_start_offset=Offset(border))), [log_dir]).faults
    assert [("records were deleted since" in one) for one in faults] == ([True] if border < 30 else [])
