"""Files of a stopped broker: saved, changed and given back, and what keeps them from being given back (issue 21)."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiersidecar.adapters import broker_backup
from tiersidecar.adapters.broker_backup import Backup, FileChange
from tiersidecar.adapters.broker_files import CLEAN_SHUTDOWN, write_whole
from tiersidecar.domain.errors import HandoverError


class Broker:
    """A stopped broker with one log dir, two files to change, and a directory for their backup."""

    def __init__(self, root: Path) -> None:
        self.root, self.log_dir, self.saved = root, root / "data", root / "saved"
        self.epochs = self.log_dir / "orders-0" / "leader-epoch-checkpoint"
        self.starts = self.log_dir / "log-start-offset-checkpoint"
        self.epochs.parent.mkdir(parents=True)
        for path in (self.epochs, self.starts):
            path.write_bytes(b"before " + path.name.encode())
        (self.log_dir / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":7}')

    def backup(self, *, cluster_id: str = "c", node_id: int = 1) -> Backup:
        return Backup(self.saved, cluster_id=cluster_id, node_id=node_id, log_dirs=[self.log_dir])

    def changes(self) -> list[FileChange]:
        return [FileChange(path=path, before=path.read_bytes(), after=b"after") for path in (self.epochs, self.starts)]

    def contents(self) -> list[bytes]:
        return [self.epochs.read_bytes(), self.starts.read_bytes()]

    def edit(self, change: Callable[[dict[str, Any]], Any]) -> None:
        document = json.loads((self.saved / "backup.json").read_text())
        change(document)
        (self.saved / "backup.json").write_text(json.dumps(document))


BEFORE = [b"before leader-epoch-checkpoint", b"before log-start-offset-checkpoint"]
AFTER = [b"after", b"after"]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_files_are_changed_and_given_back(broker: Broker) -> None:
    assert broker.backup().apply(broker.changes()) == 2
    assert broker.contents() == AFTER
    assert sorted(path.name for path in broker.log_dir.iterdir()) == [
        CLEAN_SHUTDOWN,
        "log-start-offset-checkpoint",
        "orders-0",
    ], "nothing else stays there"
    assert broker.backup().undo() == 2
    assert broker.contents() == BEFORE
    assert broker.backup().undo() == 0, "they are as they were"


def test_a_run_that_was_interrupted_goes_on_and_the_first_copy_stays(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, data: bytes) -> None:
        if path == broker.starts:
            raise KeyboardInterrupt
        write_whole(path, data)

    monkeypatch.setattr(broker_backup, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broker.backup().apply(broker.changes())
    monkeypatch.undo()
    manifest = (broker.saved / "backup.json").stat()
    assert [one.before for one in broker.changes()] == [AFTER[0], BEFORE[1]]
    assert broker.backup().apply(broker.changes()) == 1
    assert (broker.saved / "backup.json").stat() == manifest, "what it says already is not written again"
    assert broker.backup().undo() == 2
    assert broker.contents() == BEFORE


def test_no_room_for_the_list_of_copies_leaves_the_one_before(broker: Broker) -> None:
    """A list that is cut short could neither be undone nor gone on with (issue 21)."""
    broker.backup().apply(broker.changes()[:1])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(HandoverError, match="File too large"):
            broker.backup().apply(broker.changes())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert broker.backup().undo() == 1
    assert broker.contents() == BEFORE
    assert broker.backup().apply(broker.changes()) == 2


def test_what_the_broker_has_written_since_is_neither_changed_nor_undone(broker: Broker) -> None:
    broker.backup().apply(broker.changes())
    broker.starts.write_bytes(b"the broker's")
    with pytest.raises(HandoverError, match="it has changed since"):
        broker.backup().undo()
    assert broker.epochs.read_bytes() == b"after", "none is touched"
    later = FileChange(path=broker.starts, before=b"the broker's", after=b"ours again")
    with pytest.raises(HandoverError, match="it has changed since it was saved"):
        broker.backup().apply([later])


def ran_and_ended(broker: Broker) -> None:
    (broker.log_dir / CLEAN_SHUTDOWN).unlink()
    (broker.log_dir / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":99}')


def ran_and_wrote_the_same(broker: Broker) -> None:
    path = broker.log_dir / CLEAN_SHUTDOWN
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(path.stat().st_mtime_ns + 1, path.stat().st_mtime_ns + 1))


def was_killed(broker: Broker) -> None:
    (broker.log_dir / CLEAN_SHUTDOWN).unlink()


@pytest.mark.parametrize("since", [ran_and_ended, ran_and_wrote_the_same, was_killed])
def test_a_broker_that_ran_since_gets_nothing_back(since: Callable[[Broker], None], broker: Broker) -> None:
    """Its files need not have changed: its log has, and its metadata (issue 21)."""
    broker.backup().apply(broker.changes()[:1])
    since(broker)
    with pytest.raises(HandoverError, match="the broker has run since, or was killed"):
        broker.backup().undo()
    assert broker.epochs.read_bytes() == b"after"
    with pytest.raises(HandoverError, match="the broker has run since, or was killed"):
        broker.backup().apply(broker.changes())
    assert broker.starts.read_bytes() == BEFORE[1]


def test_no_backup_is_no_undo(broker: Broker) -> None:
    with pytest.raises(HandoverError, match="there is no backup there: name its directory with --backup"):
        broker.backup().undo()


def names(path: str, **others: str) -> Callable[[Broker], None]:
    """A list that names another file, whose contents are right."""

    def forge(broker: Broker) -> None:
        target = Path(path.replace("ROOT", str(broker.root)).replace("DATA", str(broker.log_dir)))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"root:x:0:0")
        copy = others.get("copy", "000000-leader-epoch-checkpoint")
        (broker.saved / copy).write_bytes(b"root::0:0")
        sha = {
            name: hashlib.sha256(data).hexdigest()
            for name, data in (("before", b"root::0:0"), ("after", b"root:x:0:0"))
        }
        broker.edit(lambda document: document["files"].update({str(target): {"copy": copy, **sha}}))

    return forge


FORGED: dict[str, tuple[Callable[[Broker], Any], str]] = {
    "a file elsewhere": (names("ROOT/passwd"), "is no checkpoint in the configured log dirs"),
    "a checkpoint elsewhere": (names("ROOT/orders-0/leader-epoch-checkpoint"), "is no checkpoint in the configured"),
    "a way out of the log dir": (names("DATA/../log-start-offset-checkpoint"), "is no checkpoint in the configured"),
    "another file of the log dir": (names("DATA/meta.properties"), "is no checkpoint in the configured log dirs"),
    "a checkpoint of no partition": (
        names("DATA/orders/leader-epoch-checkpoint"),
        "is no checkpoint in the configured",
    ),
    "a copy elsewhere": (names("DATA/orders-1/leader-epoch-checkpoint", copy="../stolen"), "is not the name of a copy"),
    "another cluster's": (lambda broker: broker.edit(lambda one: one.update(cluster_id="d")), "it is of cluster d"),
    "another broker's": (lambda broker: broker.edit(lambda one: one.update(node_id=2)), "it is of broker 2"),
    "of other log dirs": (lambda broker: broker.edit(lambda one: one.update(shutdowns={})), "it is of other log dirs"),
    "of another version": (
        lambda broker: broker.edit(lambda one: one.update(version=9)),
        "its version is 9, must be 1",
    ),
    "everybody's to write": (lambda broker: broker.saved.chmod(0o777), "every user of this machine may write"),
    "not understood": (lambda broker: broker.edit(lambda one: one["files"].update(x={"u": 1})), "it cannot be read"),
    "deep": (lambda broker: (broker.saved / "backup.json").write_text("[" * 200_000), "it cannot be read"),
}


@pytest.mark.parametrize("sentence", FORGED)
def test_a_list_that_is_not_this_brokers_is_refused(sentence: str, broker: Broker) -> None:
    """A plan and its backups are handed around: what they name is not to be trusted (issue 21)."""
    broker.backup().apply(broker.changes())
    forge, message = FORGED[sentence]
    forge(broker)
    files = {path: path.read_bytes() for path in broker.root.rglob("*") if path.is_file()}
    with pytest.raises(HandoverError, match=message):
        broker.backup().undo()
    assert {path: path.read_bytes() for path in broker.root.rglob("*") if path.is_file()} == files


def test_a_list_of_another_user_is_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.backup().apply(broker.changes())
    owner = broker.saved.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(HandoverError, match=f"it belongs to user {owner}"):
        broker.backup().undo()


def test_damaged_copies_are_refused(broker: Broker) -> None:
    broker.backup().apply(broker.changes())
    next(broker.saved.glob("*-log-start-offset-checkpoint")).write_bytes(b"something else")
    with pytest.raises(HandoverError, match="the copy is damaged"):
        broker.backup().undo()
    assert broker.contents() == AFTER, "none is touched"
