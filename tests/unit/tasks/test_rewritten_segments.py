"""What a former release uploaded after its broker had lost its producers' state: found by the deep check, and written again
from the store under a new id, with what the batches tell (rule 14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.deep_checks import deep_findings
from tests.support.recopy_requests import rewrite_of
from tests.support.tier_shell import BROKER, TierShell
from tests.unit.tasks.test_copy_of_pins import delete_as_retention_does
from tiersidecar.adapters.clock import ThreadBlocking
from tiersidecar.decide.reconcile_findings import Finding, FindingKind
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import LocalSegment, RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index
from tiersidecar.formats.kafka.producer_state import SegmentTransactions, TransactionWalk
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.ports.store import BytesBody
from tiersidecar.reading.remote_objects import recorded_keys
from tiersidecar.tasks.segment_objects import LayoutSettings


class Unseeing(TransactionWalk):
    """As a former release, which took what the broker's files had."""

    def take(self, batch: bytes | bytearray | memoryview, *, where: str, position: int) -> None:
        return None

    def finish(self) -> SegmentTransactions:
        return SegmentTransactions()


class Uploaded:
    """All of a partition with transactions is remote.  From its second segment on its broker had no producers' state."""

    def __init__(self, shell: TierShell) -> None:
        self.shell, self.topic_id_partition = shell, shell.topic_id_partition("transactions-0")
        self.said = [self._entries(number) for number in range(len(self._local()) - 1)]

    async def copy_as_a_former_release(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for segment in self._local()[1:-1]:
            rebuilder = SegmentRebuilder(where="log", base_offset=segment.base_offset, earlier_snapshot=None)
            rebuilder.feed(Path(segment.log_path).read_bytes())
            made = rebuilder.finish()
            Path(segment.log_path).with_suffix(".txnindex").write_bytes(made.transaction_index or b"")
            snapshot = Path(segment.directory, f"{segment.next_base_offset:020d}.snapshot")
            snapshot.write_bytes(made.producer_snapshot)
        with monkeypatch.context() as former:
            former.setattr("tiersidecar.tasks.segment_reading.TransactionWalk", Unseeing)
            former.setattr("tiersidecar.tasks.segment_reading.TransactionWalk", Unseeing)
            await self.shell.copy.run(self.shell.tiered(self.topic_id_partition))
        await delete_as_retention_does(self.shell, self.topic_id_partition, len(self._local()) - 1)

    def finished(self) -> list[RemoteLogSegmentMetadata]:
        listed = self.shell.metadata.list_remote_log_segments(self.topic_id_partition)
        return [one for one in listed if one.state is State.COPY_SEGMENT_FINISHED]

    async def check(self, number: int) -> list[Finding]:
        segments = self.finished()
        return await deep_findings(self.shell.store, segments[number], segments)

    async def rewrite(self, number: int) -> RemoteLogSegmentMetadata:
        victim = self.finished()[number]
        await self.shell.state.request_recopy(rewrite_of(victim))
        assert self.shell.recopy.has_work(self.shell.tiered(self.topic_id_partition))
        await self.shell.recopy.run(self.shell.tiered(self.topic_id_partition))
        return victim

    async def aborted(self, number: int) -> Sequence[AbortedTransaction]:
        segment = self.finished()[number]
        files = await self.shell.blobs.read_index_files(segment)
        return read_transaction_index(files.transaction_index, base_offset=segment.start_offset)

    def _local(self) -> list[LocalSegment]:
        return list(self.shell.table.local.partitions[self.topic_id_partition].segments)

    def _entries(self, number: int) -> Sequence[AbortedTransaction]:
        """As the broker has them that has lost nothing."""
        segment = self._local()[number]
        path = Path(segment.log_path).with_suffix(".txnindex")
        data = path.read_bytes() if path.exists() else b""
        return list(read_transaction_index(data, base_offset=Offset(segment.base_offset)))


@pytest.fixture
async def uploaded(tmp_path: Path) -> AsyncIterator[Uploaded]:
    async with ThreadBlocking(max_threads=4) as blocking:
        shell = TierShell(tmp_path, blocking, LayoutSettings(), TopicPolicy(), partitions=("transactions-0",))
        await shell.look()
        shell.table.pins.unread = frozenset()
        yield Uploaded(shell)


async def test_what_this_release_uploads_lacks_nothing(uploaded: Uploaded) -> None:
    await uploaded.shell.copy.run(uploaded.shell.tiered(uploaded.topic_id_partition))
    for number in range(len(uploaded.finished())):
        assert await uploaded.check(number) == []


async def test_an_index_without_an_abort_is_found_and_written_again_though_no_broker_has_the_segment(
    uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segment by segment: what the next one lacks is known once the one before it is right."""
    await uploaded.copy_as_a_former_release(monkeypatch)
    lacking = 0
    for number in range(len(uploaded.finished())):
        found = await uploaded.check(number)
        assert [one.kind for one in found] in ([], [FindingKind.LACKING_TRANSACTIONS])
        if not found:
            continue
        assert "its batches contain what its indexes lack" in found[0].detail
        lacking += await uploaded.aborted(number) != uploaded.said[number]
        victim = await uploaded.rewrite(number)
        assert await uploaded.check(number) == []
        new = uploaded.finished()[number]
        assert (new.start_offset, new.end_offset) == (victim.start_offset, victim.end_offset)
        assert new.remote_log_segment_id != victim.remote_log_segment_id
        assert (new.max_timestamp_ms, new.segment_leader_epochs) == (
            victim.max_timestamp_ms,
            victim.segment_leader_epochs,
        )
        assert uploaded.shell.metadata.segment(victim.remote_log_segment_id) is None
        assert uploaded.shell.state.recopies(uploaded.topic_id_partition) == []
    assert lacking, "a segment whose index lacked an entry is wanted"
    assert [list(await uploaded.aborted(number)) for number in range(len(uploaded.said))] == uploaded.said
    assert list((uploaded.shell.log_dir.parent / "rewritten").iterdir()) == []


async def test_a_segment_that_cannot_be_read_from_the_store_is_left(
    uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await uploaded.copy_as_a_former_release(monkeypatch)
    victim = uploaded.finished()[1]
    key = recorded_keys(victim).log
    spoiled = bytearray(await uploaded.shell.store.fetch_object(key, max_bytes=2**30))
    spoiled[len(spoiled) // 2] ^= 1
    await uploaded.shell.store.put_object(key, BytesBody(bytes(spoiled)))
    await uploaded.rewrite(1)
    assert victim in uploaded.finished()
    (request,) = uploaded.shell.state.recopies(uploaded.topic_id_partition)
    assert "it cannot be read from the store" in request.declined[BROKER]
