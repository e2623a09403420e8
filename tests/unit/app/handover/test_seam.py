"""Whether a broker's own transaction index goes on where the restored log ends: golden segments of a real broker (issue 21)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.adapters.log_dirs_fs.broker_files import copy_golden_partition
from tiersidecar.adapters.log_dirs_fs.log_dir_scan import read_partition_directory
from tiersidecar.app.handover.seam import seam_fault
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.producer_state import ProducerState, write_producer_snapshot


class Replica:
    """A log that begins with one of the golden segments: its transactions began below."""

    def __init__(self, directory: Path) -> None:
        self.directory = copy_golden_partition("transactions-0", directory)
        self.start, self.entry = self._crossing()
        for path in self.directory.iterdir():
            if path.name[:20].isdigit() and int(path.name[:20]) < self.start:
                path.unlink()

    def _crossing(self) -> tuple[int, AbortedTransaction]:
        """The first segment with the abort of a transaction that began before it."""
        for path in sorted(self.directory.glob("*.txnindex")):
            for entry in read_transaction_index(path.read_bytes(), base_offset=Offset(0)):
                if entry.first_offset < int(path.stem):
                    return int(path.stem), entry
        raise AssertionError("the golden log has none")

    @property
    def snapshot(self) -> bytes:
        return (self.directory / f"{self.start:020d}.snapshot").read_bytes()

    def index(self) -> Path:
        return self.directory / f"{self.start:020d}.txnindex"

    def fault(self, producers: bytes) -> str:
        local = read_partition_directory(str(self.directory.parent), str(self.directory), "transactions", 0)
        assert local is not None
        return seam_fault(local, Offset(self.start), producers)


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)


def test_a_broker_that_saw_all_goes_on(replica: Replica) -> None:
    assert replica.fault(replica.snapshot) == ""


def test_nothing_is_open_where_nothing_was_restored(replica: Replica) -> None:
    replica.index().write_bytes(b"")
    assert replica.fault(b"") == ""
    assert replica.fault(write_producer_snapshot()) == ""


def test_a_replica_that_was_made_anew_knows_no_abort(replica: Replica) -> None:
    replica.index().unlink()
    fault = replica.fault(replica.snapshot)
    assert f"begins at offset {replica.entry.first_offset} was aborted at {replica.entry.last_offset}" in fault


def test_or_knows_one_that_begins_too_late(replica: Replica) -> None:
    entries = read_transaction_index(replica.index().read_bytes(), base_offset=Offset(0))
    late = [one._replace(first_offset=Offset(replica.start)) if one == replica.entry else one for one in entries]
    replica.index().write_bytes(write_transaction_index(late))
    assert "was aborted at" in replica.fault(replica.snapshot)


def test_a_transaction_that_is_open_to_the_end_must_end_first(replica: Replica) -> None:
    unknown = ProducerState(producer_id=999, epoch=0, current_transaction_first_offset=3)
    assert "producers 999 from offset 3 are open" in replica.fault(write_producer_snapshot([unknown]))
