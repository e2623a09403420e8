"""``handover restore`` on the files of a broker that was trimmed, from a bucket that the real plugin filled (issue 21)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tests.support.daemon import daemon_settings
from tests.support.golden import AIVEN_OBJECTS
from tests.support.remote_runs import load_run, segments_of
from tests.unit.adapters.log_dirs_fs.broker_files import GOLDEN, ScratchLogDir, copy_golden_partition
from tiersidecar.adapters.broker_backup import Backup, FileChange
from tiersidecar.adapters.restored_segment import STAGED
from tiersidecar.app.cli import app
from tiersidecar.app.config.config import Config
from tiersidecar.app.handover.plan import Plan, PlannedPartition, PlannedPiece, write_plan
from tiersidecar.app.handover.restore_run import Deed, Restored, RestoreRequest, run_restore
from tiersidecar.domain.errors import CorruptDataError, HandoverError, StoreError
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

CLUSTER = "dGllcnNpZGVjYXItdGVzdA"
LOCAL_START = 133
CLEAN = GOLDEN / "clean" / "transactions-0"
NOW_MS = 1_700_000_000_000


@dataclass(kw_only=True)
class World:
    """A broker's log dir, a bucket, and a plan."""

    config: Config
    log_dir: Path
    plan_file: Path
    store_root: Path
    segments: list[RemoteLogSegmentMetadata]

    @property
    def directory(self) -> Path:
        return self.log_dir / "transactions-0"

    def write_plan(self, **changes: object) -> None:
        first = self.segments[0]
        values = {
            "owner": first.topic_id_partition,
            "log_start_offset": Offset(0),
            "leader_epochs": (EpochEntry(LeaderEpoch(0), Offset(0)),),
            "high_watermark": Offset(294),
            "copied_stop": self.segments[-1].next_offset,
            "broker_log_start_offset": Offset(LOCAL_START),
            "replicas": (1,),
            "pieces": tuple(
                PlannedPiece(start_offset=one.start_offset, stop_offset=one.next_offset, segment=one)
                for one in self.segments
            ),
        } | changes
        self.plan_file.unlink(missing_ok=True)
        partitions = (PlannedPartition(**values),)  # type: ignore[arg-type]
        plan = Plan(made_ms=NOW_MS, cluster_id=CLUSTER, partitions=partitions, to_native=False, back_to_local=True)
        write_plan(plan, self.plan_file)

    async def run(self, deed: Deed, **values: object) -> Restored:
        properties = self.log_dir.parent / "server.properties"
        properties.write_text(f"log.dirs={self.log_dir}\n")
        request = RestoreRequest(
            plan_file=self.plan_file,
            deed=deed,
            properties=properties,
            takes_old=True,
            **values,  # type: ignore[arg-type]
        )
        return await run_restore(self.config, request, lambda _: None)

    def files(self) -> dict[str, bytes]:
        paths = [*self.directory.iterdir(), self.log_dir / "log-start-offset-checkpoint"]
        return {path.name: path.read_bytes() for path in paths}


@pytest.fixture
async def world(tmp_path: Path) -> World:
    run = await load_run("plain")
    segments = segments_of(run, run.partition("transactions-0"))
    scratch = ScratchLogDir(tmp_path / "data")
    directory = copy_golden_partition("transactions-0", scratch.path)
    for path in directory.iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < LOCAL_START:
            path.unlink()
    (directory / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {LOCAL_START}\n")
    (scratch.path / "log-start-offset-checkpoint").write_text(f"0\n1\ntransactions 0 {LOCAL_START}\n")
    (scratch.path / ".kafka_cleanshutdown").touch()
    settings = daemon_settings(tmp_path, bootstrap_servers="127.0.0.1:1", log_dirs=[scratch.path], topics=[])
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(AIVEN_OBJECTS / "plain", tmp_path / "store")
    config = Config.model_validate(settings, context={"environ": {}}, by_alias=True, by_name=False)
    made = World(
        config=config,
        log_dir=scratch.path,
        plan_file=tmp_path / "plan.json",
        store_root=tmp_path / "store",
        segments=[one for one in segments if one.start_offset < LOCAL_START],
    )
    made.write_plan()
    return made


async def test_the_log_is_whole_again(world: World) -> None:
    looked = await world.run(Deed.LOOK)
    assert (looked.faults, [len(one.pieces) for one in looked.replicas]) == ((), [len(world.segments)])
    before = world.files()
    staged = await world.run(Deed.STAGE)
    assert {name: data for name, data in world.files().items() if not name.endswith(STAGED)} == before
    done = await world.run(Deed.CARRY_OUT, reads_all=True)
    assert (done.faults, done.files, done.checkpoints) == ((), staged.files, 2)
    found = world.files()
    for segment in world.segments:
        for suffix in ("log", "txnindex"):
            name = f"{segment.start_offset:020d}.{suffix}"
            broker = (CLEAN / name).read_bytes()
            assert found.get(name, b"") == broker
    assert found["leader-epoch-checkpoint"] == b"0\n1\n0 0\n"
    assert found["log-start-offset-checkpoint"] == b"0\n0\n"
    assert f"{LOCAL_START:020d}.snapshot" in before
    assert found[f"{LOCAL_START:020d}.snapshot"] == before[f"{LOCAL_START:020d}.snapshot"]
    assert (await world.run(Deed.CARRY_OUT)).files == 0, "done is done"
    undone = await world.run(Deed.UNDO)
    assert (undone.files, undone.checkpoints) == (staged.files, 2)
    assert {name: data for name, data in world.files().items() if not name.endswith(STAGED)} == before
    assert (await world.run(Deed.CARRY_OUT)).files == staged.files, "and may be carried out anew"
    await world.run(Deed.UNDO)
    assert (await world.run(Deed.DISCARD)).files == staged.files
    assert world.files() == before


async def test_a_run_that_broke_off_goes_on(world: World) -> None:
    lost = next(world.store_root.glob("transactions-*/0/00000000000000000086-*.log"))
    kept = lost.read_bytes()
    lost.unlink()
    with pytest.raises(StoreError):
        await world.run(Deed.STAGE)
    (fault, *_) = (await world.run(Deed.CARRY_OUT)).faults
    assert "the replicas of brokers 1 are not staged" in fault
    lost.write_bytes(kept)
    assert (await world.run(Deed.STAGE)).files
    assert (await world.run(Deed.STAGE)).files == 0, "what is staged is left"
    assert (await world.run(Deed.CARRY_OUT)).faults == ()


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda world: (world.log_dir / ".kafka_cleanshutdown").unlink(), "was killed before"),
        (lambda world: (world.directory / "00000000000000000120.log").touch(), "begins at 120 now"),
        (lambda world: world.write_plan(replicas=(1, 2)), "another plan"),
    ],
)
async def test_what_keeps_it_from_being_carried_out(world: World, spoil: Callable[[World], object], word: str) -> None:
    await world.run(Deed.STAGE)
    spoil(world)
    try:
        faults = " ".join((await world.run(Deed.CARRY_OUT)).faults)
    except HandoverError as error:
        faults = str(error)
    assert word in faults
    assert bool(faults) == bool(word)


async def test_nothing_takes_its_place_beside_a_backup_of_another_time(world: World) -> None:
    await world.run(Deed.STAGE)
    await world.run(Deed.CARRY_OUT)
    start = world.log_dir / "log-start-offset-checkpoint"
    (world.log_dir / ".kafka_cleanshutdown").write_text("the broker has run")
    start.write_text(f"0\n1\ntransactions 0 {LOCAL_START}\n")
    for name in [name for name in world.files() if name[:20].isdigit() and int(name[:20]) < LOCAL_START]:
        (world.directory / name).unlink()  # it has deleted them by that
    assert "move that directory away" in " ".join((await world.run(Deed.STAGE)).faults)
    before = world.files()
    assert (await world.run(Deed.CARRY_OUT)).faults
    assert world.files() == before
    former = world.plan_file.with_name("plan.json.broker-1") / "former"
    former.rename(former.with_name("old"))
    assert (await world.run(Deed.STAGE)).faults == ()
    assert (await world.run(Deed.CARRY_OUT)).faults == ()


async def test_a_broker_that_has_run_since_is_not_undone(world: World) -> None:
    await world.run(Deed.STAGE)
    await world.run(Deed.CARRY_OUT)
    (world.log_dir / ".kafka_cleanshutdown").unlink()
    (world.log_dir / ".kafka_cleanshutdown").write_text("another end")
    before = world.files()
    with pytest.raises(HandoverError, match="has run since"):
        await world.run(Deed.UNDO)
    assert world.files() == before


async def test_a_damaged_object_stops_it(world: World) -> None:
    log = next(world.store_root.glob("transactions-*/0/00000000000000000043-*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(CorruptDataError):
        await world.run(Deed.STAGE)


async def test_only_what_is_missing_above_the_users_start_comes_back(world: World) -> None:
    second = world.segments[1]
    world.write_plan(
        log_start_offset=second.start_offset,
        pieces=tuple(
            PlannedPiece(start_offset=one.start_offset, stop_offset=one.next_offset, segment=one)
            for one in world.segments[1:]
        ),
    )
    await world.run(Deed.STAGE)
    assert (await world.run(Deed.CARRY_OUT)).faults == ()
    assert min(name for name in world.files() if name.endswith(".log")) == f"{second.start_offset:020d}.log"
    assert world.files()["log-start-offset-checkpoint"] == b"0\n1\ntransactions 0 43\n"


def breaks_off_at_log(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], None]:
    """The rename of the ``number``-th .log fails, as if the run were killed there; gives what mends it."""
    real, seen = Path.rename, [0]

    def rename(self: Path, target: Path) -> Path:
        seen[0] += str(target).endswith(".log")
        if seen[0] >= number:
            raise OSError(5, "killed")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    return lambda: monkeypatch.setattr(Path, "rename", real)


async def test_staging_refuses_what_broke_off_within_the_renames(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the restored segments for the log's own, and forget those beside them (a silent hole)."""
    await world.run(Deed.STAGE)
    staged_file = world.plan_file.with_name("plan.json.broker-1") / "staged.json"
    known = staged_file.read_bytes()
    mend = breaks_off_at_log(monkeypatch, 2)
    with pytest.raises(HandoverError, match="killed"):
        await world.run(Deed.CARRY_OUT)
    mend()
    again = await world.run(Deed.STAGE)
    assert "carried out, at least in part" in " ".join(again.faults)
    assert staged_file.read_bytes() == known
    assert (await world.run(Deed.CARRY_OUT, reads_all=True)).faults == ()
    bases = {int(name[:20]) for name in world.files() if name.endswith(".log")}
    assert {one.start_offset for one in world.segments} <= bases


async def test_another_plan_sees_the_hole_of_one_that_broke_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.run(Deed.STAGE)
    mend = breaks_off_at_log(monkeypatch, 2)
    with pytest.raises(HandoverError, match="killed"):
        await world.run(Deed.CARRY_OUT)
    mend()
    world.plan_file = world.plan_file.with_name("second.json")
    world.write_plan(high_watermark=Offset(293))
    (fault,) = (await world.run(Deed.STAGE)).faults
    assert "a restore of it was interrupted" in fault


async def test_carrying_out_goes_by_the_plan_and_not_by_staged_json(world: World) -> None:
    await world.run(Deed.STAGE)
    staged_file = world.plan_file.with_name("plan.json.broker-1") / "staged.json"
    document = json.loads(staged_file.read_text())
    (partition,) = document["partitions"]
    partition["files"] = [one for one in partition["files"] if not one[0].startswith(f"{43:020d}.")]
    staged_file.write_text(json.dumps(document))
    before = world.files()
    (fault,) = (await world.run(Deed.CARRY_OUT)).faults
    assert "it would lack the offsets [43, 86)" in fault
    assert world.files() == before


async def test_staging_after_it_was_carried_out_is_refused(world: World) -> None:
    """Else the staged.json is overwritten, and --undo takes nothing out."""
    before = world.files()
    staged = await world.run(Deed.STAGE)
    await world.run(Deed.CARRY_OUT)
    assert (await world.run(Deed.STAGE)).faults
    assert (await world.run(Deed.UNDO)).files == staged.files
    assert {name: data for name, data in world.files().items() if not name.endswith(STAGED)} == before


@pytest.mark.parametrize("deed", [Deed.STAGE, Deed.CARRY_OUT])
async def test_what_users_deleted_after_the_plan_does_not_come_back(world: World, deed: Deed) -> None:
    """The broker's checkpoint has it, within its first segment (kafka-delete-records)."""
    world.write_plan(copied_stop=Offset(200))
    if deed is Deed.CARRY_OUT:
        assert (await world.run(Deed.STAGE)).faults == ()
    start = world.log_dir / "log-start-offset-checkpoint"
    start.write_text(f"0\n1\ntransactions 0 {LOCAL_START + 10}\n")
    before = world.files()
    assert "records were deleted since" in " ".join((await world.run(deed)).faults)
    assert world.files() == before


async def test_a_start_half_way_finds_the_log_start_as_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker has no entry where its log begins with its first segment: each rename would move it (issue 21)."""
    start = world.log_dir / "log-start-offset-checkpoint"
    start.write_text("0\n0\n")
    before, seen, real = world.files(), set[tuple[bytes, bytes]](), Path.rename

    def rename(self: Path, target: Path) -> Path:
        if Path(target).parent == world.directory or self.parent == world.directory:
            seen.add((start.read_bytes(), (world.directory / "leader-epoch-checkpoint").read_bytes()))
        return real(self, target)

    await world.run(Deed.STAGE)
    monkeypatch.setattr(Path, "rename", rename)
    await world.run(Deed.CARRY_OUT)
    as_it_was = (f"0\n1\ntransactions 0 {LOCAL_START}\n".encode(), before["leader-epoch-checkpoint"])
    assert seen == {as_it_was}
    assert start.read_bytes() == b"0\n0\n", "the users' start is 0"
    seen.clear()
    await world.run(Deed.UNDO)
    assert seen == {as_it_was}
    assert {name: data for name, data in world.files().items() if not name.endswith(STAGED)} == before


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_what_broke_off_is_undone(world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (world.log_dir / "log-start-offset-checkpoint").write_text("0\n0\n")
    before = world.files()
    await world.run(Deed.STAGE)
    mend = breaks_off_at_log(monkeypatch, number)
    with pytest.raises(HandoverError, match="killed"):
        await world.run(Deed.CARRY_OUT)
    mend()
    assert (await world.run(Deed.DISCARD)).faults, "not while some have their places"
    assert (await world.run(Deed.UNDO)).faults == ()
    assert {name: data for name, data in world.files().items() if not name.endswith(STAGED)} == before
    assert (await world.run(Deed.CARRY_OUT)).faults == ()


async def test_a_plan_that_was_never_carried_out_undoes_nothing(world: World) -> None:
    """Files in their places are another plan's, and the broker may have run on them for weeks."""
    await world.run(Deed.STAGE)
    first = world.plan_file
    world.plan_file = first.with_name("second.json")
    world.write_plan(high_watermark=Offset(293))
    await world.run(Deed.STAGE)
    assert (await world.run(Deed.CARRY_OUT)).faults == ()
    before = world.files()
    world.plan_file = first
    with pytest.raises(HandoverError, match="nothing was carried out by this plan"):
        await world.run(Deed.UNDO)
    assert world.files() == before


async def test_undo_moves_no_file_that_is_not_what_was_staged(world: World) -> None:
    await world.run(Deed.STAGE)
    await world.run(Deed.CARRY_OUT)
    (world.directory / f"{43:020d}.log").write_bytes(b"a live one")
    before = world.files()
    (fault,) = (await world.run(Deed.UNDO)).faults
    assert "is not the file that was staged" in fault
    assert world.files() == before


@pytest.mark.parametrize("deed", [Deed.CARRY_OUT, Deed.UNDO])
async def test_a_forged_staged_json_reaches_no_other_topic(world: World, deed: Deed) -> None:
    await world.run(Deed.STAGE)
    await world.run(Deed.CARRY_OUT)
    victim = world.log_dir / "victim-0"
    victim.mkdir()
    (victim / f"{0:020d}.log").write_bytes(b"x" * 100)
    staged_file = world.plan_file.with_name("plan.json.broker-1") / "staged.json"
    document = json.loads(staged_file.read_text())
    forged = {"topic": "victim", "directory": str(victim), "files": [[f"{0:020d}.log", 1, "0" * 64, 1]]}
    document["partitions"].append(document["partitions"][0] | forged)
    staged_file.write_text(json.dumps(document))
    with pytest.raises(HandoverError, match="the plan has no such replica"):
        await world.run(deed)
    assert [path.name for path in victim.iterdir()] == [f"{0:020d}.log"]


async def test_the_lock_of_a_run_follows_no_link(world: World) -> None:
    directory = world.plan_file.with_name("plan.json.broker-1")
    directory.mkdir()
    (directory / ".lock").symlink_to(world.directory / f"{LOCAL_START:020d}.log")
    before = world.files()
    with pytest.raises(HandoverError):
        await world.run(Deed.STAGE)
    assert world.files() == before
    (directory / ".lock").unlink()
    directory.chmod(0o777)
    with pytest.raises(HandoverError, match="every user of this machine may write"):
        await world.run(Deed.STAGE)


@pytest.mark.parametrize("deed", [Deed.STAGE, Deed.CARRY_OUT, Deed.UNDO, Deed.DISCARD])
async def test_one_run_at_a_time(world: World, deed: Deed) -> None:
    await world.run(Deed.STAGE)
    lock = world.plan_file.with_name("plan.json.broker-1") / ".lock"
    script = "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); input()"
    with Popen([sys.executable, "-c", script, str(lock)], stdin=PIPE, stdout=PIPE) as other:  # noqa: ASYNC220
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(HandoverError, match="another `handover restore` works there"):
            await world.run(deed)
        other.stdin.close()


async def test_a_file_that_goes_meanwhile_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.run(Deed.STAGE)
    real = Backup.save

    def save(self: Backup, changes: Sequence[FileChange]) -> None:
        (world.directory / f"{43:020d}.log{STAGED}").unlink()
        real(self, changes)

    monkeypatch.setattr(Backup, "save", save)
    with pytest.raises(HandoverError, match="it is gone"):
        await world.run(Deed.CARRY_OUT)
    assert (world.directory / "leader-epoch-checkpoint").read_text() == f"0\n1\n0 {LOCAL_START}\n"


async def test_discard_knows_staged_files_by_their_names(world: World) -> None:
    """Also of a run that broke off before it could write down what it has, or of an earlier plan."""
    before = world.files()
    lost = next(world.store_root.glob("transactions-*/0/00000000000000000086-*.log"))
    lost.unlink()
    with pytest.raises(StoreError):
        await world.run(Deed.STAGE)
    assert any(name.endswith(STAGED) for name in world.files())
    world.plan_file = world.plan_file.with_name("second.json")
    world.write_plan()
    assert (await world.run(Deed.DISCARD)).files
    assert world.files() == before


async def test_what_is_discarded_is_not_said_to_be_staged(world: World) -> None:
    await world.run(Deed.STAGE)
    await world.run(Deed.DISCARD)
    staged_file = world.plan_file.with_name("plan.json.broker-1") / "staged.json"
    assert json.loads(staged_file.read_text())["partitions"] == []


async def test_what_an_earlier_plan_has_staged_counts_as_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.run(Deed.STAGE)
    world.plan_file = world.plan_file.with_name("second.json")
    world.write_plan(high_watermark=Offset(293))
    left = SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=0)
    monkeypatch.setattr("tiersidecar.app.handover.restore.os.statvfs", lambda _: left)
    assert (await world.run(Deed.STAGE)).faults == ()


def test_files_refuses_the_plan(world: World, tmp_path: Path) -> None:
    """Its checkpoints without its segments are a log with a hole."""
    settings = daemon_settings(tmp_path, bootstrap_servers="127.0.0.1:1", log_dirs=[world.log_dir], topics=[])
    config, properties = tmp_path / "config.json", tmp_path / "server.properties"
    config.write_text(json.dumps(settings))
    properties.write_text(f"log.dirs={world.log_dir}\n")
    before = world.files()
    for deed in ("--carry-out", "--undo"):
        told = ["handover", "files", str(world.plan_file), "-c", str(config), deed, "--old-plan"]
        done = CliRunner().invoke(app, [*told, "--broker-properties", str(properties)])
        assert "handover restore" in done.stderr
        assert done.exit_code != 0
    assert world.files() == before


@pytest.mark.parametrize("then", [Deed.UNDO, Deed.CARRY_OUT])
async def test_an_undo_that_broke_off_goes_on(world: World, monkeypatch: pytest.MonkeyPatch, then: Deed) -> None:
    """All is given back, and the backup is not set aside yet."""
    (world.log_dir / "log-start-offset-checkpoint").write_text("0\n0\n")
    before, real = world.files(), Path.rename
    second = world.segments[1].start_offset
    pieces = [
        PlannedPiece(start_offset=one.start_offset, stop_offset=one.next_offset, segment=one) for one in world.segments
    ]
    world.write_plan(log_start_offset=second, pieces=tuple(pieces[1:]))
    await world.run(Deed.STAGE)
    await world.run(Deed.CARRY_OUT)

    def rename(self: Path, target: Path) -> Path:
        if self.name == "former":
            raise OSError(5, "killed")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(HandoverError, match="killed"):
        await world.run(Deed.UNDO)
    monkeypatch.setattr(Path, "rename", real)
    assert (await world.run(then)).faults == ()
    if then is Deed.CARRY_OUT:
        assert world.files()["log-start-offset-checkpoint"] == f"0\n1\ntransactions 0 {second}\n".encode()
        assert (await world.run(Deed.UNDO)).faults == ()
    assert {name: data for name, data in world.files().items() if not name.endswith(STAGED)} == before
